"""The matrix product that dense layers and batches of matrices are made of.

The threads share (batch, block of columns, tile of rows) jobs. A job accumulates a register tile
over the whole depth and hands the sums on: what is multiplied, and where sums go, is the caller's.
Where the weights of a block exceed L2, jobs are groups of blocks instead, and all tiles of a group
do one part of the depth before the next one, with their sums in scratch memory: that part's weights
and elements stay in L2 meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce

from graft.backends.host.coordinates import minus, over, plus, times
from graft.backends.host.kernels.tile import Run, Tile, balanced, numbered_tile, runs
from graft.backends.host.kernels.vectors import mask_of
from graft.backends.host.kernels.views import shared_loop
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.target.register_tile import (
    data_cycles,
    most_pixels,
    resume_cycles,
    step_cycles,
    stream_cycles,
    tile_cycles,
    weight_cycles,
)
from graft.target.target import Target

# Fewer rows than this are bound by memory: wide panels then stream better than tall tiles.
FEW_ROWS = 4
MANY = 1024
WIDEST_PANEL = 4
MANY_REGISTERS = 32
# Jobs for each core where they are groups of blocks: some, so that threads share evenly.
JOBS_PER_CORE = 2
LEAST_PART = 64  # of the depth: below it, taking sums up again costs more than it saves
PART = Var("part")  # of the depth


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """What a search may vary: rows and vectors of a tile, lanes of a vector, the steps of the depth
    that all tiles of a job do before the next ones (0: all), and the blocks of such a job."""

    rows: int
    vectors: int
    lanes: int
    depth_block: int = 0
    group: int = 1

    @property
    def width(self) -> int:
        """Columns of a block."""
        return self.vectors * self.lanes


def default_schedule(target: Target, dtype: DType, rows: Dim, columns: Dim) -> ProductSchedule:
    """Tiles that fill the registers; for few rows, wide ones. Unknown extents count as many.

    Many vectors and few rows are best: rows are far apart in memory, and more of them than L1 has
    ways may map to the same sets.
    """
    lanes = target.lanes(dtype)
    rows = rows if isinstance(rows, int) else MANY
    columns = columns if isinstance(columns, int) else MANY
    if rows <= FEW_ROWS:
        vectors = _panel_vectors(target, dtype, rows, columns)
    else:
        widest = WIDEST_PANEL if target.vector_registers >= MANY_REGISTERS else 2
        vectors = min(range(widest, 0, -1), key=lambda v: -(-columns // (v * lanes)) * v)
    return ProductSchedule(min(rows, most_pixels(target.vector_registers, vectors)), vectors, lanes)


def _panel_vectors(target: Target, dtype: DType, rows: int, columns: int) -> int:
    """The vectors of a panel for few rows: sums enough for the latency of multiply-adds, and panels
    enough for all cores, in the fewest cycles of the core with the most. Of equals the widest one,
    which streams best."""
    machine, lanes = target.machine, target.lanes(dtype)

    def cycles(vectors: int) -> float:
        panels = -(-columns // (vectors * lanes))
        incoming = stream_cycles(machine, vectors * lanes * dtype.numpy.itemsize, 0)
        return -(-panels // machine.cores) * step_cycles(machine, rows, vectors, incoming)

    fitting = (v for v in (WIDEST_PANEL, 2, 1) if (rows + 1) * v < target.vector_registers)
    return min(fitting, key=cycles, default=1)


def blocked_schedule(
    target: Target, dtype: DType, rows: Dim, columns: int, depth: int
) -> ProductSchedule:
    """The schedule for packed weights: that of any product, in parts of the depth where that takes
    fewer cycles."""
    plain = default_schedule(target, dtype, rows, columns)
    if not isinstance(rows, int) or rows <= plain.rows:
        return plain  # a single tile reads weights once
    blocks = -(-columns // plain.width)
    group = max(1, blocks // (JOBS_PER_CORE * target.machine.cores))
    parts = (part for part in range(LEAST_PART, depth // 2 + 1) if depth % part == 0)
    candidates = (plain, *(replace(plain, depth_block=part, group=group) for part in parts))
    return min(candidates, key=lambda one: _cycles(target, dtype, rows, columns, depth, one))


def product_cycles(target: Target, dtype: DType, rows: int, columns: int, depth: int) -> float:
    """Cycles of a product with packed weights on one core."""
    schedule = blocked_schedule(target, dtype, rows, columns, depth)
    return _cycles(target, dtype, rows, columns, depth, schedule)


def _cycles(
    target: Target, dtype: DType, rows: int, columns: int, depth: int, schedule: ProductSchedule
) -> float:
    machine, size = target.machine, dtype.numpy.itemsize
    width, part = schedule.width, schedule.depth_block or depth
    # what passes until the weights are read again, and the sums of a job where these are kept
    passing, partial_bytes = schedule.rows * depth * size, 0
    if schedule.depth_block:
        partial_bytes = schedule.group * rows * width * size
        passing = rows * part * size + partial_bytes
    weights = weight_cycles(machine, width * size, width * size * part, passing)
    total = 0.0
    for pixels, count in balanced(rows, schedule.rows):
        data = data_cycles(machine, pixels * size)
        cycles = tile_cycles(machine, pixels, schedule.vectors, depth, weights + data)
        resume = resume_cycles(machine, pixels, schedule.vectors)
        if partial_bytes > machine.caches[0].size / 2:  # to and from L2
            resume += data_cycles(machine, 2 * pixels * width * size)
        total += count * (cycles + (depth // part - 1) * resume)
    return total * -(-columns // width)


@dataclass(frozen=True, slots=True)
class OutputVector:
    """A vector of the product: batch and row, and the first of some columns."""

    batch: Expr
    row: Expr
    column: Expr
    lanes: int
    condition: Expr | None  # which lanes are columns at all; None: all of them

    @property
    def columns(self) -> Expr:
        return Ramp(self.column, 1, self.lanes) if self.lanes > 1 else self.column


@dataclass(frozen=True)
class Product:
    """[batch, rows, columns] sums over `depth`. Tiles of rows that are not counted yet overlap."""

    batch: Expr
    rows: Expr
    columns: Expr
    depth: Expr
    dtype: DType
    schedule: ProductSchedule
    element: Callable[[Expr, Expr, Expr], Expr]  # batch, row, step -> a scalar
    weights: Callable[[Expr, Expr, Expr, int], Expr]  # batch, block, step, vector -> a vector
    finish: Callable[[OutputVector, Expr], Stmt]  # what to do with a vector of sums
    # batch, block -> what has to happen once before the tiles of a block
    prepare: Callable[[Expr, Expr], Stmt] | None = None
    is_paired: bool = False  # whether elements are pairs of bfloat16

    @property
    def blocks(self) -> Expr:
        width = self.schedule.width
        return over(plus(self.columns, width - 1), width)

    @property
    def partial(self) -> Buffer:
        """The sums of a job, where it does parts of the depth."""
        extents = (Const(self.schedule.group), self.rows, Const(self.schedule.width))
        return Buffer("partial", self.dtype, extents, Scope.HEAP)

    def body(self) -> Stmt:
        """The whole product."""
        if self.schedule.depth_block:
            return self.in_parts()
        row_runs = self.row_runs()
        tiles = reduce(plus, (run.count for run in row_runs))
        batch, block, tile = Var("batch"), Var("block"), Var("tile")
        parts: list[tuple[Var, Expr]] = [(batch, self.batch), (block, self.blocks)]
        body = numbered_tile(tile, row_runs, partial(self.tile, batch, block))
        if self.prepare is None:
            return shared_loop([*parts, (tile, tiles)], body)
        loop = For(tile, Const(0), tiles, body)
        return shared_loop(parts, Block((self.prepare(batch, block), loop)))

    def row_runs(self) -> list[Run]:
        """Tiles of all rows. Where their number is unknown, it is often a power of two."""
        most = self.schedule.rows
        sizes = [size for size in (64, 32, 16, 8, 4, 3, 2, 1) if size < most]
        return runs(self.rows, most, sizes)

    def in_parts(self) -> Stmt:
        """The same, where jobs are groups of blocks that do one part of the depth after another."""
        batch, group, member, block = Var("batch"), Var("group"), Var("member"), Var("block")
        size = self.schedule.group
        parts = over(self.depth, self.schedule.depth_block)
        tiles: list[Stmt] = []
        for run in self.row_runs():
            number = Var(f"tile_{run.size}")

            def tile(row: Expr, size: int = run.size) -> Stmt:
                return self.tile(batch, block, row, size, member)

            tiles.append(run.loop(number, tile))
        first = times(group, size)
        each: Stmt = Let(block, plus(first, member), Block(tuple(tiles)))
        left = Binary(BinaryKind.MINIMUM, Const(size), minus(self.blocks, first))
        each = For(PART, Const(0), parts, For(member, Const(0), left, each))
        groups = over(plus(self.blocks, size - 1), size)
        return Allocate(self.partial, shared_loop([(batch, self.batch), (group, groups)], each))

    def tile(
        self, batch: Expr, block: Expr, row: Expr, size: int, member: Expr | None = None
    ) -> Stmt:
        """One register tile from a row on; of a part of the depth where the block is the member of
        a group."""
        schedule = self.schedule
        tile = Tile(size, schedule.vectors, schedule.lanes, f"_{size}", self.dtype, self.is_paired)
        start = Var(f"row_{size}")
        begin, end = tile.clear(), self.store(tile, batch, block, start)
        if member is not None:

            def at(pixel: int, vector: int) -> tuple[Expr, ...]:
                ramp = Ramp(Const(vector * tile.lanes), 1, tile.lanes)
                return member, plus(start, pixel), ramp

            resume = tile.each(
                lambda p, v: Store(tile.accumulators, tile.at(p, v), Load(self.partial, at(p, v)))
            )
            keep = tile.each(lambda p, v: Store(self.partial, at(p, v), tile.value(p, v)))
            last = plus(over(self.depth, schedule.depth_block), -1)
            begin = If(Compare(CompareKind.EQUAL, PART, Const(0)), begin, resume)
            end = If(Compare(CompareKind.EQUAL, PART, last), end, keep)
        reduction = self.steps(tile, batch, block, start)
        return Let(start, row, Allocate(tile.accumulators, Block((begin, reduction, end))))

    def steps(self, tile: Tile, batch: Expr, block: Expr, row: Expr) -> Stmt:
        """The sums of a tile, step by step."""
        step, part = Var(f"step_{tile.pixels}"), self.schedule.depth_block
        sums = tile.step(
            lambda pixel: self.element(batch, plus(row, pixel), step),
            lambda vector: self.weights(batch, block, step, vector),
        )
        if part:
            return For(step, times(PART, part), Const(part), sums)
        return For(step, Const(0), self.depth, sums)

    def store(self, tile: Tile, batch: Expr, block: Expr, row: Expr) -> Stmt:
        """What happens to the sums: the last block may reach beyond the columns."""
        width = self.schedule.width
        blocks, before = self.blocks, plus(self.blocks, -1)

        def finished(left: Expr) -> Stmt:
            outputs = (
                (
                    tile.value(pixel, v),
                    self.output(batch, block, plus(row, pixel), v, plus(left, -v * tile.lanes)),
                )
                for pixel in range(tile.pixels)
                for v in range(tile.vectors)
                if not isinstance(left, Const) or v * tile.lanes < left.value
            )
            return Block(tuple(self.finish(output, sums) for sums, output in outputs))

        whole = Const(width)
        last = plus(self.columns, times(before, -width))
        if last == whole:
            return finished(whole)
        if blocks == Const(1):
            return finished(last)
        return If(Compare(CompareKind.LESS, block, before), finished(whole), finished(last))

    def output(self, batch: Expr, block: Expr, row: Expr, vector: int, left: Expr) -> OutputVector:
        """The vector that sums belong to; `left` columns are there from its first on."""
        lanes = self.schedule.lanes
        column = plus(times(block, self.schedule.width), vector * lanes)
        return OutputVector(batch, row, column, lanes, mask_of(left, lanes))
