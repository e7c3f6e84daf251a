"""Precision chosen by measurement: an optimised graph and sample data in; a graph of mixed
precision, and the report on it, out.

Calibrate, measure each unit's time and its contribution to the error, choose exactly within the
budget, then measure the whole again on samples that were not calibrated on. A choice that is over
the budget or no faster than the float program is tightened and made again, and float is what is
left if none holds: so the result is never slower and never over the budget, as measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.base.progress import Stage
from graft.byoc.contract import Cost
from graft.byoc.executable import Executable
from graft.byoc.measure import race, samples
from graft.byoc.precision import (
    Choice,
    SharedValue,
    UnitCosts,
    all_integer,
    choose_precisions,
    pareto_front,
)
from graft.byoc.sizes import number
from graft.ir.graph import Graph, Value
from graft.ir.op import bytes_of
from graft.quantize.calibrate import Calibration, Feeds, Statistics
from graft.quantize.data import Data, Pixels, Sample, read_samples
from graft.quantize.insert import insert_quantization
from graft.quantize.ranges import METHODS
from graft.quantize.sensitivity import OutputError, contributions
from graft.quantize.units import Unit, find_units
from graft.race import link_fastest
from graft.stages import CompileOptions, Optimized, place
from graft.target.target import HOST

FLOAT, INTEGER, AUTO = "float32", "int8", "auto"
PRECISIONS = (FLOAT, INTEGER, AUTO)
RANDOM = "random"  # in the place of data
DEFAULT_BUDGET = 0.05
_DRAWN = 16  # samples where data are random
_EVERY, _MOST_HELD_OUT = 4, 64  # one of so many samples is not calibrated on, and not more
_PROBES = 4  # samples that single units are perturbed on
_ATTEMPTS = 6
_MARGIN = 0.9  # of the budget, aimed at after the first choice
_LEAST_SPEEDUP = 1.02  # below it, the gain may be the noise of measuring
_FRONT = 12  # limits that the Pareto front is computed for


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be lost: a relative error of the outputs, or a share of samples whose largest output
    has to stay the same."""

    error: float | None = None
    agreement: float | None = None

    @staticmethod
    def parse(given: float | str | Budget | None) -> Budget:
        """0.01, "1%" or "top1=0.99"."""
        if isinstance(given, Budget):
            return given
        text = str(DEFAULT_BUDGET if given is None else given).strip()
        kind, _, amount = text.rpartition("=")
        try:
            value = float(amount.removesuffix("%")) / (100 if amount.endswith("%") else 1)
        except ValueError:
            value = math.nan
        if kind not in ("", "top1") or not 0 < value <= 1:
            raise UserError(
                f"the budget {text!r} is no share of 1",
                hint='0.01 (or "1%") of relative output error, or "top1=0.99" of agreement',
            )
        return Budget(agreement=value) if kind else Budget(error=value)

    def __str__(self) -> str:
        if self.error is not None:
            return f"relative output error {self.error:.3g}"
        return f"top-1 agreement {self.agreement:.3g}"


@dataclass(frozen=True, slots=True)
class Quality:
    """How results on samples that were not calibrated on compare with the float program's.

    `agreement` is the share of rows whose largest element is the same; None without such rows."""

    error: float
    agreement: float | None = None

    def meets(self, budget: Budget) -> bool:
        if budget.error is not None:
            return self.error <= budget.error
        assert budget.agreement is not None
        return self.agreement is not None and self.agreement >= budget.agreement


