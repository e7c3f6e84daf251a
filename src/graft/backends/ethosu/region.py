"""Regions as TOSA graphs: a region whose images are NHWC in, a flatbuffer out."""

from __future__ import annotations

from graft.backends.ethosu import movement, operators
from graft.backends.ethosu.lower import Lowering
from graft.base.dtypes import DType
from graft.byoc.formats.integer_units import extents
from graft.ir.graph import Graph

FAMILIES = (movement, operators)  # importing them fills the table of operators


def to_tosa(region: Graph) -> bytes:
    """What Vela compiles and the reference model runs."""
    lowering = Lowering(region)
    for value in region.inputs:
        is_signed = value.dtype is DType.INT8
        lowering.tensors[value] = lowering.tosa.input(extents(value), is_signed)
    for node in region.nodes:
        lowering.lower(node)
    for value in region.outputs:
        lowering.tosa.output(lowering.tensors[value], value.dtype is DType.INT8)
    return lowering.tosa.serialized()
