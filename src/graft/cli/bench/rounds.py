"""Alternating contenders: functions that run for a while in, their times in each round out.

In each round every contender has one short slice of time, in random order. Rounds go on until the
ratios are known well enough or a limit is reached.

Other work on a machine slows down everything for a while. Within one round all contenders have
about the same conditions, so the result is the median of the rounds' ratios, which a disturbed
round does not change. Its confidence interval is a bootstrap: medians of rounds drawn with
replacement.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from graft.base.errors import UserError
from graft.base.progress import Progress, Stage, quietly
from graft.byoc.cores import Watch

GRAFT = "graft"
# Rounds that an interval has to rest on before it counts as tight, and how tight that is.
LEAST_ROUNDS = 10
TIGHT = 0.02


class ContenderError(UserError):
    """Why a contender cannot be compared."""


@dataclass(frozen=True, slots=True)
class Slice:
    """How long a contender runs in one round.

    It runs until it has done both the least number of runs and the least time, but starts no run
    after `most_seconds`: slow ones get a few runs, or a single one."""

    least_runs: int = 5
    least_seconds: float = 0.3
    most_seconds: float = 2.0


@dataclass(frozen=True)
class Sample:
    """The results of one slice: the seconds of each run, and the processor time of all of them."""

    times: tuple[float, ...]
    processor_seconds: float

    @cached_property
    def median(self) -> float:
        """The median of the runs' seconds; cached, since it is needed in every round."""
        return median(self.times)


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop at the latest; the first round is always finished."""

    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """All rounds, each with a sample of every remaining contender; the others with their
    failures."""

    rounds: Sequence[Mapping[str, Sample]]
    failures: Mapping[str, ContenderError]
    seconds: float
    disturbed: int = 0  # rounds left out because the machine did not give its cores in full

    def samples(self, name: str) -> list[Sample]:
        return [one[name] for one in self.rounds]

    def times(self, name: str) -> list[float]:
        return [seconds for sample in self.samples(name) for seconds in sample.times]

    def cores_used(self, name: str) -> float:
        """The average number of busy cores: processor time over time."""
        processor = sum(sample.processor_seconds for sample in self.samples(name))
        return processor / sum(self.times(name))

    def ratio(self, mine: str, other: str) -> Ratio:
        """The ratio of two contenders' times over the rounds."""
        return ratio(self._round_medians(mine), self._round_medians(other))

    def uncertainty(self, name: str) -> float:
        """The uncertainty of a contender's own time, as that of a ratio to a constant 1 s."""
        medians = self._round_medians(name)
        return ratio(medians, [1.0] * len(medians)).uncertainty

    def _round_medians(self, name: str) -> list[float]:
        return [sample.median for sample in self.samples(name)]


Run = Callable[[Slice], Sample]


def measure(
    contenders: Mapping[str, Run],
    limits: Limits,
    portion: Slice,
    watch: Watch,
    progress: Progress = quietly,
) -> Measurement:
    """Run the contenders in alternation; one that fails is dropped. Graft alone runs until its own
    time is known well enough.

    Rounds start, and count, only while the machine provides its cores in full."""
    start = time.monotonic()
    disturbed = 0
    shuffler = random.Random(0)
    racing = list(contenders)
    rounds: list[dict[str, Sample]] = []
    failures: dict[str, ContenderError] = {}
    while True:
        samples: dict[str, Sample] = {}
        progress(Stage("round", len(rounds) + 1, limits.rounds, "at most"))
        watch.wait()
        round_start = time.monotonic()
        for name in shuffler.sample(racing, len(racing)):
            try:
                samples[name] = contenders[name](portion)
            except ContenderError as error:
                failures[name] = error
                racing.remove(name)
        if not watch.holds():
            disturbed += 1
            watch.lost += time.monotonic() - round_start
            continue
        rounds.append(samples)
        lasting = [{name: one[name] for name in racing} for one in rounds]
        result = Measurement(lasting, failures, time.monotonic() - start - watch.lost, disturbed)
        if _is_over(result, racing, limits, alone=len(contenders) == 1):
            return result


def _is_over(measurement: Measurement, racing: Sequence[str], limits: Limits, alone: bool) -> bool:
    peers = [name for name in racing if name != GRAFT]
    if GRAFT not in racing or not (peers or alone):
        return True
    if len(measurement.rounds) >= limits.rounds or measurement.seconds >= limits.seconds:
        return True
    if len(measurement.rounds) < LEAST_ROUNDS:
        return False
    if alone:
        return measurement.uncertainty(GRAFT) <= TIGHT
    return all(measurement.ratio(GRAFT, peer).uncertainty <= TIGHT for peer in peers)


CONFIDENCE = 0.95
# The widest interval that n rounds can give is from the smallest to the largest ratio, and it
# misses the true median with probability 2 ** (1 - n): six rounds are the fewest for 95 %.
LEAST_FOR_INTERVAL = 6

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of times, in seconds."""

    runs: int
    median: float
    best: float
    tenth: float
    ninetieth: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """One contender's time over another's; without an interval after too few rounds."""

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
    """The statistics of at least one time."""
    tenth, median, ninetieth = (float(one) for one in np.percentile(times, (10, 50, 90)))
    return Summary(len(times), median, min(times), tenth, ninetieth)


def ratio(mine: Sequence[float], other: Sequence[float]) -> Ratio:
    """The ratio of two contenders' times, of which each has one per round."""
    quotients = np.asarray(mine, np.float64) / np.asarray(other, np.float64)
    value = float(np.median(quotients))
    if len(quotients) < LEAST_FOR_INTERVAL:
        return Ratio(value, None, None)
    generator = np.random.default_rng(0)
    samples = generator.integers(0, len(quotients), (_RESAMPLES, len(quotients)))
    medians = np.median(quotients[samples], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Ratio(value, float(low), float(high))
