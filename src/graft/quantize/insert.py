"""Inserts quantisation into a float graph: chosen units in, a graph with Q/DQ nodes out.

Activations are uint8 with one affine scale per tensor, which is what instructions that multiply
unsigned by signed bytes take as it is; weights are int8, symmetric, with a scale per output
channel; biases are int32 in units of the product of both scales.

A quantised value is read as bytes by everything but units that stay in float, which read it as it
was. Backends make integer arithmetic of the result; see `docs/decisions/0015-integer-layers.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.calibrate import Statistics
from graft.quantize.ranges import Range
from graft.quantize.units import Unit, quantized_values
from graft.quantize.weights import mean_shift


def insert_quantization(graph: Graph, chosen: Sequence[Unit], known: Statistics) -> Graph:
    """The graph with the chosen units on integers; the types of inputs and outputs stay."""
    inserter = QuantizationBuilder(graph, known)
    stored = quantized_values(graph, chosen)
    integer = {node: unit for unit in chosen for node in unit.nodes}
    floating = {node for unit in known.units for node in unit.nodes if node not in integer}
    for value in graph.inputs:
        if value in stored:
            inserter.store(value)
    for node in graph.nodes:
        inputs = node.inputs
        if node not in floating:
            inputs = tuple(inserter.bytes_of.get(v, v) if v in stored else v for v in inputs)
        unit = integer.get(node)
        if unit is not None:
            inputs = inserter.layer_inputs(unit, node, inputs)
        inserter.append(node, inputs)
        for value in node.outputs:
            if value in stored:
                inserter.store(value)
    return eliminate_dead_code(inserter.build(*graph.outputs, names=graph.output_names))


class QuantizationBuilder(Builder):
    """Builds a graph that a float one becomes; nodes that do not change stay the same objects.

    `bytes_of` has, for each value that is stored as bytes, what these stand for."""

    def __init__(self, graph: Graph, known: Statistics) -> None:
        super().__init__(graph.name)
        self.known = known
        self.bytes_of: dict[Value | None, Value] = {}
        self.names.reserve(*(value.name for node in graph.nodes for value in node.outputs))
        self.adopt_inputs(graph.inputs)

    def append(self, node: Node, inputs: tuple[Value | None, ...] | None = None) -> None:
        """Add a node, on other operands where some are given."""
        if inputs is not None and inputs != node.inputs:
            node = replace(node, inputs=inputs)
        super().append(node)

    def store(self, value: Value) -> None:
        """Quantise a value."""
        self.bytes_of[value] = self.through_bytes(value, self.known.ranges[value])

    def through_bytes(self, value: Value, chosen: Range) -> Value:
        """Quantised and dequantised."""
        scale = self.constant(chosen.scale, f"{value.name}_scale")
        zero = self.constant(np.uint8(chosen.zero_point), f"{value.name}_zero_point")
        name = f"{value.name}_quantized"
        codes = self("qnn.quantize", value, scale, zero, dtype=DType.UINT8, out=name)
        return self("qnn.dequantize", codes, scale, zero, out=f"{value.name}_dequantized")

    def layer_inputs(
        self, unit: Unit, node: Node, inputs: tuple[Value | None, ...]
    ) -> tuple[Value | None, ...]:
        """The operands of a node of an integer unit: weights and bias are quantised."""
        if node is unit.anchor:
            quantized = unit.quantized
            name = node.args[1].name
            arrays = quantized.integers, quantized.scale, np.zeros(len(unit.weight), np.int8)
            labels = (f"{name}_{part}" for part in ("quantized", "scale", "zero_point"))
            parts = map(self.constant, arrays, labels)
            weight = self("qnn.dequantize", *parts, axis=0, out=f"{name}_dequantized")
            return (inputs[0], weight, *inputs[2:])
        if unit.bias is None or node is not unit.epilogue[0]:
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
