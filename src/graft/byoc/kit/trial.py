"""One example put to a backend: a graph in, what became of it out.

What a backend accepts has to compile, load, run, and equal the reference. Inputs are neither
written nor kept, results do not change from call to call, and on request neither from thread to
thread nor from one compilation to the next.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import GraftError
from graft.byoc.candidates import find_candidates, placeable
from graft.byoc.contract import Backend, Runner
from graft.byoc.isolate import pack_graph, unpack_graph
from graft.byoc.measure import samples, static_shape
from graft.byoc.trust import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.runtime.guard import CrashedError
from graft.runtime.regions import deliver
from graft.runtime.worker import Message, Worker

DEADLINE = 60.0  # seconds for everything that is done with one graph

# Operators whose results jump: a rounding error before them may become any difference after them.
_JUMPS = frozenset(
    (
        *("floor", "ceil", "round", "sign", "cast", "qnn.quantize", "where", "argmax", "argmin"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    )
)
_THREADS = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """`refused` says why it was not accepted, `failed` what went wrong; both empty: all is well."""

    refused: str = ""
    failed: str = ""
    useless: bool = False  # the reference has no answer, or the pattern does not match


def attempt(graph: Graph, backend: Backend, pattern: str, thorough: bool = False) -> Outcome:
    """Offer a graph to a backend; what it accepts is compiled, run and compared.

    That happens in a process of its own, which may not survive it: a fork, since a backend may be
    any object, which lasts until an example ends it."""
    example = pack_graph(graph)
    facts = [id(backend), example.facts, pattern, thorough]
    worker = _WORKERS.setdefault(backend, Worker(fork=True))
    try:
        answer = worker.call(_tried, facts, *example.blobs, deadline=DEADLINE)
    except (TimeoutError, CrashedError) as error:
        return Outcome(failed=str(error))
    return Outcome(*answer.facts)


_WORKERS: WeakKeyDictionary[Backend, Worker] = WeakKeyDictionary()


def _tried(message: Message) -> Message:
    """In the fork, where the backend is at the same address."""
    address, facts, pattern, thorough = message.facts
    graph = unpack_graph(Message(facts, message.blobs))
    (backend,) = (one for one in _WORKERS if id(one) == address)
    outcome = _attempt(graph, backend, pattern, thorough)
    return Message([outcome.refused, outcome.failed, outcome.useless])


def _attempt(graph: Graph, backend: Backend, pattern: str, thorough: bool) -> Outcome:
    try:
        refused = _refusal(graph, backend, pattern)
    except Exception as error:  # noqa: BLE001  whatever a plug-in raises is what is asked for
        return Outcome(failed=f"supports raised {_said(error)}")
    if refused:
        return Outcome(refused=refused)
    feeds = [_inputs(graph, first) for first in (0, 1000)]
    try:
        with np.errstate(all="ignore"):
            wanted = [[np.asarray(item) for item in evaluate(graph, feed)] for feed in feeds]
    except (GraftError, ValueError, ArithmeticError):
        return Outcome(useless=True)
    # What libraries make of a logarithm of less than nothing later on, nobody promises.
    if len(placeable(graph)) > 1 and any(_makes_nan(graph, feed) for feed in feeds):
        return Outcome(useless=True)
    with np.errstate(all="ignore"):
        return Outcome(failed=_failure(graph, backend, feeds, wanted, thorough))


def _makes_nan(graph: Graph, feed: list[Array]) -> bool:
    """Whether a value of the graph, inside it or a result, is not a number somewhere."""
    values = tuple(value for node in placeable(graph) for value in node.outputs)
    with np.errstate(all="ignore"):
        found = evaluate(replace(graph, outputs=values, output_names=()), feed)
    arrays = map(np.asarray, found)
    return any(a.dtype.kind == "f" and bool(np.isnan(a).any()) for a in arrays)


def _refusal(graph: Graph, backend: Backend, pattern: str) -> str:
    """Why the backend does not run all of the graph; empty where it does."""
    found = find_candidates(graph, [backend])
    nodes = placeable(graph)
    own = [candidate for candidate in found.candidates if candidate.backend == backend.name]
    covered = {node for candidate in own for node in candidate.nodes}
    if pattern:
        last = nodes[-1]
        said = [r.reason for r in found.refusals.get(last, ()) if r.pattern == pattern]
        if said or not any(len(candidate.nodes) == len(nodes) for candidate in own):
            return _anonymous(said[0] if said else "the pattern does not cover the example", graph)
        return ""
    for node in nodes:
        if node not in covered:
            reasons = [refused.reason for refused in found.refusals.get(node, ())]
            return _anonymous(reasons[0] if reasons else "it is part of no match", graph)
    return ""


def _anonymous(reason: str, graph: Graph) -> str:
    """A reason without the example's names and shapes, so that equal reasons are counted."""
    values = [value for node in graph.nodes for value in node.outputs]
    for value in sorted((*graph.inputs, *values), key=lambda value: -len(value.name)):
        reason = reason.replace(f"%{value.name}", "a value")
    return re.sub(r"\[[\d, ]*\]", "[…]", reason)


