"""Matrix products of narrow integers: exact sums, scaled afterwards.

ONNX Runtime's products of unsigned by signed bytes saturate on machines without an instruction for
them; the meaning is exact arithmetic, which is what these lowerings are.
"""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.linear import cast_to, integer_matmul
from graft.frontends.onnx.lower.microsoft.activation import with_bias
from graft.frontends.onnx.lower.microsoft.contract import lowers_microsoft, main_results
from graft.ir.graph import Value


def scaled_product(
    call: Call,
    a: tuple[Value, Value, Value | None],
    b: tuple[Value, Value, Value | None],
) -> Value:
    """The real product of two quantised tensors; each is data, scale, zero point."""
    sums = integer_matmul(call, (a[0], a[2]), (b[0], b[2]))
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
    sums = integer_matmul(call, (a, call.input(2)), (b, call.input(5)))
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
