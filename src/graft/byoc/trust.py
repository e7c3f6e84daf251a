"""Trust, but verify: regions are compiled, run on generated inputs and compared with the host.

A region that does not compile, does not answer in time, or answers differently goes back to the
host, with the reason. Regions that mean exactly the same are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from graft.base.dims import UNKNOWN, symbols_of
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError
from graft.byoc.contract import Backend, Runner
from graft.byoc.measure import DEADLINE, bounded, samples, static_shape
from graft.byoc.region import region_hash
from graft.ir.graph import Graph, Node
from graft.ir.types import TensorType
from graft.runtime.regions import deliver
from graft.runtime.spaces import from_home

T = TypeVar("T")

_TURNS = 2  # on how many inputs a region is compared with the host

# (relative, absolute in units of the largest result) by element type
TOLERANCES: dict[DType, tuple[float, float]] = {
    DType.FLOAT64: (1e-6, 1e-9),
    DType.FLOAT32: (1e-3, 1e-4),
    DType.FLOAT16: (2e-2, 2e-3),
    DType.BFLOAT16: (5e-2, 2e-2),
}


@dataclass(frozen=True)
class CompiledRegion:
    """A region's code, and what runs it in this process."""

    label: str
    backend: Backend
    body: Graph
    key: str  # its hash; equal regions share code
    blob: bytes
    runner: Runner
    nodes: tuple[Node, ...] = ()  # of the graph; the body has more where values change their form


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a region is not to be trusted; `in_time` where finding out did not take too long."""

    reason: str
    in_time: bool = True


@dataclass(frozen=True, slots=True)
class Demotion:
    """A region that goes back to the host, and why."""

    label: str
    backend: str
    reason: str
    nodes: tuple[str, ...] = ()


class RegionCompiler:
    """Compiles regions, each kind once, and checks them against the host."""

    def __init__(self, host: Backend, check: bool = True, deadline: float = DEADLINE) -> None:
        self._host, self._check, self._deadline = host, check, deadline
        self._made: dict[str, CompiledRegion | Failure] = {}
        self._silent: dict[str, Failure] = {}  # backends that did not answer once

    def compile(
        self, node: Node, backend: Backend, nodes: Sequence[Node]
    ) -> CompiledRegion | Failure:
        """Code for a region node, which stands for some nodes of the graph, or why there is none to
        be trusted."""
        body: Graph = node.attrs.body
        key = f"{backend.name} {region_hash(body)}"
        if key not in self._made:
            self._made[key] = self._silent.get(backend.name) or self._attempt(node, backend, key)
        made = self._made[key]
        if isinstance(made, Failure):
            if not made.in_time:  # what hangs once would hang again, each time for the deadline
                self._silent[backend.name] = made
            return made
        return replace(made, label=node.attrs.label, body=body, nodes=tuple(nodes))

    def _attempt(self, node: Node, backend: Backend, key: str) -> CompiledRegion | Failure:
        body: Graph = node.attrs.body
        unknown = _undecided(body)
        if unknown:
            return Failure(f"the shape of its result {unknown} depends on the data")
        try:
            blob = self._bounded(backend, lambda: backend.code(body), "compile")
            runner = self._bounded(backend, lambda: backend.load(blob), "load")
            problem = self._difference(body, backend, runner) if self._check else ""
        except GraftError as error:
            return Failure(error.message)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the plug-in's affair
            return Failure(f"{type(error).__name__}: {error}", not isinstance(error, TimeoutError))
        if problem:
            return Failure(problem)
        return CompiledRegion(node.attrs.label, backend, body, key, blob, runner)

    def _bounded(self, backend: Backend, task: Callable[[], T], what: str) -> T:
        try:
            return bounded(backend, self._deadline, task)
        except TimeoutError as error:
            raise TimeoutError(f"it did not {what} in time: {error}") from None

    def _difference(self, body: Graph, backend: Backend, runner: Runner) -> str:
        """How results differ from the host's; empty where they agree. The second time must be as
        good as the first, whatever the runner keeps from call to call."""
        run, host = from_home(runner), self._host.runner(body)
        names = [value.name for value in body.outputs]
        for turn in range(_TURNS):
            inputs = samples(body, turn * len(body.inputs))
            found, wanted = _homes(body), _homes(body)
            deliver(host([array.copy() for array in inputs], wanted), wanted, "the host")
            kept = [array.copy() for array in inputs]
            task = partial(_run, run, inputs, found)
            self._bounded(backend, task, "run")
            if any(np.any(a != b) for a, b in zip(inputs, kept, strict=True)):
                return "it writes over its inputs"
            problem = difference(names, found, wanted)
            if problem:
                return problem
        return ""


def _undecided(body: Graph) -> str:
    """A result for which no memory can be set aside before the region runs; empty for none."""
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
    deliver(runner(inputs, outputs), outputs, "the region")


def _homes(body: Graph) -> list[Array]:
    """Memory for the results, with contents that no result has by chance."""
    homes = [np.empty(static_shape(value), value.dtype.numpy) for value in body.outputs]
    for home in homes:
        home.reshape(-1).view(np.uint8)[...] = 0xFF  # NaN, where there is such a thing
    return homes


def difference(names: Sequence[str], found: Sequence[Array], wanted: Sequence[Array]) -> str:
    """The first result that differs by more than its type allows, in words."""
    for name, ours, theirs in zip(names, found, wanted, strict=True):
        problem = _differs(ours, theirs)
        if problem:
            return f"its result %{name} {problem}"
    return ""


def _differs(found: Array, wanted: Array) -> str:
    if wanted.dtype.kind in "biu":
        wrong = int(np.count_nonzero(found != wanted))
        return f"differs from the host's in {wrong} of {wanted.size} elements" if wrong else ""
    ours, theirs = found.astype(np.float64), wanted.astype(np.float64)
    if np.any(np.isnan(ours) != np.isnan(theirs)):
        return "is NaN where the host's is not, or the other way round"
    relative, absolute = TOLERANCES.get(DType(str(wanted.dtype)), TOLERANCES[DType.FLOAT32])
    finite = np.isfinite(theirs)
    if np.any(ours[~finite & ~np.isnan(theirs)] != theirs[~finite & ~np.isnan(theirs)]):
        return "is not infinite where the host's is"
    scale = float(np.abs(theirs[finite]).max(initial=0.0))
    error = np.abs(ours[finite] - theirs[finite])
    allowed = absolute * scale + relative * np.abs(theirs[finite])
    if np.all(error <= allowed):
        return ""
    worst = float(error.max())
    return f"differs from the host's by {worst:.3g} where the largest is {scale:.3g}"
