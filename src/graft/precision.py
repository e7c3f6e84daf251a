"""Mixed precision by measurement: an optimised graph and samples in; a graph of mixed precision and
a report out.

Calibrate, measure the time and error of each unit, choose exactly within the budget, then measure
the whole on held-out samples. A choice that exceeds the budget or is no faster than the float
program is tightened and made again; if none passes, the result is float. So it is never slower and
never over the budget, as measured here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError, warn_user
from graft.base.progress import Stage
from graft.byoc.contract import Backend
from graft.byoc.executable import Executable
from graft.byoc.measure import race
from graft.byoc.precision import (
    Choice,
    PlacedUnits,
    SharedValue,
    UnitCosts,
    UnitOption,
    choose_precisions,
    error_of,
    pareto_front,
    slowed,
    uniform,
    unit_seconds,
)
from graft.byoc.probe import samples
from graft.byoc.sizes import number
from graft.ir.graph import Graph, Value
from graft.ir.op import bytes_of
from graft.program.program import Target
from graft.quantize.calibrate import Feeds
from graft.quantize.compare import Comparison, Run
from graft.quantize.data import Data, DataWarning, Pixels, Sample, read_samples
from graft.quantize.heads import find_heads, measured_units
from graft.quantize.insert import insert_precisions
from graft.quantize.prepare import (
    LEAST_SAMPLES,
    LEAST_WITHIN,
    Preparation,
    Prepared,
    report_unit,
)
from graft.quantize.ranges import METHODS
from graft.quantize.report import (
    AUTO,
    BRAIN,
    EXACT,
    FLOAT,
    HALF,
    HALVES,
    INTEGER,
    INTEGERS,
    PRECISIONS,
    Budget,
    FrontPoint,
    Quality,
    Report,
    UnitReport,
)
from graft.quantize.scheme import scheme_for
from graft.quantize.sensitivity import Sensitivity
from graft.quantize.units import Unit, find_units, no_reason_for, units_in
from graft.race import link_fastest
from graft.runtime.native import why_not_here
from graft.runtime.regions import RegionWarning
from graft.stages import CompileOptions, Optimized, partition_graph, place
from graft.target.target import HOST, named_target

RANDOM = "random"  # in the place of data
# The precisions that units may have where one is asked for, the most narrow first.
# INTEGER is whatever integers the scheme has.
CANDIDATES = {
    HALF: (HALF,),
    BRAIN: (BRAIN,),
    **dict.fromkeys(INTEGERS, (INTEGER,)),
    AUTO: (INTEGER, BRAIN, HALF),
}
_DRAWN = 16  # samples where data are random
_ATTEMPTS = 6
_MARGIN = 0.9  # of the squared budget, aimed at: units are measured on few samples
_LEAST_SPEEDUP = 1.02  # below it, the gain may be the noise of measuring
_NO_UNITS = (
    "there is nothing to quantise: the model has no float32 convolution or dense layer with"
    " constant weights"
)
_FRONT = 12  # limits that the Pareto front is computed for


@dataclass(frozen=True, eq=False)
class Quantized:
    """A graph of mixed precision, as `graft.compile` takes it, with its report and the options that
    it was measured with."""

    optimized: Optimized
    report: Report
    options: CompileOptions


def quantize(
    optimized: Optimized,
    data: Data,
    options: CompileOptions,
    precision: str = AUTO,
    budget: float | str | Budget | None = None,
    method: str = "mse",
    pixels: Pixels | None = None,
) -> Quantized:
    """Change the precision of units: "int8" of all that support it; "fp16", "bf16" and "auto" of
    those that get faster, within the budget, if there is one ("auto" always has one)."""
    if precision not in CANDIDATES:
        raise UserError(f"precision={precision!r}", hint=f"known ones: {', '.join(PRECISIONS)}")
    if method not in METHODS:
        raise UserError(f"there is no method {method!r}", hint=f"there are {', '.join(METHODS)}")
    _refuse_foreign_code(options.settings.machine)
    allowed = None if precision != AUTO and budget is None else Budget.parse(budget)
    if not has_units(optimized.graph):
        raise UserError(_NO_UNITS)
    is_random = isinstance(data, str) and data == RANDOM
    narrow, refusals = _narrow_options(options, precision)
    targets = {b.name: b.limits.quantized for b in (*options.accelerators, options.host)}
    scheme, unused = scheme_for(precision if precision in INTEGERS else INTEGER, targets)
    refusals = (*refusals, *unused)
    drawn = _drawn(optimized.graph) if is_random else None
    given = drawn or read_samples(data, optimized.graph.inputs, pixels)
    preparation = Preparation(
        partial(_compiled, options.host),
        scheme,
        INTEGER in CANDIDATES[precision],
        method,
        LEAST_WITHIN if allowed and allowed.error else LEAST_SAMPLES,
        options.report,
    )
    prepared = preparation.run(optimized.graph, given)
    trial = _Trial(optimized, options, narrow, precision, is_random, prepared, refusals)
    return trial.all_integer(allowed) if precision in INTEGERS else trial.search(allowed)


def with_precision(
    optimized: Optimized,
    options: CompileOptions,
    precision: str,
    data: Data | None,
    budget: float | str | None,
) -> tuple[Optimized, CompileOptions]:
    """The graph in the precision that `graft.compile` is called with, and options with accelerators
    that are configured for it."""
    if precision == FLOAT:
        if data is not None or budget is not None:
            raise UserError("data= and budget= are for quantisation", hint="precision='auto'")
        return optimized, options
    if data is None and (precision not in HALVES or budget is not None):
        raise UserError(
            f"precision={precision!r} needs samples to calibrate on",
            hint="data= is a folder, an iterable of arrays, or 'random', which shows times alone",
        )
    given = RANDOM if data is None else data
    if precision == AUTO and not has_units(optimized.graph):  # float keeps both promises
        warn_user(_NO_UNITS, DataWarning)
        return optimized, options
    result = quantize(optimized, given, options, precision, budget)
    for refusal in result.report.refusals:
        warn_user(refusal, RegionWarning)
    for warning in result.report.warnings:
        warn_user(warning, DataWarning)
    return result.optimized, result.options


def has_units(graph: Graph) -> bool:
    """Whether a graph has layers or products that could have another precision than float32."""
    return bool(measured_units(graph, find_units(graph)))


def _refuse_foreign_code(machine: str) -> None:
    """Refuse a machine whose code cannot run here; a lesser machine's (x86-64-v3 on AVX-512)
    can."""
    target = None if machine == HOST else named_target(machine)
    reason = target and why_not_here(Target(target.triple, target.features))
    if reason:
        raise UserError(
            f"precisions are chosen by measurement, and code for machine='{machine}' {reason}",
            hint="quantise there: `graft quantize -o FILE.onnx` writes a model for any machine",
        )


def _narrow_options(
    options: CompileOptions, precision: str
) -> tuple[CompileOptions, tuple[str, ...]]:
    """The options with accelerators configured for a precision, and refusals of those that do not
    support it."""
    half = HALVES.get(precision)
    if half is None:
        return options, ()
    settings = replace(options.settings, precision=half)
    accelerators, refusals = [], []
    for backend in options.accelerators:
        kinds = backend.limits.computes_in
        if half in kinds:
            backend = backend.configured(settings)
        else:
            listed = ", ".join(map(str, kinds))
            refusals.append(f"'{backend.name}' does not compute in {half}, but in {listed}")
        accelerators.append(backend)
    return replace(options, accelerators=tuple(accelerators)), tuple(refusals)


def _drawn(graph: Graph) -> Iterator[Sample]:
    """Random samples, which tell nothing of accuracy."""
    names = [value.name for value in graph.inputs]
    for seed in range(_DRAWN):
        yield dict(zip(names, samples(graph, seed), strict=True))


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A choice, compiled and timed beside the float program."""

    precisions: Mapping[Unit, str]  # of the units that are not in float
    optimized: Optimized
    options: CompileOptions
    quality: Quality
    seconds: float
    float_seconds: float  # in the same race

    @property
    def speedup(self) -> float:
        return self.float_seconds / self.seconds