@dataclass(frozen=True, slots=True)
class UnitReport:
    """What a unit became, and why. Seconds and the squared error are None where nothing was
    measured."""

    name: str
    op: str
    precision: str
    reason: str
    float_seconds: float | None = None
    integer_seconds: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of quantisation in numbers."""

    units: tuple[UnitReport, ...]
    samples: int
    held_out: int
    quality: Quality
    float_seconds: float
    seconds: float  # of the result; that of float where nothing is integer
    budget: Budget | None = None
    attempts: int = 0
    front: tuple[tuple[float, float], ...] = ()  # predicted (seconds of the units, error)
    random: bool = False

    @property
    def integer_units(self) -> int:
        return sum(unit.precision == INTEGER for unit in self.units)


@dataclass(frozen=True, eq=False)
class Quantized:
    """A graph of mixed precision, as `graft.compile` takes it, and how it came about."""

    optimized: Optimized
    report: Report


def quantize(
    optimized: Optimized,
    data: Data,
    options: CompileOptions,
    precision: str = AUTO,
    budget: float | str | Budget | None = None,
    method: str = "mse",
    pixels: Pixels | None = None,
) -> Quantized:
    """Quantise a graph: all that can be with "int8", what pays within the budget with "auto"."""
    if precision not in PRECISIONS[1:]:
        raise UserError(f"precision={precision!r}", hint=f"known ones: {', '.join(PRECISIONS)}")
    if method not in METHODS:
        raise UserError(f"there is no method {method!r}", hint=f"there are {', '.join(METHODS)}")
    if options.settings.machine != HOST:
        raise UserError(
            "precisions are chosen by measurement, on the machine that the code is for",
            hint="quantise there: `graft quantize -o FILE.onnx` writes a model for any machine",
        )
    allowed = None if precision == INTEGER and budget is None else Budget.parse(budget)
    units = find_units(optimized.graph)
    if not units:
        raise UserError(
            "there is nothing to quantise: the model has no float32 convolution or dense layer"
            " with constant weights"
        )
    is_random = isinstance(data, str) and data == RANDOM
    trial = _Trial(optimized, options, units, is_random)
    drawn = _drawn(optimized.graph) if is_random else None
    trial.calibrate(drawn or read_samples(data, optimized.graph.inputs, pixels), method)
    return trial.all_integer(allowed) if precision == INTEGER else trial.search(allowed)


def with_precision(
    optimized: Optimized,
    options: CompileOptions,
    precision: str,
    data: Data | None,
    budget: float | str | None,
) -> Optimized:
    """The graph in the precision that `graft.compile` is asked for."""
    if precision == FLOAT:
        if data is not None or budget is not None:
            raise UserError("data= and budget= are for quantisation", hint="precision='auto'")
        return optimized
    if data is None:
        raise UserError(
            f"precision={precision!r} needs samples to calibrate on",
            hint="data= is a folder, an iterable of arrays, or 'random', which shows times alone",
        )
    return quantize(optimized, data, options, precision, budget).optimized


def _drawn(graph: Graph) -> Iterator[Sample]:
    """Random samples, which say nothing of what the model will see."""
    names = [value.name for value in graph.inputs]
    for seed in range(_DRAWN):
        yield dict(zip(names, samples(graph, seed * len(names)), strict=True))


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A choice, compiled and measured beside the float program."""

    integer: frozenset[Unit]
    optimized: Optimized
    quality: Quality
    seconds: float
    float_seconds: float  # in the same race

    @property
    def speedup(self) -> float:
        return self.float_seconds / self.seconds


