"""Maximum and mean pooling on blocked images, with what comes before and after in registers.

Windows are cut to the image, so that no padding is ever read: along a row when the code is written,
since the columns of the first and last tiles are known, across rows by the bounds of a loop. A tile
first combines each input column over the rows of the window, then those columns per pixel, so that
what neighbouring windows share is combined once. The threads share the rows of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

from graft.backends.host.coordinates import BlockedCoordinate, over, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template, plan_of, same_blocks
from graft.backends.host.kernels.image import (
    ImageWriter,
    group_lanes,
    no_image,
    source_block,
    unfit_epilogue,
    unfit_prologue,
)
from graft.backends.host.kernels.tile import Running, balanced, runs
from graft.backends.host.storage import shape_of
from graft.ir.graph import Node
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Cast,
    Const,
    Expr,
    For,
    Stmt,
    Var,
)
from graft.loop.statements import bound
from graft.loop.tensor import identity
from graft.loop.traverse import block
from graft.ops.integer import BYTES
from graft.ops.mixed import HALVES
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@dataclass(frozen=True, slots=True)
class Window:
    """One axis: `size` elements `dilation` apart, at `count` positions `stride` apart."""

    size: int
    stride: int
    dilation: int
    begin: int  # padding before the data
    end: int  # padding behind the data
    extent: Expr  # of the data
    count: Expr

    @staticmethod
    def of(attrs: Any, axis: int, extent: Expr, count: Expr) -> Window:
        """The window of a pooling along one of its spatial axes."""
        size, stride, dilation = (
            per_axis[axis] for per_axis in (attrs.pool_size, attrs.strides, attrs.dilation)
        )
        rank = len(attrs.strides)
        begin, end = attrs.padding[axis], attrs.padding[rank + axis]
        return Window(size, stride, dilation, begin, end, extent, count)

    def offsets(self, positions: int) -> list[int]:
        """The elements under some windows side by side, counted from the first window's start."""
        steps = range(self.size)
        return sorted(
            {p * self.stride + k * self.dilation for p in range(positions) for k in steps}
        )

    def start(self, position: Expr | int) -> Expr:
        """Where the window at a position starts."""
        return plus(times(position, self.stride), -self.begin)

    def places(self, position: int, padding: bool = False) -> list[int]:
        """Where a window's elements lie, of those that are data (or padding)."""
        low, high = self._low(padding), self._known_high(padding)
        start = position * self.stride - self.begin
        places = (start + step * self.dilation for step in range(self.size))
        return [place for place in places if low <= place < high]

    def inside(self, first: int, positions: int) -> bool:
        """Whether all elements under some windows side by side are data."""
        both = (first, first + positions - 1)
        return all(len(self.places(position)) == self.size for position in both)

    def clipped(self, position: Expr, padding: bool = False) -> tuple[Expr, Expr]:
        """The first element of a window that is data (or padding), and how many there are."""
        low, high = self._low(padding), self._high(padding)
        start, first, last = self.start(position), Const(0), Const(self.size)
        lower: Expr = first
        upper: Expr = last
        if -self.begin < low:
            lower = _largest(first, self._steps(Const(low), start))
        if not self._ends_within(padding):
            upper = _largest(lower, _least(last, self._steps(high, start)))
        if lower == first:
            return first, upper
        return lower, Binary(BinaryKind.SUBTRACT, _largest(lower, upper), lower)

    def whole(self) -> tuple[Expr, Expr]:
        """The first position with all its elements on the data, and how many such there are."""
        reach = (self.size - 1) * self.dilation
        first = _least(Const(-(-self.begin // self.stride)), self.count)
        room = plus(self.extent, self.begin - reach - 1)
        behind = _least(plus(over(room, self.stride), 1), self.count)
        return first, _largest(Const(0), Binary(BinaryKind.SUBTRACT, behind, first))

    @property
    def is_known(self) -> bool:
        """Whether the extents are numbers."""
        return isinstance(self.extent, Const) and isinstance(self.count, Const)

    def _low(self, padding: bool) -> int:
        return -self.begin if padding else 0

    def _high(self, padding: bool) -> Expr:
        return plus(self.extent, self.end) if padding else self.extent

    def _known_high(self, padding: bool) -> int:
        high = self._high(padding)
        assert isinstance(high, Const)
        return int(high.value)

    def _ends_within(self, padding: bool) -> bool:
        """Whether it is known that no window reaches beyond the limit."""
        if not isinstance(self.extent, Const) or not isinstance(self.count, Const):
            return False
        last = (int(self.count.value) - 1) * self.stride - self.begin
        return last + (self.size - 1) * self.dilation < self._known_high(padding)

    def _steps(self, limit: Expr, start: Expr) -> Expr:
        """How many elements of a window that starts there lie below a limit."""
        room = Binary(BinaryKind.SUBTRACT, plus(limit, self.dilation - 1), start)
        if self.dilation == 1:
            return room
        return Binary(BinaryKind.FLOOR_DIVIDE, room, Const(self.dilation))


def _largest(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryKind.MAXIMUM, left, right)


def _least(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryKind.MINIMUM, left, right)


_COMBINED = {"nn.max_pool2d": BinaryKind.MAXIMUM, "nn.avg_pool2d": BinaryKind.ADD}


@dataclass(frozen=True, slots=True)
class PoolSchedule:
    """What a search may vary: lanes of a vector and input columns that a tile may hold."""

    lanes: int
    columns: int


def default_schedule(target: Target, group: Group, block: int) -> PoolSchedule:
    """Tiles whose columns fill the registers beside what is being combined."""
    return PoolSchedule(group_lanes(target, group, block), target.vector_registers - 4)


@kernel_template(_COMBINED, Layout.BLOCKED, schedule=PoolSchedule, layouts=same_blocks)
def pool2d(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A maximum or mean under windows with whatever is fused with it."""
    anchor = group.sole_anchor
    result = stores[group.output]
    reason = no_image(result) or _unfit(group, stores, anchor)
    if reason:
        return Refusal(reason)
    schedule = default_schedule(target, group, result.block)
    return plan_of(group, stores, lambda p: _Writer(p, schedule, anchor).body())


def _unfit(group: Group, stores: Stores, anchor: Node) -> str | None:
    """Why operands before or after the pooling cannot be read, if they cannot."""
    result = stores[group.output]
    source = anchor.args[0]
    pooled = anchor.output.dtype
    if result.dtype not in (pooled, *BYTES):
        return "the result has another dtype than what is pooled"
    if pooled in (*BYTES, *HALVES) and anchor.op.name != "nn.max_pool2d":
        return f"a mean of {pooled}"
    if not source_block(group, stores, source):
        return "the data is no blocked image"
    return (
        unfit_prologue(group, stores, source, result.block)
        or unfit_epilogue(group, stores, anchor)
        or _unfit_padding(anchor)
    )


def _unfit_padding(anchor: Node) -> str | None:
    """Why the windows are not known to be where numbers say, if they are not."""
    is_static = all(isinstance(width, int) for width in anchor.attrs.padding)
    return None if is_static else "the padding depends on extents that are not known"


class _Writer(ImageWriter):
    """Writes the loop nest of one pooling."""

    def __init__(self, parameters: Parameters, schedule: PoolSchedule, anchor: Node) -> None:
        super().__init__(parameters, schedule.lanes)
        self.anchor = anchor
        self.kind = _COMBINED[anchor.op.name]
        self.columns = schedule.columns
        _, _, height, width = map(parameters.extent, shape_of(anchor.args[0]))
        self.vertical = Window.of(anchor.attrs, 0, height, self.height)
        self.horizontal = Window.of(anchor.attrs, 1, width, self.width)
        self.averages = anchor.op.name == "nn.avg_pool2d"
        self.counts_padding = self.averages and anchor.attrs.count_include_pad
        # of the window's rows: the first on the image, how many are, how many the mean counts
        self.first_line, self.lines, self.counted = Var("first_line"), Var("lines"), Var("counted")

    def body(self) -> Stmt:
        line: list[Stmt] = []
        for first in self.vectors:
            if len(self.horizontal.offsets(1)) > self.columns:
                line += self.across(1, partial(self.wide_window, first))
            elif isinstance(self.width, Const) and self.horizontal.is_known:
                line += self.tiles(first, int(self.width.value))
            else:
                line += self.tiles_of_any(first)
        first_line, lines = self.vertical.clipped(self.row)
        counted = self.vertical.clipped(self.row, self.counts_padding)[1]
        bindings = ((self.first_line, first_line), (self.lines, lines), (self.counted, counted))
        return self.rows([bound(bindings, Block(tuple(line)))])

    def most(self, width: int) -> int:
        """How many pixels of a row that long have all their columns in registers."""
        offsets = self.horizontal.offsets
        return max(n for n in range(1, width + 1) if n == 1 or len(offsets(n)) <= self.columns)

    def tiles_of_any(self, first: int) -> list[Stmt]:
        """A row of unknown length for one vector of channels: cut windows go one by one."""
        begin, count = self.horizontal.whole()
        start, whole = Var(self.fresh("begin")), Var(self.fresh("whole"))
        end = plus(start, whole)
        rest = Binary(BinaryKind.SUBTRACT, self.width, end)
        body: list[Stmt] = []
        for low, number in ((Const(0), start), (end, rest)):
            column = Var(self.fresh("column"))
            body.append(For(column, low, number, self.wide_window(first, column, 1)))

        def tile(size: int, column: Expr) -> Stmt:
            return self.tile(first, plus(column, start), size)

        body += [
            run.loop(Var(self.fresh("tile")), partial(tile, run.size))
            for run in runs(whole, self.most(self.columns))
        ]
        return [bound(((start, begin), (whole, count)), Block(tuple(body)))]

    def tiles(self, first: int, width: int) -> list[Stmt]:
        """A row for one vector of channels; tiles at its ends have cut windows."""
        horizontal = self.horizontal
        statements: list[Stmt] = []
        start = 0
        for size, count in balanced(width, self.most(width)):
            starts = [start + number * size for number in range(count)]
            inner = [at for at in starts if horizontal.inside(at, size)]
            edges = {at: self.tile(first, at, size) for at in starts if at not in inner}
            statements += [tile for at, tile in edges.items() if not inner or at < inner[0]]
            if inner:
                number = Var(self.fresh("tile"))
                body = self.tile(first, plus(times(number, size), inner[0]), size)
                statements.append(For(number, Const(0), Const(len(inner)), body))
                statements += [tile for at, tile in edges.items() if at > inner[0]]
            start += size * count
        return statements

    def tile(self, first: int, column: Expr | int, size: int) -> Stmt:
        """Some pixels, whose windows are cut to the image where the column is a number."""
        horizontal = self.horizontal
        if isinstance(column, int):
            base: Expr = Const(0)
            windows = [horizontal.places(column + pixel) for pixel in range(size)]
            counts = [len(horizontal.places(column + p, self.counts_padding)) for p in range(size)]
        else:
            base = horizontal.start(column)
            steps = [step * horizontal.dilation for step in range(horizontal.size)]
            windows = [[pixel * horizontal.stride + s for s in steps] for pixel in range(size)]
            counts = [horizontal.size] * size
        places = sorted({place for window in windows for place in window})
        columns = self.running("columns", len(places))
        columns_by_place = {place: columns.value(number) for number, place in enumerate(places)}
        finish = [
            self.finish(
                first, plus(column, pixel), [columns_by_place[place] for place in window], Const(n)
            )
            for pixel, (window, n) in enumerate(zip(windows, counts, strict=True))
        ]
        if not places:
            return Block(tuple(finish))
        line = Var(self.fresh("ky"))
        updates = [
            self.update(columns, number, self.source(first, line, plus(base, place)))
            for number, place in enumerate(places)
        ]
        sums = For(line, self.first_line, self.lines, Block(tuple(updates)))
        return Allocate(columns.buffer, block(columns.clear(), sums, *finish))

    def wide_window(self, first: int, column: Expr, _size: int) -> Stmt:
        """One pixel whose window has more columns than there are registers."""
        total = self.running("total", 1)
        line, step = Var(self.fresh("ky")), Var(self.fresh("kx"))
        low, count = self.horizontal.clipped(column)
        counted = self.horizontal.clipped(column, self.counts_padding)[1]
        place = plus(self.horizontal.start(column), times(step, self.horizontal.dilation))
        update = self.update(total, 0, self.source(first, line, place))
        sums = For(line, self.first_line, self.lines, For(step, low, count, update))
        finish = self.finish(first, column, [total.value(0)], counted)
        return Allocate(total.buffer, block(total.clear(), sums, finish))

    def source(self, first: int, line: Expr, column: Expr) -> BlockedCoordinate:
        """Where the data is read."""
        vertical = self.vertical
        row = plus(vertical.start(self.row), times(line, vertical.dilation))
        return replace(self.coordinate(column, first), row=row)

    def running(self, name: str, count: int) -> Running:
        return Running(self.fresh(name), self.kind, count, self.lanes, self.anchor.output.dtype)

    def update(self, running: Running, number: int, coordinate: BlockedCoordinate) -> Stmt:
        """Combine one more element of the data."""
        return self.evaluator.at(coordinate, self.anchor.args[0], {}, partial(running.add, number))

    def finish(self, first: int, column: Expr, parts: list[Expr], counted: Expr) -> Stmt:
        """What the columns of a window give together, through the epilogue, to memory."""
        dtype, lanes = self.anchor.output.dtype, self.lanes
        nothing: Expr = identity(self.kind, dtype, lanes)
        total = reduce(partial(Binary, self.kind), parts) if parts else nothing
        if self.averages:
            number = Cast(dtype, times(self.counted, counted))
            scale = Binary(BinaryKind.DIVIDE, Const(1.0, dtype), number)
            total = Binary(BinaryKind.MULTIPLY, total, Broadcast(scale, lanes))
        return self.store(self.coordinate(column, first), {self.anchor.output: total})
