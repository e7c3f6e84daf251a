"""Ranges of activations: observed values in, the interval that codes cover out.

A histogram takes constant memory: its bins are symmetric around zero, and their width doubles
whenever a value lies outside. Every range contains zero, so that padding is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.quantize.scheme import BYTES, Scheme

_HALF = 4096  # bins on either side of zero
_MOST_COUNTED = 1 << 19  # of the elements of an array, evenly spread; more change no range
_COARSE = 8  # bins as one for the entropy: with few values in each, chance would decide
_OUTLIERS = 1e-4  # the share of values that the percentile method leaves outside
_LEAST_EXPONENT = -100  # of the bins' reach: a float32 holds the reciprocal of their width
_CANDIDATES = np.linspace(0.2, 1.0, 81)  # shares of the whole range that are tried
_TAILS = np.arange(0.5, 8.5, 0.5)  # and lengths of the tails, by which it is made wider
_TAIL_SHARE, _LEAST_TAIL = 0.05, 8  # of the values on a side, whose spread tells of larger ones


@dataclass(frozen=True, slots=True)
class Range:
    """The interval from `low` <= 0 to `high` >= 0 in the codes of a scheme."""

    low: float
    high: float
    scheme: Scheme = BYTES

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high), self.scheme)

    @property
    def scale(self) -> np.float32:
        """The distance of two levels; 1 if the range is only zero."""
        levels = self.scheme.levels
        if self.scheme.symmetric:
            width = np.float32(max(-self.low, self.high) / (levels // 2 - 1))
        else:
            width = np.float32((self.high - self.low) / (levels - 1))
        return width if width >= np.finfo(np.float32).tiny else np.float32(1)

    @property
    def zero_point(self) -> int:
        """The code of zero."""
        lowest, levels = self.scheme.lowest, self.scheme.levels
        if self.scheme.symmetric:
            return lowest + levels // 2
        return lowest + min(max(round(-self.low / float(self.scale)), 0), levels - 1)


class Histogram:
    """Counts of values by bin, with the exact extremes."""

    def __init__(self) -> None:
        self.counts = np.zeros(2 * _HALF, np.int64)
        self.limit = 0.0  # bins reach from its negative to it; 0 before anything was seen
        self.low = self.high = 0.0

    def add(self, array: Array) -> None:
        """Count the elements of a float array."""
        if array.size == 0:
            return
        flat = array.reshape(-1)
        low, high = float(flat.min()), float(flat.max())
        if not math.isfinite(low) or not math.isfinite(high):
            raise UserError("it is NaN or infinite for some of the data")
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._widen(max(-low, high))
        if self.limit:
            flat = flat[:: max(1, flat.size // _MOST_COUNTED)]
            bins = (flat * np.float32(_HALF / self.limit) + np.float32(_HALF)).astype(np.int32)
            np.minimum(bins, 2 * _HALF - 1, out=bins)
            self.counts += np.bincount(bins, minlength=2 * _HALF)

    def _widen(self, peak: float) -> None:
        """Widen the bins to the next power of two."""
        if peak > 0 and not self.limit:
            self.limit = 2.0 ** max(math.ceil(math.log2(peak)), _LEAST_EXPONENT)
        while peak > self.limit:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts[:] = 0
            self.counts[_HALF // 2 : _HALF // 2 + _HALF] = pairs
            self.limit *= 2

    def tail(self, sign: int) -> float:
        """The mean distance of the largest values on a side from the least of them: for exponential
        tails, the expected distance of the next largest value beyond the largest."""
        counts = self.counts[_HALF:] if sign > 0 else self.counts[:_HALF][::-1]
        counts = counts[::-1].astype(np.float64)  # the outermost first
        most = max(_LEAST_TAIL, _TAIL_SHARE * float(counts.sum()))
        inside = np.diff(np.minimum(np.cumsum(counts), most), prepend=0.0)
        if not inside.any():
            return 0.0
        used = np.flatnonzero(inside)
        depth = (used[-1] - used) * (self.limit / _HALF)
        return float(depth @ inside[used] / inside.sum())

    @property
    def centres(self) -> Array:
        """The centres of bins."""
        return (np.arange(2 * _HALF) + 0.5 - _HALF) * (self.limit / _HALF)


def min_max(histogram: Histogram, scheme: Scheme) -> Range:
    """The range of all observed values."""
    return Range(histogram.low, histogram.high, scheme)


def percentile(histogram: Histogram, scheme: Scheme) -> Range:
    """The range without the outermost values on either side."""
    total = np.cumsum(histogram.counts)
    width = histogram.limit / _HALF
    outside = total[-1] * _OUTLIERS / 2
    first = int(np.searchsorted(total, outside, side="right"))
    last = int(np.searchsorted(total, total[-1] - outside, side="left"))
    low, high = (first - _HALF) * width, (last + 1 - _HALF) * width
    low, high = max(min(low, 0.0), histogram.low), min(max(high, 0.0), histogram.high)
    return Range(low, high, scheme)


def mean_squared_error(histogram: Histogram, scheme: Scheme) -> Range:
    """The range with the least expected square of rounding and clipping errors.

    Unseen data may exceed the observed range: one more value is expected beyond either end, at a
    distance estimated from the tails. With many values this changes nothing; with few it avoids
    clipping."""
    centres, counts = histogram.centres, histogram.counts
    tails = histogram.tail(-1), histogram.tail(1)

    def error(candidate: Range) -> float:
        known = float(counts @ (fake_quantized(centres, candidate) - centres) ** 2)
        room = histogram.low - candidate.low, candidate.high - histogram.high
        return known + sum(map(_clipped_beyond, tails, room))

    low, high = tails
    wider = [
        Range(histogram.low - low * times, histogram.high + high * times, scheme)
        for times in (_TAILS if any(tails) else ())
    ]
    return _best(histogram, scheme, error, wider)


def _clipped_beyond(tail: float, room: float) -> float:
    """The expected squared clipping error of a value that is exponentially distributed beyond the
    largest one, for a range that extends by `room` beyond that."""
    if tail == 0:
        return 0.0
    if room > 0:
        return 2 * tail**2 * math.exp(-room / tail)
    return room**2 - 2 * room * tail + 2 * tail**2


def entropy(histogram: Histogram, scheme: Scheme) -> Range:
    """The range with the least Kullback-Leibler divergence of the quantised histogram from the
    clipped one."""
    coarse = histogram.counts.reshape(-1, _COARSE).sum(axis=1).astype(np.float64)
    used = np.flatnonzero(coarse)
    values, counts = histogram.centres.reshape(-1, _COARSE).mean(axis=1)[used], coarse[used]

    def divergence(candidate: Range) -> float:
        inside = (values >= candidate.low) & (values <= candidate.high)
        kept = counts[inside]
        if not kept.size:
            return math.inf
        # What is clipped counts with the outermost bins of the reference, and nowhere else.
        reference = kept.copy()
        reference[0] += counts[values < candidate.low].sum()
        reference[-1] += counts[values > candidate.high].sum()
        levels = np.rint(values[inside] / float(candidate.scale)).astype(np.int64)
        levels -= levels.min()
        total, width = np.bincount(levels, kept), np.bincount(levels)
        share = (total / np.maximum(width, 1))[levels]  # equal for all bins of a level
        p, q = reference / reference.sum(), share / share.sum()
        return float(np.sum(p * np.log(p / q)))

    return _best(histogram, scheme, divergence)


def _best(
    histogram: Histogram,
    scheme: Scheme,
    error: Callable[[Range], float],
    wider: Sequence[Range] = (),
) -> Range:
    low, high = histogram.low, histogram.high
    shrunk = [Range(low * share, high * share, scheme) for share in _CANDIDATES]
    return min((*reversed(shrunk), *wider), key=error)  # of equal ones the widest that was seen


def fake_quantized(array: Array, chosen: Range) -> Array:
    """Quantise and dequantise numbers."""
    scale, zero, scheme = float(chosen.scale), chosen.zero_point, chosen.scheme
    codes = np.clip(np.rint(array / scale) + zero, scheme.lowest, scheme.lowest + scheme.levels - 1)
    return np.asarray((codes - zero) * scale)


METHODS: dict[str, Callable[[Histogram, Scheme], Range]] = {
    "mse": mean_squared_error,
    "minmax": min_max,
    "percentile": percentile,
    "entropy": entropy,
}