@dataclass(eq=False)
class _Trial:
    """Quantisation of one graph in progress."""

    optimized: Optimized
    options: CompileOptions
    units: Sequence[Unit]
    is_random: bool
    held_out: list[Sample] = field(default_factory=list)
    probes: list[Sample] = field(default_factory=list)

    def calibrate(self, given: Iterator[Sample], method: str) -> None:
        """See every sample once: most are calibrated on, and some are set aside."""
        first = list(islice(given, 2))
        if len(first) < 2:
            raise UserError(
                f"there are too few samples ({len(first)}): one is needed to calibrate on, and"
                " another one to measure the error on",
                hint="some hundred samples of what the model will see are good data",
            )
        self._say("compiling for calibration")
        calibration = Calibration(self.graph, self.units, self._compiled)
        for position, sample in enumerate(chain(first, given)):
            self._say("calibrating", f"sample {position + 1}")
            if position % _EVERY == 1 and len(self.held_out) < _MOST_HELD_OUT:
                self.held_out.append(sample)
                continue
            calibration.add(sample)
            if len(self.probes) < _PROBES:
                self.probes.append(sample)
        self.calibrated = calibration.samples
        self.known: Statistics = calibration.statistics(method)

    def all_integer(self, allowed: Budget | None) -> Quantized:
        """Every unit on integers, whatever that costs."""
        self._run_float()
        candidate = self._candidate(frozenset(self.units))
        if allowed is not None and not candidate.quality.meets(allowed):
            raise UserError(
                f"all in 8 bits, the relative output error is {candidate.quality.error:.3g}:"
                f" over the budget ({allowed})",
                hint="precision='auto' keeps in float what the budget does not allow",
            )
        units = tuple(_reported(unit, INTEGER, "as asked") for unit in self.units)
        return self._finished(candidate, units, allowed)

    def search(self, allowed: Budget | None) -> Quantized:
        """The fastest choice within the budget that holds when it is measured."""
        assert allowed is not None
        self._run_float()
        costs, shared = self._costs(), self._shared()
        whole = sum(one.error for one in costs if math.isfinite(one.error))
        limit = whole if allowed.error is None else allowed.error**2
        best, tried = self._candidate(frozenset()), set[frozenset[int]]()
        while len(tried) < _ATTEMPTS:
            choice = choose_precisions(costs, shared, limit)
            if not tried and sum(one.error for one in costs) <= limit:
                # Units were timed one by one, on a machine that may be busy. Where the budget has
                # room for all of them, all together are worth a measurement.
                choice = all_integer(costs, shared)
            if not choice.integer or choice.integer in tried:
                break
            tried.add(choice.integer)
            self._say("measuring a choice", f"{len(choice.integer)} units on integers")
            found = self._candidate(frozenset(self.units[n] for n in choice.integer))
            if not found.quality.meets(allowed):
                limit = _next_limit(choice, found.quality, allowed)
            elif found.speedup < _LEAST_SPEEDUP:  # what integers gain was overestimated
                costs = _corrected(costs, choice, found)
            else:
                best = max(best, found, key=lambda one: one.speedup)
                limit = _next_limit(choice, found.quality, allowed)
        reports = self._unit_reports(costs, best, allowed)
        limits = np.geomspace(max(whole, 1e-12) * 1e-4, max(whole, 1e-12) * 1.01, _FRONT)
        front = pareto_front(costs, shared, [0.0, *map(float, limits)])
        points = tuple((one.seconds, math.sqrt(one.error)) for one in front)
        done = self._finished(best, reports, allowed)
        return replace(done, report=replace(done.report, attempts=len(tried), front=points))

    @property
    def graph(self) -> Graph:
        return self.optimized.graph

    def _say(self, stage: str, detail: str = "") -> None:
        self.options.report(Stage(stage, detail=detail))

    def _compiled(self, graph: Graph) -> Any:
        """A graph as a function of feeds, on the host alone."""
        session = self.options.host.lower(graph).build().session
        return lambda feeds: session.run(None, feeds)

    def _run_float(self) -> None:
        """Compile the float program, and keep its results on the samples set aside."""
        self._say("compiling in float")
        self._float = self._linked(self.optimized)
        self._exact = [self._float(_in_order(self.graph, one)) for one in self.held_out]

    def _linked(self, optimized: Optimized) -> Executable:
        """A graph as it would run, on whatever backends are asked for."""
        return link_fastest(place(optimized, self.options), self.options).executable

    def _candidate(self, integer: frozenset[Unit]) -> _Candidate:
        """Compile a choice and measure it; nothing but float is what it is measured against."""
        inputs = _in_order(self.graph, self.held_out[0])
        if not integer:
            seconds = race({"float": partial(self._float, inputs)})["float"]
            return _Candidate(integer, self.optimized, Quality(0.0, 1.0), seconds, seconds)
        chosen = [unit for unit in self.units if unit in integer]
        graph = insert_quantization(self.graph, chosen, self.known)
        optimized = replace(self.optimized, graph=graph)
        program = self._linked(optimized)
        quality = self._quality(program)
        runs = {"float": self._float, "mixed": program}
        times = race({name: partial(run, inputs) for name, run in runs.items()})
        return _Candidate(integer, optimized, quality, times["mixed"], times["float"])

    def _quality(self, program: Executable) -> Quality:
        error, same, rows = OutputError(), 0, 0
        for sample, exact in zip(self.held_out, self._exact, strict=True):
            found = program(_in_order(self.graph, sample))
            error.add(exact, found)
            pairs = zip(exact, found, strict=True)
            ranked = next((p for p in pairs if _is_ranking(*p)), None)
            if ranked is not None:
                one, two = (np.argmax(array, axis=-1) for array in ranked)
                same, rows = same + int((one == two).sum()), rows + one.size
        return Quality(error.relative, same / rows if rows else None)

    def _costs(self) -> list[UnitCosts]:
        """Time and error of every unit."""
        host, inputs = self.options.host, _in_order(self.graph, self.held_out[0])
        self._say("timing units in float")
        floats = host.time_groups(self.graph, inputs)
        self._say("timing units on integers")
        whole = insert_quantization(self.graph, self.units, self.known)
        integers = host.time_groups(whole, inputs)
        self._say("compiling for sensitivity")

        def report(position: int) -> None:
            unit = self.units[position]
            self.options.report(Stage("perturbing units", position + 1, len(self.units), unit.name))

        errors = contributions(self.graph, self.known, self._compiled, self.probes, report)
        times = ((_seconds(unit, floats), _seconds(unit, integers)) for unit in self.units)
        return [
            # What is not timed apart, being fused with something else, is no reason for or against.
            UnitCosts(a, b, errors[unit]) if a and b else UnitCosts(0.0, 0.0, errors[unit])
            for unit, (a, b) in zip(self.units, times, strict=True)
        ]

    def _shared(self) -> list[SharedValue]:
        """Values that several units read, with the time to have them as bytes and as floats."""
        readers: dict[Value, list[int]] = {}
        for position, unit in enumerate(self.units):
            for value in (unit.data, *unit.residuals):
                if value in self.known.ranges:
                    readers.setdefault(value, []).append(position)
        rate = self.options.host.limits.peak_bytes_per_second or math.inf
        return [
            SharedValue(tuple(own), number(bytes_of(value.type)) * 1.25 / rate)
            for value, own in readers.items()
            if len(own) > 1
        ]

    def _unit_reports(
        self, costs: Sequence[UnitCosts], best: _Candidate, allowed: Budget
    ) -> tuple[UnitReport, ...]:
        limit = math.inf if allowed.error is None else allowed.error**2
        found = []
        for unit, cost in zip(self.units, costs, strict=True):
            is_integer = unit in best.integer
            reason = "" if is_integer else _why_float(cost, limit)
            one = _reported(unit, INTEGER if is_integer else FLOAT, reason)
            found.append(
                replace(
                    one,
                    float_seconds=cost.float_seconds,
                    integer_seconds=cost.integer_seconds,
                    error=cost.error,
                )
            )
        return tuple(found)

    def _finished(
        self, best: _Candidate, units: tuple[UnitReport, ...], allowed: Budget | None
    ) -> Quantized:
        report = Report(
            units,
            self.calibrated,
            len(self.held_out),
            best.quality,
            best.float_seconds,
            best.seconds,
            allowed,
            random=self.is_random,
        )
        return Quantized(best.optimized, report)


