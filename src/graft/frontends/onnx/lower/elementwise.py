"""Elementwise arithmetic, comparison and logic."""

from __future__ import annotations

from collections.abc import Callable

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import FORMS, Lowering, OnnxForm, corresponds, lowers, lowers_to
from graft.ir.graph import Value

# ONNX operators that are one Graft operator on the same operands.
_SAME = {
    "Abs": "abs",
    "Neg": "negative",
    "Sign": "sign",
    "Sqrt": "sqrt",
    "Exp": "exp",
    "Log": "log",
    "Erf": "erf",
    "Sigmoid": "sigmoid",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tanh": "tanh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
    "Ceil": "ceil",
    "Floor": "floor",
    "Round": "round",
    "IsNaN": "isnan",
    "Not": "logical_not",
    "BitwiseNot": "bitwise_not",
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Where": "where",
}


for _onnx_name, _name in _SAME.items():
    corresponds(_onnx_name, _name)


def _folded(name: str) -> Lowering:
    """A variadic ONNX operator as a chain of a binary one."""

    def lower(call: Call) -> Value:
        result = call.input(0)
        for position in range(1, len(call.inputs)):
            result = call.op(name, result, call.input(position))
        return result

    return lower


lowers("Sum")(_folded("add"))
for _onnx_name, _name in (("Max", "maximum"), ("Min", "minimum")):
    lowers(_onnx_name)(_folded(_name))
    FORMS.add(_name, OnnxForm(_onnx_name))


@lowers("Mean")
def _mean(call: Call) -> Value:
    total = _folded("add")(call)
    assert isinstance(total, Value)
    return call.op("divide", total, call.scalar(len(call.inputs), total))


@lowers("Mod")
def _mod(call: Call) -> Value:
    return call.op("mod" if call.int("fmod", 0) else "floor_mod", *call.inputs)


@lowers("Reciprocal")
def _reciprocal(call: Call) -> Value:
    x = call.input(0)
    return call.op("divide", call.scalar(1, x), x)


@lowers("BitShift")
def _bit_shift(call: Call) -> Value:
    names = {"LEFT": "left_shift", "RIGHT": "right_shift"}
    direction = call.string("direction")
    if direction not in names:
        call.fail(f"direction is '{direction}', neither LEFT nor RIGHT")
    return call.op(names[direction], *call.inputs)


@lowers("IsInf")
def _is_inf(call: Call) -> Value:
    x = call.input(0)
    result = call.op("isinf", x)
    zero = call.scalar(0, x)
    signs: tuple[tuple[str, Callable[[], Value]], ...] = (
        ("detect_positive", lambda: call.op("less", x, zero)),
        ("detect_negative", lambda: call.op("greater", x, zero)),
    )
    for attribute, other_sign in signs:
        if not call.int(attribute, 1):
            result = call.op("logical_and", result, other_sign())
    return result


@lowers("Clip")
def _clip(call: Call) -> Value:
    data = call.input(0)
    if call.opset < 11:
        low, high = call.float("min", None), call.float("max", None)
        return call.op("clip", data, a_min=low, a_max=high)
    return call.op("clip", data, call.optional(1), call.optional(2))


corresponds("Pow", "power")


lowers_to("Cast", "cast", "dtype=to saturate round_mode")
lowers_to("BitCast", "bitcast", "dtype=to")


@lowers("CastLike")
def _cast_like(call: Call) -> Value:
    attributes = call.attributes("cast", "saturate round_mode")
    return call.op("cast", call.input(0), dtype=call.input(1).dtype, **attributes)
