"""Numbers of eight bits and less: what their bits mean, as instructions.

Part of the emitter. Such numbers have a byte each in memory, of which some use the lower bits only.
The floats travel as bytes in registers and become float32 to be computed with; the integers are
brought to a whole byte when they are read. Rounding is to the nearest, ties to even; what becomes
of numbers that are too large is what each format says.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.llvm.number import Number
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


def widen_narrow(builder: Builder, value: Value, dtype: DType) -> Value:
    """The bits of a narrow float -> float32, exactly."""
    bits = Number(builder, value).to("zext", "i32")
    nan = bits.like(_NAN)
    if dtype is DType.FLOAT8E8M0FNU:  # an exponent alone; 2**-127 has a fraction in float32
        wide = bits << 23
        wide = bits.like(0x00400000).where(bits.test("eq", 0), wide)
        return nan.where(bits.test("eq", 0xFF), wide).to("bitcast", "float").value
    form = FORMATS[dtype]
    size = bits & ((1 << form.bits) - 1)
    sign = (bits & (1 << form.bits)) << (31 - form.bits)
    normal = (size << (23 - form.fraction)) + ((127 - form.bias) << 23)
    # Subnormal numbers are integers times a power of two. As float32 with the same bits they would
    # be subnormal, too, which programs take for zero.
    scale = 2.0 ** (1 - form.bias - form.fraction)
    small = (size.to("sitofp", "float") * scale).to("bitcast", "i32")
    result = small.where(size.test("ult", 1 << form.fraction), normal)
    if form.has_infinity:
        special = result | _INFINITY
        result = special.where(size.test("ugt", form.largest), result)
    elif form.has_nan:
        result = nan.where(size.test("eq", form.nan), result)
    result = result | sign
    if form.nan_is_negative_zero:
        result = nan.where(bits.test("eq", form.nan), result)
    return result.to("bitcast", "float").value


def narrow_float(builder: Builder, value: Value, dtype: DType) -> Value:
    """float32 -> the bits of a narrow float, rounded."""
    if dtype is DType.FLOAT8E8M0FNU:
        return _to_exponent(builder, value)
    form, bits = FORMATS[dtype], Number(builder, value).to("bitcast", "i32")
    size = bits & 0x7FFFFFFF
    sign = bits.logical_right(31) << form.bits
    cut = 23 - form.fraction
    odd = size.logical_right(cut) & 1
    rebiased = size + (((form.bias - 127) << 23) + (1 << (cut - 1)) - 1)
    normal = (rebiased + odd).logical_right(cut)
    # Below the smallest normal number, adding one of the right size rounds to what is held.
    magic = 2.0 ** (24 - form.bias - form.fraction)
    small = (size.to("bitcast", "float") + magic).to("bitcast", "i32") - _bits_of(magic)
    result = small.where(size.test("ult", (128 - form.bias) << 23), normal)
    result = result.like(form.overflow).where(result.test("ugt", form.largest), result)
    result = result.like(form.nan).where(size.test("ugt", _INFINITY), result)
    if form.nan_is_negative_zero:
        sign = sign.like(0).where(result.test("eq", 0), sign)
    has_none = not (form.has_nan or form.has_infinity or form.nan_is_negative_zero)
    # Where there is no NaN it becomes a zero of the other sign, as in the reference.
    signed = result ^ sign if has_none else result | sign
    return signed.to("trunc", register_type(dtype)).value


def _to_exponent(builder: Builder, value: Value) -> Value:
    """The nearest power of two, ties to the even exponent; NaN for what is negative."""
    bits = Number(builder, value).to("bitcast", "i32")
    size = bits & 0x7FFFFFFF
    odd = size.logical_right(23) & 1
    normal = (size + 0x3FFFFF + odd).logical_right(23)
    # Below 2**-126 the exponent is in the fraction: 2**-127 is held, half of it is halfway to none.
    tiny = size.like(1).where(size.test("ugt", 0x600000), 0)
    result = tiny.where(size.test("ult", 0x800000), normal)
    result = result.like(0xFF).where(size.test("uge", _INFINITY), result)
    result = result.like(0xFF).where(bits.test("slt", 0), result)
    return result.to("trunc", "i8").value


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
