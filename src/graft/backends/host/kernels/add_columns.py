"""Sums of overlapping windows: `col2im` on images of two axes, whatever their extents.

A row of an image is a job. Its columns lie in as many lines as the windows are apart, every so many
pixels in one, since then each element of a window's row adds neighbours to neighbours. In the end
the lines are interleaved into the row.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Term, equal, maximum, term
from graft.loop.ir import Const, Ramp
from graft.loop.statements import scratch, spread, store_vector, vector
from graft.ops.conv_transpose import column_windows
from graft.ops.window import window_counts
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_RANK = 2

# For so many numbers from one on.
Step = Callable[[Term, int], None]


@kernel_template(
    ("col2im",),
    Layout.ROW_MAJOR,
    alone=True,
    dtypes=frozenset((DType.FLOAT32, DType.FLOAT64)),
    tensors=frozenset((DType.FLOAT32, DType.FLOAT64)),
)
def add_columns(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """The sums of windows along rows."""
    attrs, rank = group.node.attrs, len(shape_of(group.node.output)) - 2
    if rank != _RANK or len(group.node.args) > 1:
        return Refusal("the image has another rank, or its extents are operands")
    numbers = (*attrs.block_shape, *(attrs.padding or ()))
    if not all(isinstance(dim, int) for dim in numbers):
        return Refusal("the windows are known only at run time")
    return node_plan(group, stores, lambda writer: _Columns(writer, target).write())


class _Columns:
    """Writes the loops over rows of images, and what windows add to one."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._code, node = writer.code, writer.group.node
        image = shape_of(node.output)[_RANK:]
        self._window = column_windows(node.attrs, _RANK)
        self._block: tuple[int, ...] = node.attrs.block_shape
        counts = window_counts(self._window, image, self._block)
        self._rows, self._columns = map(writer.dim, counts)
        self._height, self._width = map(writer.dim, image)
        self._planes = writer.dim(product(shape_of(node.output)[:_RANK]))
        self._data, self._result = writer.present_operand(0), writer.result(0)
        self._lanes = target.lanes(self._data.dtype)
        stride, reach = self._window.strides[1], (self._block[1] - 1) * self._window.dilation[1]
        reached = self._columns + reach // stride
        shown = (self._width + self._window.padding[1]) // stride
        self._length = maximum(reached, shown) + 1
        self._lines = scratch("lines", self._data.dtype, self._length * stride + self._lanes)

    def write(self) -> None:
        code = self._code
        with code.memory(self._lines), code.parallel("job", self._planes * self._height) as job:
            plane, row = code.let("plane", job // self._height), code.let("row", job % self._height)
            zero = spread(Term(Const(0.0, self._data.dtype)), self._lanes)
            cells = self._length * self._window.strides[1]
            with code.loop("cleared", (cells + (self._lanes - 1)) // self._lanes) as number:
                code.emit(store_vector(self._lines, number * self._lanes, zero))
            with code.loop("down", self._block[0]) as down:
                at = row + self._window.padding[0] - down * self._window.dilation[0]
                at = code.let("reached", at)
                stride = self._window.strides[0]
                source = code.let("source", at // stride)
                meets = (at >= 0) & equal(at % stride, 0) & (source < self._rows)
                with code.when(meets), code.loop("right", self._block[1]) as right:
                    self._add(plane * self._block[0] + down, right, source)
            self._write_row(job * self._width)

    def _in_vectors(self, name: str, start: Term, count: Term, step: Step) -> None:
        """A step for each vector of numbers from `start` on, and for each that is left."""
        code, lanes = self._code, self._lanes
        vectors = code.let(f"{name}_vectors", count // lanes)
        with code.loop(f"{name}_vector", vectors) as number:
            step(start + number * lanes, lanes)
        with code.loop(
            f"{name}_single", count - vectors * lanes, start + vectors * lanes
        ) as number:
            step(number, 1)

    def _add(self, taps: Term, right: Term, source: Term) -> None:
        """Add one element of the windows along a row."""
        code, stride = self._code, self._window.strides[1]
        offset = code.let("offset", right * self._window.dilation[1])
        line = code.let("line", offset % stride * self._length + offset // stride)
        element = taps * self._block[1] + right
        first = code.let("first", (element * self._rows + source) * self._columns)

        def step(number: Term, lanes: int) -> None:
            sums = vector(self._lines, line + number, lanes)
            sums = sums + vector(self._data, first + number, lanes)
            code.emit(store_vector(self._lines, line + number, sums))

        self._in_vectors("added", term(0), self._columns, step)

    def _write_row(self, start: Term) -> None:
        code, stride, cut = self._code, self._window.strides[1], self._window.padding[1]
        with code.loop("phase", stride) as phase:
            begin = code.let("begin", (phase * -1 + (cut + stride - 1)) // stride)
            end = code.let("end", (self._width - phase + (cut + stride - 1)) // stride)

            def step(number: Term, lanes: int) -> None:
                at = start + number * stride + phase - cut
                places = Term(Ramp(at.expr, stride, lanes)) if lanes > 1 else at
                sums = vector(self._lines, phase * self._length + number, lanes)
                code.store(self._result, places, sums)

            self._in_vectors("written", begin, maximum(end - begin, 0), step)
