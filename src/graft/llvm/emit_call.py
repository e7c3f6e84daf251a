"""Intrinsic calls -> instructions, LLVM's own intrinsics or Graft's polynomial kernels.

Part of the emitter: one table entry per name that loop IR knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.llvm.convert import narrow, widen
from graft.llvm.dot import brain_dot2, dot2, dot4, interleave4, join2
from graft.llvm.math import KERNELS, math_call
from graft.llvm.narrow import nibble
from graft.llvm.number import Number
from graft.llvm.rounding import nearest_byte, rounded
from graft.llvm.text import CONTRACT, Builder, Value, constant, type_suffix
from graft.llvm.types import WIDENED, register_bits
from graft.loop.intrinsics import ACROSS
from graft.loop.ir import BinaryKind

Combine = Callable[[Builder, BinaryKind, DType, Value, Value], Value]


def fused(builder: Builder, left: Value, right: Value, addend: Value) -> Value:
    """left * right + addend: rounded once where the processor can, else twice."""
    name = "fma" if builder.target.has_fma else "fmuladd"
    return builder.elementwise(name, left, right, addend)


def _inverse_root(builder: Builder, value: Value) -> Value:
    one = constant(1.0, value.element, value.lanes)
    root = builder.elementwise("sqrt", value)
    return builder.binary(f"fdiv {CONTRACT}".rstrip(), one, root)


def _is_infinite(builder: Builder, value: Value) -> Value:
    infinity = constant(float("inf"), value.element, value.lanes)
    return builder.compare("oeq", builder.elementwise("fabs", value), infinity)


def _add_pairs(builder: Builder, first: Value, second: Value) -> Value:
    """The first shuffle keeps all lanes in place, which units beside that of shuffles do, too."""
    lanes = first.lanes
    kept = [lane + lane % 2 * lanes for lane in range(lanes)]
    others = [lane + 1 - lane % 2 * 2 + lane % 2 * lanes for lane in range(lanes)]
    summands = (builder.shuffle(first, second, order) for order in (kept, others))
    return builder.binary("fadd", *summands)


def _zipped(builder: Builder, first: Value, second: Value, start: int) -> Value:
    """Interleaved lanes of both from some lane on, as many as one of them has."""
    order = [start + lane // 2 + lane % 2 * first.lanes for lane in range(first.lanes)]
    return builder.shuffle(first, second, order)


def _to_tf32(builder: Builder, value: Value) -> Value:
    """Half a unit of the last bit that is kept, added to the magnitude; the others cut off."""
    number = Number(builder, value)
    rounded = (number.to("bitcast", "i32") + 0x1000) & -0x2000
    return number.where(number.test("uno", number), rounded.to("bitcast", "float")).value


_FLOATS: dict[str, Callable[..., Value]] = {
    "sqrt": lambda builder, x: builder.elementwise("sqrt", x),
    "rsqrt": _inverse_root,
    "fma": fused,
    "dot2": brain_dot2,
    "add_pairs": _add_pairs,
    "zip_low": lambda builder, x, y: _zipped(builder, x, y, 0),
    "zip_high": lambda builder, x, y: _zipped(builder, x, y, x.lanes // 2),
    "floor": lambda builder, x: rounded(builder, "floor", x),
    "ceil": lambda builder, x: rounded(builder, "ceil", x),
    "round": lambda builder, x: rounded(builder, "roundeven", x),
    "trunc": lambda builder, x: rounded(builder, "trunc", x),
    "abs": lambda builder, x: builder.elementwise("fabs", x),
    "to_tf32": _to_tf32,
    "copysign": lambda builder, x, y: builder.elementwise("copysign", x, y),
}
_TESTS: dict[str, Callable[[Builder, Value], Value]] = {
    "isnan": lambda builder, x: builder.compare("uno", x, x),
    "isinf": _is_infinite,
}
# Of numbers, to bytes.
_BYTES: dict[str, bool] = {"to_int8": True, "to_uint8": False}
_REDUCTIONS = {name: kind for kind, name in ACROSS.items()}


def call(
    builder: Builder, name: str, dtype: DType, arguments: Sequence[Value], combine: Combine
) -> Value:
    """An intrinsic of loop IR on arguments of one dtype."""
    if name in _REDUCTIONS:
        return _reduce(builder, _REDUCTIONS[name], dtype, arguments[0], combine)
    if not dtype.is_float:
        return _integer(builder, name, dtype, *arguments)
    wide = [widen(builder, argument, dtype) for argument in arguments]
    if name in _TESTS:
        return _TESTS[name](builder, wide[0])
    if name == "bits":
        return builder.convert("bitcast", wide[0], "i64" if dtype is DType.FLOAT64 else "i32")
    if name in _BYTES:
        value, offset = wide
        return nearest_byte(builder, value, offset, _BYTES[name])
    if name in KERNELS:
        result = math_call(builder, name, wide)
    elif name in _FLOATS:
        result = _FLOATS[name](builder, *wide)
    else:
        raise UnsupportedError(f"machine code knows no function '{name}' of {dtype}")
    return narrow(builder, result, dtype)


def _integer(builder: Builder, name: str, dtype: DType, value: Value, *rest: Value) -> Value:
    match name:
        case "pow":
            return _integer_power(builder, value, rest[0])
        case "abs":
            return _with_flag(builder, "abs", value) if dtype.is_signed_integer else value
        case "clz":
            return _with_flag(builder, "ctlz", value)
        case "popcount":
            return builder.elementwise("ctpop", value)
        case "reduce_to_bits":
            return _mask_bits(builder, value)
        case "nibble":
            return nibble(builder, value)
        case "interleave4":
            return interleave4(builder, value)
        case "join2":
            return join2(builder, value)
        case "dot4":
            return dot4(builder, value, *rest)
        case "dot2":
            return dot2(builder, value, *rest)
    raise UnsupportedError(f"machine code knows no function '{name}' of {dtype}")


def _mask_bits(builder: Builder, mask: Value) -> Value:
    """One instruction on x86, where it is taken as a number of as many bits as there are lanes."""
    element = f"i{mask.lanes}"
    bits = mask if mask.lanes == 1 else builder.convert("bitcast", mask, element, 1)
    return builder.convert("zext", bits, "i64")


def _integer_power(builder: Builder, base: Value, exponent: Value) -> Value:
    """By squaring, wrapping around: a factor for each bit of the exponent that is set."""
    element, lanes = base.element, base.lanes
    zero, one = constant(0, element, lanes), constant(1, element, lanes)
    power = one
    for bit in range(register_bits(element)):
        if bit:
            base = builder.binary("mul", base, base)
        factor = builder.binary("and", exponent, constant(1 << bit, element, lanes))
        is_set = builder.compare("ne", factor, zero)
        power = builder.binary("mul", power, builder.select(is_set, base, one))
    return power


def _with_flag(builder: Builder, name: str, value: Value) -> Value:
    """An intrinsic whose second operand says whether an odd case may be undefined: it may not."""
    full, flag = f"llvm.{name}.{type_suffix(value)}", constant(False, "i1")
    return builder.call(full, value.element, value.lanes, value, flag)


def _reduce(
    builder: Builder, kind: BinaryKind, dtype: DType, value: Value, combine: Combine
) -> Value:
    """All lanes combined into one, halving the vector until one lane is left.

    A lane without a partner waits for the next round. small floats are added in float32 and
    rounded once, at the end.
    """
    work = DType.FLOAT32 if dtype in WIDENED else dtype
    value = widen(builder, value, dtype)
    waiting: Value | None = None
    while value.lanes > 1:
        half = value.lanes // 2
        if value.lanes % 2:
            last = builder.extract(value, value.lanes - 1)
            waiting = last if waiting is None else combine(builder, kind, work, waiting, last)
        low = builder.shuffle(value, value, list(range(half)))
        high = builder.shuffle(value, value, list(range(half, 2 * half)))
        value = combine(builder, kind, work, low, high)
    if waiting is not None:
        value = combine(builder, kind, work, value, waiting)
    return narrow(builder, value, dtype)
