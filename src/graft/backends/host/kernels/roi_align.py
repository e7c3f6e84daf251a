"""Pooling over boxes by interpolation, whatever the number of boxes: `vision.roi_align`.

A job is a box and some channels. For means, the weight of each row and column of pixels in every
bin is computed first; then the rows of a bin are summed up, vectors of neighbours in memory at a
time, and the columns of that sum next. In blocks, the channels of a pixel are neighbours, which
fill vectors in either step; in rows, pixels are, and there are as few as the box is wide. The sums
of a block are transposed in the end, since results are row-major. For maxima, each sample is
computed by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from graft.backends.host.cost import COPIED, typical
from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import HELD, Layout, Plan, kernel_template
from graft.backends.host.kernels.box_samples import Axis, Sample, Span
from graft.backends.host.kernels.relayout import transposed
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import BLOCKS, Storage, is_image, shape_of
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.loop.build import (
    Term,
    cast,
    constant,
    equal,
    load,
    maximum,
    minimum,
    select,
    term,
)
from graft.loop.ir import INDEX, Buffer, Const, Expr, Scope
from graft.loop.statements import ramp, scratch, store_vector, vector
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_ANCHORS = ("vision.roi_align",)
_DECLARED: dict[str, Any] = {"tensors": HELD, "alone": True, "empty": True}
# Of a job, at most. Boxes lie anywhere, and the part of the image with so many channels fits into a
# cache: 1000 boxes in 256 channels of 200x200 take 15 ms in blocks and 50 in rows on one core of a
# Zen 5, where jobs of 64 channels of one box after the other took 26 and 151.
_CHANNELS = 32
_PROPOSALS = 1000  # that detectors usually pool, where the number of boxes is not known
_VECTORS = 4  # of channels side by side, so that a weight is loaded once for them


def _cost(share: float, group: Group, _block: int, target: Target) -> float:
    """Cycles in which all that bins take from is read, at a share of the last cache's rate.

    Two samples along an axis stand for as many as a bin may have, if that depends on its box."""
    node, machine = group.node, target.machine
    boxes, *dims = shape_of(node.output)
    elements = math.prod(typical(dim, ()) for dim in dims)
    elements *= boxes if isinstance(boxes, int) else _PROPOSALS
    pixels = (2 * (node.attrs.sample_ratio or 2)) ** 2
    size = elements * node.output.dtype.numpy.itemsize * (pixels + 1)
    return machine.meeting_cycles + size / (share * machine.caches[-1].bytes_per_cycle)


def _layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """The image may be in any blocks; the result is row-major."""
    if not block and is_image(group.node.args[0]):
        yield {group.node.args[0]: BLOCKS}


@kernel_template(_ANCHORS, Layout.BLOCKED, **_DECLARED, layouts=_layouts, cost=partial(_cost, 1.0))
def blocked_roi_align(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Pooling over boxes of an image in blocks."""
    node = group.node
    data, *others = (stores.get(value) for value in node.args)
    if data is None or not data.block or stores[node.output].block:
        return Refusal("the image is not in blocks, or the result is")
    if any(one is not None and one.block for one in others):
        return Refusal("the boxes are in blocks")
    if data.dtype is not DType.FLOAT32:
        return Refusal(f"the image is {data.dtype}")
    if node.attrs.mode != "avg":
        return Refusal("maxima are computed sample by sample")
    return node_plan(group, stores, lambda writer: _Pooling(writer, target).write())


@kernel_template(_ANCHORS, Layout.ROW_MAJOR, **_DECLARED, cost=partial(_cost, COPIED))
def roi_align(group: Group, stores: Stores, target: Target) -> Plan:
    """Pooling over boxes by interpolation."""
    return node_plan(group, stores, lambda writer: _Pooling(writer, target).write())


