"""Matrix products and convolutions with transposes, factors, sums and activations fused in."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.linear import matmul
from graft.frontends.onnx.lower.microsoft.activation import activated, coefficients_of
from graft.frontends.onnx.lower.microsoft.contract import lowers_microsoft, main_alike
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
