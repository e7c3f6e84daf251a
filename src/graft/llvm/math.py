"""Math functions as vector polynomials, with known accuracy on every target.

In go values of float32 or float64, any number of lanes; out come calls of small functions that are
written into the module once per type and always inlined. No C library is called, so a kernel is
self-contained and gives the same numbers wherever its target has fused multiply-add.

Each function reduces its argument to a small interval and evaluates a minimax polynomial there
(coefficients computed for Graft with the Remez algorithm). `docs/llvm.md` states the measured
errors; tests hold them. Zeros, infinities, NaN and subnormal numbers behave as in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan, sqrt

from graft.llvm.angles import arctangent, cosine, sine
from graft.llvm.exponential import (
    FRACTION_BITS,
    INTEGER,
    LOG2,
    decay,
    exponential,
    moderate_exponential,
    split_exponent,
)
from graft.llvm.number import Number
from graft.llvm.power import power
from graft.llvm.text import Builder, Value, type_suffix

_SMALLEST_NORMAL = {"float": 2.0**-126, "double": 2.0**-1022}
# log(1 + f) = f - f²/2 + f³ q(f) for sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG_FLOAT = (
    0.33333312604886633848,
    -0.25000009589110477728,
    0.2000211858626306905,
    -0.16667996047017649359,
    0.14219554017250519991,
    -0.12405589838637770453,
    0.11888153171824041681,
    -0.11675631588125610893,
    0.06746625544215295428,
)
# log((1 + s) / (1 - s)) = 2 s + s³ q(s²) for |s| <= (sqrt(2) - 1) / (sqrt(2) + 1)
_LOG_DOUBLE = (
    0.66666666666666660934,
    0.40000000000006287507,
    0.28571428569072725335,
    0.22222222648792293193,
    0.18181775505036229731,
    0.15387097803537661696,
    0.13249958642377481087,
    0.13252784818046729638,
)
# tanh(x) = x + x³ q(x²) for |x| <= 0.625
_TANH_LIMIT = 0.625
_TANH_ONE = 40.0  # 1 - 2 / exp(x) is 1 from here on
_TANH = {
    "float": (
        -0.33333281946283863664,
        0.13331442209154585415,
        -0.053739712037793588439,
        0.020639071396300456245,
        -0.0057049662155116593031,
    ),
    "double": (
        -0.33333333333333332462,
        0.13333333333333156503,
        -0.053968253968128266976,
        0.021869488531646356325,
        -0.0088632354343015058829,
        0.0035921267305376327793,
        -0.0014558222916196880719,
        0.00058994922380158863872,
        -0.00023877081814269239736,
        0.000095751059706016988182,
        -0.000036625485624123283389,
        0.000011794544258344145792,
        -2.2717500183306176689e-6,
    ),
}
# erf(x) = x + x q(x²) up to the limit
_ERF_LIMIT = {"float": 0.9135, "double": 1.0}
_ERF_SMALL = {
    "float": (
        0.12837916665029593848,
        -0.37612633855795124272,
        0.11283697335751940452,
        -0.026859500416538109535,
        0.0052012865288050249749,
        -0.00081456006408865559837,
        0.000083823986928743732854,
    ),
    "double": (
        0.12837916709551256566,
        -0.37612638903183519544,
        0.11283791670944184341,
        -0.026866170643111376123,
        0.005223977606117625411,
        -0.00085483259292714193805,
        0.00012055293575569572162,
        -0.000014924712275907062027,
        1.6447131245010190606e-6,
        -1.620631124155473855e-7,
        1.3710969480988559001e-8,
        -7.7794481290420380611e-10,
    ),
}
# erf(x) = 1 - exp(q(x)) above it; from 3.95 on it is 1 in float32
_ERF_FLOAT_ONE = 3.95
_ERF_FLOAT = (
    0.00017197522383861471161,
    -1.1295018563675051932,
    -0.63337341932585091033,
    -0.10825082405827352743,
    0.025100450840511244825,
    -0.0041638389318166609972,
    0.00043296842018243248863,
    -0.000020965568060841946105,
)
# erf(x) = 1 - exp(-x²) q((x - 3) / (x + 3)) above it; from 6 on it is 1 in float64
_ERF_DOUBLE_ONE = 6.0
_ERF_DOUBLE = (
    0.17900115118138995035,
    -0.32623356004303722934,
    0.24560380171233099078,
    -0.15011593650077370359,
    0.071665837198002905439,
    -0.024392499319019029401,
    0.004269136325368720019,
    0.00070774638747126378913,
    -0.00059706200133077509755,
    0.00004525701823132513069,
    0.000064071640216384513801,
    -0.000012791431774387817277,
    -7.7738537159282453226e-6,
    2.5287042791513068991e-6,
    1.7990696451917465739e-6,
    1.5953873623583175885e-7,
    -5.7203925653100389605e-8,
)
# Φ(-x) = q(x)⁴ for 0 <= x <= the limit, where q is zero; see `tests/llvm/test_gelu_fit.py`
_GELU_LIMIT = 6.4
_GELU_ZERO = 40.0  # Φ(-x) is zero in float64 from here on
GELU_FLOAT = (
    0.8408964205081149,
    -0.16773487701724998,
    -0.05018393626784762,
    0.004582033574204523,
    0.003950318259646021,
    -0.0002290523930395602,
    -0.00016373961875891914,
    -6.608378993675515e-06,
    1.4527924517935881e-05,
    -2.8912763263549268e-06,
    2.446806664106189e-07,
    -8.050535053792747e-09,
)


def logarithm(x: Number) -> Number:
    """log(x) = e log(2) + log(m), with m around 1."""
    element = x.value.element
    bits = FRACTION_BITS[element]
    small = x.test("olt", _SMALLEST_NORMAL[element])
    normal = (x * 2.0**bits).where(small, x)
    exponent, mantissa = split_exponent(normal)
    f = mantissa - 1.0
    e = exponent.to("sitofp", element)
    e = (e - float(bits)).where(small, e)
    high, low = LOG2[element]
    half_square = f * f * 0.5
    if element == "float":
        rest = (f * f * f).fma(f.polynomial(_LOG_FLOAT), e * low)
    else:
        s = f / (f + 2.0)
        z = s * s
        rest = s.fma(z.fma(z.polynomial(_LOG_DOUBLE), half_square), e * low)
    result = e.fma(high, f - (half_square - rest))
    result = result.where(x.test("olt", inf), x)
    result = result.where(x.test("une", 0.0), -inf)
    return result.like(nan).where(x.test("olt", 0.0), result)


def hyperbolic_tangent(x: Number) -> Number:
    """A polynomial near zero, 1 - 2 / (exp(2x) + 1) elsewhere."""
    size = x.apply("fabs")
    square = x * x
    near = (x * square).fma(square.polynomial(_TANH[x.value.element]), x)
    twice = (size + size).within(0.0, _TANH_ONE)
    far = x.like(1.0) - x.like(2.0) / (moderate_exponential(twice) + 1.0)
    return near.where(size.test("olt", _TANH_LIMIT), far).apply("copysign", x)


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x)); for negative x exp(x) / (1 + exp(x)), which may be subnormal."""
    e = decay(x.apply("fabs"))
    # by the sign alone, which AVX selects by: exp(-0) and exp(0) are one, and NaN stays NaN
    is_negative = x.to("bitcast", INTEGER[x.value.element]).test("slt", 0)
    return e.where(is_negative, 1.0) / (e + 1.0)


