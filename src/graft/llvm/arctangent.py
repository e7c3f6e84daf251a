"""The arctangent.

Part of the math kernels. A large argument is inverted and its angle halved twice, after which a
short polynomial suffices. float32 is computed in float64.
"""

from __future__ import annotations

from math import pi

from graft.llvm.number import Number

# atan(x) / x as a polynomial in x squared, for arguments up to tan(pi / 16).
_COEFFICIENTS = tuple((-1) ** power / (2 * power + 1) for power in range(12))


def arctangent(x: Number) -> Number:
    """atan(x); a zero keeps its sign."""
    wide = x.to("fpext", "double")
    size = wide.apply("fabs")
    is_large = size.test("ogt", 1.0)
    small = (size.like(1.0) / size).where(is_large, size)
    quarter = _half_angle(_half_angle(small))
    angle = quarter * (quarter * quarter).polynomial(_COEFFICIENTS) * 4.0
    folded = (angle.like(pi / 2) - angle).where(is_large, angle)
    return folded.apply("copysign", wide).to("fptrunc", x.value.element)


def _half_angle(x: Number) -> Number:
    """tan(a / 2) from tan(a)."""
    return x / ((x * x + 1.0).apply("sqrt") + 1.0)
