"""Pooling over boxes by interpolation, whatever the number of boxes: `vision.roi_align`.

A bin of a box has equally spaced samples; each lies between two pixels and reads both, and those
far beyond the edge have no weight. A job is a box and some channels. For means, the weight of each
row and column of pixels in every bin is computed first; then the rows of a bin are summed up,
vectors of columns at a time, and the columns of that sum next. For maxima, each sample is computed
by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer
from graft.backends.host.storage import shape_of
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Buffer, Const, Scope, Stmt
from graft.loop.statements import (
    Cell,
    let,
    lets,
    loop,
    loops,
    parallel,
    ramp,
    scratch,
    store,
    store_vector,
    when,
    with_memory,
)
from graft.loop.traverse import block
from graft.target.target import Target

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

        def with_samples(first: Term, bin_size: Term) -> Stmt:
            return let(
                f"{self.name}_samples",
                counted(bin_size),
                lambda count: body(Span(first, bin_size, count)),
            )

        bin_size = size / float(self.bins)
        return lets({f"{self.name}_start": start, f"{self.name}_bin_size": bin_size}, with_samples)

    def sample(
        self, tag: str, span: Span, bin_: Term, number: Term, body: Callable[[Sample], Stmt]
    ) -> Stmt:
        """Names for one sample of a bin; a position that is no number counts as beyond the edge."""
        dtype, name = self.dtype, f"{self.name}_{tag}"
        count = cast(dtype, maximum(span.per_bin, 1))
        within = (cast(dtype, number) + 0.5) * span.bin_size / count
        position = span.start + cast(dtype, bin_) * span.bin_size + within
        edge = cast(dtype, self.extent)

        def weighted(inside: Term, clipped: Term, low: Term) -> Stmt:
            fraction = clipped - cast(dtype, low)
            nothing = Term(Const(0.0, dtype))
            weights = {
                f"{name}_below": select(inside, 1.0 - fraction, nothing),
                f"{name}_above": select(inside, fraction, nothing),
            }
            high = minimum(low + 1, self.extent - 1)
            return lets(weights, lambda *pair: body(Sample(low, high, *pair)))

        def with_position(at: Term) -> Stmt:
            inside = (at >= -1.0) & (at <= edge)
            clipped = select(at > 0.0, minimum(at, edge - 1.0), 0.0)
            return let(
                f"{name}_clipped",
                clipped,
                lambda clip: let(
                    f"{name}_low",
                    cast(INDEX, call("floor", clip)),
                    partial(weighted, inside, clip),
                ),
            )

        return let(f"{name}_at", position, with_position)

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


_CHANNELS = 64  # of a job, at most


@node_kernel("vision.roi_align")
def roi_align(group: Group, stores: Stores, target: Target) -> Plan:
    """Pooling over boxes by interpolation."""
    return lambda: _Pooling(Writer(group, stores), target).kernel()


class _Pooling:
    """Writes the loops over boxes, channels, bins and pixels."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._writer, node = writer, writer.group.node
        self._attrs = node.attrs
        images, channels, height, width = map(writer.dim, shape_of(node.args[0]))
        self._images, self._channels = images, channels
        self._boxes = writer.dim(shape_of(node.output)[0])
        self._data, self._rois, self._batch = map(writer.present_operand, range(3))
        self._result = writer.result(0)
        self._dtype = DType.FLOAT64 if self._data.dtype is DType.FLOAT64 else DType.FLOAT32
        self._lanes = target.lanes(self._dtype)
        (rows, columns), ratio = node.attrs.pooled_size, node.attrs.sample_ratio
        self._rows = Axis("row", self._dtype, rows, ratio, height)
        self._columns = Axis("column", self._dtype, columns, ratio, width)
        self._sums = scratch("sums", self._dtype, width)
        self._total = Cell("total", self._dtype)

    def kernel(self) -> Kernel:
        chunks = (self._channels + (_CHANNELS - 1)) // _CHANNELS

        def job(number: Term) -> Stmt:
            return lets({"box": number // chunks, "piece": number % chunks}, self._job)

        jobs = parallel("job", self._boxes * chunks, job)
        tables: tuple[Buffer, ...] = (*self._rows.memory, *self._columns.memory, self._sums)
        pixels = (self._rows.extent > 0) & (self._columns.extent > 0) & (self._images > 0)
        return self._writer.kernel(with_memory(when(pixels, jobs), *tables, self._total))

    def _job(self, box: Term, chunk: Term) -> Stmt:
        x, y, right, bottom = (self._corner(box, number) for number in range(4))

        def spanned(rows: Span) -> Stmt:
            return self._columns.span(x, self._size(x, right), partial(pooled, rows))

        def pooled(rows: Span, columns: Span) -> Stmt:
            image = cast(INDEX, load(self._batch, box))
            image = maximum(minimum(image, self._images - 1), 0)
            write = self._means if self._attrs.mode == "avg" else self._maxima
            first = chunk * _CHANNELS
            count = minimum(self._channels - first, _CHANNELS)

            def of_channel(channel: Term) -> Stmt:
                source = image * self._channels + channel
                base = source * self._rows.extent * self._columns.extent
                result = box * self._channels + channel
                size = self._rows.bins * self._columns.bins
                return let("base", base, lambda pixels: write(rows, columns, pixels, result * size))

            channels = loop("channel", count, of_channel, start=first)
            if self._attrs.mode != "avg":
                return channels
            return block(self._rows.fill(rows), self._columns.fill(columns), channels)

        return self._rows.span(y, self._size(y, bottom), spanned)

    def _corner(self, box: Term, number: int) -> Term:
        scale: float = self._attrs.spatial_scale
        scaled: Term = cast(self._dtype, load(self._rois, box * 4 + number)) * scale
        return scaled - 0.5 if self._attrs.aligned else scaled

    def _size(self, low: Term, high: Term) -> Term:
        return high - low if self._attrs.aligned else maximum(high - low, 1.0)

    def _pixel(self, at: Term) -> Term:
        return cast(self._dtype, load(self._data, at))

    def _store(self, at: Term, value: Term) -> Stmt:
        return store(self._result, at, cast(self._result.dtype, value))

    def _means(self, rows: Span, columns: Span, base: Term, result: Term) -> Stmt:
        count = cast(self._dtype, rows.per_bin * columns.per_bin)

        def of_column(row: Term, column: Term) -> Stmt:
            first = self._columns.first(column)
            summed = loop(
                "pixel",
                self._columns.last(column) - first + 1,
                lambda pixel: let(
                    "weight", self._columns.weight(column, pixel), partial(add, pixel)
                ),
                start=first,
            )
            mean = select(count > 0.0, self._total.value / maximum(count, 1.0), 0.0)
            place = result + row * self._columns.bins + column
            return block(self._total.set(0.0), summed, self._store(place, mean))

        def add(pixel: Term, weight: Term) -> Stmt:
            part = select(equal(weight, 0.0), 0.0, load(self._sums, pixel) * weight)
            return self._total.set(self._total.value + part)

        def of_row(row: Term) -> Stmt:
            columns = loop("column", self._columns.bins, partial(of_column, row))
            return block(self._summed_rows(row, base), columns)

        return loop("row", self._rows.bins, of_row)

    def _summed_rows(self, row: Term, base: Term) -> Stmt:
        """The rows of a bin, summed up, from the first to the last column that any bin takes."""
        # Boxes may be turned around, so that the last bin lies before the first.
        ends = [Term(Const(number)) for number in (0, self._columns.bins - 1)]
        left = minimum(*map(self._columns.first, ends))
        right = maximum(*map(self._columns.last, ends))
        width, lanes = self._columns.extent, self._lanes

        def vectors(start: Term, count: Term) -> Stmt:
            def one(number: Term) -> Stmt:
                # The last vector may begin before the one before it ends: it finds the same again.
                at = minimum(start + number * lanes, width - lanes)
                return let("at", at, lambda at: self._column_sums(row, base, at, lanes))

            return loop("vector", (count + (lanes - 1)) // lanes, one)

        def single(start: Term, count: Term) -> Stmt:
            return loop("lone", count, lambda at: self._column_sums(row, base, at, 1), start=start)

        def spread(start: Term, count: Term) -> Stmt:
            return when(width >= lanes, vectors(start, count), single(start, count))

        return let(
            "left",
            left,
            lambda start: let("width", right - start + 1, lambda count: spread(start, count)),
        )

    def _column_sums(self, row: Term, base: Term, at: Term, lanes: int) -> Stmt:
        """What a bin's rows come to in some columns."""
        tag = "wide" if lanes > 1 else "lone"
        register = Buffer(f"{tag}_sum", self._dtype, (Const(lanes),), Scope.REGISTER)
        whole = ramp(term(0), lanes)

        def added(pixel: Term, weight: Term) -> Stmt:
            pixels = self._pixel(ramp(base + pixel * self._columns.extent + at, lanes))
            value = load(register, whole) + pixels * weight
            return when(equal(weight, 0.0) ^ True, store(register, whole, value))

        first = self._rows.first(row)
        summed = loop(
            f"{tag}_pixel",
            self._rows.last(row) - first + 1,
            lambda pixel: let(
                f"{tag}_weight", self._rows.weight(row, pixel), partial(added, pixel)
            ),
            start=first,
        )
        cleared = store(register, whole, Term(Const(0.0, self._dtype, lanes)))
        body = block(cleared, summed, store_vector(self._sums, at, load(register, whole)))
        return with_memory(body, register)

    def _maxima(self, rows: Span, columns: Span, base: Term, result: Term) -> Stmt:
        """Over the samples of a bin, and the four pixels of each times what they weigh."""
        total, lowest = self._total, Term(Const(float("-inf"), self._dtype))

        def combine(one: Sample, other: Sample) -> Stmt:
            value = total.value
            for y, row_weight in ((one.low, one.low_weight), (one.high, one.high_weight)):
                for x, weight in ((other.low, other.low_weight), (other.high, other.high_weight)):
                    product = row_weight * weight
                    pixel = self._pixel(base + y * self._columns.extent + x) * product
                    value = maximum(value, select(equal(product, 0.0), 0.0, pixel))
            return total.set(value)

        def of_bin(row: Term, column: Term) -> Stmt:
            def across(one: Sample) -> Stmt:
                return loop(
                    "column_number",
                    columns.per_bin,
                    lambda number: self._columns.sample(
                        "each", columns, column, number, partial(combine, one)
                    ),
                )

            down = loop(
                "row_number",
                rows.per_bin,
                lambda number: self._rows.sample("each", rows, row, number, across),
            )
            any_samples = (rows.per_bin > 0) & (columns.per_bin > 0)
            place = result + row * self._columns.bins + column
            value = select(any_samples, total.value, 0.0)
            return block(total.set(lowest), down, self._store(place, value))

        return loops({"row": self._rows.bins, "column": self._columns.bins}, of_bin)
