"""Puts precisions into a float graph: units with their precisions in, a graph of these out.

On integers, activations are uint8 with one affine scale per tensor, which is what instructions that
multiply unsigned by signed bytes take as it is; weights are int8, symmetric, with a scale per
output channel; biases are int32 in units of the product of both scales. In bfloat16, data are
rounded by a pair of casts, and weights to numbers that bfloat16 holds. In float16, weights are
rounded alone: processors compute with such numbers in float32.

A value that is stored in a narrow form is read so by everything but units of other precisions,
which read it as it was. Backends make narrow arithmetic of the result; see
`docs/decisions/0015-integer-layers.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.calibrate import Statistics
from graft.quantize.ranges import Range
from graft.quantize.report import BRAIN, FLOAT, HALVES, INTEGER
from graft.quantize.units import Unit, quantized_values
from graft.quantize.weights import mean_shift


def insert_precisions(graph: Graph, precisions: Mapping[Unit, str], known: Statistics) -> Graph:
    """The graph with units in the given precisions, others in float; the types of inputs and
    outputs stay."""
    inserter = QuantizationBuilder(graph, known)
    chosen = {
        kind: [unit for unit, own in precisions.items() if own == kind] for kind in (INTEGER, BRAIN)
    }
    as_bytes = quantized_values(graph, chosen[INTEGER])
    as_brain = {unit.data for unit in chosen[BRAIN]}
    owner = {node: unit for unit in (*known.units, *precisions) for node in unit.nodes}
    for value in graph.inputs:
        inserter.store(value, value in as_bytes, value in as_brain)
    for node in graph.nodes:
        unit = owner.get(node)
        precision = INTEGER if unit is None else precisions.get(unit, FLOAT)
        forms = {INTEGER: inserter.bytes_of, BRAIN: inserter.brain_of}.get(precision, {})
        inputs = tuple(forms.get(value, value) for value in node.inputs)
        if unit is not None and precision != FLOAT:
            inputs = inserter.layer_inputs(unit, node, inputs, precision)
        inserter.append(node, inputs)
        for value in node.outputs:
            inserter.store(value, value in as_bytes, value in as_brain)
    return eliminate_dead_code(inserter.build(*graph.outputs, names=graph.output_names))


def insert_quantization(graph: Graph, chosen: Sequence[Unit], known: Statistics) -> Graph:
    """The graph with the chosen units on integers."""
    return insert_precisions(graph, dict.fromkeys(chosen, INTEGER), known)


class QuantizationBuilder(Builder):
    """Builds a graph that a float one becomes; nodes that do not change stay the same objects.

    `bytes_of` and `brain_of` have, for each value stored as bytes or as bfloat16, what these stand
    for."""

    def __init__(self, graph: Graph, known: Statistics) -> None:
        super().__init__(graph.name)
        self.known = known
        self.bytes_of: dict[Value | None, Value] = {}
        self.brain_of: dict[Value | None, Value] = {}
        self.names.reserve(*(value.name for node in graph.nodes for value in node.outputs))
        self.adopt_inputs(graph.inputs)

    def append(self, node: Node, inputs: tuple[Value | None, ...] | None = None) -> None:
        """Add a node, on other operands where some are given."""
        if inputs is not None and inputs != node.inputs:
            node = replace(node, inputs=inputs)
        super().append(node)

    def store(self, value: Value, as_bytes: bool, as_brain: bool) -> None:
        """Make the narrow forms of a value."""
        if as_bytes:
            self.bytes_of[value] = self.through_bytes(value, self.known.ranges[value])
        if as_brain:
            self.brain_of[value] = self.through_brain(value)

    def through_bytes(self, value: Value, chosen: Range) -> Value:
        """Quantised and dequantised."""
        scale = self.constant(chosen.scale, f"{value.name}_scale")
        zero = self.constant(np.uint8(chosen.zero_point), f"{value.name}_zero_point")
        name = f"{value.name}_quantized"
        codes = self("qnn.quantize", value, scale, zero, dtype=DType.UINT8, out=name)
        return self("qnn.dequantize", codes, scale, zero, out=f"{value.name}_dequantized")

    def through_brain(self, value: Value) -> Value:
        """Rounded to bfloat16."""
        narrow = self("cast", value, dtype=DType.BFLOAT16, out=f"{value.name}_rounded")
        return self("cast", narrow, dtype=DType.FLOAT32, out=f"{value.name}_widened")

    def layer_inputs(
        self, unit: Unit, node: Node, inputs: tuple[Value | None, ...], precision: str
    ) -> tuple[Value | None, ...]:
        """The operands of a node of a unit in a precision: weights and bias change."""
        if node is unit.anchor and precision in HALVES:
            rounded = unit.weight.astype(HALVES[precision].numpy).astype(np.float32)
            weight = self.constant(rounded, f"{node.args[1].name}_{precision}")
            return (inputs[0], weight, *inputs[2:])
        if node is unit.anchor:
            return (inputs[0], self._integer_weight(unit, node), *inputs[2:])
        if precision != INTEGER or unit.bias is None or node is not unit.epilogue[0]:
            return inputs
        scale = self.known.ranges[unit.data].scale * unit.quantized.scale
        bias = unit.bias - mean_shift(unit.weight, unit.quantized, self.known.means[unit.anchor])
        whole = np.rint(bias / scale)
        if not np.all(np.abs(whole) < np.iinfo(np.int32).max):
            return inputs
        name = node.args[1].name
        codes = self.constant(whole.astype(np.int32), f"{name}_quantized")
        factor = self.constant(scale.astype(np.float32), f"{name}_scale")
        return (inputs[0], self("qnn.dequantize", codes, factor, axis=0, out=f"{name}_dequantized"))

    def _integer_weight(self, unit: Unit, node: Node) -> Value:
        quantized, name = unit.quantized, node.args[1].name
        arrays = quantized.integers, quantized.scale, np.zeros(len(unit.weight), np.int8)
        labels = (f"{name}_{part}" for part in ("quantized", "scale", "zero_point"))
        parts = map(self.constant, arrays, labels)
        return self("qnn.dequantize", *parts, axis=0, out=f"{name}_dequantized")
