"""The whole pipeline, top to bottom: file -> graph -> optimised graph -> a module that runs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx

from graft.backends.reference.backend import ReferenceBackend
from graft.base.errors import UnsupportedError, UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.module import Module, Placement
from graft.passes.pipeline import optimize

BACKENDS = {"reference": ReferenceBackend}
DEFAULT_TARGET = ("reference",)


def compile(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | Graph,
    target: str | Sequence[str] = DEFAULT_TARGET,
    strict: bool = False,
) -> Module:
    """Compile a model: a path, bytes, a `ModelProto` or a graph.

    `target` names the backends to use, best first. `strict` refuses to run any operator on the
    reference evaluator.
    """
    backend = _backend([target] if isinstance(target, str) else list(target), strict)
    graph = model if isinstance(model, Graph) else import_model(model)
    graph = optimize(graph)
    placement = Placement({backend.name: sum(1 for _ in graph.walk())})
    return Module(graph, placement, backend.compile(graph))


def _backend(names: list[str], strict: bool) -> ReferenceBackend:
    for name in names:
        if name not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise UserError(f"there is no backend '{name}'", hint=f"known backends: {known}")
    if strict:
        raise UnsupportedError(
            "strict=True refuses the reference evaluator, and there is no other backend here"
        )
    return BACKENDS[names[0] if names else DEFAULT_TARGET[0]]()
