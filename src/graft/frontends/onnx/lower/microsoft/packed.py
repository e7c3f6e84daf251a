"""Weights and tables that are packed: several numbers in a byte, with a scale for each block.

They are unpacked to a number per byte and dequantised by Graft's own operator. What does not depend
on the inputs is worked out when the model is compiled; a table is looked up first, so that only the
rows that are wanted are ever unpacked.
"""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, cast_to
from graft.frontends.onnx.lower.microsoft.activation import with_bias
from graft.frontends.onnx.lower.microsoft.contract import (
    lowers_microsoft,
    refuse_attribute,
    refuse_operand,
)
from graft.ir.graph import Value

_BITS = (2, 4, 8)


@lowers_microsoft(
    "MatMulNBits",
    "A B scales zero_points? g_idx? bias?",
    "K N accuracy_level bits block_size weight_prepacked",
)
def _matmul_nbits(call: Call) -> Value:
    """`accuracy_level` permits less accuracy and requires none: it is ignored."""
    refuse_operand(call, 4, "g_idx")
    refuse_attribute(call, "weight_prepacked", 0)
    x, bits, block = call.input(0), call.int("bits", 4), call.int("block_size")
    rows, inputs = call.int("N"), call.int("K")
    if bits not in _BITS or block < 16 or block & (block - 1) or rows < 1 or inputs < 1:
        call.fail(f"MatMulNBits with bits={bits}, block_size={block}, N={rows}, K={inputs}")
    blocks = -(-inputs // block)
    scale = call.op("reshape", call.input(2), shape=(rows, blocks))
    stored = call.op("reshape", _unpacked(call, call.input(1), bits), shape=(rows, blocks * block))
    if blocks * block != inputs:
        stored = call.op("strided_slice", stored, begin=[0], end=[inputs], axes=[1])
    weight = _weight(call, stored, scale, block, bits)
    return with_bias(call, call.op("nn.dense", x, cast_to(call, weight, x.dtype)), call.optional(5))


def _weight(call: Call, stored: Value, scale: Value, block: int, bits: int) -> Value:
    rows, blocks = call.int("N"), -(-call.int("K") // block)
    zero = call.optional(3)
    if zero is not None and zero.dtype is not DType.UINT8:
        zero = call.op("reshape", zero, shape=(rows, blocks))
        whole = call.op("qnn.dequantize", stored, scale, axis=1, block_size=block)
        shift = call.op("multiply", scale, zero)
        return call.op("subtract", whole, _per_input(call, shift, block))
    if zero is None:
        zero = call.constant(np.full((rows, blocks), 1 << bits - 1, np.uint8))
    else:
        zero = call.op("reshape", _unpacked(call, zero, bits), shape=(rows, -1))
        zero = call.op("strided_slice", zero, begin=[0], end=[blocks], axes=[1])
    return call.op("qnn.dequantize", stored, scale, zero, axis=1, block_size=block)


def _per_input(call: Call, per_block: Value, block: int) -> Value:
    """[N, blocks] -> [N, K]."""
    rows, inputs = call.int("N"), call.int("K")
    tiled = call.op("tile", call.op("expand_dims", per_block, axes=[2]), reps=(1, 1, block))
    whole = call.op("reshape", tiled, shape=(rows, -1))
    return call.op("strided_slice", whole, begin=[0], end=[inputs], axes=[1])


@lowers_microsoft(
    "GatherBlockQuantized",
    "data indices scales zero_points?",
    "bits block_size gather_axis quantize_axis",
)
def _gather_block_quantized(call: Call) -> Value:
    data, indices, bits = call.input(0), call.input(1), call.int("bits", 4)
    rank, block = call.rank(data), call.int("block_size", 128)
    axes = [call.int(name, i) for i, name in enumerate(("gather_axis", "quantize_axis"))]
    if not all(-rank <= axis < rank for axis in axes) or bits not in _BITS:
        call.fail(f"GatherBlockQuantized with bits={bits} and axes {axes} of {rank}")
    gathered, blocked = (axis % rank for axis in axes)
    if not data.dtype.is_integer or gathered == blocked:
        call.unsupported(f"GatherBlockQuantized of {data.dtype} along axes {axes}")
    rows = [
        None if table is None else call.op("take", table, indices, axis=gathered)
        for table in (data, call.input(2), call.optional(3))
    ]
    stored, scale, zero = rows
    assert stored is not None
    assert scale is not None
    if data.dtype is DType.UINT8:
        stored = _unpacked(call, stored, bits)
        zero = _zero_points(call, zero, scale, bits)
    if blocked > gathered:
        blocked += call.rank(indices) - 1
    return call.op("qnn.dequantize", stored, scale, zero, axis=blocked, block_size=block)


def _zero_points(call: Call, zero: Value | None, scale: Value, bits: int) -> Value:
    """One for each scale, or the middle of the range for all of them."""
    if zero is None:
        return call.constant(np.uint8(1 << bits - 1))
    count = scale.shape[-1] if scale.shape else None
    if not isinstance(count, int):
        call.unsupported("GatherBlockQuantized wants to know how many blocks there are")
    return call.op("strided_slice", _unpacked(call, zero, bits), begin=[0], end=[count], axes=[-1])


def _unpacked(call: Call, packed: Value, bits: int) -> Value:
    """Bytes along the last axis, with the first number in the lowest bits -> one per number."""
    if bits == 8:
        return packed
    shifts = call.constant(np.arange(0, 8, bits, dtype=np.uint8))
    parts = call.op("right_shift", call.op("expand_dims", packed, axes=[-1]), shifts)
    numbers = call.op("bitwise_and", parts, call.constant(np.uint8((1 << bits) - 1)))
    return call.op("reshape", numbers, shape=(*(0,) * (call.rank(packed) - 1), -1))
