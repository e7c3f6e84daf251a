"""The whole pipeline, top to bottom: file -> graph -> optimised graph -> a module that runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

import onnx

from graft.backends.host.backend import HostBackend
from graft.backends.reference.backend import ReferenceBackend
from graft.base.errors import UnsupportedError, UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.module import Module, Placement, Program
from graft.passes.pipeline import optimize

DEFAULT_TARGET = ("host",)


class Executable(Program, Protocol):
    """A compiled graph: runs, and says which nodes are left to the reference evaluator."""

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Names of values computed there, each with the reason."""
        ...


class Backend(Protocol):
    """What compiles graphs."""

    name: str

    def compile(self, graph: Graph) -> Executable:
        """The graph, ready to run."""
        ...


BACKENDS: dict[str, Callable[[int | None], Backend]] = {
    "host": HostBackend,
    "reference": lambda _threads: ReferenceBackend(),
}


def compile(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | Graph,
    target: str | Sequence[str] = DEFAULT_TARGET,
    strict: bool = False,
    threads: int | None = None,
) -> Module:
    """Compile a model: a path, bytes, a `ModelProto` or a graph.

    `target` names the backends to use, best first. `strict` refuses to run any operator on the
    reference evaluator. `threads` is how many threads native code uses, by default one per core.
    """
    backend = _backend([target] if isinstance(target, str) else list(target), threads)
    graph = model if isinstance(model, Graph) else import_model(model)
    graph = optimize(graph)
    executable = backend.compile(graph)
    left = executable.reference_nodes
    if strict and left:
        name, reason = next(iter(left.items()))
        raise UnsupportedError(
            f"strict=True refuses the reference evaluator, which {len(left)} nodes need;"
            f" the first is %{name}: {reason}"
        )
    total = sum(1 for _ in graph.walk())
    counts = {backend.name: total - len(left), "reference": len(left)}
    placement = Placement({name: count for name, count in counts.items() if count}, dict(left))
    return Module(graph, placement, executable)


def _backend(names: list[str], threads: int | None) -> Backend:
    for name in names:
        if name not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise UserError(f"there is no backend '{name}'", hint=f"known backends: {known}")
    return BACKENDS[names[0] if names else DEFAULT_TARGET[0]](threads)
