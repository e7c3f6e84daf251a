"""Matrix products, of narrow integers too, and convolutions: with transposes, factors, sums and
activations fused in."""

from __future__ import annotations

from graft.frontends.onnx.call import Call, cast_to
from graft.frontends.onnx.lower.linear import integer_matmul, matmul
from graft.frontends.onnx.lower.microsoft.activation import activated, coefficients_of, with_bias
from graft.frontends.onnx.lower.microsoft.contract import RULES, lowers_microsoft, main_alike
from graft.frontends.onnx.registry import lower_as
from graft.ir.graph import Value

_WINDOW = "auto_pad dilations group kernel_shape pads strides"


@lowers_microsoft("FusedMatMul", "A B", "alpha transA transB transBatchA transBatchB")
@lowers_microsoft("TransposeMatMul", "A B", "alpha transA transB")
def _fused_matmul(call: Call) -> Value:
    a, b = (_turned(call, call.input(i), side) for i, side in enumerate("AB"))
    product, alpha = matmul(call, a, b), call.float("alpha", 1.0)
    return product if alpha == 1 else call.op("multiply", product, call.scalar(alpha, product))


def _turned(call: Call, x: Value, side: str) -> Value:
    """The operand with its matrices in the last two axes; a vector stays as it is.

    A batch transpose moves the first axis, which holds the rows, behind the batch axes.
    """
    rank = call.rank(x)
    axes = list(range(rank))
    if rank >= 2 and call.int(f"transBatch{side}", 0):
        axes = [*axes[1:-1], 0, axes[-1]]
    if rank >= 2 and call.int(f"trans{side}", 0):
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else call.op("transpose", x, axes=axes)


@lowers_microsoft(
    "FusedGemm",
    "A B C?",
    "activation activation_alpha activation_beta activation_gamma alpha beta transA transB",
)
def _fused_gemm(call: Call) -> Value:
    product = main_alike(call, "Gemm", *call.inputs)[0]
    activation = call.string("activation", "")
    names = coefficients_of(call, activation) if activation else ()
    attributes = [f"activation_{name}" for name in names if call.has(f"activation_{name}")]
    return activated(call, product, activation, [call.float(name) for name in attributes])


@lowers_microsoft("FusedConv", "X W B? Z?", f"activation activation_params {_WINDOW}")
@lowers_microsoft("NhwcFusedConv", "X W B? Z?", f"activation activation_params {_WINDOW}")
def _fused_conv(call: Call) -> Value:
    """A sum with another tensor comes before the activation."""
    last = call.node.op_type.startswith("Nhwc")
    result = main_on_images(call, "Conv", call.input(0), last, *call.inputs[1:3])
    added = call.optional(3)
    if added is not None:
        result = call.op("add", result, added)
    parameters = call.attribute("activation_params", ())
    return activated(call, result, call.string("activation", ""), parameters)


def channels_first(call: Call, x: Value) -> Value:
    """[batch, ..., channels] -> [batch, channels, ...]."""
    rank = call.rank(x)
    return call.op("transpose", x, axes=(0, rank - 1, *range(1, rank - 1)))


def channels_last(call: Call, x: Value) -> Value:
    """[batch, channels, ...] -> [batch, ..., channels]."""
    return call.op("transpose", x, axes=(0, *range(2, call.rank(x)), 1))


def main_on_images(call: Call, op_type: str, data: Value, last: bool, *rest: Value | None) -> Value:
    """ONNX's own operator of the same attributes, on images whose channels may be last."""
    image = channels_first(call, data) if last else data
    result = main_alike(call, op_type, image, *rest)[0]
    return channels_last(call, result) if last else result


@lowers_microsoft("NhwcConv", "X W B?", _WINDOW)
def _nhwc_conv(call: Call) -> Value:
    return main_on_images(call, "Conv", call.input(0), True, *call.inputs[1:])


@lowers_microsoft("NhwcMaxPool", "x", "auto_pad ceil_mode dilations kernel_shape pads strides")
def _nhwc_max_pool(call: Call) -> Value:
    return main_on_images(call, "MaxPool", call.input(0), True)


# Products of narrow integers are exact sums, scaled afterwards. ONNX Runtime's products of unsigned
# by signed bytes saturate on machines without an instruction for them.


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
    a = lower_as(call, "DynamicQuantizeLinear", call.input(0), opset=RULES)
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