@dataclass(frozen=True, slots=True)
class _Planes:
    """An image in memory: planes of rows of pixels, of which each is so many channels."""

    channels: int
    count: Term
    line: Term  # elements of a row
    size: Term  # elements of a plane
    origin: int | Term  # elements before the first pixel of a plane

    @staticmethod
    def of(storage: Storage | None, channels: Term, height: Term, width: Term) -> _Planes:
        """Of an image in blocks or in rows; constants are in rows."""
        if storage is None or not storage.block:
            return _Planes(1, channels, width, width * height, 0)
        top, left, bottom, right = storage.halo
        line = (width + (left + right)) * storage.block
        origin = line * top + left * storage.block
        size = line * (height + (top + bottom))
        return _Planes(storage.block, term(storage.blocks), line, size, origin)


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
        self._bins = rows * columns
        self._planes = _Planes.of(writer.stores.get(node.args[0]), channels, height, width)
        unit = self._planes.channels
        self._sums = scratch("sums", self._dtype, width * unit)
        self._pooled = scratch("pooled", self._dtype, self._bins * unit)  # of a block
        self._total = Buffer("total", self._dtype, (Const(unit),), Scope.REGISTER)

    def write(self) -> None:
        code, per_job = self._code, max(1, _CHANNELS // self._planes.channels)
        chunks = (self._planes.count + (per_job - 1)) // per_job
        axes = *self._rows.memory, *self._columns.memory
        pooled = (self._pooled,) if self._planes.channels > 1 else ()
        pixels = (self._rows.extent > 0) & (self._columns.extent > 0) & (self._images > 0)
        with (
            code.memory(*axes, self._sums, *pooled, self._total),
            code.when(pixels),
            code.parallel("job", self._boxes * chunks) as job,
        ):
            # All boxes take from some channels before any takes from the next.
            box = code.let("box", job % self._boxes)
            first = code.let("first", job // self._boxes * per_job)
            self._job(box, first, minimum(self._planes.count - first, per_job))

    def _job(self, box: Term, first: Term, count: Term) -> None:
        code, planes = self._code, self._planes
        x, y, right, bottom = (self._corner(box, number) for number in range(4))
        rows = self._rows.span(y, self._size(y, bottom))
        columns = self._columns.span(x, self._size(x, right))
        image = cast(INDEX, load(self._batch, box))
        image = code.let("image", maximum(minimum(image, self._images - 1), 0))
        is_mean = self._attrs.mode == "avg"
        if is_mean:
            self._rows.fill(rows)
            self._columns.fill(columns)
        with code.loop("plane", count, first) as plane:
            base = (image * planes.count + plane) * planes.size + planes.origin
            base = code.let("base", base)
            channel = plane * planes.channels
            result = code.let("result", (box * self._channels + channel) * self._bins)
            if is_mean:
                self._means(rows, columns, base, result)
                self._deliver(result, self._channels - channel)
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
        """The means of a plane's bins."""
        code, unit = self._code, self._planes.channels
        count = cast(self._dtype, rows.per_bin * columns.per_bin)
        share = code.let("share", 1.0 / maximum(count, 1.0))
        left, width = self._columns.covered()
        total, lanes = self._total, ramp(0, unit)
        with code.loop("row", self._rows.bins) as row:
            self._sum_rows(row, base, left * unit, width * unit)
            with code.loop("column", self._columns.bins) as column:
                code.store(total, lanes, constant(0, self._dtype, unit))
                with self._columns.pixels(column) as (pixel, weight):
                    part = vector(self._sums, pixel * unit, unit) * weight
                    code.store(total, lanes, load(total, lanes) + part)
                mean = load(total, lanes) * share
                at = row * self._columns.bins + column
                if unit == 1:
                    self._store(result + at, mean)
                else:
                    code.emit(store_vector(self._pooled, at * unit, mean))

    def _sum_rows(self, row: Term, base: Term, left: Term, width: Term) -> None:
        """The rows of a bin, summed up, from an element of the first one on."""
        code, unit = self._code, self._planes.channels
        extent, wide = self._columns.extent * unit, self._lanes * (_VECTORS if unit > 1 else 1)
        with (
            code.when(extent >= wide),
            code.loop("vector", (width + (wide - 1)) // wide) as number,
        ):
            # The last vector may begin before the one before it ends: it finds the same again.
            at = code.let("at", minimum(left + number * wide, extent - wide))
            self._sum_elements(row, base, at, wide, "_wide")
        with code.otherwise(), code.loop("lone", width // unit) as number:
            at = code.let("lone_at", left + number * unit)
            self._sum_elements(row, base, at, unit, "_lone")

    def _sum_elements(self, row: Term, base: Term, at: Term, lanes: int, tag: str) -> None:
        """What a bin's rows come to in some elements."""
        code, whole = self._code, ramp(0, lanes)
        register = Buffer(f"sum{tag}", self._dtype, (Const(lanes),), Scope.REGISTER)
        with code.memory(register):
            code.store(register, whole, constant(0, self._dtype, lanes))
            with self._rows.pixels(row, tag) as (pixel, weight):
                elements = self._pixel(ramp(base + pixel * self._planes.line + at, lanes))
                code.store(register, whole, load(register, whole) + elements * weight)
            code.emit(store_vector(self._sums, at, load(register, whole)))

    def _deliver(self, result: Term, channels: Term) -> None:
        """Transpose the bins of a block's channels, of which the last may not be there.

        The last square may begin before the one before it ends: it copies the same again."""
        code, unit = self._code, self._planes.channels
        if unit == 1:
            return
        sides = (n for n in (16, 8, 4, 2, 1) if n <= min(self._bins, self._lanes))
        side = next(n for n in sides if unit % n == 0)
        with code.loop("square", -(-self._bins // side)) as number:
            bin_ = code.let("bin", minimum(number * side, self._bins - side))
            for first in range(0, unit, side):
                names = count()
                rows = [vector(self._pooled, (bin_ + n) * unit + first, side) for n in range(side)]
                named = partial(self._named, f"part{first}", names)
                parts = transposed([named(one.expr) for one in rows], named)
                for n, part in enumerate(parts, first):
                    with code.when(channels > n):
                        at = result + n * self._bins + bin_
                        code.emit(store_vector(self._result, at, Term(part)))

    def _named(self, hint: str, numbers: Iterator[int], value: Expr) -> Expr:
        return self._code.let(f"{hint}_{next(numbers)}", value).expr

    def _maxima(self, rows: Span, columns: Span, base: Term, result: Term) -> None:
        """Over the samples of a bin, and the four pixels of each times what they weigh."""
        code, total = self._code, self._total
        with (
            code.loop("row", self._rows.bins) as row,
            code.loop("column", self._columns.bins) as column,
        ):
            code.store(total, 0, Term(Const(float("-inf"), self._dtype)))
            with code.loop("row_number", rows.per_bin) as number:
                one = self._rows.sample("each", rows, row, number)
                with code.loop("column_number", columns.per_bin) as other_number:
                    other = self._columns.sample("each", columns, column, other_number)
                    code.store(total, 0, self._combined(one, other, base))
            any_samples = (rows.per_bin > 0) & (columns.per_bin > 0)
            value = select(any_samples, load(total, 0), 0.0)
            self._store(result + row * self._columns.bins + column, value)

    def _combined(self, one: Sample, other: Sample, base: Term) -> Term:
        """The total so far and the pixels of a sample."""
        value = load(self._total, 0)
        for y, row_weight in ((one.low, one.low_weight), (one.high, one.high_weight)):
            for x, weight in ((other.low, other.low_weight), (other.high, other.high_weight)):
                product = row_weight * weight
                pixel = self._pixel(base + y * self._columns.extent + x) * product
                value = maximum(value, select(equal(product, 0.0), 0.0, pixel))
        return value
