"""Confidence bounds: results on some samples in, errors and one-sided bounds on unseen data out.

A budget holds for unseen data if the bound on the error, not the error itself, is within it. The
margin shrinks with the root of the number of samples.

If several programs are tried on the same samples, each is bounded with a higher confidence, such
that all bounds hold together with the promised one (Bonferroni). Several outputs need no
correction: the largest error is that of one output, whose own bound is wrong as rarely as any, and
the largest bound is no less than it (an intersection-union test: Berger, Technometrics 24, 1982).
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
    """The relative error of outputs over samples: per output the root of the summed squared
    differences over the summed squares, and the largest of these."""

    def __init__(self) -> None:
        self._squares: dict[int, list[tuple[float, float]]] = {}  # by output, of each sample

    def add(self, exact: Sequence[Array], other: Sequence[Array]) -> None:
        """Add the outputs of one sample; only floats count."""
        for number, (one, two) in enumerate(zip(exact, other, strict=True)):
            if dtype_of(one.dtype).is_float:
                self._squares.setdefault(number, []).append(_squares(one, two))

    @property
    def power(self) -> float:
        """The squared relative error, in which independent errors add up."""
        return max((_ratio(own) for own in self._squares.values()), default=0.0)

    @property
    def relative(self) -> float:
        return math.sqrt(self.power)

    def bound(self, beside: OutputError | None = None, tries: int = 1) -> float:
        """The relative error that data like these samples do not exceed, with `CONFIDENCE` for all
        of `tries` programs together.

        The error is a ratio of two means, whose variance follows from the samples' deviations from
        it; Student's distribution gives the bound. `beside` are errors on calibration samples:
        their mean may be too small, but their deviations from their own ratio improve the estimate
        of the variance. Infinite for fewer than three samples in all."""
        others = {} if beside is None else beside._squares
        bounds = (
            _bound(own, others.get(number, ()), tries) for number, own in self._squares.items()
        )
        return math.sqrt(max(bounds, default=0.0))


def _squares(exact: Array, other: Array) -> tuple[float, float]:
    """The sums of squares of differences and of values. NaN and infinity, as in masks, are no error
    if both have the same, else an infinite one."""
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
    """The bound on one output's ratio of means."""
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
    """The confidence of each bound at which all hold with `CONFIDENCE`."""
    return 1 - (1 - CONFIDENCE) / tries


def _deviations(squares: Sequence[tuple[float, float]]) -> Array:
    """The deviation of each sample's error from the overall ratio, as shares of the mean power."""
    errors, powers = np.array(squares).T
    mean = float(powers.mean())
    return np.asarray((errors - _ratio(squares) * powers) / (mean if mean > 0 else 1.0))


@cache
def student_quantile(freedom: int, level: float) -> float:
    """A quantile of Student's distribution, for levels above a half."""
    share = _beta_quantile(freedom / 2, 0.5, 2 * (1 - level))
    return math.sqrt(freedom * (1 - share) / share)


def least_share(hits: int, total: int, tries: int = 1) -> float:
    """A lower bound on the share of hits, with `CONFIDENCE` in all of so many tries, given so many
    hits in a number of samples (Clopper and Pearson)."""
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