@dataclass(eq=False)
class _Trial:
    """Quantisation of one graph in progress. `narrow` are the options for graphs that are not in
    float."""

    plain: Optimized
    options: CompileOptions
    narrow: CompileOptions
    precision: str
    is_random: bool
    prepared: Prepared
    refusals: tuple[str, ...] = ()
    # Set by a search:
    _float: Executable = field(init=False)
    _comparison: Comparison = field(init=False)
    _fused: Sequence[tuple[int, int]] = ()  # units, of which a kernel computes both in float

    @property
    def graph(self) -> Graph:
        """The calibrated graph, whose channels are equalised."""
        return self.prepared.graph

    @property
    def units(self) -> Sequence[Unit]:
        return self.prepared.units

    def all_integer(self, allowed: Budget | None) -> Quantized:
        """All layers on integers, and products of data unless the host is faster without: there,
        attention in float is one kernel. Errors do not influence the choice, so that they are
        bounded as those of one program."""
        self._run_float(tries=1)
        candidate = self._candidate(dict.fromkeys(self.units, INTEGER))
        layers = [unit for unit in self.units if unit.weight is not None]
        if 0 < len(layers) < len(self.units) and not self.options.accelerators:
            other = self._candidate(dict.fromkeys(layers, INTEGER))
            candidate = max(candidate, other, key=lambda one: one.speedup)
        if allowed is not None and not candidate.quality.meets(allowed):
            raise UserError(
                f"all in {self.precision}, the relative output error is"
                f" {candidate.quality.error:.3g}, and {candidate.quality.error_bound:.3g} cannot"
                f" be excluded: over the budget ({allowed})",
                hint="precision='auto' keeps in float what the budget does not allow",
            )
        units = tuple(
            _reported(unit, self.precision, "as asked")
            if unit in candidate.precisions
            else _reported(unit, FLOAT, "the whole is faster so")
            for unit in self.units
        )
        return self._finished(candidate, units, allowed)

    def search(self, allowed: Budget | None) -> Quantized:
        """The fastest choice within the budget that passes when it is measured."""
        self._run_float(tries=_ATTEMPTS + 1)  # accelerators as they are may come first
        costs, shared = self._costs(), self._shared
        errors = [max(o.error for o in cost.values()) for cost in costs]
        whole = sum(error for error in errors if math.isfinite(error))
        limit = whole if allowed is None or allowed.error is None else allowed.error**2 * _MARGIN
        best, tried, predicted = self._candidate({}), set[tuple[str, ...]](), math.inf
        if self.narrow is not self.options and self.options.accelerators:
            # accelerators in the precision, whatever the host does
            found = self._candidate({}, self.narrow)
            is_better = found.quality.meets(allowed) and found.speedup >= _LEAST_SPEEDUP
            best = found if is_better else best
        while len(tried) < _ATTEMPTS:
            choice = self._chosen(costs, limit)
            every = uniform(costs, shared, CANDIDATES[self.precision][0])
            fits = every.changed and error_of(costs, every.precisions) <= limit
            if not tried and fits and not self.options.accelerators:
                # Units were timed one by one, on a machine that may be busy. Where the budget has
                # room for all of them, all together are worth a measurement.
                choice = every
            gains = choice.seconds < predicted / _LEAST_SPEEDUP
            if not choice.changed or choice.precisions in tried or not gains:
                break
            tried.add(choice.precisions)
            self._say("measuring a choice", f"{len(choice.changed)} units in less than float32")
            found = self._candidate({self.units[n]: choice.precisions[n] for n in choice.changed})
            if not found.quality.meets(allowed):
                limit = _next_limit(choice, found.quality, allowed)
            elif found.speedup < _LEAST_SPEEDUP:  # what narrow numbers gain was overestimated
                costs = slowed(costs, choice, found.speedup)
            else:
                best = max(best, found, key=lambda one: one.speedup)
                predicted = choice.seconds
                limit = min(_next_limit(choice, found.quality, allowed), max(limit, whole))
        reports = self._unit_reports(costs, best, allowed)
        limits = np.geomspace(max(whole, 1e-12) * 1e-4, max(whole, 1e-12) * 1.01, _FRONT)
        front = pareto_front(partial(self._chosen, costs), [0.0, *map(float, limits)])
        points = tuple(
            FrontPoint(one.seconds, math.sqrt(one.error), dict(Counter(one.precisions)))
            for one in front
        )
        done = self._finished(best, reports, allowed)
        return replace(done, report=replace(done.report, attempts=len(tried), front=points))

    def _chosen(self, costs: Sequence[UnitCosts], limit: float) -> Choice:
        """The exact choice, together with placement if there are accelerators."""
        placed = self._placed
        if placed is None:
            return choose_precisions(costs, self._shared, limit)
        return placed.choose(costs, limit)

    @cached_property
    def _placed(self) -> PlacedUnits | None:
        """The units within the placement of the graph; None without accelerators."""
        if not self.narrow.accelerators:
            return None
        placement = partition_graph(self.graph, self.narrow).placement
        numbers = {node: number for number, node in enumerate(placement.candidates.nodes)}
        nodes = tuple(tuple(numbers[node] for node in unit.nodes) for unit in self.units)
        rate = self.options.host.limits.peak_bytes_per_second or math.inf
        return PlacedUnits(placement.problem, nodes, rate)

    def _say(self, stage: str, detail: str = "") -> None:
        self.options.report(Stage(stage, detail=detail))

    def _compiled(self, graph: Graph) -> Any:
        return _compiled(self.options.host, graph)

    def _run_float(self, tries: int) -> None:
        """Compile the float program, and record its results on samples."""
        self._say("compiling in float")
        self._float = self._linked(self.plain, self.options)
        heads = find_heads(self.graph, self.units)
        run = _runner(self.plain.graph, self._float)
        if heads.values:
            run = self._compiled(heads.observed(self.plain.graph))
        samples = self.prepared.held_out, self.prepared.probes
        self._comparison = Comparison.measured(heads, run, *samples, tries)

    def _linked(self, optimized: Optimized, options: CompileOptions) -> Executable:
        """A graph as it would run, on all targets."""
        return link_fastest(place(optimized, options), options).executable

    def _candidate(
        self, precisions: Mapping[Unit, str], options: CompileOptions | None = None
    ) -> _Candidate:
        """Compile and measure a choice; the empty choice is the float program."""
        inputs = _in_order(self.graph, self.prepared.held_out[0])
        if not precisions and options is None:
            seconds = race({"float": partial(self._float, inputs)})["float"]
            return _Candidate({}, self.plain, self.options, EXACT, seconds, seconds)
        graph = insert_precisions(self.graph, precisions, self.prepared.statistics)
        optimized, options = replace(self.plain, graph=graph), options or self.narrow
        program = self._linked(optimized, options)
        quality = self._comparison.quality(self._compared(graph, program))
        runs = {"float": self._float, "mixed": program}
        times = race({name: partial(run, inputs) for name, run in runs.items()})
        took = times["mixed"], times["float"]
        return _Candidate(precisions, optimized, options, quality, *took)

    def _compared(self, graph: Graph, program: Executable) -> Run:
        """A function that computes what is compared with float: the program's outputs, or heads."""
        heads = self._comparison.heads
        if not heads.values:
            return _runner(graph, program)
        run: Run = self._compiled(heads.compared(graph))
        return run

    def _costs(self) -> list[UnitCosts]:
        """Time and error of every unit in every precision that it may have."""
        host, inputs = self.options.host, _in_order(self.graph, self.prepared.held_out[0])
        self._say("timing units in float")
        floats = host.time_groups(self.graph, inputs)
        seconds, self._fused = unit_seconds(self.graph, self.units, floats)
        costs = [{FLOAT: UnitOption(own)} for own in seconds]
        kinds = [kind for kind in CANDIDATES[self.precision] if units_in(self.units, kind)]
        errors = self._sensitivity(kinds)
        for kind in kinds:
            self._say(f"timing units in {kind}")
            narrow_units = dict.fromkeys(units_in(self.units, kind), kind)
            whole = insert_precisions(self.graph, narrow_units, self.prepared.statistics)
            narrow, _ = unit_seconds(self.graph, self.units, host.time_groups(whole, inputs))
            for unit, own, after in zip(self.units, costs, narrow, strict=True):
                if unit in errors[kind]:
                    before = own[FLOAT].seconds
                    # What is not timed apart, being fused with something else, is no reason for or
                    # against.
                    known = after if before and after else before
                    own[kind] = UnitOption(known, errors[kind][unit])
        return [*costs]

    def _sensitivity(self, kinds: Sequence[str]) -> Mapping[str, Mapping[Unit, float]]:
        """By precision, the contribution of each unit to the error of the outputs."""
        if not kinds:
            return {}
        self._say("compiling for sensitivity")
        numbers = {unit: number for number, unit in enumerate(self.units)}

        def report(unit: Unit) -> None:
            report_unit(self.options.report, "perturbing units", self.units, numbers[unit])

        graph = self._comparison.heads.compared(self.graph)
        given = [sample.feeds for sample in self._comparison.probes]
        measured = Sensitivity(graph, self.prepared.statistics, self._compiled, given, report)
        return measured.contributions(kinds)

    @cached_property
    def _shared(self) -> list[SharedValue]:
        """Values that several units read, with the time to store them as bytes and as floats; and
        values between units of one kernel in float, with the time to store them at all."""
        readers: dict[Value, list[int]] = {}
        for position, unit in enumerate(self.units):
            for value in (*unit.operands, *unit.residuals):
                if value in self.prepared.statistics.ranges:
                    readers.setdefault(value, []).append(position)
        rate = self.options.host.limits.peak_bytes_per_second or math.inf
        shared = [
            SharedValue(tuple(own), number(bytes_of(value.type)) * 1.25 / rate)
            for value, own in readers.items()
            if len(own) > 1
        ]
        between = [(pair, self.units[pair[0]].output) for pair in self._fused]
        shared += [
            SharedValue(pair, number(bytes_of(one.type)) * 2 / rate) for pair, one in between
        ]
        return shared

    def _unit_reports(
        self, costs: Sequence[UnitCosts], best: _Candidate, allowed: Budget | None
    ) -> tuple[UnitReport, ...]:
        limit = math.inf if allowed is None or allowed.error is None else allowed.error**2
        found = []
        for unit, cost in zip(self.units, costs, strict=True):
            precision = best.precisions.get(unit, FLOAT)
            reason = "" if precision != FLOAT else self._why_float(unit, cost, limit)
            seconds = {name: one.seconds for name, one in cost.items() if one.seconds}
            errors = {name: one.error for name, one in cost.items() if name != FLOAT}
            found.append(
                UnitReport(
                    name=unit.name,
                    op=unit.anchor.op.name,
                    precision=precision,
                    reason=reason,
                    seconds=seconds,
                    errors=errors,
                )
            )
        return tuple(found)

    def _why_float(self, unit: Unit, cost: UnitCosts, limit: float) -> str:
        """Why a unit stays in float."""
        narrow = {name: one for name, one in cost.items() if name != FLOAT}
        if not narrow:
            kinds = CANDIDATES[self.precision]
            return "; ".join(f"{kind}: {no_reason_for(unit, kind)}" for kind in kinds)
        within = {name: one for name, one in narrow.items() if one.error <= limit}
        if not within:
            return "its error alone is over the budget"
        if all(one.seconds >= cost[FLOAT].seconds for one in within.values()):
            over = [f", and over the budget in {name}" for name in narrow if name not in within]
            return f"no faster in {' or '.join(within)}{''.join(over)}"
        return "the budget is better spent on other units"

    def _finished(
        self, best: _Candidate, units: tuple[UnitReport, ...], allowed: Budget | None
    ) -> Quantized:
        unreached = (
            _reported(unit, FLOAT, "no sample reached it") for unit in self.prepared.unreached
        )
        report = Report(
            units=(*units, *unreached),
            samples=self.prepared.samples,
            held_out=len(self.prepared.held_out),
            quality=best.quality,
            float_seconds=best.float_seconds,
            seconds=best.seconds,
            budget=allowed,
            random=self.is_random,
            equalized=self.prepared.equalized,
            refusals=self.refusals,
            warnings=self.prepared.warnings,
        )
        return Quantized(best.optimized, report, best.options)


def _compiled(host: Backend, graph: Graph) -> Any:
    """A graph as a function of feeds, on the host alone."""
    session = host.lower(graph).build().session
    return lambda feeds: session.run(None, feeds)


def _runner(graph: Graph, program: Executable) -> Run:
    return lambda sample: program(_in_order(graph, sample))


def _in_order(graph: Graph, sample: Feeds) -> list[Array]:
    return [sample[value.name] for value in graph.inputs]


def _next_limit(choice: Choice, quality: Quality, allowed: Budget | None) -> float:
    """The limit on the predicted error at which the measured error would meet the budget."""
    if allowed is None or allowed.error is None or not math.isfinite(quality.error_bound):
        return math.inf if quality.meets(allowed) else choice.error / 2
    ratio = (allowed.error / max(quality.error_bound, 1e-12)) ** 2
    return choice.error * min(ratio, 16.0) * _MARGIN


def _reported(unit: Unit, precision: str, reason: str) -> UnitReport:
    return UnitReport(unit.name, unit.anchor.op.name, precision, reason)
