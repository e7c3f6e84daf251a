"""Sensitivity: the error of the outputs that each unit causes if only it is narrow.

One program is compiled per precision. It contains every unit twice, in float and in that precision,
and an input selects one of both results. It runs once per unit and sample while time allows;
otherwise fewer samples are used, and neighbouring units are narrow together: their error is split
in proportion to *local* errors, those of their own results on exact operands, which one run gives
for all units. So large networks take no longer than small ones, and choices based on these numbers
are measured again as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import DType
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, tensor
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.calibrate import Compile, Feeds, Statistics
from graft.quantize.confidence import OutputError
from graft.quantize.insert import QuantizationBuilder
from graft.quantize.report import BRAIN, INTEGER
from graft.quantize.units import Unit, units_in

SWITCHES = "narrow_units"  # the input: one truth value per unit
SECONDS = 30.0  # that runs of perturbed networks may take, in all precisions together

Errors = Mapping[Unit, float]


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Measures units of a graph on some samples. `report` is called with each unit before its run,
    or with the first of a group."""

    graph: Graph
    known: Statistics
    compile: Compile
    samples: Sequence[Feeds]
    report: Callable[[Unit], None] = lambda _unit: None
    seconds: float = SECONDS

    def contributions(self, kinds: Sequence[str]) -> Mapping[str, Errors]:
        """By precision, the squared relative output error that each unit causes alone."""
        return {kind: self._contributions(kind, self.seconds / len(kinds)) for kind in kinds}

    def _contributions(self, precision: str, seconds: float) -> Errors:
        units = units_in(self.known.units, precision)
        run = self.compile(switched(self.graph, self.known, precision))
        nothing = np.zeros(len(units), bool)
        run({**self.samples[0], SWITCHES: nothing})  # the first call may allocate
        start = time.perf_counter()
        exact = [run({**self.samples[0], SWITCHES: nothing})]
        affordable = max(1, int(seconds / (time.perf_counter() - start)))
        groups = np.array_split(np.arange(len(units)), min(affordable, len(units)))
        samples = self.samples[: max(1, affordable // len(groups))]
        exact += [run({**feeds, SWITCHES: nothing}) for feeds in samples[1:]]
        together = len(groups) < len(units)
        local = self.local_errors(precision) if together else dict.fromkeys(units, 1.0)
        result: dict[Unit, float] = {}
        for group in groups:
            self.report(units[group[0]])
            only = nothing.copy()
            only[group] = True
            error = OutputError()
            for feeds, wanted in zip(samples, exact, strict=True):
                error.add(wanted, run({**feeds, SWITCHES: only}))
            members = [units[number] for number in group]
            total = sum(local[unit] for unit in members)
            result |= {u: error.power * local[u] / total if total > 0 else 0.0 for u in members}
        return result

    def local_errors(self, precision: str) -> Errors:
        """The squared relative error of each unit's own result."""
        units = units_in(self.known.units, precision)
        run = self.compile(locally_narrow(self.graph, self.known, precision))
        sums = np.reshape(run(self.samples[0]), (-1, 2))  # a result has many elements
        ratios = (error / power if power > 0 else 0.0 for error, power in sums)
        return dict(zip(units, map(float, ratios), strict=True))


def locally_narrow(graph: Graph, known: Statistics, precision: str) -> Graph:
    """The graph with a narrow copy of each unit; outputs are, per unit, the sums of squares of the
    copy's difference and of the unit's result."""
    builder = QuantizationBuilder(graph, known)
    last = {unit.nodes[-1]: unit for unit in units_in(known.units, precision)}
    sums: dict[Unit, list[Value]] = {}
    for node in graph.nodes:
        builder.append(node)
        if node in last:
            unit = last[node]
            narrow = _narrow_form(builder, unit, {}, precision)
            difference = builder("subtract", narrow, unit.output)
            sums[unit] = [_square_sum(builder, value) for value in (difference, unit.output)]
    flat = [value for unit in units_in(known.units, precision) for value in sums[unit]]
    return eliminate_dead_code(builder.build(*flat))


def _square_sum(builder: QuantizationBuilder, value: Value) -> Value:
    return builder("sum", builder("multiply", value, value), keepdims=False)


def switched(graph: Graph, known: Statistics, precision: str = INTEGER) -> Graph:
    """The graph with both forms of each unit, and an input that selects between them."""
    builder = QuantizationBuilder(graph, known)
    units = units_in(known.units, precision)
    switches = builder.input(SWITCHES, tensor(DType.BOOL, len(units)))
    last = {unit.nodes[-1]: (number, unit) for number, unit in enumerate(units)}
    current: dict[Value, Value] = {}  # what readers of a unit's result read
    for node in graph.nodes:
        inputs = tuple(None if v is None else current.get(v, v) for v in node.inputs)
        builder.append(node, inputs)
        if node in last:
            number, unit = last[node]
            narrow = _narrow_form(builder, unit, current, precision)
            one = builder("strided_slice", switches, begin=(number,), end=(number + 1,), axes=(0,))
            switch = builder("squeeze", one, axes=(0,))
            current[unit.output] = builder("where", switch, narrow, unit.output)
    outputs = [current.get(value, value) for value in graph.outputs]
    return eliminate_dead_code(builder.build(*outputs, names=graph.output_names))


def _narrow_form(
    builder: QuantizationBuilder, unit: Unit, current: dict[Value, Value], precision: str
) -> Value:
    """A copy of the unit's nodes on narrow operands."""
    ranges = builder.known.ranges
    formal: dict[Value | None, Value] = {}
    for value in (*unit.operands, *unit.residuals):
        source = current.get(value, value)
        if precision == INTEGER and value in ranges:
            source = builder.through_integers(source, ranges[value])
        elif precision == BRAIN and isinstance(value.type, TensorType):
            source = builder.through_brain(source)
        formal[value] = source
    for node in unit.nodes:
        inputs = tuple(formal.get(value, value) for value in node.inputs)
        copy = Value(builder.names(f"{node.output.name}_narrow"), node.output.type)
        builder.append_narrow(unit, node, inputs, precision, copy)
        formal[node.output] = copy
    return formal[unit.output]
