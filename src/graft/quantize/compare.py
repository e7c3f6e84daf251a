"""Comparison with the float program on samples.

Errors are measured on held-out samples; how much they vary from one sample to the next is also
estimated on some calibration samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, dtype_of
from graft.quantize.calibrate import Feeds
from graft.quantize.confidence import OutputError, least_share
from graft.quantize.heads import Heads
from graft.quantize.report import Quality

Run = Callable[[Feeds], Sequence[Array]]


@dataclass(frozen=True, eq=False)
class Sampled:
    """A sample, with the float program's values for further inputs, and its results."""

    feeds: Feeds
    exact: Sequence[Array]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Samples with the float program's results, at outputs or at heads."""

    heads: Heads
    held_out: Sequence[Sampled]
    probes: Sequence[Sampled]  # that were calibrated on
    tries: int  # programs that may be compared before one is taken by its errors

    @staticmethod
    def measured(
        heads: Heads, run: Run, held_out: Sequence[Feeds], probes: Sequence[Feeds], tries: int
    ) -> Comparison:
        """Run the float program, whose results are its outputs, or heads and chosen values."""

        def sampled(feeds: Feeds) -> Sampled:
            results = run(feeds)
            count = len(results) - len(heads.chosen)
            pairs = zip(heads.chosen, results[count:], strict=True)
            return Sampled({**feeds, **{v.name: array for v, array in pairs}}, results[:count])

        return Comparison(heads, [*map(sampled, held_out)], [*map(sampled, probes)], tries)

    def quality(self, run: Run) -> Quality:
        """The errors of another program's results, and their bounds on unseen data."""
        error, beside, same, rows = OutputError(), OutputError(), 0, 0
        for sample in self.probes:
            beside.add(sample.exact, run(sample.feeds))
        for sample in self.held_out:
            results = run(sample.feeds)
            error.add(sample.exact, results)
            outputs = self.heads.outputs if self.heads.values else None
            pair = _decided(sample.exact[:outputs], results[:outputs])
            if pair is not None:
                one, two = pair
                same, rows = same + int((one == two).sum()), rows + one.size
        shares = (same / rows, least_share(same, rows, self.tries)) if rows else (None, None)
        return Quality(error.relative, error.bound(beside, self.tries), *shares)


def _decided(exact: Sequence[Array], other: Sequence[Array]) -> tuple[Array, Array] | None:
    """The decisions of two programs for each row: the largest element of an output or, without one
    to rank, an output of integers."""
    pairs = list(zip(exact, other, strict=True))
    for one, two in pairs:
        if _is_ranking(one, two):
            return np.argmax(one, axis=-1), np.argmax(two, axis=-1)
    decisions = (pair for pair in pairs if pair[0].dtype.kind in "biu")
    return next((pair for pair in decisions if pair[0].shape == pair[1].shape), None)


def _is_ranking(exact: Array, other: Array) -> bool:
    is_float = dtype_of(exact.dtype).is_float
    return is_float and exact.ndim > 0 and exact.shape == other.shape and exact.shape[-1] > 1
