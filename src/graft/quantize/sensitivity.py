"""Sensitivity: how much each unit adds to the error of the outputs where it alone is narrow.

One program is compiled per precision. It holds every unit twice, in float and in that precision,
and an input that says which of both results goes on. So a network is compiled once and run once per
unit and sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, tensor
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.calibrate import Compile, Feeds, Statistics
from graft.quantize.insert import QuantizationBuilder
from graft.quantize.report import BRAIN, INTEGER
from graft.quantize.units import Unit, units_in

SWITCHES = "narrow_units"  # the input: one truth value per unit


class OutputError:
    """The relative error of outputs over samples: of each output the root of the summed squares of
    differences over that of the values, and of all outputs the largest."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float]] = {}

    def add(self, exact: Sequence[Array], other: Sequence[Array]) -> None:
        """Count what the outputs of one sample differ by; only floats count."""
        for number, (one, two) in enumerate(zip(exact, other, strict=True)):
            if not np.issubdtype(one.dtype, np.floating):
                continue
            error, power = self._sums.get(number, (0.0, 0.0))
            wide = one.astype(np.float64)
            is_alike = one.shape == two.shape
            error += float(np.sum((two - wide) ** 2)) if is_alike else np.inf
            self._sums[number] = error, power + float(np.sum(wide**2))

    @property
    def power(self) -> float:
        """The square of the relative error: what independent errors add up in."""
        ratios = [e / p if p > 0 else (np.inf if e > 0 else 0.0) for e, p in self._sums.values()]
        return max(ratios, default=0.0)

    @property
    def relative(self) -> float:
        return float(np.sqrt(self.power))


def contributions(
    graph: Graph,
    known: Statistics,
    compile: Compile,
    samples: Sequence[Feeds],
    report: Callable[[int], None],
    precision: str = INTEGER,
) -> dict[Unit, float]:
    """The square of the relative output error that each unit causes alone in a precision."""
    units = units_in(known.units, precision)
    run = compile(switched(graph, known, precision))
    nothing = np.zeros(len(units), bool)
    exact = [run({**feeds, SWITCHES: nothing}) for feeds in samples]
    found: dict[Unit, float] = {}
    for number, unit in enumerate(units):
        report(number)
        only = nothing.copy()
        only[number] = True
        error = OutputError()
        for feeds, wanted in zip(samples, exact, strict=True):
            error.add(wanted, run({**feeds, SWITCHES: only}))
        found[unit] = error.power
    return found


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
