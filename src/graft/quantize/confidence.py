"""Errors on some samples, and what they are bounded by on all others: results of samples in,
relative errors and one-sided confidence bounds out.

A budget is kept for data that nobody has seen if not the measured error but its bound is within it.
Few samples give a wide margin; it shrinks with the root of their number.

Several programs that are tried on the same samples, until one is within a budget, share the risk
of being wrong: each is bounded with a confidence so much higher that all bounds hold together with
the one that is promised (Bonferroni). Several outputs need no such correction. The largest error is
of one output, whose own bound is wrong as rarely as any, and the largest bound is no less than it
(an intersection-union test: Berger, Technometrics 24, 1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from graft.base.dtypes import Array, dtype_of

CONFIDENCE = 0.99
_STEPS = 80  # of a bisection: more than a float64 tells apart
_MOST_TERMS = 500  # of the continued fraction, which converges in the root of its parameters


class OutputError:
    """The relative error of outputs over samples: of each output the root of the summed squares of
    differences over that of the values, and of all outputs the largest."""

    def __init__(self) -> None:
        self._squares: dict[int, list[tuple[float, float]]] = {}  # by output, of each sample

    def add(self, exact: Sequence[Array], other: Sequence[Array]) -> None:
        """Count what the outputs of one sample differ by; only floats count."""
        for number, (one, two) in enumerate(zip(exact, other, strict=True)):
            if dtype_of(one.dtype).is_float:
                self._squares.setdefault(number, []).append(_squares(one, two))

    @property
    def power(self) -> float:
        """The square of the relative error: what independent errors add up in."""
        return max((_ratio(own) for own in self._squares.values()), default=0.0)

    @property
    def relative(self) -> float:
        return math.sqrt(self.power)

    def bound(self, beside: OutputError | None = None, tries: int = 1) -> float:
        """The relative error that data like these samples do not exceed, with `CONFIDENCE` that
        this holds for all of so many programs that are tried on them.

        The error is a ratio of two means, whose variance follows from the samples' deviations from
        it, and Student's distribution gives the bound. `beside` are errors on samples that were
        calibrated on: their mean may be too small, but they vary alike, so deviations from their
        own ratio make the variance more certain. Infinite for less than three samples in all.
        """
        others = {} if beside is None else beside._squares
        bounds = (
            _bound(own, others.get(number, ()), tries) for number, own in self._squares.items()
        )
        return math.sqrt(max(bounds, default=0.0))


def _squares(exact: Array, other: Array) -> tuple[float, float]:
    """The sums of squares of the differences and of the values. NaN and infinity, as masks have
    them, are no error where both have the same, and an infinite one anywhere else."""
    one, two = exact.astype(np.float64), other.astype(np.float64)
    is_finite = np.isfinite(one)
    power = float(np.sum(np.square(one, where=is_finite, out=np.zeros_like(one))))
    if one.shape != two.shape or not np.array_equal(one[~is_finite], two[~is_finite], True):
        return math.inf, power
    differences = np.subtract(two, one, where=is_finite, out=np.zeros_like(one))
    error = float(np.sum(differences**2))
    return (error if math.isfinite(error) else math.inf), power


def _ratio(squares: Sequence[tuple[float, float]]) -> float:
    error, power = (sum(column) for column in zip(*squares, strict=True))
    return error / power if power > 0 else (math.inf if error > 0 else 0.0)


def _bound(
    own: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]], tries: int
) -> float:
    """The bound on the ratio of means of one output."""
    ratio = _ratio(own)
    if ratio == 0 or not math.isfinite(ratio):
        return ratio
    groups = [group for group in (own, others) if group]
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return math.inf
    spread = sum(float(np.sum(_deviations(group) ** 2)) for group in groups) / freedom
    return ratio + student_quantile(freedom, _level(tries)) * math.sqrt(spread / len(own))


def _level(tries: int) -> float:
    """The confidence that each of so many bounds has to have for all to hold with `CONFIDENCE`."""
    return 1 - (1 - CONFIDENCE) / tries


def _deviations(squares: Sequence[tuple[float, float]]) -> Array:
    """How far the error of each sample is from the ratio of all, as shares of the mean power."""
    errors, powers = np.array(squares).T
    mean = float(powers.mean())
    return np.asarray((errors - _ratio(squares) * powers) / (mean if mean > 0 else 1.0))


@cache
def student_quantile(freedom: int, level: float) -> float:
    """What Student's distribution stays below with a probability of more than a half."""
    share = _beta_quantile(freedom / 2, 0.5, 2 * (1 - level))
    return math.sqrt(freedom * (1 - share) / share)


def least_share(hits: int, total: int, tries: int = 1) -> float:
    """The share of hits that data are certain to have, with `CONFIDENCE` in all of so many tries,
    when there were so many in some samples of them (Clopper and Pearson)."""
    return _beta_quantile(hits, total - hits + 1, 1 - _level(tries)) if hits else 0.0


def _beta_quantile(a: float, b: float, probability: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _incomplete_beta(a, b, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The distribution function of the beta distribution, by its continued fraction (NIST DLMF
    8.17.22), which converges fast below the mean."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x)) / a
    terms = []
    for m in range(min(_MOST_TERMS, 20 + 5 * math.isqrt(int(a + b) + 1))):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) if m else 1.0
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        terms += [even, odd]
    fraction = 1.0
    for term in reversed(terms[1:]):
        fraction = 1 + term / fraction
    return front / fraction
