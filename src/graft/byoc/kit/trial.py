"""A trial of one graph on a backend.

A graph that the backend accepts has to compile, load, run, and equal the reference. Inputs must
neither be written nor kept, and results must not change from call to call; a thorough trial also
calls from several threads, and compiles twice. A graph of symbolic rows that the backend does not
take as it is, is tried in blocks of rows, as the compiler would run it.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from graft.base.callbacks import described
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import BackendError, CrashedError, GraftError, UserError
from graft.byoc.boundary import wished
from graft.byoc.candidates import find_candidates, placeable
from graft.byoc.contract import Backend, Cost, Runner, declared
from graft.byoc.discover import is_announced
from graft.byoc.isolate import backend_of, pack_graph, reference_of, unpack_graph
from graft.byoc.measure import DEADLINE
from graft.byoc.probe import (
    Kind,
    Probe,
    evaluate_a_step_off,
    evaluate_nearby,
    poisoned_outputs,
    probe,
    probes,
)
from graft.byoc.rows import Rows, blocks_of, extent_of, with_rows
from graft.byoc.tolerance import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.runtime.regions import deliver
from graft.runtime.row_blocks import in_blocks
from graft.runtime.worker import Message, Worker

T = TypeVar("T")

# Discontinuous operators: a rounding error before them may become any difference after them.
_JUMPS = frozenset(
    (
        *("floor", "ceil", "round", "sign", "cast", "qnn.quantize", "where", "argmax", "argmin"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    )
)
_THREADS = 3
_ROWS = 4  # of a block


@dataclass(frozen=True, slots=True)
class Outcome:
    """`refused`: why the graph was not accepted; `failed`: what went wrong; both empty: it
    passed. `in_blocks`: it was tried in blocks of rows."""

    refused: str = ""
    failed: str = ""
    useless: bool = False  # the reference has no answer, or the pattern does not match
    in_blocks: bool = False


def attempt(
    graph: Graph,
    backend: Backend,
    pattern: str,
    thorough: bool = False,
    deadline: float | None = None,
) -> Outcome:
    """Try a graph on a backend, within `deadline` seconds (`DEADLINE` by default).

    The trial runs in a worker process, which is replaced when a trial ends it: a new process if
    that can make an equal backend, else a fork, since a backend may be any object. Libraries with
    threads of their own that were used before do not work in a fork."""
    example = pack_graph(graph)
    if backend not in _WORKERS:
        made_from = _reference(backend)
        _WORKERS[backend] = Worker(fork=made_from is None), made_from or id(backend)
    worker, reference = _WORKERS[backend]
    facts = [reference, example.facts, pattern, thorough]
    try:
        answer = worker.call(_tried, facts, *example.blobs, deadline=deadline or DEADLINE)
    except (TimeoutError, CrashedError) as error:
        return Outcome(failed=str(error))
    return Outcome(*answer.facts)


# By backend its process, and how that knows the backend: as another process would make it, or, in
# a fork, by its address.
_WORKERS: WeakKeyDictionary[Backend, tuple[Worker, list[str] | int]] = WeakKeyDictionary()


def _reference(backend: Backend) -> list[str] | None:
    """How a new process makes an equal backend; None where it cannot."""
    try:
        return reference_of(backend) if is_announced(backend) else None
    except UserError:
        return None


def _tried(message: Message) -> Message:
    """Try an example in the worker process."""
    reference, facts, pattern, thorough = message.facts
    graph = unpack_graph(Message(facts, message.blobs))
    if isinstance(reference, int):
        (backend,) = (one for one in _WORKERS if id(one) == reference)
    else:
        backend = backend_of(*reference)
    outcome = _attempt(graph, backend, pattern, thorough)
    return Message([outcome.refused, outcome.failed, outcome.useless, outcome.in_blocks])


def _attempt(graph: Graph, backend: Backend, pattern: str, thorough: bool) -> Outcome:
    try:
        refused = _refusal(graph, backend, pattern)
    except BackendError as error:
        return Outcome(failed=error.message)
    rows = _rows(graph) if refused else None
    if refused and (rows is None or _refusal(_one_block(graph, rows), backend, pattern)):
        return Outcome(refused=refused)
    graph = wished(graph, backend.limits)  # as the compiler would hand it over
    rounding = backend.limits.rounding
    inputs = probes(graph) if rows is None else _row_probes(graph)
    attempts = (_case(graph, one, rounding) for one in inputs)
    cases = [case for case in attempts if case is not None]
    if not cases:
        return Outcome(useless=True)
    with np.errstate(all="ignore"):
        failed = _failure(graph, backend, cases, thorough, rows)
    return Outcome(failed=failed, in_blocks=rows is not None)


def _rows(graph: Graph) -> Rows | None:
    """The blocks in which a graph can run; None if it cannot."""
    try:
        return Rows(extent_of(placeable(graph), graph.outputs), _ROWS)
    except UserError:
        return None


def _one_block(graph: Graph, rows: Rows) -> Graph:
    return with_rows(graph, rows.extent, rows.block)


def _row_probes(graph: Graph) -> Iterator[Probe]:
    """Inputs of no rows, some, and of several blocks."""
    (symbol,) = graph.input_symbols
    for seed, count in enumerate((_ROWS, 0, 1, _ROWS - 1, _ROWS + 1, 2 * _ROWS + 3)):
        for number, kind in enumerate(Kind):
            yield probe(graph, kind, {symbol: count}, 2 * seed + number)


@dataclass(frozen=True)
class _Case:
    """Inputs, the reference's results, those on inputs changed in the last bit (or with codes a
    step off), and the dtype that float32 may be rounded to."""

    probe: Probe
    expected: list[Array]
    nearby: list[Array]
    rounding: DType


def _case(graph: Graph, probe: Probe, rounding: DType) -> _Case | None:
    """The case of a probe; None if the reference has no result, or if results of libraries may
    differ: later nodes read NaN."""
    jumps = _jumps(graph)
    probe = _settled(probe) if jumps else probe
    try:
        if len(placeable(graph)) > 1 and _makes_nan(graph, probe.inputs):
            return None
        expected = [np.asarray(item) for item in evaluate(graph, probe.inputs)]
        others = evaluate_a_step_off if jumps else evaluate_nearby
        nearby = others(graph, probe, expected)
        return _Case(probe, expected, nearby, rounding)
    except (GraftError, ValueError, ArithmeticError):
        return None


def _makes_nan(graph: Graph, feed: list[Array]) -> bool:
    """Whether some value of the graph contains NaN."""
    values = tuple(value for node in placeable(graph) for value in node.outputs)
    with np.errstate(all="ignore"):
        result = evaluate(replace(graph, outputs=values, output_names=()), feed)
    arrays = map(np.asarray, result)
    return any(_is_float(a) and bool(np.isnan(a).any()) for a in arrays)


def _is_float(array: Array) -> bool:
    """Whether an array is of floats, bfloat16 and other dtypes that NumPy lacks included."""
    return dtype_of(array.dtype).is_float


def _refusal(graph: Graph, backend: Backend, pattern: str) -> str:
    """Why the backend does not run all of the graph; empty if it does."""
    result = find_candidates(graph, [backend])
    nodes = placeable(graph)
    own = [candidate for candidate in result.candidates if candidate.backend == backend.name]
    covered = {node for candidate in own for node in candidate.nodes}
    if pattern:
        last = nodes[-1]
        said = [r.reason for r in result.refusals.get(last, ()) if r.pattern == pattern]
        if said or not any(len(candidate.nodes) == len(nodes) for candidate in own):
            return _anonymous(said[0] if said else "the pattern does not cover the example", graph)
        return ""
    for node in nodes:
        if node not in covered:
            reasons = [refused.reason for refused in result.refusals.get(node, ())]
            return _anonymous(reasons[0] if reasons else "it is part of no match", graph)
    return ""


def _anonymous(reason: str, graph: Graph) -> str:
    """A reason without the example's names and shapes, so that equal reasons are counted
    together."""
    values = [value for node in graph.nodes for value in node.outputs]
    for value in sorted((*graph.inputs, *values), key=lambda value: -len(value.name)):
        reason = reason.replace(f"%{value.name}", "a value")
    return re.sub(r"\[[\d, ]*\]", "[…]", reason)


def _jumps(graph: Graph) -> bool:
    """Whether a rounding error inside the graph may change results by any amount."""
    nodes = placeable(graph)
    return len(nodes) > 1 and any(node.op.name in _JUMPS for node in nodes)


def _settled(probe: Probe) -> Probe:
    """The probe with whole numbers, which are not rounded."""
    whole = [np.rint(a).astype(a.dtype) if _is_float(a) else a for a in probe.inputs]
    return replace(probe, inputs=whole, nearby=whole)


def _failure(
    graph: Graph, backend: Backend, cases: Sequence[_Case], thorough: bool, rows: Rows | None
) -> str:
    compiled = graph if rows is None else _one_block(graph, rows)
    blocks = None if rows is None else blocks_of(graph, rows.block)

    def make_runner() -> Runner:
        return in_blocks(backend.runner(compiled), blocks)

    try:
        _stage("be priced", lambda: _check_price(declared(backend, compiled)))
        runner = _stage("compile or load", make_runner)
        problem = _calls(graph, runner, cases)
        if not problem and thorough:
            problem = _threads(graph, runner, cases)
            again = _stage("compile a second time", make_runner)
            problem = problem or _prefix("compiled a second time, ", _calls(graph, again, cases))
    except _StageError as error:
        return str(error)
    return problem


class _StageError(Exception):
    """A backend raised."""


def _stage(what: str, task: Callable[[], T]) -> T:
    try:
        return task()
    except Exception as error:
        raise _StageError(f"it was accepted and does not {what}: {_said(error)}") from error


def _check_price(cost: object) -> None:
    if cost is not None and not (isinstance(cost, Cost) and 0 <= cost.seconds < math.inf):
        raise UserError(f"price gives {cost!r}, neither a Cost of some seconds nor None")


def _said(error: Exception) -> str:
    """The error with the output of the backend's compiler."""
    cause = error.__cause__ if isinstance(error, BackendError) else error
    details = cause.details if isinstance(cause, GraftError) else ()
    return "\n".join((described(error), *details))


