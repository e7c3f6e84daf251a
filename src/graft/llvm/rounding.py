"""Rounding to whole numbers on every target, floats and bytes.

Part of the emitter. Processors since 2008 (SSE4.1, NEON) have instructions for it; before, LLVM
would call the C library, so the plain target gets its own: adding and subtracting a number so large
that no fraction fits beside it rounds to the nearest whole number.
"""

from __future__ import annotations

from graft.llvm.text import Builder, Value, constant

# Conversions of float32 that round to nearest, by lanes: the intrinsic and the feature it takes.
_NEAREST = {
    4: ("llvm.x86.sse2.cvtps2dq", "sse2"),
    8: ("llvm.x86.avx.cvt.ps2dq.256", "avx"),
    16: ("llvm.x86.avx512.mask.cvtps2dq.512", "avx512f"),
}
_LARGE = {"float": 2.0**23, "double": 2.0**52}


def floor(builder: Builder, value: Value) -> Value:
    """The next whole number towards minus infinity."""
    return rounded(builder, "floor", value)


def rounded(builder: Builder, mode: str, value: Value) -> Value:
    """A whole number: that of LLVM's intrinsic floor, ceil, roundeven or trunc."""
    if builder.target.is_aarch64 or builder.target.has("sse4.1"):
        return builder.elementwise(mode, value)
    if mode == "trunc":
        size = floor(builder, builder.elementwise("fabs", value))
        return builder.elementwise("copysign", size, value)
    nearest = _nearest(builder, value)
    if mode == "roundeven":
        return nearest
    predicate, step = ("ogt", -1.0) if mode == "floor" else ("olt", 1.0)
    return _step(builder, value, nearest, predicate, step)


def _nearest(builder: Builder, value: Value) -> Value:
    limit = constant(_LARGE[value.element], value.element, value.lanes)
    size = builder.elementwise("fabs", value)
    rounded = builder.binary("fsub", builder.binary("fadd", size, limit), limit)
    # Larger numbers, infinities and NaN are whole already.
    result = builder.select(builder.compare("olt", size, limit), rounded, size)
    return builder.elementwise("copysign", result, value)


def _step(builder: Builder, value: Value, nearest: Value, predicate: str, step: float) -> Value:
    """One further where rounding to the nearest went the other way; zero keeps its sign."""
    further = builder.binary("fadd", nearest, constant(step, value.element, value.lanes))
    went_wrong = builder.compare(predicate, nearest, value)
    return builder.elementwise("copysign", builder.select(went_wrong, further, nearest), value)


def nearest_byte(builder: Builder, value: Value, offset: Value, signed: bool) -> Value:
    """The nearest whole number to a float32 plus a whole offset, within the limits of a byte; NaN
    becomes the lowest."""
    lanes = value.lanes
    limits = (-128, 127) if signed else (0, 255)
    low, high = (
        builder.binary("fsub", constant(float(limit), "float", lanes), offset) for limit in limits
    )
    above = builder.select(builder.compare("ogt", value, low), value, low)
    if not signed and _has_nearest(builder, lanes):
        # What int32 does not hold becomes its lowest number, which is a large one without a sign.
        whole = builder.binary("add", _nearest_integer(builder, above), _whole(builder, offset))
        whole = builder.elementwise("umin", whole, constant(255, "i32", lanes))
        return builder.convert("trunc", whole, "i8")
    within = builder.select(builder.compare("olt", above, high), above, high)
    if _has_nearest(builder, lanes):
        whole = _nearest_integer(builder, within)
    else:
        whole = _whole(builder, rounded(builder, "roundeven", within))
    return builder.convert("trunc", builder.binary("add", whole, _whole(builder, offset)), "i8")


def _whole(builder: Builder, value: Value) -> Value:
    return builder.convert("fptosi", value, "i32")


def _has_nearest(builder: Builder, lanes: int) -> bool:
    target = builder.target
    return target.is_x86 and lanes in _NEAREST and target.has(_NEAREST[lanes][1])


def _nearest_integer(builder: Builder, value: Value) -> Value:
    """One instruction; processors round to the nearest, the even one of two, unless told not to."""
    name, lanes = _NEAREST[value.lanes][0], value.lanes
    if lanes < 16:
        return builder.call(name, "i32", lanes, value)
    every = constant(-1, "i16"), constant(4, "i32")  # all lanes; the current rounding mode
    return builder.call(name, "i32", lanes, value, constant(0, "i32", lanes), *every)
