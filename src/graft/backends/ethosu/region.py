"""Regions as TOSA graphs: a region whose images are NHWC in, a flatbuffer out."""

from __future__ import annotations

from graft.backends.ethosu import movement, operators
from graft.backends.ethosu.lower import Lowering, shape_of
from graft.base.dtypes import DType
from graft.byoc.region import is_constant
from graft.ir.graph import Graph, Node

FAMILIES = (movement, operators)  # importing them fills the table of operators


def to_tosa(region: Graph) -> bytes:
    """What Vela compiles and the reference model runs."""

    def order(node: Node) -> int:
        """Constants first, and what they stand for: a layer looks at the bias behind it."""
        if node.op.name != "qnn.dequantize":
            return 0 if node.op.name == "constant" else 2
        return 1 if is_constant(node.args[0], region) else 2

    lowering = Lowering(region)
    for value in region.inputs:
        signed = value.dtype is DType.INT8
        lowering.tensors[value] = lowering.tosa.input(shape_of(value), signed)
    for node in sorted(region.nodes, key=order):
        lowering.lower(node)
    for value in region.outputs:
        lowering.tosa.output(lowering.tensors[value], value.dtype is DType.INT8)
    return lowering.tosa.serialized()