def _prefix(prefix: str, problem: str) -> str:
    return f"{prefix}{problem}" if problem else ""


def _calls(graph: Graph, runner: Runner, cases: Sequence[_Case]) -> str:
    """Run on all inputs, then on the first again; each time in other memory."""
    before: tuple[list[Array], _Case] | None = None
    for case in (*cases, cases[0]):
        inputs = [np.array(array) for array in case.probe.inputs]
        outputs = poisoned_outputs(graph, case.probe.sizes)
        problem = _call(graph, runner, inputs, outputs)
        problem = problem or _written(graph, inputs, case.probe.inputs)
        problem = problem or _compared(graph, outputs, case)
        if problem:
            sizes = f" (on {case.probe})" if case is not cases[0] else ""
            return _prefix("" if before is None else "in a later call, ", problem) + sizes
        if before is not None and _compared(graph, *before):
            return "it writes the results of an earlier call again"
        before = outputs, case
        for array in inputs:  # the runner must not read them any more
            array[...] = 0
    return ""


def _call(graph: Graph, runner: Runner, inputs: list[Array], outputs: list[Array]) -> str:
    try:
        with np.errstate(all="ignore"):  # which threads do not inherit
            deliver(runner(inputs, outputs), outputs, "the region")
    except Exception as error:  # noqa: BLE001  a plug-in may raise anything
        return f"it was accepted and does not run: {_said(error)}"
    return ""


def _written(graph: Graph, inputs: list[Array], originals: list[Array]) -> str:
    for value, array, original in zip(graph.inputs, inputs, originals, strict=True):
        if array.tobytes() != original.tobytes():
            return f"it writes its input %{value.name}"
    return ""


def _compared(graph: Graph, results: Sequence[Array], case: _Case) -> str:
    whose = "the reference's"
    return difference(graph, results, case.expected, case.nearby, whose, case.rounding)


def _threads(graph: Graph, runner: Runner, cases: Sequence[_Case]) -> str:
    """Run from several threads at once, on different inputs."""
    problems: list[str] = []
    gate = threading.Barrier(_THREADS)

    def work(number: int) -> None:
        gate.wait()
        for attempt in range(4):
            case = cases[(number + attempt) % len(cases)]
            outputs = poisoned_outputs(graph, case.probe.sizes)
            problem = _call(graph, runner, [np.array(a) for a in case.probe.inputs], outputs)
            problem = problem or _compared(graph, outputs, case)
            if problem:
                problems.append(problem)
                return

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _prefix("called from several threads, ", problems[0] if problems else "")
