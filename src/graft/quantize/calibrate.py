"""Calibration: a graph and samples in, the range of every value to be quantised out.

The graph is compiled with the observed values as its outputs, so that native code computes them.
Samples are not kept: memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.ir.graph import Graph, Node, Value
from graft.quantize.heads import with_outputs
from graft.quantize.moments import Moments
from graft.quantize.ranges import METHODS, Histogram, Range
from graft.quantize.scheme import BYTES, Scheme
from graft.quantize.units import MOVING, Unit, constants_of, quantized_values, scale_classes
from graft.quantize.weights import QuantizedWeight, quantize_weight

Feeds = Mapping[str, Array]  # by input
# Compiles a graph: gives a function from inputs by name to outputs in order.
Compile = Callable[[Graph], Callable[[Feeds], Sequence[Array]]]


@dataclass(frozen=True, eq=False)
class Statistics:
    """The results of calibration: the range of each value that may be quantised and, by the anchor
    of a layer, its integer weights."""

    units: tuple[Unit, ...]
    ranges: Mapping[Value, Range]
    weights: Mapping[Node, QuantizedWeight]
    scheme: Scheme = BYTES


@dataclass(eq=False)
class Calibration:
    """Calibration in progress: one `add` per sample, then `statistics`."""

    graph: Graph
    units: Sequence[Unit]
    compile: Compile
    samples: int = 0
    _histograms: dict[Value, Histogram] = field(default_factory=dict)
    _moments: dict[Node, Moments] = field(default_factory=dict)

    def __post_init__(self) -> None:
        constants = constants_of(self.graph)
        for value in quantized_values(self.graph, self.units):
            node = self.graph.producers.get(value)
            if node is None or node.op.name not in MOVING:  # others are moved from one of these
                self._histograms[value] = Histogram()
                if value in constants:
                    self._histograms[value].add(constants[value])
        self._layers = [unit for unit in self.units if unit.weight is not None]
        for unit in self._layers:
            assert unit.weight is not None
            self._moments[unit.anchor] = Moments(unit.anchor, unit.weight)
        data = (unit.operands[0] for unit in self._layers)
        known = constants.keys() | set(self.graph.inputs)
        needed = dict.fromkeys((*self._histograms, *data))
        self._observed = [value for value in needed if value not in known]
        self._run = self.compile(with_outputs(self.graph, self._observed))

    def add(self, feeds: Feeds) -> None:
        """Run the graph on a sample and update histograms and moments."""
        results = self._run(feeds) if self._observed else ()
        arrays = dict(zip(self._observed, results, strict=True))
        arrays |= {value: feeds[value.name] for value in self.graph.inputs}
        for value, histogram in self._histograms.items():
            if value in arrays:
                self._count(value, histogram, arrays[value])
        for unit in self._layers:
            if unit.operands[0] in arrays:
                self._moments[unit.anchor].add(arrays[unit.operands[0]])
        self.samples += 1

    def _count(self, value: Value, histogram: Histogram, array: Array) -> None:
        try:
            histogram.add(array)
        except UserError as error:
            node = self.graph.producers.get(value)
            raise UserError(
                f"%{value.name} cannot be calibrated: {error.message}",
                node.location if node else None,
            ) from None

    @property
    def unreached(self) -> tuple[Unit, ...]:
        """The layers that had no data in any sample."""
        return tuple(unit for unit in self._layers if not self._moments[unit.anchor].rows)

    def statistics(
        self,
        method: str,
        scheme: Scheme = BYTES,
        report: Callable[[int], None] = lambda _number: None,
    ) -> Statistics:
        """Ranges by one of the methods, and rounded weights; values moved from each other share a
        range. `report` is called with the number of each layer before its weights are rounded."""
        choose = METHODS[method]
        classes = scale_classes(self.graph, quantized_values(self.graph, self.units))
        shared: dict[Value, Range] = {}
        for value, histogram in self._histograms.items():
            own, root = choose(histogram, scheme), classes[value]
            shared[root] = shared[root] | own if root in shared else own
        weights = {}
        for number, unit in enumerate(self._layers):
            report(number)
            moments, has_bias = self._moments[unit.anchor], unit.bias is not None
            assert unit.weight is not None
            rounded = quantize_weight(unit.weight, scheme.weights, moments, has_bias)
            weights[unit.anchor] = rounded
        ranges = {value: shared[root] for value, root in classes.items()}
        return Statistics(tuple(self.units), ranges, weights, scheme)
