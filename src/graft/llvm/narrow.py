"""Numbers of eight bits and less: what their bits mean, as instructions.

Part of the emitter. Such numbers have a byte each in memory, of which some use the lower bits only.
The floats travel as bytes in registers and become float32 to be computed with; the integers are
brought to a whole byte when they are read. Rounding is to the nearest, ties to even; what becomes
of numbers that are too large is what each format says.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.llvm.text import Builder, Value, constant, constants
from graft.llvm.types import register_type

_TABLE = 16  # numbers that 4 bits tell apart


@dataclass(frozen=True, slots=True)
class Format:
    """A narrow float: the bits of its exponent and fraction, the exponent's bias, and its special
    numbers as bits without the sign."""

    fraction: int
    bits: int  # of exponent and fraction
    bias: int
    largest: int  # the largest finite number
    overflow: int  # what larger ones become
    nan: int  # what NaN becomes
    has_infinity: bool = False
    nan_is_negative_zero: bool = False

    @property
    def has_nan(self) -> bool:
        """Whether all bits set, but for the sign, mean NaN."""
        return self.nan == (1 << self.bits) - 1


FORMATS = {
    DType.FLOAT16: Format(10, 15, 15, 0x7BFF, 0x7C00, 0x7E00, has_infinity=True),
    DType.FLOAT8E4M3FN: Format(3, 7, 7, 0x7E, 0x7F, 0x7F),
    DType.FLOAT8E4M3FNUZ: Format(3, 7, 8, 0x7F, 0x80, 0x80, nan_is_negative_zero=True),
    DType.FLOAT8E5M2: Format(2, 7, 15, 0x7B, 0x7C, 0x7E, has_infinity=True),
    DType.FLOAT8E5M2FNUZ: Format(2, 7, 16, 0x7F, 0x80, 0x80, nan_is_negative_zero=True),
    DType.FLOAT4E2M1FN: Format(1, 3, 1, 0x7, 0x7, 0x8),
}
_INFINITY = 0x7F800000
_NAN = 0x7FC00000


class _Bits:
    """32-bit integers with the operations that formulas are written in."""

    def __init__(self, builder: Builder, lanes: int) -> None:
        self.builder, self._lanes = builder, lanes

    def number(self, value: int) -> Value:
        return constant(value, "i32", self._lanes)

    def do(self, operation: str, value: Value, operand: int | Value) -> Value:
        other = self.number(operand) if isinstance(operand, int) else operand
        return self.builder.binary(operation, value, other)

    def choose(self, test: str, value: Value, limit: int, yes: int | Value, no: Value) -> Value:
        """`yes` where the value compares so with the limit, `no` elsewhere."""
        value_if_true = self.number(yes) if isinstance(yes, int) else yes
        condition = self.builder.compare(test, value, self.number(limit))
        return self.builder.select(condition, value_if_true, no)


def widen_narrow(builder: Builder, value: Value, dtype: DType) -> Value:
    """The bits of a narrow float -> float32, exactly."""
    do = _Bits(builder, value.lanes)
    bits = builder.convert("zext", value, "i32")
    if dtype is DType.FLOAT8E8M0FNU:  # an exponent alone; 2**-127 has a fraction in float32
        wide = do.choose("eq", bits, 0, 0x00400000, do.do("shl", bits, 23))
        return builder.convert("bitcast", do.choose("eq", bits, 0xFF, _NAN, wide), "float")
    form = FORMATS[dtype]
    size = do.do("and", bits, (1 << form.bits) - 1)
    sign = do.do("shl", do.do("and", bits, 1 << form.bits), 31 - form.bits)
    # The exponent is moved by a multiplication, which normalises small numbers on the way.
    small = builder.convert("bitcast", do.do("shl", size, 23 - form.fraction), "float")
    factor = constant(2.0 ** (127 - form.bias), "float", value.lanes)
    result = builder.convert("bitcast", builder.binary("fmul", small, factor), "i32")
    if form.has_infinity:
        special = do.do("or", result, _INFINITY)
        result = do.choose("ugt", size, form.largest, special, result)
    elif form.has_nan:
        result = do.choose("eq", size, form.nan, _NAN, result)
    result = do.do("or", result, sign)
    if form.nan_is_negative_zero:
        result = do.choose("eq", bits, form.nan, _NAN, result)
    return builder.convert("bitcast", result, "float")


def narrow_float(builder: Builder, value: Value, dtype: DType) -> Value:
    """float32 -> the bits of a narrow float, rounded."""
    if dtype is DType.FLOAT8E8M0FNU:
        return _to_exponent(builder, value)
    form, do = FORMATS[dtype], _Bits(builder, value.lanes)
    bits = builder.convert("bitcast", value, "i32")
    size = do.do("and", bits, 0x7FFFFFFF)
    sign = do.do("shl", do.do("lshr", bits, 31), form.bits)
    cut = 23 - form.fraction
    odd = do.do("and", do.do("lshr", size, cut), 1)
    rebiased = do.do("add", size, ((form.bias - 127) << 23) + (1 << (cut - 1)) - 1)
    normal = do.do("lshr", do.do("add", rebiased, odd), cut)
    # Below the smallest normal number, adding one of the right size rounds to what is held.
    magic = 2.0 ** (24 - form.bias - form.fraction)
    anchor = constant(magic, "float", value.lanes)
    moved = builder.binary("fadd", builder.convert("bitcast", size, "float"), anchor)
    small = do.do("sub", builder.convert("bitcast", moved, "i32"), _bits_of(magic))
    result = do.choose("ult", size, (128 - form.bias) << 23, small, normal)
    result = do.choose("ugt", result, form.largest, form.overflow, result)
    result = do.choose("ugt", size, _INFINITY, form.nan, result)
    if form.nan_is_negative_zero:
        sign = do.choose("eq", result, 0, 0, sign)
    has_none = not (form.has_nan or form.has_infinity or form.nan_is_negative_zero)
    # Where there is no NaN it becomes a zero of the other sign, as in the reference.
    signed = do.do("xor" if has_none else "or", result, sign)
    return builder.convert("trunc", signed, register_type(dtype))


def _to_exponent(builder: Builder, value: Value) -> Value:
    """The nearest power of two, ties to the even exponent; NaN for what is negative."""
    do = _Bits(builder, value.lanes)
    bits = builder.convert("bitcast", value, "i32")
    size = do.do("and", bits, 0x7FFFFFFF)
    odd = do.do("and", do.do("lshr", size, 23), 1)
    normal = do.do("lshr", do.do("add", do.do("add", size, 0x3FFFFF), odd), 23)
    # Below 2**-126 the exponent is in the fraction: 2**-127 is held, half of it is halfway to none.
    tiny = do.choose("ugt", size, 0x600000, 1, do.number(0))
    result = do.choose("ult", size, 0x800000, tiny, normal)
    result = do.choose("uge", size, _INFINITY, 0xFF, result)
    result = do.choose("slt", bits, 0, 0xFF, result)
    return builder.convert("trunc", result, "i8")


def _bits_of(power: float) -> int:
    """The bits of a power of two in float32."""
    exponent = 0
    while power > 1:
        power, exponent = power / 2, exponent + 1
    while power < 1:
        power, exponent = power * 2, exponent - 1
    return (127 + exponent) << 23


def fitted(builder: Builder, value: Value, dtype: DType) -> Value:
    """A byte whose lower bits are a narrow integer -> that integer as a whole byte."""
    spare = constant(8 - dtype.bits, "i8", value.lanes)
    shifted = builder.binary("shl", value, spare)
    return builder.binary("ashr" if dtype.is_signed_integer else "lshr", shifted, spare)


def packed(builder: Builder, value: Value, dtype: DType) -> Value:
    """The byte that a narrow integer has in memory."""
    return builder.binary("and", value, constant((1 << dtype.bits) - 1, "i8", value.lanes))


def nibble(builder: Builder, value: Value) -> Value:
    """The lowest four bits of each int32 as a float32: looked up in a register of 16 numbers where
    there are such, which ignores all other bits."""
    if value.lanes == _TABLE and builder.target.has("avx512f"):
        table = constants([float(number) for number in range(_TABLE)], "float")
        return builder.call("llvm.x86.avx512.permvar.sf.512", "float", _TABLE, table, value)
    low = builder.binary("and", value, constant(_TABLE - 1, "i32", value.lanes))
    return builder.convert("sitofp", low, "float")
