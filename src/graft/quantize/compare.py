"""Comparison with the float program: its results on samples are kept, and the quality of another
program's results on the same samples comes out.

Samples that were set aside say how large errors are, and some that were calibrated on how much
errors differ from one sample to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
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
            pairs = () if self.heads.values else zip(sample.exact, results, strict=True)
            ranked = next((p for p in pairs if _is_ranking(*p)), None)
            if ranked is not None:
                one, two = (np.argmax(array, axis=-1) for array in ranked)
                same, rows = same + int((one == two).sum()), rows + one.size
        shares = (same / rows, least_share(same, rows, self.tries)) if rows else (None, None)
        return Quality(error.relative, error.bound(beside, self.tries), *shares)


def _is_ranking(exact: Array, other: Array) -> bool:
    is_float = np.issubdtype(exact.dtype, np.floating)
    return is_float and exact.ndim > 0 and exact.shape == other.shape and exact.shape[-1] > 1
