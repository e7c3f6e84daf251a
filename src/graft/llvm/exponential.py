"""The exponential function, on which most of the others stand.

Part of the math kernels.
"""

from __future__ import annotations

from math import sqrt

from graft.llvm.number import Number
from graft.llvm.text import Value

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
_RAISED = 64  # by which exponents of subnormal numbers are in the range of normal ones
_EXP_RANGE = {"float": (-104.0, 89.0), "double": (-746.0, 710.0)}


def split_exponent(x: Number) -> tuple[Number, Number]:
    """(e, m) with x = m 2^e and m around 1, for a normal number x > 0; e is an integer."""
    element = x.value.element
    bits, integer = FRACTION_BITS[element], INTEGER[element]
    pattern = x.to("bitcast", integer)
    exponent = (pattern - x.like(sqrt(0.5)).to("bitcast", integer)) >> bits
    return exponent, (pattern - (exponent << bits)).to("bitcast", element)


def exponential(x: Number, low: Number | None = None) -> Number:
    """exp(x) = 2^n exp(r), or exp(x + low) for a low that is at most the rounding error of x."""
    fraction, shifted = _reduced(x.within(*_EXP_RANGE[x.value.element]), low)
    return _times_power(fraction, shifted)


def decay(x: Number) -> Number:
    """exp(-x) for x >= 0, which may be subnormal."""
    smallest, _ = _EXP_RANGE[x.value.element]
    opposite = x.like(-0.0) - x
    bounded = x.like(smallest).where(opposite.test("olt", smallest), opposite)
    fraction, shifted = _reduced(bounded, None)
    scaled = _scale_instruction(fraction, shifted)
    if scaled is not None:
        return scaled
    # No n is positive, so that 2^(n + _RAISED) is a normal number; only the last product rounds.
    return _times_normal_power(fraction, shifted, _RAISED) * 2.0**-_RAISED


def moderate_exponential(x: Number) -> Number:
    """exp(x) for an x whose exponential is neither subnormal nor infinite; NaN stays NaN."""
    fraction, shifted = _reduced(x, None)
    scaled = _scale_instruction(fraction, shifted)
    return _times_normal_power(fraction, shifted, 0) if scaled is None else scaled


def _reduced(x: Number, low: Number | None) -> tuple[Number, Number]:
    """exp(r) for the remainder r of log(2), and a number whose lowest bits are the quotient n."""
    element = x.value.element
    first, second = LOG2[element]
    # Adding a large number leaves the nearest integer in the lowest bits.
    large = _large(x)
    shifted = x.fma(1.4426950408889634074, large)
    n = shifted - large
    r = n.fma(-second, n.fma(-first, x))
    if low is not None:
        r = r + low
    rest = r.polynomial(_EXP[element])
    if x.builder.target.has_fma:
        return r.fma(r.fma(rest, 1.0), 1.0), shifted
    # rounded twice, that would be less accurate, and no cheaper
    return (r * r).fma(rest, r) + 1.0, shifted


def _large(x: Number) -> Number:
    return x.like(1.5 * 2.0 ** FRACTION_BITS[x.value.element])


def _times_normal_power(fraction: Number, shifted: Number, more: int) -> Number:
    """The fraction times 2^(n + more), which is a normal number."""
    element = fraction.value.element
    bits, bias = FRACTION_BITS[element], _EXPONENT_BIAS[element]
    # what is above n in these bits is shifted out
    power = (shifted.to("bitcast", INTEGER[element]) << bits) + (bias + more << bits)
    return fraction * power.to("bitcast", element)


def _times_power(fraction: Number, shifted: Number) -> Number:
    """The fraction times 2^n, which may be subnormal or overflow: n is applied in halves."""
    scaled = _scale_instruction(fraction, shifted)
    if scaled is not None:
        return scaled
    element = fraction.value.element
    bits, bias = FRACTION_BITS[element], _EXPONENT_BIAS[element]
    integer = INTEGER[element]
    count = shifted.to("bitcast", integer) - _large(shifted).to("bitcast", integer)
    half = count >> 1
    for part in (half, count - half):
        fraction = fraction * ((part + bias) << bits).to("bitcast", element)
    return fraction


def _scale_instruction(fraction: Number, shifted: Number) -> Number | None:
    """The same by the instruction that AVX-512 has for it; None where there is none."""
    value, builder = fraction.value, fraction.builder
    kind, size = ("ps", 32) if value.element == "float" else ("pd", 64)
    width = value.lanes * size
    is_whole = width == 512 and builder.target.has("avx512f")
    if not is_whole and not (width in (128, 256) and builder.target.has("avx512vl")):
        return None
    n = (shifted - _large(shifted)).value
    everywhere = Value("i16" if value.lanes == 16 else "i8", 1, "-1")
    rounding = (Value("i32", 1, "4"),) if is_whole else ()  # that of the environment
    name = f"llvm.x86.avx512.mask.scalef.{kind}.{width}"
    arguments = (value, n, value, everywhere, *rounding)
    return Number(builder, builder.call(name, value.element, value.lanes, *arguments))
