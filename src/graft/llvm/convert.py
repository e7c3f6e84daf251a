"""Conversions between element types.

Part of the emitter. float16 and bfloat16 are 16-bit integers in registers; `widen` makes float32 of
them and `narrow` rounds back, to the nearest and ties to even. Where the processor has no
instruction for it, integer arithmetic does the same, so results never depend on the target.
"""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.llvm.narrow import fitted, narrow_float, widen_narrow
from graft.llvm.number import Number
from graft.llvm.text import Builder, Value, constant
from graft.llvm.types import NARROW_INTEGERS, WIDENED, register_bits, register_type


def widen(builder: Builder, value: Value, dtype: DType) -> Value:
    """A float of 16 bits or less -> float32, exactly; other types are left alone."""
    if dtype is DType.BFLOAT16:
        return (Number(builder, value).to("zext", "i32") << 16).to("bitcast", "float").value
    if dtype is DType.FLOAT16 and builder.target.has_half_conversion:
        half = builder.convert("bitcast", value, "half")
        return builder.convert("fpext", half, "float")
    return widen_narrow(builder, value, dtype) if dtype in WIDENED else value


def narrow(builder: Builder, value: Value, dtype: DType) -> Value:
    """float32 -> a float of 16 bits or less, rounded; other types are left alone."""
    if dtype is DType.BFLOAT16:
        return _narrow_brain(builder, value)
    if dtype is DType.FLOAT16 and builder.target.has_half_conversion:
        if value.lanes == 1:
            # LLVM moves conversions into copysign(x, y), and to take the sign of a float64 y has
            # that converted, too, for which processors have no instruction. A fence keeps it out.
            value = builder.elementwise("arithmetic.fence", value)
        half = builder.convert("fptrunc", value, "half")
        return builder.convert("bitcast", half, "i16")
    return narrow_float(builder, value, dtype) if dtype in WIDENED else value


def cast(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """The value in another element type, as C converts numbers."""
    if source == target:
        return value
    if source in WIDENED:
        return cast(builder, widen(builder, value, source), DType.FLOAT32, target)
    if target in WIDENED:
        if source is DType.FLOAT64:
            single = _round_to_odd(builder, value)
        else:
            single = cast(builder, value, source, DType.FLOAT32)
        return narrow(builder, single, target)
    if target in NARROW_INTEGERS:
        whole = DType.INT8 if target.is_signed_integer else DType.UINT8
        return fitted(builder, cast(builder, value, source, whole), target)
    element = register_type(target)
    if target is DType.BOOL:
        zero = constant(0, value.element, value.lanes)
        return builder.compare("une" if source.is_float else "ne", value, zero)
    if source.is_float and target.is_float:
        wider = register_bits(element) > register_bits(value.element)
        return builder.convert("fpext" if wider else "fptrunc", value, element)
    if source.is_float:
        return _float_to_integer(builder, value, target)
    if target.is_float:
        operation = "sitofp" if source.is_signed_integer else "uitofp"
        return builder.convert(operation, value, element)
    if register_bits(element) == register_bits(value.element):
        return value
    if register_bits(element) < register_bits(value.element):
        return builder.convert("trunc", value, element)
    return builder.convert("sext" if source.is_signed_integer else "zext", value, element)


def _float_to_integer(builder: Builder, value: Value, target: DType) -> Value:
    """Truncated. A number out of range gives some number, as in C, but never undefined code."""
    element = register_type(target)
    # By way of a wider integer, small types wrap around like the machine's own conversions.
    wide = element if register_bits(element) >= 32 else "i32"
    signed = target.is_signed_integer or wide != element
    converted = builder.convert("fptosi" if signed else "fptoui", value, wide)
    frozen = builder.make(wide, value.lanes, f"freeze {converted.typed}")
    return builder.convert("trunc", frozen, element)


def _narrow_brain(builder: Builder, value: Value) -> Value:
    number = Number(builder, value)
    bits = number.to("bitcast", "i32")
    odd = bits.logical_right(16) & 1
    rounded = bits + 0x7FFF + odd
    is_nan = number.test("uno", 0.0)
    quiet = bits | 0x400000
    return quiet.where(is_nan, rounded).logical_right(16).to("trunc", "i16").value


def _round_to_odd(builder: Builder, value: Value) -> Value:
    """float64 -> float32 such that rounding once more gives what rounding once would have given.

    The number is cut off towards zero; its last bit is set where anything was cut off.
    """
    exact = Number(builder, value)
    single = exact.to("fptrunc", "float")
    back, bits = single.to("fpext", "double"), single.to("bitcast", "i32")
    too_large = back.apply("fabs").test("ogt", exact.apply("fabs"))
    cut = (bits - 1).where(too_large, bits)
    inexact = back.test("one", exact)
    return (cut | 1).where(inexact, cut).to("bitcast", "float").value
