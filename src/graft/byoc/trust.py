"""Compiles regions, runs them on generated inputs and compares the results with the host's.

A region that does not compile, does not answer in time, or differs fails, with the reason. Inputs
are from `byoc/probe.py`, tolerances from `byoc/tolerance.py`. Equal regions are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from graft.base.callbacks import described
from graft.base.dims import UNKNOWN, symbols_of
from graft.base.dtypes import Array, array_types
from graft.base.errors import BackendError, CrashedError, GraftError
from graft.byoc.contract import Backend, Runner
from graft.byoc.measure import bounded
from graft.byoc.probe import Probe, Sizes, poisoned_outputs, probe, probes
from graft.byoc.region import region_hash
from graft.byoc.rows import blocks_of, one_block
from graft.byoc.sizes import node_work
from graft.byoc.tolerance import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node
from graft.ir.types import TensorType
from graft.runtime.regions import deliver
from graft.runtime.row_blocks import Blocks, in_blocks
from graft.runtime.spaces import with_transfers

T = TypeVar("T")

_EVALUATED = 2e7  # most operations of a region that is also compared with the evaluator


@dataclass(frozen=True)
class CompiledRegion:
    """A region's code, and its runner in this process."""

    label: str
    backend: Backend
    body: Graph
    key: str  # its hash; equal regions share code
    blob: bytes
    runner: Runner
    nodes: tuple[Node, ...] = ()  # of the graph; the body has more where values change their form
    blocks: Blocks | None = None  # of rows, in which the code runs


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a region is not used; `in_time`: the backend answered within the deadline."""

    reason: str
    in_time: bool = True


@dataclass(frozen=True, slots=True)
class Demotion:
    """A region that runs on the host instead, and why."""

    label: str
    backend: str
    reason: str
    nodes: tuple[str, ...] = ()


class RegionCompiler:
    """Compiles regions, equal ones once, and checks them against the host."""

    def __init__(self, host: Backend, check: bool, deadline: float, threads: int | None) -> None:
        self._host, self._check, self._deadline = host, check, deadline
        self._threads = threads
        self._outcomes: dict[str, CompiledRegion | Failure] = {}
        self._silent: dict[str, Failure] = {}  # of backends that did not answer in time once

    def compile(
        self, node: Node, backend: Backend, nodes: Sequence[Node]
    ) -> CompiledRegion | Failure:
        """The code for a region node, which stands for these nodes of the graph, or why it
        failed."""
        body: Graph = node.attrs.body
        key = f"{backend.name} {node.attrs.rows} {region_hash(body)}"
        if key not in self._outcomes:
            self._outcomes[key] = self._silent.get(backend.name) or self._attempt(
                node, backend, key
            )
        outcome = self._outcomes[key]
        if isinstance(outcome, Failure):
            if not outcome.in_time:  # it would take the whole deadline each time
                self._silent[backend.name] = outcome
            return outcome
        return replace(outcome, label=node.attrs.label, body=body, nodes=tuple(nodes))

    def _attempt(self, node: Node, backend: Backend, key: str) -> CompiledRegion | Failure:
        body: Graph = node.attrs.body
        unknown = _undecided_result(body)
        if unknown:
            return Failure(f"the shape of its result {unknown} depends on the data")
        try:
            fixed = one_block(body, node.attrs.rows) if node.attrs.rows else body
            blob = self._bounded(backend, lambda: backend.code(fixed), "compile")
            loading = partial(backend.loaded, blob, self._threads)
            blocks = blocks_of(body, node.attrs.rows)
            runner = in_blocks(self._bounded(backend, loading, "load"), blocks)
            problem = self._difference(body, backend, runner) if self._check else ""
        except GraftError as error:
            return Failure(error.message)
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plug-in may raise anything
            return Failure(described(error), not isinstance(error, TimeoutError))
        if problem:
            return Failure(problem)
        return CompiledRegion(node.attrs.label, backend, body, key, blob, runner, (), blocks)

    def _bounded(self, backend: Backend, task: Callable[[], T], what: str) -> T:
        try:
            return bounded(backend, self._deadline, task)
        except TimeoutError as error:
            raise TimeoutError(f"it did not {what} in time: {error}") from None

    def _difference(self, body: Graph, backend: Backend, runner: Runner) -> str:
        """How results differ from the host's; empty if they agree. Every call has to be as good as
        the first, whatever the runner keeps between calls."""
        run, host = with_transfers(runner), self._host.runner(body)
        for number, inputs in enumerate(probes(body)):
            legal = self._legal(host, body, inputs, first=number == 0)
            if legal is None:
                continue
            trial, expected = legal
            nearby = _results(host, body, trial.nearby, trial.sizes)
            results = poisoned_outputs(body, trial.sizes)
            kept = [array.copy() for array in trial.inputs]
            self._run(backend, run, trial, results)
            if any(a.tobytes() != b.tobytes() for a, b in zip(trial.inputs, kept, strict=True)):
                return "it writes over its inputs"
            rounding = backend.limits.rounding
            problem = difference(body, results, expected, nearby, rounding=rounding)
            if not problem and number == 0 and _operations(body) <= _EVALUATED:
                with np.errstate(all="ignore"):
                    exact = [np.asarray(item) for item in evaluate(body, kept)]
                problem = difference(body, results, exact, nearby, "the evaluator's", rounding)
            if problem:
                return f"{problem} (on {trial})" if number else problem
        return ""

    def _run(self, backend: Backend, run: Runner, inputs: Probe, outputs: Sequence[Array]) -> None:
        try:
            self._bounded(backend, partial(_run, run, inputs.inputs, outputs), "run")
        except (GraftError, TimeoutError, CrashedError):
            raise
        except Exception as error:
            raise BackendError(described(error, array_types(inputs.inputs))) from error

    def _legal(
        self, host: Runner, body: Graph, inputs: Probe, first: bool
    ) -> tuple[Probe, list[Array]] | None:
        """Inputs and the host's results; other inputs, or none, if the host refuses them."""
        for asked in (inputs, probe(body, inputs.kind, inputs.sizes, 0, small=True)):
            try:
                return asked, _results(host, body, asked.inputs, asked.sizes)
            except GraftError:
                if first and asked is not inputs:
                    raise
        return None


def _undecided_result(body: Graph) -> str:
    """A result whose extents are unknown before the region runs; empty if there is none."""
    for value in body.outputs:
        type_ = value.type
        shape = type_.shape if isinstance(type_, TensorType) else None
        if shape is None or not all(
            isinstance(dim, int) or (dim is not UNKNOWN and symbols_of(dim) <= body.input_symbols)
            for dim in shape
        ):
            return f"%{value.name}"
    return ""


def _run(runner: Runner, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    with np.errstate(all="ignore"):  # large numbers may overflow
        deliver(runner(inputs, outputs), outputs, "the region")


def _results(host: Runner, body: Graph, inputs: Sequence[Array], sizes: Sizes) -> list[Array]:
    outputs = poisoned_outputs(body, sizes)
    deliver(host([array.copy() for array in inputs], outputs), outputs, "the host")
    return outputs


def _operations(body: Graph) -> int:
    works = [node_work(node) for node in body.nodes if node.op.name != "constant"]
    return sum(work.macs + work.flops for work in works)