def _inputs(graph: Graph, seed: int) -> list[Array]:
    """Data for the inputs; whole numbers where rounding must not decide."""
    nodes = placeable(graph)
    whole = len(nodes) > 1 and any(node.op.name in _JUMPS for node in nodes)
    arrays = samples(graph, seed)
    if not whole:
        return arrays
    return [np.rint(a).astype(a.dtype) if a.dtype.kind == "f" else a for a in arrays]


def _failure(
    graph: Graph,
    backend: Backend,
    feeds: Sequence[list[Array]],
    wanted: Sequence[list[Array]],
    thorough: bool,
) -> str:
    try:
        runner = _stage("compile or load", lambda: backend.runner(graph))
        problem = _calls(graph, runner, feeds, wanted)
        if not problem and thorough:
            problem = _threads(graph, runner, feeds, wanted)
            again = _stage("compile a second time", lambda: backend.runner(graph))
            problem = problem or _prefixed(
                "compiled a second time, ", _calls(graph, again, feeds, wanted)
            )
    except _StageError as error:
        return str(error)
    return problem


class _StageError(Exception):
    """A backend raised."""


def _stage(what: str, task: Callable[[], Runner]) -> Runner:
    try:
        return task()
    except Exception as error:
        raise _StageError(f"it was accepted and does not {what}: {_said(error)}") from error


def _said(error: Exception) -> str:
    if isinstance(error, GraftError):
        lines: Sequence[str] = (error.message, *error.details)
    else:
        lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + "\n".join(lines)


def _prefixed(prefix: str, problem: str) -> str:
    return f"{prefix}{problem}" if problem else ""


def _calls(
    graph: Graph, runner: Runner, feeds: Sequence[list[Array]], wanted: Sequence[list[Array]]
) -> str:
    """The first inputs, then others in other memory, then the first again."""
    before: list[Array] | None = None
    for number in (0, 1, 0):
        inputs = [np.array(array) for array in feeds[number]]
        outputs = _homes(graph)
        problem = _call(graph, runner, inputs, outputs)
        problem = problem or _written(graph, inputs, feeds[number])
        problem = problem or _compared(graph, outputs, wanted[number])
        if problem:
            return _prefixed("" if before is None else "in a later call, ", problem)
        if before is not None and not _unchanged(before, wanted[1 - number], graph):
            return "it writes the results of an earlier call again"
        before = outputs
        for array in inputs:  # nobody may look at them any more
            array[...] = 0
    return ""


def _call(graph: Graph, runner: Runner, inputs: list[Array], outputs: list[Array]) -> str:
    try:
        deliver(runner(inputs, outputs), outputs, "the region")
    except Exception as error:  # noqa: BLE001  whatever a plug-in raises is what is asked for
        return f"it was accepted and does not run: {_said(error)}"
    return ""


def _homes(graph: Graph) -> list[Array]:
    """Memory for the results, with contents that no result has by chance."""
    homes = [np.empty(static_shape(value), value.dtype.numpy) for value in graph.outputs]
    for home in homes:
        home.reshape(-1).view(np.uint8).fill(0x5A)
    return homes


def _written(graph: Graph, inputs: list[Array], originals: list[Array]) -> str:
    for value, array, original in zip(graph.inputs, inputs, originals, strict=True):
        if array.tobytes() != original.tobytes():
            return f"it writes its input %{value.name}"
    return ""


def _compared(graph: Graph, found: Sequence[Array], wanted: Sequence[Array]) -> str:
    names = [value.name for value in graph.outputs]
    return difference(names, found, wanted).replace("the host's", "the reference's")


def _unchanged(earlier: list[Array], wanted: list[Array], graph: Graph) -> bool:
    return not _compared(graph, earlier, wanted)


def _threads(
    graph: Graph, runner: Runner, feeds: Sequence[list[Array]], wanted: Sequence[list[Array]]
) -> str:
    """Calls from several threads at once, each with inputs of its own."""
    problems: list[str] = []
    gate = threading.Barrier(_THREADS)

    def work(number: int) -> None:
        gate.wait()
        for turn in range(4):
            chosen = (number + turn) % 2
            outputs = _homes(graph)
            problem = _call(graph, runner, [np.array(a) for a in feeds[chosen]], outputs)
            problem = problem or _compared(graph, outputs, wanted[chosen])
            if problem:
                problems.append(problem)
                return

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _prefixed("called from several threads, ", problems[0] if problems else "")
