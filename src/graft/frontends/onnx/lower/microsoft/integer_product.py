"""Matrix products of narrow integers: exact sums, scaled afterwards; and of packed weights.

ONNX Runtime's products of unsigned by signed bytes saturate on machines without an instruction for
them; the meaning is exact arithmetic, which is what these lowerings are.
"""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.linear import cast_to, centred, matmul
from graft.frontends.onnx.lower.microsoft.activation import with_bias
from graft.frontends.onnx.lower.microsoft.contract import (
    lowers_microsoft,
    main_results,
    refuse_attribute,
    refuse_operand,
)
from graft.ir.graph import Value

_BITS = (2, 4, 8)


def scaled_product(
    call: Call,
    a: tuple[Value, Value, Value | None],
    b: tuple[Value, Value, Value | None],
) -> Value:
    """The product of what two quantised tensors stand for; each is data, scale, zero point."""
    sums = matmul(call, *(centred(call, data, zero, DType.INT32) for data, _, zero in (a, b)))
    scale = call.op("multiply", a[1], b[1])
    return call.op("multiply", cast_to(call, sums, scale.dtype), scale)


@lowers_microsoft("DynamicQuantizeMatMul", "A B b_scale b_zero_point? bias?")
def _dynamic_quantize_matmul(call: Call) -> Value:
    a = main_results(call, "DynamicQuantizeLinear", call.input(0))
    b = call.input(1), call.input(2), call.optional(3)
    return with_bias(call, scaled_product(call, (a[0], a[1], a[2]), b), call.optional(4))


@lowers_microsoft("MatMulIntegerToFloat", "A B a_scale b_scale a_zero_point? b_zero_point? bias?")
def _matmul_integer_to_float(call: Call) -> Value:
    a = call.input(0), call.input(2), call.optional(4)
    b = call.input(1), call.input(3), call.optional(5)
    return with_bias(call, scaled_product(call, a, b), call.optional(6))


@lowers_microsoft(
    "QGemm",
    "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?",
    "alpha transA transB",
)
def _qgemm(call: Call) -> Value:
    """C has no scale of its own: it counts in units of the product's."""
    a, b = call.input(0), call.input(3)
    a = call.op("transpose", a, axes=(1, 0)) if call.int("transA", 0) else a
    b = call.op("transpose", b, axes=(1, 0)) if call.int("transB", 0) else b
    parts = (
        centred(call, a, call.input(2), DType.INT32),
        centred(call, b, call.input(5), DType.INT32),
    )
    sums = matmul(call, *parts)
    if call.optional(6) is not None:
        sums = call.op("add", sums, call.input(6))
    scale = call.op("multiply", call.input(1), call.input(4))
    scale = call.op("multiply", scale, call.scalar(call.float("alpha", 1.0), scale))
    y_scale, zero_point = call.optional(7), call.optional(8)
    if y_scale is None:
        return call.op("multiply", cast_to(call, sums, scale.dtype), scale)
    # The scales' ratio is formed first, so that ties round as in ONNX Runtime.
    ratio = call.op("divide", scale, y_scale)
    scaled = call.op("multiply", cast_to(call, sums, ratio.dtype), ratio)
    dtype = a.dtype if zero_point is None else zero_point.dtype
    return call.op("qnn.quantize", scaled, call.scalar(1, scaled), zero_point, dtype=dtype)


@lowers_microsoft(
    "MatMulNBits",
    "A B scales zero_points? g_idx? bias?",
    "K N accuracy_level bits block_size weight_prepacked",
)
def _matmul_nbits(call: Call) -> Value:
    """`accuracy_level` allows less accuracy, and asks for none."""
    refuse_operand(call, 4, "g_idx")
    refuse_attribute(call, "weight_prepacked", 0)
    x, bits, block = call.input(0), call.int("bits", 4), call.int("block_size")
    rows, inputs = call.int("N"), call.int("K")
    if bits not in _BITS or block < 16 or block & (block - 1) or rows < 1 or inputs < 1:
        call.fail(f"MatMulNBits with bits={bits}, block_size={block}, N={rows}, K={inputs}")
    blocks = -(-inputs // block)
    scale = call.op("reshape", call.input(2), shape=(rows, blocks))
    stored = _unpacked(call, call.input(1), bits, rows, blocks * block)
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
        width = -(-blocks * bits // 8) * 8 // bits
        zero = _unpacked(call, zero, bits, rows, width)
        if width != blocks:
            zero = call.op("strided_slice", zero, begin=[0], end=[blocks], axes=[1])
    return call.op("qnn.dequantize", stored, scale, zero, axis=1, block_size=block)


def _per_input(call: Call, per_block: Value, block: int) -> Value:
    """[N, blocks] -> [N, K]."""
    rows, inputs = call.int("N"), call.int("K")
    tiled = call.op("tile", call.op("expand_dims", per_block, axes=[2]), reps=(1, 1, block))
    whole = call.op("reshape", tiled, shape=(rows, -1))
    return call.op("strided_slice", whole, begin=[0], end=[inputs], axes=[1])


def _unpacked(call: Call, packed: Value, bits: int, rows: int, columns: int) -> Value:
    """Bytes, each holding its first number in its lowest bits -> one number per byte."""
    if bits == 8:
        return call.op("reshape", packed, shape=(rows, columns))
    flat = call.op("reshape", packed, shape=(rows, columns * bits // 8, 1))
    shifts = call.constant(np.arange(0, 8, bits, dtype=np.uint8))
    parts = call.op("right_shift", flat, shifts)
    numbers = call.op("bitwise_and", parts, call.constant(np.uint8((1 << bits) - 1)))
    return call.op("reshape", numbers, shape=(rows, columns))
