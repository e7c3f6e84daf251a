"""Pooling over boxes by interpolation, whatever the number of boxes: `vision.roi_align`.

A bin of a box has equally spaced samples; each lies between two pixels and reads both, and those
far beyond the edge have no weight. A job is a box and some channels. For means, the weight of each
row and column of pixels in every bin is computed first; then the rows of a bin are summed up,
vectors of columns at a time, and the columns of that sum next. For maxima, each sample is computed
by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dtypes import DType
from graft.loop.build import (
    Term,
    call,
    cast,
    constant,
    equal,
    load,
    maximum,
    minimum,
    select,
    term,
)
from graft.loop.ir import INDEX, Buffer, Const, Scope
from graft.loop.statements import Cell, StatementBuilder, ramp, scratch, store_vector
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

    code: StatementBuilder
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
        code = self.code
        with code.loop(f"{self.name}_bin", self.bins) as bin_:
            with code.scope():
                one = self.sample("head", span, bin_, term(0))
                other = self.sample("tail", span, bin_, span.per_bin - 1)
                code.store(self._firsts, bin_, minimum(one.low, other.low))
                code.store(self._lasts, bin_, maximum(one.high, other.high))
            first = self.first(bin_)
            with code.loop(f"{self.name}_cleared", self.last(bin_) - first + 1, first) as pixel:
                code.store(self.weights, bin_ * self.extent + pixel, 0.0)
            with code.loop(f"{self.name}_number", span.per_bin) as number:
                one = self.sample("each", span, bin_, number)
                for pixel, weight in ((one.low, one.low_weight), (one.high, one.high_weight)):
                    total = self.weight(bin_, pixel) + weight
                    code.store(self.weights, bin_ * self.extent + pixel, total)


_CHANNELS = 64  # of a job, at most


@node_kernel("vision.roi_align")
def roi_align(group: Group, stores: Stores, target: Target) -> Plan:
    """Pooling over boxes by interpolation."""
    return node_plan(group, stores, lambda writer: _Pooling(writer, target).write())


class _Pooling:
    """Writes the loops over boxes, channels, bins and pixels."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._code, node = writer.code, writer.group.node
        self._attrs = node.attrs
        images, channels, height, width = map(writer.dim, shape_of(node.args[0]))
        self._images, self._channels = images, channels
        self._boxes = writer.dim(shape_of(node.output)[0])
        self._data, self._rois, self._batch = map(writer.present_operand, range(3))
        self._result = writer.result(0)
        self._dtype = DType.FLOAT64 if self._data.dtype is DType.FLOAT64 else DType.FLOAT32
        self._lanes = target.lanes(self._dtype)
        (rows, columns), ratio = node.attrs.pooled_size, node.attrs.sample_ratio
        self._rows = Axis(self._code, "row", self._dtype, rows, ratio, height)
        self._columns = Axis(self._code, "column", self._dtype, columns, ratio, width)
        self._sums = scratch("sums", self._dtype, width)
        self._total = Cell("total", self._dtype)

    def write(self) -> None:
        code, chunks = self._code, (self._channels + (_CHANNELS - 1)) // _CHANNELS
        tables: tuple[Buffer, ...] = (*self._rows.memory, *self._columns.memory, self._sums)
        pixels = (self._rows.extent > 0) & (self._columns.extent > 0) & (self._images > 0)
        with (
            code.memory(*tables, self._total),
            code.when(pixels),
            code.parallel("job", self._boxes * chunks) as job,
        ):
            box = code.let("box", job // chunks)
            self._job(box, code.let("piece", job % chunks))

    def _job(self, box: Term, chunk: Term) -> None:
        code = self._code
        x, y, right, bottom = (self._corner(box, number) for number in range(4))
        rows = self._rows.span(y, self._size(y, bottom))
        columns = self._columns.span(x, self._size(x, right))
        image = cast(INDEX, load(self._batch, box))
        image = maximum(minimum(image, self._images - 1), 0)
        is_mean, size = self._attrs.mode == "avg", self._rows.bins * self._columns.bins
        if is_mean:
            self._rows.fill(rows)
            self._columns.fill(columns)
        first = chunk * _CHANNELS
        count = minimum(self._channels - first, _CHANNELS)
        with code.loop("channel", count, first) as channel:
            source = image * self._channels + channel
            base = code.let("base", source * self._rows.extent * self._columns.extent)
            result = (box * self._channels + channel) * size
            if is_mean:
                self._means(rows, columns, base, result)
            else:
                self._maxima(rows, columns, base, result)

    def _corner(self, box: Term, number: int) -> Term:
        scale: float = self._attrs.spatial_scale
        scaled: Term = cast(self._dtype, load(self._rois, box * 4 + number)) * scale
        return scaled - 0.5 if self._attrs.aligned else scaled

    def _size(self, low: Term, high: Term) -> Term:
        return high - low if self._attrs.aligned else maximum(high - low, 1.0)

    def _pixel(self, at: Term) -> Term:
        return cast(self._dtype, load(self._data, at))

    def _store(self, at: Term, value: Term) -> None:
        self._code.store(self._result, at, cast(self._result.dtype, value))

    def _means(self, rows: Span, columns: Span, base: Term, result: Term) -> None:
        code, count = self._code, cast(self._dtype, rows.per_bin * columns.per_bin)
        with code.loop("row", self._rows.bins) as row:
            self._sum_rows(row, base)
            with code.loop("column", self._columns.bins) as column:
                code.set(self._total, 0.0)
                first = self._columns.first(column)
                with code.loop("pixel", self._columns.last(column) - first + 1, first) as pixel:
                    weight = code.let("weight", self._columns.weight(column, pixel))
                    part = select(equal(weight, 0.0), 0.0, load(self._sums, pixel) * weight)
                    code.set(self._total, self._total.value + part)
                mean = select(count > 0.0, self._total.value / maximum(count, 1.0), 0.0)
                self._store(result + row * self._columns.bins + column, mean)

    def _sum_rows(self, row: Term, base: Term) -> None:
        """The rows of a bin, summed up, from the first to the last column that any bin takes."""
        # Boxes may be turned around, so that the last bin lies before the first.
        ends = [Term(Const(number)) for number in (0, self._columns.bins - 1)]
        code, extent, lanes = self._code, self._columns.extent, self._lanes
        with code.scope():
            left = code.let("left", minimum(*map(self._columns.first, ends)))
            width = code.let("width", maximum(*map(self._columns.last, ends)) - left + 1)
            with (
                code.when(extent >= lanes),
                code.loop("vector", (width + (lanes - 1)) // lanes) as number,
            ):
                # The last vector may begin before the one before it ends: it finds the same again.
                at = code.let("at", minimum(left + number * lanes, extent - lanes))
                self._sum_columns(row, base, at, lanes)
            with code.otherwise(), code.loop("lone", width, left) as at:
                self._sum_columns(row, base, at, 1)

    def _sum_columns(self, row: Term, base: Term, at: Term, lanes: int) -> None:
        """What a bin's rows come to in some columns."""
        code, tag = self._code, "wide" if lanes > 1 else "lone"
        register = Buffer(f"{tag}_sum", self._dtype, (Const(lanes),), Scope.REGISTER)
        whole, first = ramp(term(0), lanes), self._rows.first(row)
        with code.memory(register):
            code.store(register, whole, constant(0, self._dtype, lanes))
            with code.loop(f"{tag}_pixel", self._rows.last(row) - first + 1, first) as pixel:
                weight = code.let(f"{tag}_weight", self._rows.weight(row, pixel))
                pixels = self._pixel(ramp(base + pixel * self._columns.extent + at, lanes))
                with code.when(equal(weight, 0.0) ^ True):
                    code.store(register, whole, load(register, whole) + pixels * weight)
            code.emit(store_vector(self._sums, at, load(register, whole)))

    def _maxima(self, rows: Span, columns: Span, base: Term, result: Term) -> None:
        """Over the samples of a bin, and the four pixels of each times what they weigh."""
        code, total = self._code, self._total
        with (
            code.loop("row", self._rows.bins) as row,
            code.loop("column", self._columns.bins) as column,
        ):
            code.set(total, Term(Const(float("-inf"), self._dtype)))
            with code.loop("row_number", rows.per_bin) as number:
                one = self._rows.sample("each", rows, row, number)
                with code.loop("column_number", columns.per_bin) as other_number:
                    other = self._columns.sample("each", columns, column, other_number)
                    code.set(total, self._combined(one, other, base))
            any_samples = (rows.per_bin > 0) & (columns.per_bin > 0)
            value = select(any_samples, total.value, 0.0)
            self._store(result + row * self._columns.bins + column, value)

    def _combined(self, one: Sample, other: Sample, base: Term) -> Term:
        """The total so far and the pixels of a sample."""
        value = self._total.value
        for y, row_weight in ((one.low, one.low_weight), (one.high, one.high_weight)):
            for x, weight in ((other.low, other.low_weight), (other.high, other.high_weight)):
                product = row_weight * weight
                pixel = self._pixel(base + y * self._columns.extent + x) * product
                value = maximum(value, select(equal(product, 0.0), 0.0, pixel))
        return value