def error_function(x: Number) -> Number:
    """An odd polynomial near zero, one minus the tail elsewhere."""
    element = x.value.element
    size = x.apply("fabs")
    square = x * x
    near = x.fma(square.polynomial(_ERF_SMALL[element]), x)
    if element == "float":
        bounded = size.within(0.0, _ERF_FLOAT_ONE)
        tail = moderate_exponential(bounded.polynomial(_ERF_FLOAT))
    else:
        bounded = size.within(0.0, _ERF_DOUBLE_ONE)
        scaled = ((bounded - 3.0) / (bounded + 3.0)).polynomial(_ERF_DOUBLE)
        tail = moderate_exponential(bounded.like(-0.0) - bounded * bounded) * scaled
    far = (x.like(1.0) - tail).apply("copysign", x)
    return near.where(size.test("olt", _ERF_LIMIT[element]), far)


def gelu(x: Number) -> Number:
    """x Φ(x), which is max(x, 0) - |x| Φ(-|x|); at minus infinity its limit, zero.

    The fourth root of Φ(-x) is smooth enough for a polynomial, which no exponential function has
    to follow, and errors of its tail vanish in the power.
    """
    if x.value.element == "double":
        half = x.like(-_GELU_ZERO).where(x.test("olt", -_GELU_ZERO), x) * 0.5
        return half * (error_function(half * sqrt(2)) + 1.0)
    size = x.apply("fabs").within(0.0, _GELU_LIMIT)
    root = size.polynomial(GELU_FLOAT)
    square = root * root
    positive = x.like(0.0).where(x.test("olt", 0.0), x)
    return (x.like(-0.0) - size).fma(square * square, positive)


@dataclass(frozen=True, slots=True)
class MathKernel:
    """A formula, and the largest error it may have, in units of the last place.

    Those of the result; or of the argument, where the function is the argument's product with
    something that all but vanishes.
    """

    formula: Callable[..., Number]
    float_error: float
    double_error: float
    in_units_of_argument: bool = False


KERNELS = {
    "exp": MathKernel(exponential, 1.1, 1.1),
    "log": MathKernel(logarithm, 0.9, 0.9),
    "tanh": MathKernel(hyperbolic_tangent, 1.5, 1.5),
    "sigmoid": MathKernel(sigmoid, 2.5, 2.5),
    "erf": MathKernel(error_function, 1.5, 1.5),
    "gelu": MathKernel(gelu, 3.0, 2.0, in_units_of_argument=True),
    "sin": MathKernel(sine, 0.51, 0.9),
    "cos": MathKernel(cosine, 0.51, 0.9),
    "atan": MathKernel(arctangent, 0.51, 4.5),
    "pow": MathKernel(power, 0.51, 1.3),
}


def math_call(builder: Builder, name: str, arguments: Sequence[Value]) -> Value:
    """A call of the function, which is written into the module if it is not there yet."""
    if builder.is_interleaving:
        return KERNELS[name].formula(*(Number(builder, value) for value in arguments)).value
    first = arguments[0]
    symbol = f"graft.{name}.{type_suffix(first)}"
    module = builder.module
    if symbol not in module.functions:
        inner = Builder(module)
        names = [f"%x{position}" for position in range(len(arguments))]
        values = [Value(first.element, first.lanes, text) for text in names]
        result = KERNELS[name].formula(*(Number(inner, value) for value in values))
        inner.do(f"ret {result.value.typed}")
        header = ", ".join(value.typed for value in values)
        module.functions[symbol] = (
            f"define internal {first.type} @{symbol}({header}) alwaysinline nounwind {{\n"
            f"{inner.body()}\n}}\n"
        )
    return builder.call(symbol, first.element, first.lanes, *arguments)
