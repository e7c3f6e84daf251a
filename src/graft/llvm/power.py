"""Powers.

Part of the math kernels. For float32, 2^(y log2(x)) is computed in float64, which has bits to spare
for the error that the product magnifies. For float64 the logarithm is carried as a sum of two
numbers. The special cases are those of C's `pow`.
"""

from __future__ import annotations

from math import inf, nan

from graft.llvm.exponential import LOG2, exponential, split_exponent
from graft.llvm.number import Number, two_product, two_sum
from graft.llvm.rounding import floor
from graft.llvm.text import Value

# log2((1 + s) / (1 - s)) = s q(s²) for |s| <= (sqrt(2) - 1) / (sqrt(2) + 1)
_LOG2 = (
    2.8853900817779273178,
    0.96179669392430847228,
    0.5770780172572638379,
    0.4121984003791822773,
    0.32061650291826250957,
    0.26144062029672241788,
    0.2429590169511936441,
)
# 2^r for |r| <= 1/2
_EXP2 = (
    0.99999999996136677272,
    0.69314718072979795537,
    0.24022651201175948896,
    0.055504103503902995744,
    0.0096180268469152443479,
    0.0013333923988746147073,
    0.00015469422405150279257,
    0.000015201829602843254795,
)
# log((1 + s) / (1 - s)) = 2 s + 2/3 s³ + s⁵ q(s²)
_LOG_REST = (
    0.39999999999999977326,
    0.2857142857144521772,
    0.22222222217510600623,
    0.18181818873493941674,
    0.15384556653783693462,
    0.13336325786437160568,
    0.11674648452471825389,
    0.11990431076719601759,
)
_TWO_THIRDS, _TWO_THIRDS_LOW = 2 / 3, 2.0**-54 * 2 / 3
_FRACTION_BITS = 52
_BIAS = 1023
_BEYOND = 200.0  # 2^200 and 2^-200 are infinite and zero in float32


def power(x: Number, y: Number) -> Number:
    """x to the power y."""
    builder = x.builder
    size = x.apply("fabs")
    result = _single(size, y) if x.value.element == "float" else _double(size, y)
    # One to any power is one, even to an infinite one.
    result = result.like(1.0).where(size.test("oeq", 1.0), result)
    below, half = floor(builder, y.value), y * 0.5
    whole = builder.compare("oeq", below, y.value)
    halves = builder.compare("une", floor(builder, half.value), half.value)
    odd = builder.binary("and", whole, halves)
    result = result.apply("copysign", x).where(odd, result)
    fraction = builder.compare("one", below, y.value)
    negative = _all(x, x.test("olt", 0.0), x.test("ogt", -inf), fraction)
    result = result.like(nan).where(negative, result)
    result = result.where(y.test("ord", y), y)
    result = result.like(1.0).where(x.test("oeq", 1.0), result)
    return result.like(1.0).where(y.test("oeq", 0.0), result)


def _single(size: Number, y: Number) -> Number:
    """|x|^y of float32 by way of float64."""
    product = _log2(size.to("fpext", "double")) * y.to("fpext", "double")
    return _exp2(product).to("fptrunc", "float")


def _double(size: Number, y: Number) -> Number:
    """|x|^y of float64, the logarithm and its product carried with twice the bits."""
    high, low = _log_twice(size)
    # Beyond, every power but those of one is zero or infinite.
    y = y.within(-(2.0**70), 2.0**70)
    product, lost = two_product(high, y)
    lost = lost + low * y
    inside = product.apply("fabs").test("olt", 746.0)
    return exponential(product, lost.where(inside, 0.0))


def _log_twice(x: Number) -> tuple[Number, Number]:
    """log(x) as the sum of two float64 numbers."""
    small = x.test("olt", 2.0**-1022)
    normal = (x * 2.0**52).where(small, x)
    exponent, m = split_exponent(normal)
    e = exponent.to("trunc", "i32").to("sitofp", "double")
    e = (e - 52.0).where(small, e)
    # s = (m - 1) / (m + 1), the division's rest divided once more
    f, g = m - 1.0, m + 1.0
    g_low = m - (g - 1.0)
    s = f / g
    back, back_low = two_product(s, g)
    s_low = (((f - back) - back_low) - s * g_low) / g
    # log(m) = 2 s + 2/3 s³ + s⁵ q(s²), the first two terms with twice the bits
    z, z_low = two_product(s, s)
    z_low = z_low + (s + s) * s_low
    cube, cube_low = two_product(s, z)
    cube_low = cube_low + (s * z_low + s_low * z)
    third, third_low = two_product(cube, cube.like(_TWO_THIRDS))
    third_low = third_low + (cube * _TWO_THIRDS_LOW + cube_low * _TWO_THIRDS)
    rest = cube * z * z.polynomial(_LOG_REST)
    high, low = two_sum(e * LOG2["double"][0], s + s)
    high, lower = two_sum(high, third)
    low = low + lower + (e * LOG2["double"][1] + (s_low + s_low) + third_low + rest)
    high = high.where(x.test("olt", inf), x)
    return high.where(x.test("une", 0.0), -inf), low


def _all(x: Number, first: Value, *others: Value) -> Value:
    for other in others:
        first = x.builder.binary("and", first, other)
    return first


def _log2(x: Number) -> Number:
    """log2 of a float64 that is a float32, hence never subnormal."""
    exponent, mantissa = split_exponent(x)
    f = mantissa - 1.0
    s = f / (f + 2.0)
    # The exponent fits 32 bits, which convert faster than 64.
    e = exponent.to("trunc", "i32").to("sitofp", "double")
    result = s.fma((s * s).polynomial(_LOG2), e)
    result = result.where(x.test("olt", inf), x)
    return result.where(x.test("une", 0.0), -inf)


def _exp2(x: Number) -> Number:
    """2^x, zero or infinite where float32 would be."""
    x = x.within(-_BEYOND, _BEYOND)
    large = x.like(1.5 * 2.0**_FRACTION_BITS)
    shifted = x + large
    count = shifted.to("bitcast", "i64") - large.to("bitcast", "i64")
    fraction = (x - (shifted - large)).polynomial(_EXP2)
    return fraction * ((count + _BIAS) << _FRACTION_BITS).to("bitcast", "double")
