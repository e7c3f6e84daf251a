"""The conformance kit: a backend in, a report out.

Random graphs are generated for every pattern, and for several patterns together, since a region may
contain any number of matches. Results of accepted graphs have to be right; a failing graph is
minimised.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from graft.base.callbacks import author_code
from graft.base.dtypes import DType
from graft.base.errors import BackendError
from graft.base.progress import Progress, Stage, quietly
from graft.byoc.annotate import Entry, predicate_of, tables_of
from graft.byoc.contract import Backend
from graft.byoc.kit.draw import ODD_DTYPES, Draw
from graft.byoc.kit.report import Failure, PatternReport, Report
from graft.byoc.kit.shrink import shrink
from graft.byoc.kit.synthesize import UnbuildableError, synthesize, with_symbols
from graft.byoc.kit.trial import Outcome, attempt
from graft.ir.graph import Graph
from graft.ir.printer import to_text
from graft.ops import OPS
from graft.rewrite.pattern import Formula, is_op, operators_in

COMBINED = "combined"
EXAMPLES = 20
_FAILURES = 3  # of one pattern, after which it is not tried further
_STUBBORN = 8  # times as many examples for a pattern that accepts few of them
_HOPELESS = 100  # examples of a pattern that accepts none
_SYMBOLIC = 3  # one of so many examples has a symbolic axis
_ODD = 6  # one of so many examples has another dtype than float32, each in turn; not symbolic
_PATIENCE = 20  # draws per example, as some do not match or violate type rules

Journal = Callable[[str, Graph], None]


def conformance(
    backend: Backend,
    examples: int = EXAMPLES,
    seed: int = 0,
    progress: Progress = quietly,
    journal: Journal = lambda _pattern, _graph: None,
    deadline: float | None = None,
) -> Report:
    """Check a backend on `examples` graphs per pattern; equal seeds generate equal graphs.

    `journal` is called with every graph before it is tried, in case the process does not survive
    it; `deadline` is the time limit in seconds for a graph (60 by default)."""
    try:
        failures = [Failure("", reason) for reason in broken_promises(backend)]
        entries = entries_of(backend)
    except BackendError as error:  # it has no patterns to try
        none = PatternReport(COMBINED)
        failed = (Failure("", error.message),)
        return Report(backend.name, backend.version, seed, (), none, failed)
    if not entries:
        failures.append(Failure("", "it has no patterns, so that nothing is known about it"))
    tallies = []
    for number, entry in enumerate(entries):
        progress(Stage("trying patterns", number + 1, len(entries), entry.name))
        tally = _Tally(backend, entry.name, seed, journal, deadline)
        _try_pattern(tally, entry, examples)
        tallies.append(tally)
    progress(Stage("trying several patterns in one region"))
    combined = _Tally(backend, COMBINED, seed, journal, deadline)
    clean = [pair for pair in zip(entries, tallies, strict=True) if pair[1].clean]
    if clean:
        _try_together(combined, clean, examples * 2)
    failures += [
        Failure(tally.name, "no example of it was accepted, so that nothing is known about it")
        for tally in tallies
        if not tally.accepted
    ]
    for tally in (*tallies, combined):
        failures += sorted(tally.failures, key=lambda failure: len(failure.text))
    patterns = tuple(tally.report() for tally in tallies)
    return Report(backend.name, backend.version, seed, patterns, combined.report(), tuple(failures))


def entries_of(backend: Backend) -> list[Entry]:
    """The patterns of a backend, and operators that it has predicates for."""
    entries = list(tables_of(backend))
    named = {entry.name for entry in entries}
    spoken = [name for name in OPS if predicate_of(backend.name, name) and name not in named]
    return [*entries, *(Entry(name, Formula(is_op(name))) for name in sorted(spoken))]


def broken_promises(backend: Backend) -> list[str]:
    """Violations of the contract that can be found without a graph."""
    limits = backend.limits
    rates = (limits.bytes_per_second, limits.peak_flops, limits.peak_bytes_per_second)
    times = (limits.launch_seconds, limits.latency)
    entries = Counter(entry.name for entry in tables_of(backend))
    with author_code(f"{backend.name}.missing", backend.missing):
        missing = backend.missing()
    checks = [
        (bool(backend.name) and isinstance(backend.name, str), "it has no name"),
        (bool(backend.version) and isinstance(backend.version, str), "it has no version"),
        (isinstance(missing, str), "missing() gives no string"),
        (bool(limits.space), "limits.space is empty"),
        (all(rate is None or rate > 0 for rate in rates), "a rate of its limits is not positive"),
        (all(0 <= t < math.inf for t in times), "a time of its limits is negative or infinite"),
        (limits.memory_bytes is None or limits.memory_bytes > 0, "limits.memory_bytes is no size"),
        *(
            (False, f"'{name}' names the operator '{op}', which does not exist")
            for name, op in unknown_operators(backend)
        ),
        *((count == 1, f"two patterns are named '{name}'") for name, count in entries.items()),
    ]
    return [reason for holds, reason in checks if not holds]


def unknown_operators(backend: Backend) -> list[tuple[str, str]]:
    """Patterns, and operators in them that are not registered."""
    return [
        (entry.name, name)
        for entry in tables_of(backend)
        for name in sorted(operators_in(entry.formula.pattern))
        if name not in OPS
    ]


@dataclass
class _Tally:
    """Counts for one pattern while it is checked."""

    backend: Backend
    name: str
    seed: int
    journal: Journal
    deadline: float | None = None
    tried: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    dtypes: set[str] = field(default_factory=set)
    symbolic: int = 0
    blocks: int = 0

    @property
    def clean(self) -> bool:
        return self.accepted > 0 and not self.failures

    @property
    def pattern(self) -> str:
        """The pattern that has to accept; graphs of several may be accepted piece by piece."""
        return "" if self.name == COMBINED else self.name

    def offer(self, graph: Graph) -> Outcome:
        self.journal(self.name, graph)
        thorough = self.accepted == 0
        outcome = attempt(graph, self.backend, self.pattern, thorough, self.deadline)
        if outcome.useless:
            return outcome
        self.tried += 1
        if outcome.refused:
            self.refused[outcome.refused] += 1
            return outcome
        self.accepted += 1
        self.dtypes.update(str(value.dtype) for value in (*graph.inputs, *graph.outputs))
        self.blocks += outcome.in_blocks
        self.symbolic += bool(graph.input_symbols) and not outcome.in_blocks
        if outcome.failed:
            self.fail(graph, outcome)
        return outcome

    def fail(self, graph: Graph, outcome: Outcome) -> None:
        thorough = self.accepted == 1
        reasons = [outcome.failed]

        def fails(smaller: Graph) -> bool:
            self.journal(self.name, smaller)
            failed = attempt(smaller, self.backend, "", thorough, self.deadline).failed
            same = bool(failed) and _kind(failed) == _kind(outcome.failed)
            if same:
                reasons.append(failed)
            return same

        small = shrink(graph, fails)
        text = to_text(small, with_defaults=True).text
        if not any(
            text == earlier.text or reasons[-1] == earlier.reason for earlier in self.failures
        ):
            count = sum(1 for node in small.nodes if node.op.name != "constant")
            self.failures.append(Failure(self.name, reasons[-1], text, count))

    def report(self) -> PatternReport:
        dtypes = tuple(sorted(self.dtypes))
        counts = self.tried, self.accepted, self.refused
        return PatternReport(self.name, *counts, dtypes, self.symbolic, self.blocks)


def _kind(reason: str) -> str:
    """A failure's reason without names and numbers. A graph is shrunk only as long as this stays
    the same: small examples often have other failures."""
    return re.sub(r"%\S+|[\d.]+", "", reason)[:40]


def _try_pattern(tally: _Tally, entry: Entry, examples: int) -> None:
    """Try plain examples first, so that most patterns accept one, then any. A pattern that accepts
    few gets more examples, one that accepts none gets most. Finally, try each dtype that no example
    had."""
    for number in range(max(examples * _STUBBORN, _HOPELESS)):
        is_enough = tally.accepted >= (examples / 4 if number < examples * _STUBBORN else 1)
        if number >= examples and is_enough:
            break
        _try_once(tally, entry, number)
        if len(tally.failures) >= _FAILURES:
            return
    for later in range(number, _ODD * len(ODD_DTYPES)):
        if _odd_dtype(later) is not None and not tally.failures:
            _try_once(tally, entry, later)


def _try_once(tally: _Tally, entry: Entry, number: int) -> None:
    odd = _odd_dtype(number)
    for redraw in range(_PATIENCE):
        dtype = odd if redraw < _PATIENCE // 2 else None  # it may not exist in it
        plain = number < 3 or dtype is not None  # so that a refusal is about the dtype
        draw = Draw(f"{tally.seed} {entry.name} {number} {redraw}", plain, dtype)
        try:
            graph = synthesize([entry.formula.pattern], draw)
            if number % _SYMBOLIC == 1:
                graph = with_symbols(graph, draw)
        except UnbuildableError:
            continue
        if not tally.offer(graph).useless:
            return


def _odd_dtype(number: int) -> DType | None:
    """The dtype of an example that is to have another one than float32."""
    lap, rest = divmod(number, _ODD)
    return ODD_DTYPES[lap % len(ODD_DTYPES)] if rest == _ODD - 1 else None


def _try_together(tally: _Tally, accepted: Sequence[tuple[Entry, _Tally]], examples: int) -> None:
    """Try several patterns in one graph, each reading a result of an earlier one. Half of the
    graphs have other dtypes than float32, each in turn, if the patterns accept some."""
    odd = [dtype for dtype in ODD_DTYPES if any(dtype in one.dtypes for _, one in accepted)]
    for number in range(examples):
        dtype = odd[number // 2 % len(odd)] if odd and number % 2 else None
        for redraw in range(_PATIENCE):
            if redraw == _PATIENCE // 2:
                dtype = None  # these patterns may not fit together in it
            entries = [e for e, one in accepted if dtype is None or dtype in one.dtypes]
            draw = Draw(f"{tally.seed} {COMBINED} {number} {redraw}", plain=True, dtype=dtype)
            sample = [draw.among(entries) for _ in range(draw.between(2, 4))]
            try:
                graph = synthesize([entry.formula.pattern for entry in sample], draw)
            except UnbuildableError:
                continue
            if not tally.offer(graph).useless:
                break
        if len(tally.failures) >= _FAILURES:
            return
