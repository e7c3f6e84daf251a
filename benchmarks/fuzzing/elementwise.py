"""Emitters of elementwise operators: arithmetic, functions, comparison, logic, casts, choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.fuzzing.emitters import emits
from benchmarks.fuzzing.sketch import FLOATS, INTEGERS, Sketch, Value

_NUMBERS = (*FLOATS, *INTEGERS)


def is_exact(value: Value) -> bool:
    """Whether an operator that jumps may read a value."""
    return value.exact


def other_for(s: Sketch, value: Value) -> Value:
    """A second operand that broadcasts with the first: an existing value, or a new one."""
    fits = s.find(lambda one: one.dtype == value.dtype and _broadcasts(one, value))
    if fits is not None and s.draw.chance(0.6):
        return fits
    kept = value.shape[s.draw.between(0, value.rank) :] if value.rank else ()
    first = value.rank - len(kept)
    shape = tuple(
        1 if value.moves(first + axis) or s.draw.chance(0.25) else n for axis, n in enumerate(kept)
    )
    return s.fresh(value.dtype, shape)


def _broadcasts(one: Value, other: Value) -> bool:
    try:
        for a, b in zip(one.arrays, other.arrays, strict=True):
            np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return True


@emits("Abs", "Neg", "Relu", "Identity")
def unchanging(s: Sketch, op: str) -> None:
    s.add(op, [s.operand(_NUMBERS if op != "Relu" else FLOATS)], rounds=False)


@emits("Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh")
@emits("Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf", "Sigmoid", "Selu")
@emits("Softplus", "Softsign")
@emits("HardSwish", since=14)
@emits("Mish", since=18)
def function(s: Sketch, op: str) -> None:
    # The sixth in ONNX's definition of HardSwish is float32, in float64 too.
    value = s.operand(("float32", "float16") if op == "HardSwish" else FLOATS)
    if op in ("Log", "Sqrt", "Acosh") and s.draw.chance(0.8):
        value = _above(s, value)
    if op in ("Asin", "Acos", "Atanh") and s.draw.chance(0.8):
        value = (s.add("Sin", [value]) or [value])[0]
    s.add(op, [value])


def _above(s: Sketch, value: Value) -> Value:
    """The value made positive, and larger than one."""
    sizes = s.add("Abs", [value], rounds=False)
    if not sizes:
        return value
    return (s.add("Add", [*sizes, s.constant(np.ones((), value.dtype))]) or sizes)[0]


_WITH_ATTRIBUTES: dict[str, Callable[[Sketch], dict[str, Any]]] = {
    "LeakyRelu": lambda s: {"alpha": s.draw.among((0.01, 0.25, 1.5))},
    "Elu": lambda s: {"alpha": s.draw.among((1.0, 0.5))},
    "Celu": lambda s: {"alpha": s.draw.among((1.0, 2.0))},
    "HardSigmoid": lambda s: {"alpha": s.draw.among((0.2, 0.5)), "beta": 0.25},
    "Gelu": lambda s: {"approximate": s.draw.among(("none", "tanh"))},
}


@emits("LeakyRelu", "Elu", "Celu", "HardSigmoid")
@emits("Gelu", since=20)
def activation(s: Sketch, op: str) -> None:
    attributes = _WITH_ATTRIBUTES[op](s) if s.draw.chance(0.7) else {}
    # The constants in ONNX's definition of Gelu are float32, in float64 too.
    s.add(op, [s.operand(("float32", "float16") if op == "Gelu" else FLOATS)], **attributes)


@emits("Sign", "Floor", "Ceil", "Round", "ThresholdedRelu", "Shrink")
def jumping(s: Sketch, op: str) -> None:
    attributes: dict[str, dict[str, Any]] = {
        "ThresholdedRelu": {"alpha": 0.5},
        "Shrink": {"lambd": 0.75, "bias": 0.25},
    }
    dtypes = _NUMBERS if op in ("Sign", "Shrink") else FLOATS
    s.add(op, [s.operand(dtypes, is_exact)], jumps=True, rounds=False, **attributes.get(op, {}))


@emits("IsNaN", "IsInf")
def test_of_floats(s: Sketch, op: str) -> None:
    s.add(op, [s.operand(FLOATS, is_exact)], jumps=True, rounds=False)


@emits("PRelu")
def parametric(s: Sketch, op: str) -> None:
    value = s.operand()
    axes = [axis for axis in range(value.rank) if not value.moves(axis)]
    shape = tuple(n if axis in axes else 1 for axis, n in enumerate(value.shape))
    s.add(op, [value, s.fresh(value.dtype, shape[s.draw.between(0, len(shape)) :])])


@emits("Add", "Sub", "Mul", "Div")
def arithmetic(s: Sketch, op: str) -> None:
    value = s.operand(_NUMBERS)
    other = other_for(s, value)
    if op == "Div" and not value.is_float:
        other = s.constant(np.array(s.draw.among((1, 2, 3)), value.dtype))
        if value.dtype != "uint8" and any((array < 0).any() for array in value.arrays):
            return  # ONNX does not say which way negative quotients are rounded
    pair = [value, other] if op == "Div" or s.draw.chance(0.7) else [other, value]
    s.add(op, pair)


@emits("Pow")
def power(s: Sketch, op: str) -> None:
    value = s.operand((*FLOATS, "int32", "int64"))
    exponent = s.draw.among((2, 3, 0, 1)) if not value.is_float else s.draw.among((2, 0.5, 3, -1))
    dtype = (
        s.draw.among((value.dtype, "float32", "int64")) if exponent == int(exponent) else "float32"
    )
    s.add(op, [value, s.constant(np.array(exponent, dtype))])


@emits("Mod")
def remainder(s: Sketch, op: str) -> None:
    value = s.operand(_NUMBERS, is_exact)
    divisor = s.constant(np.array(s.draw.among((2, 3, 5)), value.dtype))
    fmod = 1 if value.is_float or s.draw.chance(0.3) else 0
    s.add(op, [value, divisor], jumps=True, fmod=fmod)


@emits("Min", "Max", "Sum", "Mean")
def variadic(s: Sketch, op: str) -> None:
    value = s.operand(_NUMBERS if op in ("Min", "Max") else FLOATS)
    others = [other_for(s, value) for _ in range(s.draw.between(0, 2))]
    s.add(op, [value, *others], rounds=op in ("Sum", "Mean"))


@emits("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def comparison(s: Sketch, op: str) -> None:
    value = s.operand(_NUMBERS, is_exact)
    s.add(op, [value, other_for(s, value)], jumps=True)


@emits("And", "Or", "Xor")
def logic(s: Sketch, op: str) -> None:
    value = s.operand(("bool",))
    s.add(op, [value, other_for(s, value)])


@emits("Not")
def negation(s: Sketch, op: str) -> None:
    s.add(op, [s.operand(("bool",))])


@emits("BitwiseAnd", "BitwiseOr", "BitwiseXor", since=18)
def bits(s: Sketch, op: str) -> None:
    value = s.operand(INTEGERS)
    s.add(op, [value, other_for(s, value)])


@emits("BitwiseNot", since=18)
def complement(s: Sketch, op: str) -> None:
    s.add(op, [s.operand(INTEGERS)])


@emits("BitShift")
def shift(s: Sketch, op: str) -> None:
    value = s.operand(("uint8",))
    by = s.constant(np.array(s.draw.between(0, 7), "uint8"))
    s.add(op, [value, by], direction=s.draw.among(("LEFT", "RIGHT")))


@emits("Where")
def choice(s: Sketch, op: str) -> None:
    value = s.operand((*_NUMBERS, "bool"))
    condition = s.find(lambda one: one.dtype == "bool" and _broadcasts(one, value))
    if condition is None:
        shape = tuple(1 if value.moves(axis) else n for axis, n in enumerate(value.shape))
        condition = s.fresh("bool", shape)
    s.add(op, [condition, value, other_for(s, value)], rounds=False)


@emits("Clip")
def clip(s: Sketch, op: str) -> None:
    value = s.operand(_NUMBERS)
    low, high = (s.constant(np.array(n, value.dtype)) for n in (s.draw.among((0, 1)), 3))
    choices: list[list[Value | None]] = [[low], [low, high], [None, high], []]
    bounds = s.draw.among(choices)
    s.add(op, [value, *bounds], rounds=False)


@emits("Cast")
def cast(s: Sketch, op: str) -> None:
    to = s.draw.among((*FLOATS, *INTEGERS, "bool"))
    value = s.operand((*_NUMBERS, "bool"), is_exact if to not in FLOATS else lambda value: True)
    if to == "uint8" and any((array < 0).any() for array in value.arrays):
        return  # what becomes of them is left open
    jumps = to not in FLOATS and value.is_float
    s.add(op, [value], jumps=jumps, rounds=to in FLOATS, to=_TYPES[to])


@emits("CastLike", since=15)
def cast_like(s: Sketch, op: str) -> None:
    value = s.operand((*INTEGERS, "bool"))
    s.add(op, [value, s.operand(FLOATS)])


_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
}


@emits("Dropout")
def dropout(s: Sketch, op: str) -> None:
    s.add(op, [s.operand()], outputs=s.draw.among((1, 2)), rounds=False)
