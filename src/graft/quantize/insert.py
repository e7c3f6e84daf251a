"""Inserts quantisations and casts: a float graph and the precisions of its units in, a graph of
mixed precision out.

For integers, activations have one scale per tensor, affine uint8 by default, since instructions
multiply unsigned by signed bytes; weights are symmetric with a scale per output channel; biases are
int32 in units of the product of both scales. Both products of an attention are on integers, and the
softmax between them in float: its exponentials are quantised, and the result is divided by their
sums. For bfloat16, data are rounded by a pair of casts, and weights to bfloat16 values. For
float16, only weights are rounded: processors compute with such numbers in float32.

A value that is stored in a narrow form is read in that form, except by units of other precisions.
Backends make narrow arithmetic of the result; see `docs/decisions/0015-integer-layers.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value, make_node
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.calibrate import Statistics
from graft.quantize.ranges import Range
from graft.quantize.report import BRAIN, FLOAT, HALVES, INTEGER
from graft.quantize.units import ATTENTION, Unit, quantized_values, static_extents


def insert_precisions(graph: Graph, precisions: Mapping[Unit, str], known: Statistics) -> Graph:
    """The graph with units in the given precisions, others in float; inputs and outputs keep their
    types."""
    inserter = QuantizationBuilder(graph, known)
    chosen = {
        kind: [unit for unit, own in precisions.items() if own == kind] for kind in (INTEGER, BRAIN)
    }
    as_bytes = quantized_values(graph, chosen[INTEGER])
    as_brain = {unit.operands[0] for unit in chosen[BRAIN]}
    owner = {node: unit for unit in (*known.units, *precisions) for node in unit.nodes}
    for value in graph.inputs:
        inserter.store(value, value in as_bytes, value in as_brain)
    for node in graph.nodes:
        unit = owner.get(node)
        precision = INTEGER if unit is None else precisions.get(unit, FLOAT)
        forms = {INTEGER: inserter.bytes_of, BRAIN: inserter.brain_of}.get(precision, {})
        inputs = tuple(forms.get(value, value) for value in node.inputs)
        if unit is None or precision == FLOAT:
            inserter.append(node, inputs)
        else:
            inserter.append_narrow(unit, node, inputs, precision)
        for value in node.outputs:
            inserter.store(value, value in as_bytes, value in as_brain)
    return eliminate_dead_code(inserter.build(*graph.outputs, names=graph.output_names))


class QuantizationBuilder(Builder):
    """Builds the graph of mixed precision; unchanged nodes stay the same objects.

    `bytes_of` and `brain_of` map values to their dequantised integer and bfloat16 forms; `codes_of`
    has the codes and parameters of dequantised values."""

    def __init__(self, graph: Graph, known: Statistics) -> None:
        super().__init__(graph.name)
        self.known = known
        self.bytes_of: dict[Value | None, Value] = {}
        self.brain_of: dict[Value | None, Value] = {}
        self.codes_of: dict[Value, tuple[Value, ...]] = {}
        self.names.reserve(*(value.name for node in graph.nodes for value in node.outputs))
        self.adopt_inputs(graph.inputs)

    def append(self, node: Node, inputs: tuple[Value | None, ...] | None = None) -> None:
        """Add a node, possibly with other operands."""
        if inputs is not None and inputs != node.inputs:
            node = replace(node, inputs=inputs)
        super().append(node)

    def store(self, value: Value, as_bytes: bool, as_brain: bool) -> None:
        """Add the narrow forms of a value."""
        if as_bytes:
            self.bytes_of[value] = self.through_integers(value, self.known.ranges[value])
        if as_brain:
            self.brain_of[value] = self.through_brain(value)

    def through_integers(self, value: Value, chosen: Range) -> Value:
        """Quantise and dequantise a value."""
        dtype = chosen.scheme.activations
        scale = self.constant(chosen.scale, f"{value.name}_scale")
        zero = self.constant(dtype.numpy.type(chosen.zero_point), f"{value.name}_zero_point")
        name = f"{value.name}_quantized"
        codes = self("qnn.quantize", value, scale, zero, dtype=dtype, out=name)
        wide = self("qnn.dequantize", codes, scale, zero, out=f"{value.name}_dequantized")
        self.codes_of[wide] = codes, scale, zero
        return wide

    def through_brain(self, value: Value) -> Value:
        """Round a value to bfloat16."""
        narrow = self("cast", value, dtype=DType.BFLOAT16, out=f"{value.name}_rounded")
        return self("cast", narrow, dtype=DType.FLOAT32, out=f"{value.name}_widened")

    def append_narrow(
        self,
        unit: Unit,
        node: Node,
        inputs: tuple[Value | None, ...],
        precision: str,
        result: Value | None = None,
    ) -> None:
        """Add a node of a unit in a precision; `result` replaces its output."""
        named = node if result is None else replace(node, outputs=(result,))
        if node.op.name == ATTENTION and precision == INTEGER:
            self._append_attention(named, *(value for value in inputs if value is not None))
        else:
            self.append(named, self._layer_inputs(unit, node, inputs, precision))

    def _append_attention(self, node: Node, query: Value, key: Value, value: Value) -> None:
        """Both products on integers. Exponentials relative to each query's largest are quantised:
        probabilities of hundreds of keys would all be close to zero."""
        name = node.output.name
        *_, size = static_extents(key)
        rank = len(static_extents(key))
        axes = (*range(rank - 2), rank - 1, rank - 2)
        turned = self._transposed(key, axes)
        scores = self("nn.batch_matmul", query, turned, out=f"{name}_scores")
        factor = np.float32(size**-0.5 if node.attrs.scale is None else node.attrs.scale)
        scaled = self("multiply", scores, self.constant(factor), out=f"{name}_scaled")
        most = self("max", scaled, axes=(-1,), keepdims=True, out=f"{name}_most")
        less = self("subtract", scaled, most, out=f"{name}_less")
        powers = self("exp", less, out=f"{name}_powers")
        narrow = self.through_integers(powers, Range(0.0, 1.0, self.known.scheme))
        summed = self("nn.batch_matmul", narrow, value, out=f"{name}_summed")
        totals = self("sum", narrow, axes=(-1,), keepdims=True, out=f"{name}_totals")
        super().append(make_node("divide", (summed, totals), node.outputs, location=node.location))

    def _transposed(self, wide: Value, axes: tuple[int, ...]) -> Value:
        """A dequantised value, transposed as codes."""
        codes, *parameters = self.codes_of[wide]
        moved = self("transpose", codes, axes=axes, out=f"{codes.name}_transposed")
        return self("qnn.dequantize", moved, *parameters, out=f"{wide.name}_transposed")

    def _layer_inputs(
        self, unit: Unit, node: Node, inputs: tuple[Value | None, ...], precision: str
    ) -> tuple[Value | None, ...]:
        """The operands of a node of a unit in a precision, with narrow weights and bias."""
        if unit.weight is None:
            return inputs
        if node is unit.anchor and precision in HALVES:
            rounded = unit.weight.astype(HALVES[precision].numpy).astype(np.float32)
            weight = self.constant(rounded, f"{node.args[1].name}_{precision}")
            return (inputs[0], weight, *inputs[2:])
        if node is unit.anchor:
            return (inputs[0], self._integer_weight(unit, node), *inputs[2:])
        if precision != INTEGER or unit.bias is None or node is not unit.epilogue[0]:
            return inputs
        quantized = self.known.weights[unit.anchor]
        scale = self.known.ranges[unit.operands[0]].scale * quantized.scale
        whole = np.rint((unit.bias - quantized.shift) / scale)
        if not np.all(np.abs(whole) < np.iinfo(np.int32).max):
            return inputs
        name = node.args[1].name
        codes = self.constant(whole.astype(np.int32), f"{name}_quantized")
        factor = self.constant(scale.astype(np.float32), f"{name}_scale")
        return (inputs[0], self("qnn.dequantize", codes, factor, axis=0, out=f"{name}_dequantized"))

    def _integer_weight(self, unit: Unit, node: Node) -> Value:
        quantized, name = self.known.weights[unit.anchor], node.args[1].name
        zeros = np.zeros(len(quantized.integers), quantized.integers.dtype)
        arrays = quantized.integers, quantized.scale, zeros
        labels = (f"{name}_{part}" for part in ("quantized", "scale", "zero_point"))
        parts = map(self.constant, arrays, labels)
        return self("qnn.dequantize", *parts, axis=0, out=f"{name}_dequantized")
