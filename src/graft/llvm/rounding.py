"""Rounding to whole numbers on every target.

Part of the emitter. Processors since 2008 (SSE4.1, NEON) have instructions for it; before, LLVM
would call the C library, so the plain target gets its own: adding and subtracting a number so large
that no fraction fits beside it rounds to the nearest whole number.
"""

from __future__ import annotations

from graft.llvm.text import Builder, Value, constant

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
