"""Integer division, modulo and shifts.

Part of the emitter. LLVM leaves division by zero, the most negative number divided by -1 and shifts
by too much undefined (a processor may even stop the program); here they have results: zero, the
wrapped number, and all bits shifted out.
"""

from __future__ import annotations

from graft.llvm.text import Builder, Value, constant
from graft.llvm.types import register_bits
from graft.loop.ir import BinaryKind


def constant_of(value: Value) -> int | None:
    """The number that a value is in every lane, if it is a constant."""
    text = value.text.removeprefix(f"splat ({value.element} ").removesuffix(")")
    return int(text) if text.lstrip("-").isdigit() else None


def floor_divide(builder: Builder, signed: bool, left: Value, right: Value) -> Value:
    """The quotient, rounded towards minus infinity."""
    divisor = constant_of(right)
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        amount = constant(divisor.bit_length() - 1, left.element, left.lanes)
        return builder.binary("ashr" if signed else "lshr", left, amount)
    if not signed:
        return _guarded(builder, "udiv", left, right)
    quotient, rest = _truncated(builder, "sdiv", left, right)
    wrong = _wrong_sign(builder, rest, right)
    minus_one = builder.convert("sext", wrong, left.element)
    return _zero_if_zero(builder, builder.binary("add", quotient, minus_one), right)


def floor_modulo(builder: Builder, signed: bool, left: Value, right: Value) -> Value:
    """The rest, which has the divisor's sign."""
    divisor = constant_of(right)
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        return builder.binary("and", left, constant(divisor - 1, left.element, left.lanes))
    _, rest = _truncated(builder, "sdiv" if signed else "udiv", left, right)
    if signed:
        wrong = _wrong_sign(builder, rest, right)
        nothing = constant(0, left.element, left.lanes)
        rest = builder.binary("add", rest, builder.select(wrong, right, nothing))
    return _zero_if_zero(builder, rest, right)


def _truncated(builder: Builder, operation: str, left: Value, right: Value) -> tuple[Value, Value]:
    """Quotient and rest of a division that rounds towards zero."""
    quotient = _guarded(builder, operation, left, right)
    return quotient, builder.binary("sub", left, builder.binary("mul", quotient, right))


def divided_shortly(builder: Builder, kind: BinaryKind, left: Value, right: Value) -> Value:
    """The quotient or rest of numbers of 64 bits that fit into 31, all of them positive.

    No processor multiplies vectors of 64 bits for the upper half of the product, which is how to
    divide by a constant: LLVM would do it lane by lane."""
    divide = floor_divide if kind is BinaryKind.FLOOR_DIVIDE else floor_modulo
    short = builder.convert("trunc", left, "i32")
    divisor = constant_of(right)
    assert divisor is not None
    result = divide(builder, False, short, constant(divisor, "i32", left.lanes))
    return builder.convert("zext", result, left.element)


def _wrong_sign(builder: Builder, rest: Value, divisor: Value) -> Value:
    """Where the rest is not zero and differs from the divisor in sign."""
    zero = constant(0, rest.element, rest.lanes)
    differs = builder.compare("slt", builder.binary("xor", rest, divisor), zero)
    return builder.binary("and", differs, builder.compare("ne", rest, zero))


def _guarded(builder: Builder, operation: str, left: Value, right: Value) -> Value:
    """A quotient that exists for all operands: by zero it is zero, by -1 it wraps around."""
    divisor = constant_of(right)
    if divisor is not None and divisor not in (0, -1):
        return builder.binary(operation, left, right)
    element, lanes = left.element, left.lanes
    zero, one = constant(0, element, lanes), constant(1, element, lanes)
    is_zero = builder.compare("eq", right, zero)
    safe = builder.select(is_zero, one, right)
    if operation == "udiv":
        return builder.select(is_zero, zero, builder.binary("udiv", left, safe))
    is_minus_one = builder.compare("eq", right, constant(-1, element, lanes))
    safe = builder.select(is_minus_one, one, safe)
    quotient = builder.binary("sdiv", left, safe)
    quotient = builder.select(is_minus_one, builder.binary("sub", zero, left), quotient)
    return builder.select(is_zero, zero, quotient)


def _zero_if_zero(builder: Builder, value: Value, divisor: Value) -> Value:
    if constant_of(divisor) not in (None, 0):
        return value
    zero = constant(0, value.element, value.lanes)
    return builder.select(builder.compare("eq", divisor, zero), zero, value)


def shift(builder: Builder, to_left: bool, signed: bool, left: Value, right: Value) -> Value:
    """A shift; by the width or more, nothing is left but copies of the sign."""
    element, lanes = left.element, left.lanes
    width = register_bits(element)
    amount = constant_of(right)
    keeps_sign = signed and not to_left
    operation = "shl" if to_left else "ashr" if signed else "lshr"
    if amount is not None and 0 <= amount < width:
        return builder.binary(operation, left, right)
    last = constant(width - 1, element, lanes)
    bounded = builder.elementwise("umin", right, last)
    shifted = builder.binary(operation, left, bounded)
    if keeps_sign:
        return shifted
    fits = builder.compare("ule", right, last)
    return builder.select(fits, shifted, constant(0, element, lanes))
