"""Functions that are composed of others: inverse and hyperbolic ones, remainders of floats.

Float32 or float64 terms enter, the same dtype leaves. Everything is computed in float64, so that
float32 results are off by little more than their rounding; formulas are chosen so that no digits
cancel where the result is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, compare, constant, equal, select
from graft.loop.ir import CompareKind

Function = Callable[[Term], Term]

# sinh(x) / x as a polynomial in x squared, for arguments up to one half.
_SINH = [1 / math.factorial(2 * power + 1) for power in range(8)]


def in_double(function: Function) -> Function:
    """The function computed in float64, its result in the operand's dtype."""

    @wraps(function)
    def rounded(x: Term) -> Term:
        return cast(x.dtype, function(cast(DType.FLOAT64, x)))

    return rounded


def _number(value: float) -> Term:
    return Term(constant(value, DType.FLOAT64))


def _polynomial(coefficients: list[float], x: Term) -> Term:
    total = _number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = call("fma", total, x, coefficient)
    return total


@in_double
def sinh(x: Term) -> Term:
    half = call("exp", call("abs", x) * 0.5)  # the whole may be too large though half of it is not
    large = half * 0.5 * half - 0.5 / (half * half)
    small = x * _polynomial(_SINH, x * x)
    return select(call("abs", x) < 0.5, small, call("copysign", large, x))


@in_double
def cosh(x: Term) -> Term:
    half = call("exp", call("abs", x) * 0.5)
    return half * 0.5 * half + 0.5 / (half * half)


def _log_of_one_plus(x: Term) -> Term:
    """log(1 + x), corrected by what the sum lost of x."""
    total = x + 1.0
    exact = call("log", total) * (x / (total - 1.0))
    return select(equal(total, 1.0), x, select(call("isinf", total), total, exact))


@in_double
def asinh(x: Term) -> Term:
    size = call("abs", x)
    root = call("sqrt", size * size + 1.0)
    near = _log_of_one_plus(size + size * (size / (root + 1.0)))
    far = call("log", size) + math.log(2)  # where the square may be too large
    return call("copysign", select(size > 1e9, far, near), x)


@in_double
def acosh(x: Term) -> Term:
    above = x - 1.0
    # Two roots, since below -1 the product under a single one is positive.
    near = _log_of_one_plus(above + call("sqrt", above) * call("sqrt", x + 1.0))
    return select(x > 1e9, call("log", x) + math.log(2), near)


@in_double
def atanh(x: Term) -> Term:
    size = call("abs", x)
    return call("copysign", _log_of_one_plus(size * 2.0 / (1.0 - size)) * 0.5, x)


@in_double
def tan(x: Term) -> Term:
    return call("sin", x) / call("cos", x)


@in_double
def atan(x: Term) -> Term:
    return call("atan", x)


@in_double
def asin(x: Term) -> Term:
    return call("atan", x / call("sqrt", (1.0 - x) * (x + 1.0)))


@in_double
def acos(x: Term) -> Term:
    return call("atan", call("sqrt", (1.0 - x) / (x + 1.0))) * 2.0


def remainder(x: Term, y: Term) -> Term:
    """What is left of x after whole numbers of y, with the sign of x, as C's fmod.

    Exact while the quotient is a whole number that float64 holds, less than 2**53.
    """
    one, other = cast(DType.FLOAT64, x), cast(DType.FLOAT64, y)
    count = call("trunc", one / other)
    rest = call("fma", -count, other, one)
    # A quotient that was rounded to the next whole number leaves a rest of the wrong sign.
    wrong = compare(CompareKind.NOT_EQUAL, rest < 0.0, one < 0.0)
    wrong = wrong & compare(CompareKind.NOT_EQUAL, rest, 0.0)
    rest = select(wrong, rest + call("copysign", call("abs", other), one), rest)
    endless = call("isinf", other) & (call("abs", one) < math.inf)
    return cast(x.dtype, call("copysign", select(endless, one, rest), one))


def floor_remainder(x: Term, y: Term) -> Term:
    """The same with the sign of y, as Python's %."""
    rest = remainder(x, y)
    wrong = compare(CompareKind.NOT_EQUAL, rest < 0.0, y < 0.0)
    signed = select(wrong, rest + y, rest)
    zero = equal(rest, 0.0) & compare(CompareKind.NOT_EQUAL, y, 0.0)
    return select(zero, call("copysign", 0.0, y), signed)
