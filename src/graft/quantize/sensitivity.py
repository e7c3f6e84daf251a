"""Sensitivity: how much each unit adds to the error of the outputs where it alone is narrow.

A unit's part is its *local* error, that of its own result on exact operands, times the *gain* from
there to the outputs. Local errors of all units and precisions come from one program, which runs
once per sample. Gains do not depend on the precision, so one more program measures them in one
precision: it holds each unit twice, in float and narrow, and an input that says which of both
results goes on. It runs once per unit and sample while time allows. Where it does not, neighbours
are perturbed together, which gives them one gain, and fewer samples are looked at.
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
SECONDS = 20.0  # that runs of perturbed networks may take

Errors = Mapping[Unit, float]


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Measures units of a graph on some samples. `report` is told the number of each unit before it
    is perturbed."""

    graph: Graph
    known: Statistics
    compile: Compile
    samples: Sequence[Feeds]
    report: Callable[[int], None] = lambda _number: None
    seconds: float = SECONDS

    def contributions(self, kinds: Sequence[str]) -> Mapping[str, Errors]:
        """By precision, the square of the relative output error that each unit causes alone.

        The first precision is the one that gains are measured in, of the units that it is for."""
        local = self.local_errors(kinds)
        first = local[kinds[0]]
        gains = self._gains(kinds[0], first)
        return {
            kind: {unit: error * gains[unit] for unit, error in own.items() if unit in gains}
            for kind, own in local.items()
        }

    def local_errors(self, kinds: Sequence[str]) -> Mapping[str, Errors]:
        """By precision, the square of the relative error of each unit's own result."""
        cases = [(kind, unit) for kind in kinds for unit in units_in(self.known.units, kind)]
        run = self.compile(locally_narrow(self.graph, self.known, cases))
        sums = np.zeros((len(cases), 2))
        for feeds in self.samples[:2]:  # a unit's result has many elements
            sums += np.reshape(run(feeds), (-1, 2))
        result: dict[str, dict[Unit, float]] = {kind: {} for kind in kinds}
        for (kind, unit), (error, power) in zip(cases, sums, strict=True):
            result[kind][unit] = float(error / power) if power > 0 else 0.0
        return result

    def _gains(self, precision: str, local: Errors) -> dict[Unit, float]:
        """What the squared relative error of a unit's result is multiplied by on its way."""
        units = units_in(self.known.units, precision)
        run = self.compile(switched(self.graph, self.known, precision))
        nothing = np.zeros(len(units), bool)
        run({**self.samples[0], SWITCHES: nothing})  # the first call may allocate
        start = time.perf_counter()
        exact = [run({**self.samples[0], SWITCHES: nothing})]
        affordable = max(1, int(self.seconds / (time.perf_counter() - start)))
        groups = np.array_split(np.arange(len(units)), min(affordable, len(units)))
        count = min(len(self.samples), max(1, affordable // len(groups)))
        samples = self.samples[:count]
        exact += [run({**feeds, SWITCHES: nothing}) for feeds in samples[1:]]
        gains: dict[Unit, float] = {}
        for group in groups:
            self.report(int(group[0]))
            only = nothing.copy()
            only[group] = True
            error = OutputError()
            for feeds, wanted in zip(samples, exact, strict=True):
                error.add(wanted, run({**feeds, SWITCHES: only}))
            members = [units[number] for number in group]
            total = sum(local[unit] for unit in members)
            gains |= dict.fromkeys(members, error.power / total if total > 0 else 0.0)
        return gains


def locally_narrow(graph: Graph, known: Statistics, cases: Sequence[tuple[str, Unit]]) -> Graph:
    """The graph with a copy of units in precisions; outputs are, per case, the sums of squares of
    what the copy differs by from the unit, and of the unit's result."""
    builder = QuantizationBuilder(graph, known)
    by_node: dict[object, list[int]] = {}
    for number, (_, unit) in enumerate(cases):
        by_node.setdefault(unit.nodes[-1], []).append(number)
    outputs: dict[int, list[Value]] = {}
    for node in graph.nodes:
        builder.append(node)
        power = None
        for number in by_node.get(node, ()):
            kind, unit = cases[number]
            power = _square_sum(builder, unit.output) if power is None else power
            narrow = _narrow_form(builder, unit, {}, kind)
            difference = builder("subtract", narrow, unit.output)
            outputs[number] = [_square_sum(builder, difference), power]
    flat = [value for number in range(len(cases)) for value in outputs[number]]
    names = [f"sum_{number}" for number in range(len(flat))]
    return eliminate_dead_code(builder.build(*flat, names=names))


def _square_sum(builder: QuantizationBuilder, value: Value) -> Value:
    return builder("sum", builder("multiply", value, value), keepdims=False)


def switched(graph: Graph, known: Statistics, precision: str = INTEGER) -> Graph:
    """The graph with both forms of each unit, and one more input that chooses between them."""
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
