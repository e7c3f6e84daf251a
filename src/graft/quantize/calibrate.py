"""Calibration: a graph and sample inputs in, the range of every value to be quantised out.

The graph is compiled with the values to be observed as its outputs, so that native code does the
work. Samples are seen once and not kept: memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.ranges import METHODS, Histogram, Range
from graft.quantize.units import (
    MOVING,
    Unit,
    constants_of,
    quantized_values,
    scale_classes,
)

Feeds = Mapping[str, Array]  # by input
# Compiles a graph: gives a function from inputs by name to outputs in order.
Compile = Callable[[Graph], Callable[[Feeds], Sequence[Array]]]


@dataclass(frozen=True, eq=False)
class Statistics:
    """What calibration knows of a graph: the range of each value that may be quantised and, by the
    anchor of a unit, the mean of each channel of its data."""

    units: tuple[Unit, ...]
    ranges: Mapping[Value, Range]
    means: Mapping[Node, Array]


@dataclass(eq=False)
class Calibration:
    """Calibration in progress: one `add` per sample, then `statistics`."""

    graph: Graph
    units: Sequence[Unit]
    compile: Compile
    samples: int = 0
    _histograms: dict[Value, Histogram] = field(default_factory=dict)
    _totals: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        constants = constants_of(self.graph)
        for value in quantized_values(self.graph, self.units):
            node = self.graph.producers.get(value)
            if node is None or node.op.name not in MOVING:  # others are moved from one of these
                self._histograms[value] = Histogram()
                if value in constants:
                    self._histograms[value].add(constants[value])
        inputs = set(self.graph.inputs)
        self._observed = [v for v in self._histograms if v not in constants.keys() | inputs]
        self._fed = [v for v in self._histograms if v in inputs]
        self._run = self.compile(observing(self.graph, self._observed, self.units))

    def add(self, feeds: Feeds) -> None:
        """Run the graph on a sample and count what its values are."""
        results = self._run(feeds)
        count = len(self._observed)
        for value, array in zip(self._observed, results[:count], strict=True):
            self._count(value, array)
        for value in self._fed:
            self._count(value, feeds[value.name])
        means = results[count:]
        self._totals = self._totals or [np.zeros(one.shape, np.float64) for one in means]
        for total, mean in zip(self._totals, means, strict=True):
            total += mean
        self.samples += 1

    def _count(self, value: Value, array: Array) -> None:
        try:
            self._histograms[value].add(array)
        except UserError as error:
            node = self.graph.producers.get(value)
            raise UserError(
                f"%{value.name} cannot be calibrated: {error.message}",
                node.location if node else None,
            ) from None

    def statistics(self, method: str) -> Statistics:
        """Ranges by one of the methods; values that are moved from each other share one."""
        choose = METHODS[method]
        classes = scale_classes(self.graph, quantized_values(self.graph, self.units))
        shared: dict[Value, Range] = {}
        for value, histogram in self._histograms.items():
            own, root = choose(histogram), classes[value]
            shared[root] = shared[root] | own if root in shared else own
        means = (total / self.samples for total in self._totals)
        anchors = (unit.anchor for unit in self.units)
        return Statistics(
            tuple(self.units),
            {value: shared[root] for value, root in classes.items()},
            dict(zip(anchors, means, strict=True)),
        )


def observing(graph: Graph, values: Sequence[Value], units: Sequence[Unit]) -> Graph:
    """The graph with other outputs: values, then the channel means of each unit's data."""
    builder = Builder(graph.name)
    builder.adopt_inputs(graph.inputs)
    for node in graph.nodes:
        builder.append(node)
    means = [_channel_means(builder, unit) for unit in units]
    return eliminate_dead_code(builder.build(*values, *means))


def _channel_means(builder: Builder, unit: Unit) -> Value:
    rank = unit.data.tensor.rank or 0
    channels = rank - 1 if unit.anchor.op.name == "nn.dense" else 1
    axes = tuple(axis for axis in range(rank) if axis != channels)
    if not axes:
        return builder("add", unit.data, builder.constant(np.zeros((), np.float32)))
    return builder("mean", unit.data, axes=axes, keepdims=False)
