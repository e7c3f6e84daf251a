"""What measured times say: seconds in, order statistics and ratios with their uncertainty out.

Other work on a machine makes everything slower for a while. Within one round all contenders meet
nearly the same conditions, so it is the rounds' ratios that are looked at, and their median, which
a disturbed round does not move. How sure that is follows from the rounds themselves: the median
is taken again and again from rounds that are drawn with replacement (the bootstrap).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
# The widest interval that n rounds can give is from the smallest to the largest ratio, and it
# misses the true median with probability 2 ** (1 - n): six rounds are the fewest for 95 %.
LEAST_FOR_INTERVAL = 6

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in seconds, in a few figures."""

    runs: int
    median: float
    best: float
    tenth: float
    ninetieth: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """One contender's time over another's; no interval where there were too few rounds."""

    value: float
    low: float | None
    high: float | None

    @property
    def uncertainty(self) -> float:
        """Half the interval's width, as a part of the value; infinite where it is not known."""
        if self.low is None or self.high is None:
            return float("inf")
        return (self.high - self.low) / 2 / self.value


def summarize(times: Sequence[float]) -> Summary:
    """The figures of at least one time."""
    tenth, median, ninetieth = (float(one) for one in np.percentile(times, (10, 50, 90)))
    return Summary(len(times), median, min(times), tenth, ninetieth)


def ratio(mine: Sequence[float], other: Sequence[float], seed: int = 0) -> Ratio:
    """How many times as long as the other one takes; each has one time per round."""
    quotients = np.asarray(mine, np.float64) / np.asarray(other, np.float64)
    value = float(np.median(quotients))
    if len(quotients) < LEAST_FOR_INTERVAL:
        return Ratio(value, None, None)
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, len(quotients), (_RESAMPLES, len(quotients)))
    medians = np.median(quotients[drawn], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Ratio(value, float(low), float(high))
