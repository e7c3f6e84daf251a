"""The samples of a box along an axis of an image, and what they make pixels weigh.

A bin of a box has equally spaced samples; each lies between two pixels and reads both, and those
far beyond the edge have no weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Buffer, Const
from graft.loop.statements import Cell, StatementBuilder, scratch

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

    code: StatementBuilder
    name: str
    dtype: DType
    bins: int
    ratio: int
    extent: Term

    @property
    def _weights(self) -> Buffer:
        return scratch(f"{self.name}_weights", self.dtype, self.extent * self.bins)

    @property
    def _pixels(self) -> Buffer:
        return scratch(f"{self.name}_pixels", INDEX, self.extent * self.bins)

    @property
    def _ends(self) -> tuple[Buffer, Buffer, Buffer]:
        """Per bin, the first and the last pixel that it may take from, and how many it does."""
        names = ("firsts", "lasts", "counts")
        firsts, lasts, counts = (scratch(f"{self.name}_{one}", INDEX, self.bins) for one in names)
        return firsts, lasts, counts

    @property
    def memory(self) -> tuple[Buffer, ...]:
        return self._weights, self._pixels, *self._ends

    @contextmanager
    def pixels(self, bin_: Term, tag: str = "") -> Iterator[tuple[Term, Term]]:
        """A loop over the pixels that weigh something in the sum over a bin's samples, and what."""
        code, name = self.code, f"{self.name}{tag}"
        with code.loop(f"{name}_entry", load(self._ends[2], bin_)) as entry:
            at = bin_ * self.extent + entry
            pixel = code.let(f"{name}_pixel", load(self._pixels, at))
            yield pixel, code.let(f"{name}_weight", load(self._weights, at))

    def covered(self) -> tuple[Term, Term]:
        """The first pixel that any bin may take from, and how many there are until the last."""
        # Boxes may be turned around, so that the last bin lies before the first.
        outer = [Term(Const(number)) for number in (0, self.bins - 1)]
        firsts, lasts, _ = self._ends
        first = self.code.let(f"{self.name}_first", minimum(*(load(firsts, n) for n in outer)))
        return first, maximum(*(load(lasts, n) for n in outer)) - first + 1

    def span(self, start: Term, size: Term) -> Span:
        """What all samples of a box have in common, with names."""
        first = self.code.let(f"{self.name}_start", start)
        bin_size = self.code.let(f"{self.name}_bin_size", size / float(self.bins))
        count = term(self.ratio)
        if not self.ratio:
            whole = minimum(call("ceil", bin_size), _MOST_SAMPLES)
            count = cast(INDEX, select(bin_size > 0.0, whole, 0.0))
        return Span(first, bin_size, self.code.let(f"{self.name}_samples", count))

    def sample(self, tag: str, span: Span, bin_: Term, number: Term) -> Sample:
        """One sample of a bin, with names; a position that is no number counts as beyond the
        edge."""
        code, dtype, name = self.code, self.dtype, f"{self.name}_{tag}"
        count = cast(dtype, maximum(span.per_bin, 1))
        within = (cast(dtype, number) + 0.5) * span.bin_size / count
        at = code.let(f"{name}_at", span.start + cast(dtype, bin_) * span.bin_size + within)
        edge, nothing = cast(dtype, self.extent), Term(Const(0.0, dtype))
        inside = (at >= -1.0) & (at <= edge)
        clipped = select(at > 0.0, minimum(at, edge - 1.0), 0.0)
        clipped = code.let(f"{name}_clipped", clipped)
        low = code.let(f"{name}_low", cast(INDEX, call("floor", clipped)))
        fraction = clipped - cast(dtype, low)
        below = code.let(f"{name}_below", select(inside, 1.0 - fraction, nothing))
        above = code.let(f"{name}_above", select(inside, fraction, nothing))
        return Sample(low, minimum(low + 1, self.extent - 1), below, above)

    def fill(self, span: Span) -> None:
        """Compute the weights of all bins."""
        code, (firsts, lasts, _) = self.code, self._ends
        with code.loop(f"{self.name}_bin", self.bins) as bin_:
            with code.scope():
                one = self.sample("head", span, bin_, term(0))
                other = self.sample("tail", span, bin_, span.per_bin - 1)
                code.store(firsts, bin_, minimum(one.low, other.low))
                code.store(lasts, bin_, maximum(one.high, other.high))
            first = code.let(f"{self.name}_from", load(firsts, bin_))
            count = code.let(f"{self.name}_between", load(lasts, bin_) - first + 1)
            with code.loop(f"{self.name}_cleared", count, first) as pixel:
                code.store(self._weights, bin_ * self.extent + pixel, 0.0)
            with code.loop(f"{self.name}_number", span.per_bin) as number:
                one = self.sample("each", span, bin_, number)
                for pixel, weight in ((one.low, one.low_weight), (one.high, one.high_weight)):
                    at = bin_ * self.extent + pixel
                    code.store(self._weights, at, load(self._weights, at) + weight)
            self._compact(bin_, first, count)

    def _compact(self, bin_: Term, first: Term, count: Term) -> None:
        """Move what weighs something to the front: infinite pixels times nothing are no numbers."""
        code, kept = self.code, Cell(f"{self.name}_kept")
        with code.memory(kept):
            code.set(kept, 0)
            with code.loop(f"{self.name}_candidate", count, first) as pixel:
                at = bin_ * self.extent
                weight = code.let(f"{self.name}_sum", load(self._weights, at + pixel))
                with code.when(equal(weight, 0.0) ^ True):
                    code.store(self._weights, at + kept.value, weight)
                    code.store(self._pixels, at + kept.value, pixel)
                    code.set(kept, kept.value + 1)
            code.store(self._ends[2], bin_, kept.value)