def _in_order(graph: Graph, sample: Feeds) -> list[Array]:
    return [sample[value.name] for value in graph.inputs]


def _is_ranking(exact: Array, found: Array) -> bool:
    is_float = np.issubdtype(exact.dtype, np.floating)
    return is_float and exact.ndim > 0 and exact.shape == found.shape and exact.shape[-1] > 1


def _seconds(unit: Unit, costs: Mapping[str, Cost]) -> float:
    """The time of the kernels that make a unit's values."""
    names = {node.output.name for node in unit.nodes} | {f"{unit.name}_quantized"}
    return sum(costs[name].seconds for name in names if name in costs)


def _corrected(costs: Sequence[UnitCosts], choice: Choice, found: _Candidate) -> list[UnitCosts]:
    """The costs with as much more time on integers, beside float, as a measured choice has had."""
    floats = sum(one.float_seconds for one in costs)
    predicted = floats / max(choice.seconds, 1e-12)
    factor = max(predicted / found.speedup, 1.05)
    return [replace(one, integer_seconds=one.integer_seconds * factor) for one in costs]


def _next_limit(choice: Choice, quality: Quality, allowed: Budget) -> float:
    """The limit on the predicted error with which the measured one would use the budget up."""
    if allowed.error is None or not math.isfinite(quality.error):
        return 0.0 if quality.meets(allowed) else choice.error / 2
    ratio = (allowed.error / max(quality.error, 1e-12)) ** 2
    return choice.error * min(ratio, 16.0) * _MARGIN


def _reported(unit: Unit, precision: str, reason: str) -> UnitReport:
    return UnitReport(unit.name, unit.anchor.op.name, precision, reason)


def _why_float(cost: UnitCosts, limit: float) -> str:
    if cost.error > limit:
        return "its error alone is over the budget"
    if cost.integer_seconds >= cost.float_seconds:
        return "no faster on integers"
    return "the budget is better spent on other units"
