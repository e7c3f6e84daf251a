"""Sine, cosine and arctangent.

Part of the math kernels. The angle is reduced modulo π/2 with constants split into parts whose
products are exact, so that accuracy suffers neither near multiples of π nor for huge angles: from
2^26 on an angle is a whole number m times 2^e, and a table holds 2^e modulo 2π. float32 is computed
in float64, which leaves nothing to be wished for; float64 carries what its rounding loses along.
The arctangent inverts a large argument and halves its angle twice, after which a short polynomial
suffices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf, pi

from graft.llvm.number import Number, two_sum
from graft.llvm.text import Value, constant

# sin(r) = r + r³ q(r²) and cos(r) = 1 - r²/2 + r⁴ q(r²) for |r| <= π/4
_SINE = {
    "float": (
        -0.16666666640591480368,
        0.0083333292807124165731,
        -0.00019839304441572811474,
        2.7180465340315851356e-6,
    ),
    "double": (
        -0.1666666666666666664,
        0.008333333333333322375,
        -0.00019841269841254648337,
        2.7557319213985170074e-6,
        -2.505210486077745936e-8,
        1.6058360440081466414e-10,
        -7.5784032754699217468e-13,
    ),
}
_COSINE = {
    "float": (
        0.041666666619105443755,
        -0.0013888883467173269872,
        0.00002479945153288074736,
        -2.7205045091842003436e-7,
    ),
    "double": (
        0.041666666666666666608,
        -0.0013888888888888872803,
        0.000024801587301570385077,
        -2.7557319214928098553e-7,
        2.0876754270942640187e-9,
        -1.1470283010732921642e-11,
        4.7376679954370892291e-14,
    ),
}
_PI_DIGITS = (
    "31415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253"
    "42117067982148086513282306647093844609550582231725359408128481117450284102701938521105559644"
    "62294895493038196442881097566593344612847564823378678316527120190914564856692346034861045432"
    "66482133936072602491412737245870066063155881748815209209628292540917153643678925903600113305"
    "30548820466521384146951941511609433057270365759591953092186117381932611793105118548074462379"
)
_SCALE_BITS = 1300
_PI: int = (int(_PI_DIGITS) << _SCALE_BITS) // 10 ** (len(_PI_DIGITS) - 1)  # π 2^1300
_DIRECT = 2.0**26  # angles below are reduced as they are


@dataclass(frozen=True, slots=True)
class _Plan:
    """How angles of one type are split: fraction bits at which parts end, and exponents."""

    cuts: tuple[int, ...]
    first_exponent: int
    last_exponent: int


_PLANS = {
    "float": _Plan((24, 50), 0, 104),
    "double": _Plan((22, 47, 71, 95), -26, 971 + 27),
}


def _parts(scaled: int, cuts: tuple[int, ...]) -> list[float]:
    """A number times 2^1300 as floats whose sum it is, all but the last of few bits."""
    result = []
    for end in cuts:
        step = 1 << (_SCALE_BITS - end)
        part = (scaled + step // 2) // step * step
        result.append(part / (1 << _SCALE_BITS))
        scaled -= part
    return [*result, scaled / (1 << _SCALE_BITS)]


@cache
def _tables(element: str) -> list[tuple[float, ...]]:
    """For each part, a table of that part of every power of two modulo 2π."""
    plan = _PLANS[element]
    rows = []
    for exponent in range(plan.first_exponent, plan.last_exponent + 1):
        rest = (1 << (_SCALE_BITS + exponent)) % (2 * _PI)
        rows.append(_parts(rest - 2 * _PI if rest > _PI else rest, plan.cuts))
    return list(zip(*rows, strict=True))


def sine(x: Number) -> Number:
    """sin(x); a zero keeps its sign."""
    return x.where(x.test("oeq", 0.0), _wave(x, 0))


def cosine(x: Number) -> Number:
    """cos(x) is the sine a quarter turn further on."""
    return _wave(x, 1)


def _wave(x: Number, quarters: int) -> Number:
    """sin(x + quarters π/2)"""
    element = x.value.element
    r, low, quarter = _reduced(x)
    square = r * r
    odd = r + low.fma(square.fma(-0.5, 1.0), (r * square) * square.polynomial(_SINE[element]))
    half = square * 0.5
    first = r.like(1.0) - half
    # What the subtraction lost comes back with the smaller terms.
    lost = (r.like(1.0) - first) - half
    rest = (square * square).fma(square.polynomial(_COSINE[element]), lost - r * low)
    even = first + rest
    quarter = quarter + quarters
    wave = even.where((quarter & 1).test("ne", 0), odd)
    wave = (wave.like(-0.0) - wave).where((quarter & 2).test("ne", 0), wave)
    return wave.to("fptrunc", element)


def _reduced(x: Number) -> tuple[Number, Number, Number]:
    """(r, low, q) with x = r + low + q π/2 up to whole turns and |r| at most about π/4."""
    cuts = _PLANS[x.value.element].cuts
    terms = _terms(x)
    sums = [_sum([factor * parts[k] for factor, parts in terms]) for k in range(len(cuts) + 1)]
    total = sums[0] + sums[1]
    large = total.like(1.5 * 2.0**52)
    shifted = total.fma(0.63661977236758134308, large)
    n = shifted - large
    steps = _parts(_PI // 2, cuts)
    parts = [part - n * step for part, step in zip(sums, steps, strict=True)]
    r, low = parts[0] + parts[1], parts[-1]
    for part in parts[2:-1]:
        r, lost = two_sum(r, part)
        low = low + lost
    high = r + low
    return high, low - (high - r), shifted.to("bitcast", "i64")


def _sum(numbers: list[Number]) -> Number:
    first, *others = numbers
    for other in others:
        first = first + other
    return first


def _terms(x: Number) -> list[tuple[Number, list[Number]]]:
    """x as a sum of products: a factor of few bits times a number in parts from the table.

    A small angle is itself times one.
    """
    element = x.value.element
    plan = _PLANS[element]
    wide = x.to("fpext", "double")
    size = x.apply("fabs")
    is_large = size.test("oge", _DIRECT)
    factors, exponent = _whole_factors(x)
    exponent = exponent.where(is_large, plan.first_exponent)
    # Infinity and NaN have exponents beyond; they become NaN below, whatever the table says.
    step = 27 if element == "double" else 0
    exponent = exponent.where(exponent.test("sle", plan.last_exponent - step), plan.first_exponent)
    terms = []
    for position, factor in enumerate(factors):
        index = exponent + (step * position - plan.first_exponent)
        entries = [
            _look_up(index, f"graft.angles.{element}.{number}", table, is_large)
            for number, table in enumerate(_tables(element))
        ]
        plain = 1.0 if position == 0 else 0.0
        parts = [
            part.where(is_large, plain if number == 0 else 0.0)
            for number, part in enumerate(entries)
        ]
        direct = wide if position == 0 else wide.like(0.0)
        # Infinity has no remainder; minus itself it is NaN.
        selected = factor.where(is_large, direct).where(size.test("olt", inf), wide - wide)
        terms.append((selected, parts))
    return terms


def _whole_factors(x: Number) -> tuple[list[Number], Number]:
    """Whole numbers of at most 27 bits and an exponent: |x| = (m0 + m1 2^27) 2^e, or m0 2^e."""
    if x.value.element == "float":
        bits = x.to("bitcast", "i32")
        exponent = ((bits & 0x7F800000) >> 23) - 150
        mantissa = (bits & 0x7FFFFF) + 0x800000
        return [
            mantissa.to("sitofp", "double").apply("copysign", x.to("fpext", "double"))
        ], exponent
    bits = x.to("bitcast", "i64")
    exponent = ((bits & 0x7FF0000000000000) >> 52) - 1075
    mantissa = (bits & 0xFFFFFFFFFFFFF) + (1 << 52)
    parts = [mantissa & ((1 << 27) - 1), mantissa >> 27]
    numbers = [
        part.to("trunc", "i32").to("sitofp", "double").apply("copysign", x) for part in parts
    ]
    return numbers, exponent


def _look_up(index: Number, name: str, table: tuple[float, ...], mask: Value) -> Number:
    """The table's entry for each lane that the mask selects."""
    builder, lanes = index.builder, index.value.lanes
    address = builder.module.data(name, "double", table)
    wide = index.to("sext", "i64").value
    pointers = builder.make("ptr", lanes, f"getelementptr double, ptr {address}, {wide.typed}")
    if lanes == 1:
        return Number(builder, builder.make("double", 1, f"load double, {pointers.typed}, align 8"))
    gather = f"llvm.masked.gather.v{lanes}f64.v{lanes}p0"
    nothing = constant(0.0, "double", lanes)
    return Number(builder, builder.call(gather, "double", lanes, pointers, mask, nothing))


# atan(x) / x as a polynomial in x squared, for arguments up to tan(pi / 16).
_ARCTANGENT = tuple((-1) ** power / (2 * power + 1) for power in range(12))


def arctangent(x: Number) -> Number:
    """atan(x); a zero keeps its sign."""
    wide = x.to("fpext", "double")
    size = wide.apply("fabs")
    is_large = size.test("ogt", 1.0)
    small = (size.like(1.0) / size).where(is_large, size)
    quarter = _half_angle(_half_angle(small))
    angle = quarter * (quarter * quarter).polynomial(_ARCTANGENT) * 4.0
    folded = (angle.like(pi / 2) - angle).where(is_large, angle)
    return folded.apply("copysign", wide).to("fptrunc", x.value.element)


def _half_angle(x: Number) -> Number:
    """tan(a / 2) from tan(a)."""
    return x / ((x * x + 1.0).apply("sqrt") + 1.0)
