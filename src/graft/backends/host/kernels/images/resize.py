"""Resizing of blocked images: nearest neighbours or weighted sums of a few, in vectors of channels.

Which rows and columns a result pixel looks at, and with what weights, is a table per axis where the
extents are known when the kernel is written, and a formula of the index where they are not. The
threads share the rows of the result; what depends on the row only is computed once for it. Where
an image grows, the rows that a result's row looks at are combined first, into a line of floats that
stays in L1. Bytes are widened when they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from graft.backends.host.coordinates import BlockedCoordinate
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template, same_blocks
from graft.backends.host.kernels.image import (
    ImageSchedule,
    ImageWriter,
    no_image,
    not_readable,
    unfit_epilogue,
)
from graft.backends.host.kernels.tile import runs
from graft.backends.host.storage import shape_of
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import Term, term
from graft.loop.index import dim_of
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.loop.statements import bound
from graft.ops import resize_axis
from graft.ops.expression import NumbersNeededError
from graft.ops.integer import BYTES
from graft.ops.resize import resize_steps
from graft.ops.resize_axis import AxisResize, nearest_table, tap_tables
from graft.rewrite.rule import Refusal
from graft.target.target import Target

NEAREST = "nearest_neighbor"
# Elements that are added up for a pixel in straight code; cubic interpolation has 4 x 4.
MOST_TAPS = 16


@kernel_template(
    ("resize", "qnn.resize"), Layout.BLOCKED, schedule=ImageSchedule, layouts=same_blocks
)
def image_resize(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A resized image with whatever follows."""
    anchor = group.sole_anchor
    result = stores[group.output]
    reason = no_image(result) or unfit_resize(anchor) or _unfit(group, stores, anchor)
    if reason:
        return Refusal(reason)
    parameters = Parameters(group, stores)
    try:
        axes = _axes(parameters, anchor)
    except NumbersNeededError as error:
        return Refusal(str(error))
    if axes[0].count * axes[1].count > MOST_TAPS:
        return Refusal(f"a pixel is made of {axes[0].count * axes[1].count} others")
    schedule = ImageSchedule.of(target, group, result.block)
    return lambda: parameters.kernel(_Writer(parameters, schedule, anchor, axes).body())


def unfit_resize(anchor: Node) -> str | None:
    """Why an image cannot be resized in blocks, if it cannot."""
    data, result = anchor.args[0], anchor.output
    if len(anchor.args) > 1:
        return "the sizes are operands"
    if anchor.attrs.coordinate_transformation_mode == "tf_crop_and_resize":
        return "the image is cropped"
    is_moved = data.dtype in BYTES and anchor.attrs.method == NEAREST
    if anchor.output.dtype is not DType.FLOAT32 and not is_moved:
        return f"images of {data.dtype} are not resized in blocks"
    if data.shape is None or result.shape is None or data.shape[:2] != result.shape[:2]:
        return "more than rows and columns is resized"
    return None


