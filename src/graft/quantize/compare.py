"""Comparison with the float program: its results on samples are kept, and the quality of another
program's results on the same samples comes out.

Samples that were set aside say how large errors are, and some that were calibrated on how much
errors differ from one sample to the next.
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
    """A sample, with what the float program chose where that is an input, and its results."""

    feeds: Feeds
    exact: Sequence[Array]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Samples with what the float program makes of them, at outputs or at heads."""

    heads: Heads
    held_out: Sequence[Sampled]
    probes: Sequence[Sampled]  # that were calibrated on
    tries: int  # programs that may be compared before one is taken by its errors

    @staticmethod
    def measured(
        heads: Heads, run: Run, held_out: Sequence[Feeds], probes: Sequence[Feeds], tries: int
    ) -> Comparison:
        """Run the float program, whose results are its outputs, or heads and what they choose."""

        def sampled(feeds: Feeds) -> Sampled:
            results = run(feeds)
            count = len(results) - len(heads.chosen)
            pairs = zip(heads.chosen, results[count:], strict=True)
            return Sampled({**feeds, **{v.name: array for v, array in pairs}}, results[:count])

        return Comparison(heads, [*map(sampled, held_out)], [*map(sampled, probes)], tries)

    def quality(self, run: Run) -> Quality:
        """How the results of another program compare, and what they are bounded by elsewhere."""
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
    """What two programs decide for each row: by the largest element of an output or, where no
    output is ranked, by one that is a decision."""
    pairs = list(zip(exact, other, strict=True))
    for one, two in pairs:
        if _is_ranking(one, two):
            return np.argmax(one, axis=-1), np.argmax(two, axis=-1)
    decisions = (pair for pair in pairs if pair[0].dtype.kind in "biu")
    return next((pair for pair in decisions if pair[0].shape == pair[1].shape), None)


def _is_ranking(exact: Array, other: Array) -> bool:
    is_float = dtype_of(exact.dtype).is_float
    return is_float and exact.ndim > 0 and exact.shape == other.shape and exact.shape[-1] > 1
