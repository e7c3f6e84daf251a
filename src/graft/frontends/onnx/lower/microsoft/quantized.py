"""Operators on quantised tensors: dequantise, compute, quantise.

That is the form that quantised models without fused operators have, so the passes that turn it into
integer arithmetic serve both.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.microsoft.contract import RULES, lowers_microsoft, main_alike
from graft.frontends.onnx.lower.microsoft.product import main_on_images
from graft.frontends.onnx.registry import lower_as
from graft.ir.graph import Value


def real(call: Call, position: int) -> Value:
    """A quantised operand dequantised; its scale and zero point are the next two operands."""
    data, scale = call.input(position), call.input(position + 1)
    return call.op("qnn.dequantize", data, scale, call.optional(position + 2))


def quantized(call: Call, x: Value, position: int, dtype: DType) -> Value:
    """The result, quantised by the scale and zero point at a position."""
    scale, zero_point = call.input(position), call.optional(position + 1)
    return call.op("qnn.quantize", x, scale, zero_point, dtype=dtype)


def _binary(op_type: str, name: str) -> None:
    operands = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"

    @lowers_microsoft(op_type, operands)
    def _lower(call: Call) -> Value:
        result = call.op(name, real(call, 0), real(call, 3))
        return quantized(call, result, 6, call.input(0).dtype)


_binary("QLinearAdd", "add")
_binary("QLinearMul", "multiply")

_ONE = "X X_scale X_zero_point? Y_scale Y_zero_point?"


def _unary(op_type: str, attributes: str, compute: Callable[[Call, Value], Value]) -> None:
    @lowers_microsoft(op_type, _ONE, attributes)
    def _lower(call: Call) -> Value:
        return quantized(call, compute(call, real(call, 0)), 3, call.input(0).dtype)


def _leaky_relu(call: Call, x: Value) -> Value:
    return call.op("nn.leaky_relu", x, alpha=call.float("alpha", 0.01))


def _softmax(call: Call, x: Value) -> Value:
    """Before opset 13 over all axes from `axis` on, taken as one."""
    axis, opset = call.int("axis", -1), call.int("opset")
    return lower_as(call, "Softmax", x, opset=opset, axis=axis)[0]


def _pooled(op_type: str) -> Callable[[Call, Value], Value]:
    def compute(call: Call, x: Value) -> Value:
        return main_on_images(call, op_type, x, bool(call.int("channels_last", 0)))

    return compute


_WINDOW = "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides"

_unary("QLinearSigmoid", "", lambda call, x: call.op("sigmoid", x))
_unary("QLinearLeakyRelu", "alpha", _leaky_relu)
_unary("QLinearSoftmax", "axis opset", _softmax)
_unary("QLinearAveragePool", _WINDOW, _pooled("AveragePool"))
_unary("QLinearGlobalAveragePool", "channels_last", _pooled("GlobalAveragePool"))


@lowers_microsoft("QLinearConcat", "Y_scale Y_zero_point *inputs", "axis")
def _qlinear_concat(call: Call) -> Value:
    """Operands come as data, scale and zero point, one after the other."""
    count = len(call.inputs) - 2
    if count % 3 or not count:
        call.fail(f"QLinearConcat wants data, scale and zero point of each part, has {count}")
    parts = (real(call, position) for position in range(2, count + 2, 3))
    joined = call.op("concatenate", *parts, axis=call.int("axis"))
    return quantized(call, joined, 0, call.input(1).dtype)


@lowers_microsoft(
    "QLinearWhere",
    "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point",
)
def _qlinear_where(call: Call) -> Value:
    selected = call.op("where", call.input(0), real(call, 1), real(call, 4))
    return quantized(call, selected, 7, call.input(1).dtype)


@lowers_microsoft(
    "QLinearConv",
    "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?",
    "auto_pad channels_last dilations group kernel_shape pads strides",
)
def _qlinear_conv(call: Call) -> Value:
    """ONNX's operator of that name, or the same with the channels last."""
    last = bool(call.int("channels_last", 0))
    return main_on_images(call, "QLinearConv", call.input(0), last, *call.inputs[1:])


@lowers_microsoft(
    "DynamicQuantizeLSTM",
    "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point",
    "activation_alpha activation_beta activations clip direction hidden_size input_forget",
)
def _dynamic_quantize_lstm(call: Call) -> tuple[Value, ...]:
    """An LSTM on dequantised data and weights.

    ONNX Runtime also quantises the state from step to step, in portions that depend on how many
    threads it has; that is a way to compute, not a meaning, and is left out.
    """
    stored, scale, zero_point, *_ = lower_as(
        call, "DynamicQuantizeLinear", call.input(0), opset=RULES
    )
    data = call.op("qnn.dequantize", stored, scale, zero_point)
    weight, recurrent = (_gates(call, position, scale) for position, scale in ((1, 8), (2, 10)))
    return main_alike(call, "LSTM", data, weight, recurrent, *call.inputs[3:8])


def _gates(call: Call, position: int, scale_at: int) -> Value:
    """[directions, inputs, 4 * hidden] of narrow integers -> [directions, 4 * hidden, inputs]."""
    stored, zero_point = call.input(position), call.input(scale_at + 1)
    scale = call.input(scale_at)
    whole = call.op("cast", stored, dtype=DType.FLOAT32)
    zero = call.op("cast", _per_gate(call, zero_point), dtype=DType.FLOAT32)
    weight = call.op("multiply", call.op("subtract", whole, zero), _per_gate(call, scale))
    return call.op("transpose", weight, axes=(0, 2, 1))


def _per_gate(call: Call, parameter: Value) -> Value:
    """[directions] or [directions, 4 * hidden] with axes where the weight has others."""
    return call.op("expand_dims", parameter, axes=(1, 2) if call.rank(parameter) == 1 else (1,))