def _unfit(group: Group, stores: Stores, anchor: Node) -> str | None:
    """Why the image or what follows cannot be read, if it cannot."""
    result, source = stores[group.output], anchor.args[0]
    if result.dtype not in (anchor.output.dtype, *BYTES) or source in group.constants:
        return "the result is of another dtype, or of a constant"
    storage = stores[group.outer(source)]
    if storage.block != result.block and storage.shape[2:] != (1, 1):
        return "the data is no image in such blocks"
    read = not_readable(group, stores, [source], shape_of(source), result.block)
    return read or unfit_epilogue(group, stores, anchor)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: how many elements are combined, which, and the weight of each (None: a copy)."""

    count: int
    place: Callable[[Expr, int], Expr]
    weight: Callable[[Expr, int], Expr] | None


_SAME = _Axis(1, lambda index, _tap: index, None)


def _axes(parameters: Parameters, anchor: Node) -> tuple[_Axis, _Axis]:
    """How rows and columns are resized."""

    def extents(shape: Sequence[Any]) -> list[Any]:
        return [dim_of(parameters.extent(dim)) for dim in shape]

    attrs = parameters.extents.attributes(anchor.attrs)
    before, after = shape_of(anchor.args[0]), shape_of(anchor.output)
    steps = {step.axis: step for step in resize_steps(attrs, extents(before), extents(after))}
    rows, columns = (
        _axis(parameters, attrs, steps[axis]) if axis in steps else _SAME for axis in (2, 3)
    )
    return rows, columns


def _axis(parameters: Parameters, attrs: Any, step: AxisResize) -> _Axis:
    if not step.is_static:
        return _formulas(attrs, step)
    if attrs.method == NEAREST:
        table = parameters.table(nearest_table(attrs, step), f"places{step.axis}")
        return _Axis(1, lambda index, _tap: Load(table, (index,)), None)
    elements, factors = tap_tables(attrs, step)
    places = parameters.table(elements, f"places{step.axis}")
    weights = parameters.table(factors.astype(np.float32), f"weights{step.axis}")

    def looked_up(table: Buffer, index: Expr, tap: int) -> Expr:
        return Load(table, (index, Const(tap)))

    return _Axis(elements.shape[1], partial(looked_up, places), partial(looked_up, weights))


def _formulas(attrs: Any, step: AxisResize) -> _Axis:
    if attrs.method == NEAREST:
        return _Axis(1, lambda index, _: resize_axis.nearest(attrs, step, Term(index)).expr, None)
    single = DType.FLOAT32
    return _Axis(
        resize_axis.tap_count(attrs, step),
        lambda index, tap: resize_axis.place(attrs, step, Term(index), term(tap)).expr,
        lambda index, tap: resize_axis.weight(attrs, step, Term(index), term(tap), single).expr,
    )


@dataclass(frozen=True, slots=True)
class _Tap:
    """A row or column that a pixel looks at, and its weight."""

    place: Var
    weight: Var | None


class _Writer(ImageWriter):
    """Writes the loop nest of one resizing."""

    def __init__(
        self,
        parameters: Parameters,
        schedule: ImageSchedule,
        anchor: Node,
        axes: tuple[_Axis, _Axis],
    ) -> None:
        super().__init__(parameters, schedule.lanes)
        self.pixels, self.anchor = schedule.pixels, anchor
        self.rows_axis, self.columns_axis = axes

        self.line = self.line_buffer()

    def line_buffer(self) -> Buffer | None:
        """Where rows are combined before columns are; None where that would take more work."""
        width, result = self.parameters.extent(shape_of(self.anchor.args[0])[3]), self.width
        if not isinstance(width, Const) or not isinstance(result, Const):
            return None
        columns, pixels = int(width.value), int(result.value)
        rows, taps = self.rows_axis.count, self.columns_axis.count
        if columns * (rows + 1) + pixels * taps >= pixels * rows * taps:
            return None
        extents = Const(columns), Const(self.result.block)
        return Buffer(self.fresh("line"), DType.FLOAT32, extents, Scope.HEAP)

    def body(self) -> Stmt:
        def line(lines: list[_Tap]) -> Stmt:
            tiles = self.across(self.pixels, partial(self.tile, lines))
            if self.line is None:
                return Block(tuple(tiles))
            columns = runs(self.line.extents[0], self.pixels)
            fill = [
                run.loop(Var(self.fresh("columns")), partial(self.combined_rows, lines, run.size))
                for run in columns
            ]
            return Allocate(self.line, Block((*fill, *tiles)))

        return self.rows([self.looked_at(self.rows_axis, self.row, line)])

    def combined_rows(self, lines: list[_Tap], size: int, column: Expr) -> Stmt:
        """Some columns of the rows that are looked at, as one row of floats."""
        assert self.line is not None
        stores = []
        for coordinate in self.coordinates(column, size):
            values = [self.read(coordinate, line.place, coordinate.column) for line in lines]
            along = Ramp(Const(coordinate.first), 1, self.lanes)
            at = (coordinate.column, along)
            stores.append(Store(self.line, at, self.weighted(lines, values)))
        return Block(tuple(stores))

    def tile(self, lines: list[_Tap], column: Expr, size: int) -> Stmt:
        """Some pixels, all channels of a block each."""

        def pixel(place: Expr, columns: list[_Tap]) -> Stmt:
            coordinates = self.coordinates(place, 1)
            return Block(
                tuple(self.combined(coordinate, lines, columns) for coordinate in coordinates)
            )

        statements: list[Stmt] = []
        for number in range(size):
            place = Binary(BinaryKind.ADD, column, Const(number))
            statements.append(self.looked_at(self.columns_axis, place, partial(pixel, place)))
        return Block(tuple(statements))

    def looked_at(self, axis: _Axis, index: Expr, use: Callable[[list[_Tap]], Stmt]) -> Stmt:
        """A statement that uses the elements of an axis that an index looks at."""
        axis_taps: list[_Tap] = []
        bindings: list[tuple[Var, Expr]] = []
        for tap in range(axis.count):
            place, weight = Var(self.fresh("place")), None
            bindings.append((place, axis.place(index, tap)))
            if axis.weight is not None:
                weight = Var(self.fresh("weight"), DType.FLOAT32)
                bindings.append((weight, axis.weight(index, tap)))
            axis_taps.append(_Tap(place, weight))
        return bound(bindings, use(axis_taps))

    def combined(
        self, coordinate: BlockedCoordinate, lines: list[_Tap], columns: list[_Tap]
    ) -> Stmt:
        """A vector of the result from all the pixels that it looks at."""
        bindings: list[tuple[Var, Expr]] = []

        def named(expr: Expr) -> Expr:
            bindings.append((Var(self.fresh("sum"), expr.dtype, expr.lanes), expr))
            return bindings[-1][0]

        if self.line is not None:
            along = Ramp(Const(coordinate.first), 1, self.lanes)
            values: list[Expr] = [Load(self.line, (column.place, along)) for column in columns]
            total = named(self.weighted(columns, values))
        else:
            sums = []
            for line in lines:
                values = [self.read(coordinate, line.place, column.place) for column in columns]
                sums.append(named(self.weighted(columns, values)))
            total = named(self.weighted(lines, sums))
        return bound(bindings, self.store(coordinate, {self.anchor.output: total}))

    def read(self, coordinate: BlockedCoordinate, row: Expr, column: Expr) -> Expr:
        """The image's vector in a row and a column, of the dtype that it is resized in."""
        storage, buffer = self.parameters.value(self.anchor.args[0])
        vector = replace(coordinate, row=row, column=column).load(storage, buffer)
        dtype = self.anchor.output.dtype
        return vector if vector.dtype is dtype else Cast(dtype, vector)

    def weighted(self, taps_: list[_Tap], values: list[Expr]) -> Expr:
        """The sum of values, each times its weight."""
        total: Expr | None = None
        for tap, value in zip(taps_, values, strict=True):
            if tap.weight is None:
                return value
            factor = Broadcast(tap.weight, value.lanes)
            if total is None:
                total = Binary(BinaryKind.MULTIPLY, value, factor)
            else:
                total = Call("fma", (value, factor, total), value.dtype)
        assert total is not None
        return total
