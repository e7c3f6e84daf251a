"""Where the samples of a box lie along one axis of an image, and what its pixels weigh in each bin.

A bin has equally spaced samples, of which each lies between two pixels and takes from both. Those
far beyond the edge weigh nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graft.backends.host.kernels.writing import block, let, loop, scratch, store
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Buffer, Const, Stmt

_MOST_SAMPLES = 1e9  # per bin, so that the number of samples is one


@dataclass(frozen=True, slots=True)
class Span:
    """Of one box along the axis: where it starts, how large a bin is, how many samples that has."""

    start: Term
    bin_size: Term
    per_bin: Term


@dataclass(frozen=True, slots=True)
class Sample:
    """The pixels before and behind, and what each of them weighs."""

    low: Term
    high: Term
    low_weight: Term
    high_weight: Term


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of an image; `ratio` is the number of samples of a bin, 0: as many as pixels."""

    name: str
    dtype: DType
    bins: int
    ratio: int
    extent: Term

    @property
    def weights(self) -> Buffer:
        """Bins × pixels; only those between the first and last pixel of a bin are set."""
        return scratch(f"{self.name}_weights", self.dtype, self.extent * self.bins)

    @property
    def _firsts(self) -> Buffer:
        return scratch(f"{self.name}_firsts", INDEX, self.bins)

    @property
    def _lasts(self) -> Buffer:
        return scratch(f"{self.name}_lasts", INDEX, self.bins)

    @property
    def memory(self) -> tuple[Buffer, ...]:
        return self.weights, self._firsts, self._lasts

    def first(self, bin_: Term) -> Term:
        """The first pixel that a bin may take from."""
        return load(self._firsts, bin_)

    def last(self, bin_: Term) -> Term:
        """And the last."""
        return load(self._lasts, bin_)

    def weight(self, bin_: Term, pixel: Term) -> Term:
        """What a pixel weighs in the sum over a bin's samples."""
        return load(self.weights, bin_ * self.extent + pixel)

    def span(self, start: Term, size: Term, body: Callable[[Span], Stmt]) -> Stmt:
        """Names for what all samples of a box have in common."""

        def counted(bin_size: Term) -> Term:
            if self.ratio:
                return term(self.ratio)
            whole = minimum(call("ceil", bin_size), _MOST_SAMPLES)
            return cast(INDEX, select(bin_size > 0.0, whole, 0.0))

        def known(first: Term, bin_size: Term) -> Stmt:
            return let(
                f"{self.name}_samples",
                counted(bin_size),
                lambda count: body(Span(first, bin_size, count)),
            )

        def begun(first: Term) -> Stmt:
            return let(
                f"{self.name}_bin_size",
                size / float(self.bins),
                lambda bin_size: known(first, bin_size),
            )

        return let(f"{self.name}_start", start, begun)

    def sample(
        self, tag: str, span: Span, bin_: Term, number: Term, body: Callable[[Sample], Stmt]
    ) -> Stmt:
        """Names for one sample of a bin; a position that is no number counts as beyond the edge."""
        dtype, name = self.dtype, f"{self.name}_{tag}"
        count = cast(dtype, maximum(span.per_bin, 1))
        within = (cast(dtype, number) + 0.5) * span.bin_size / count
        position = span.start + cast(dtype, bin_) * span.bin_size + within
        edge = cast(dtype, self.extent)

        def found(at: Term, inside: Term, clipped: Term, low: Term) -> Stmt:
            fraction = clipped - cast(dtype, low)
            nothing = Term(Const(0.0, dtype))
            weights = select(inside, 1.0 - fraction, nothing), select(inside, fraction, nothing)
            high = minimum(low + 1, self.extent - 1)
            return let(
                f"{name}_below",
                weights[0],
                lambda below: let(
                    f"{name}_above",
                    weights[1],
                    lambda above: body(Sample(low, high, below, above)),
                ),
            )

        def placed(at: Term) -> Stmt:
            inside = (at >= -1.0) & (at <= edge)
            clipped = select(at > 0.0, minimum(at, edge - 1.0), 0.0)
            return let(
                f"{name}_clipped",
                clipped,
                lambda clip: let(
                    f"{name}_low",
                    cast(INDEX, call("floor", clip)),
                    lambda low: found(at, inside, clip, low),
                ),
            )

        return let(f"{name}_at", position, placed)

    def fill(self, span: Span) -> Stmt:
        """Compute the weights of all bins."""

        def bounded(bin_: Term, one: Sample, other: Sample) -> Stmt:
            return block(
                store(self._firsts, bin_, minimum(one.low, other.low)),
                store(self._lasts, bin_, maximum(one.high, other.high)),
            )

        def added(bin_: Term, sample: Sample) -> Stmt:
            pairs = (sample.low, sample.low_weight), (sample.high, sample.high_weight)
            return block(*(self._add(bin_, pixel, weight) for pixel, weight in pairs))

        def of_bin(bin_: Term) -> Stmt:
            ends = self.sample(
                "head",
                span,
                bin_,
                term(0),
                lambda one: self.sample(
                    "tail", span, bin_, span.per_bin - 1, lambda other: bounded(bin_, one, other)
                ),
            )
            first = self.first(bin_)
            cleared = loop(
                f"{self.name}_cleared",
                self.last(bin_) - first + 1,
                lambda pixel: store(self.weights, bin_ * self.extent + pixel, 0.0),
                start=first,
            )
            summed = loop(
                f"{self.name}_number",
                span.per_bin,
                lambda number: self.sample(
                    "each", span, bin_, number, lambda one: added(bin_, one)
                ),
            )
            return block(ends, cleared, summed)

        return loop(f"{self.name}_bin", self.bins, of_bin)

    def _add(self, bin_: Term, pixel: Term, weight: Term) -> Stmt:
        return store(self.weights, bin_ * self.extent + pixel, self.weight(bin_, pixel) + weight)
