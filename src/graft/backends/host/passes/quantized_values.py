"""Dequantised values as rules see them: bytes, their scale and their zero point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.ops.integer import BYTES
from graft.rewrite.driver import Site

QUANTIZE, DEQUANTIZE = "qnn.quantize", "qnn.dequantize"


@dataclass(frozen=True, slots=True)
class Quantized:
    """Bytes and what they stand for: (value - zero point) * scale."""

    value: Value
    scale: Array  # of float32: one number, or one per index of an axis
    zero_point: Array
    axis: int | None = None  # None: one scale for all


def quantized(site: Site, value: Value | None) -> Quantized | None:
    """What a value is the dequantisation of, where all but the bytes is constant."""
    node = None if value is None else site.producer(value)
    if node is None or node.op.name != DEQUANTIZE or node.args[0].dtype not in BYTES:
        return None
    scale = site.array(node.args[1])
    if scale is None or scale.dtype != np.float32 or node.output.dtype is not DType.FLOAT32:
        return None
    zero_point = zero_point_of(site, node)
    if zero_point is None or node.attrs.block_size or not np.all(scale > 0):
        return None
    if scale.size == 1 and zero_point.size == 1:
        return Quantized(node.args[0], scale.reshape(()), zero_point.reshape(()))
    rank = node.args[0].tensor.rank
    return (
        None if rank is None else Quantized(node.args[0], scale, zero_point, node.attrs.axis % rank)
    )


def zero_point_of(site: Site, node: Node) -> Array | None:
    """The zero point of a quantisation or its inverse; None where it is not constant."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        dtype = node.args[0].dtype if node.op.name == DEQUANTIZE else node.output.dtype
        return np.zeros((), dtype.numpy)
    return site.array(node.inputs[2])


def scaled_sums(site: Site, sums: Value, scale: Array, behind: int) -> Value:
    """Integer sums as the floats that they stand for; `behind` axes follow that of the outputs."""
    real = site.emit("cast", sums, dtype=DType.FLOAT32)
    if scale.ndim:
        scale = scale.reshape(-1, *(1,) * behind)
    return site.emit("multiply", real, site.constant(scale.astype(np.float32)))


@dataclass(frozen=True, slots=True)
class Sums:
    """Integer sums times a constant."""

    sums: Value
    scale: Array


def sums_of(site: Site, value: Value) -> Sums | None:
    """What `scaled_sums` made the value of, unless it has another reader."""
    product = site.producer(value)
    if product is None or product.op.name != "multiply" or not site.only_use(value):
        return None
    scale, real = site.array(product.args[1]), site.producer(product.args[0])
    if scale is None or real is None or real.op.name != "cast":
        return None
    sums = real.args[0]
    is_exact = sums.dtype is DType.INT32 and real.output.dtype is DType.FLOAT32
    return Sums(sums, scale) if is_exact and site.only_use(real.output) else None
