"""The exponential function, on which most of the others stand.

Part of the math kernels.
"""

from __future__ import annotations

from graft.llvm.number import Number

# exp(r) = 1 + r + r² q(r) for |r| <= log(2) / 2
_EXP = {
    "float": (
        0.49999993414103256638,
        0.16666520110763158672,
        0.041668393740172084956,
        0.0083687802599826184944,
        0.0013814496011347815079,
    ),
    "double": (
        0.50000000000000000444,
        0.16666666666666683569,
        0.041666666666666089063,
        0.0083333333333169178027,
        0.0013888888889117298823,
        0.00019841269896679471894,
        0.000024801586924529250767,
        2.7557234560027523962e-6,
        2.7557582862155427269e-7,
        2.5112144121286249058e-8,
        2.0826515696204756248e-9,
    ),
}
# log(2) in two parts, the first so short that its product with an exponent is exact.
LOG2 = {
    "float": (0.693359375, -0.00021219444005469058277),
    "double": (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")),
}
INTEGER = {"float": "i32", "double": "i64"}
FRACTION_BITS = {"float": 23, "double": 52}
_EXPONENT_BIAS = {"float": 127, "double": 1023}
_EXP_RANGE = {"float": (-104.0, 89.0), "double": (-746.0, 710.0)}


def exponential(x: Number, low: Number | None = None) -> Number:
    """exp(x) = 2^n exp(r), or exp(x + low) for a low that is at most the rounding error of x.

    The power of two is applied in halves, so that results may be subnormal or overflow.
    """
    element = x.value.element
    first, second = LOG2[element]
    bits, bias = FRACTION_BITS[element], _EXPONENT_BIAS[element]
    x = x.within(*_EXP_RANGE[element])
    # Adding a large number leaves the nearest integer in the lowest bits.
    large = x.like(1.5 * 2.0**bits)
    shifted = x.fma(1.4426950408889634074, large)
    n = shifted - large
    count = shifted.to("bitcast", INTEGER[element]) - large.to("bitcast", INTEGER[element])
    r = n.fma(-second, n.fma(-first, x))
    if low is not None:
        r = r + low
    result = (r * r).fma(r.polynomial(_EXP[element]), r) + 1.0
    half = count >> 1
    for part in (half, count - half):
        result = result * ((part + bias) << bits).to("bitcast", element)
    return result
