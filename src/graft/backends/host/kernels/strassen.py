"""Products with constant weights in seven eighths of the multiplications.

Strassen's algorithm in Winograd's form, one level deep: rows, columns and depth are cut in halves,
and seven products of halves give the four quarters of the result. The sums of weights are made when
the weights are packed; those of rows are made by each thread for itself before it multiplies. A job
is one register tile in each quarter: the seven products follow one another in registers, so nothing
but finished sums goes to memory. Deep products are done in chunks of the depth whose weights stay
in the cache; between chunks, the result's memory holds what has been summed up.

The price: weights take 7/4 of the memory; rounding errors grow by a small factor, since quarters
are differences of larger sums; and a row that holds an infinity spoils the row half the rows away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graft.backends.host.kernels.product import ProductSchedule, Spot
from graft.backends.host.kernels.tile import Tile, balanced
from graft.backends.host.kernels.vectors import Span, along
from graft.backends.host.kernels.views import unflattened
from graft.backends.host.point import plus, times
from graft.backends.host.storage import index
from graft.base.dtypes import Array, DType
from graft.llvm.target import Target
from graft.loop.build import Term
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
    LoopKind,
    Prefetch,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.runtime.memory import aligned_empty

PRODUCTS = 7
SUMS, QUARTERS, KEPT = 4, 4, 3
# Below these the sums, and weights that are read for few rows, cost what is saved.
LEAST_ROWS, LEAST_DEPTH, LEAST_COLUMNS = 96, 256, 256
# Above this the sums of rows take too much scratch memory.
MOST_ROWS = 2048
# The part of the second-level cache that the weights of a chunk may take.
CACHE_SHARE = 0.7
USUAL_CACHE = 512 * 1024
LINE_BYTES = 64  # of a cache


def chunk_depth(
    target: Target, dtype: DType, rows: int, columns: int, depth: int, width: int
) -> int:
    """How much of the depth is done at a time; 0 where the plain product is better."""
    small = rows < LEAST_ROWS or columns < LEAST_COLUMNS or depth < LEAST_DEPTH
    if small or rows > MOST_ROWS or columns % (2 * width) or dtype is not DType.FLOAT32:
        return 0
    cache = target.cache_bytes[1] if len(target.cache_bytes) > 1 else USUAL_CACHE
    most = int(cache * CACHE_SHARE / (PRODUCTS * width * dtype.numpy.itemsize)) * 2
    fitting = (size for size in range(2, min(depth, most) + 1, 2) if depth % size == 0)
    found = max(fitting, default=0)
    return found if found >= min(depth, LEAST_DEPTH) else 0


def pack_products(weight: Array, width: int, chunk: int) -> Array:
    """[units, inputs] as [inputs / chunk, units / 2 width, product, chunk / 2, width]."""
    units, inputs = weight.shape
    blocks, half = units // 2 // width, chunk // 2
    split = weight.reshape(2, blocks, width, inputs // chunk, 2, half)
    # [half of the units, half of the depth, chunk, block, step, unit]
    split = split.transpose(0, 4, 3, 1, 5, 2)
    packed = aligned_empty((inputs // chunk, blocks, PRODUCTS, half, width), weight.dtype)
    w11, t2, t3, t4, t1, w22, w21 = (packed[:, :, number] for number in range(PRODUCTS))
    w11[...], w21[...], w22[...] = split[0, 0], split[0, 1], split[1, 1]
    t3[...] = split[1, 0]  # w12, for a while
    np.subtract(t3, w11, out=t1)
    np.subtract(w22, t1, out=t2)
    np.subtract(w22, t3, out=t3)
    np.subtract(w21, t2, out=t4)  # it is subtracted
    return packed


@dataclass(frozen=True)
class Strassen:
    """[rows, columns] sums over `depth`, of which `chunk` is done at a time."""

    rows: int
    columns: int
    depth: int
    chunk: int
    dtype: DType
    schedule: ProductSchedule
    element: Callable[[Expr, Expr], Expr]  # row, steps -> elements
    weights: Buffer  # as `pack_products` has them
    result: Callable[[Expr, Expr], tuple[Buffer, tuple[Expr, ...]]]  # row, columns -> where
    finish: Callable[[Spot, Expr], Stmt]  # what to do with the sums of a spot

    @property
    def half_rows(self) -> int:
        return -(-self.rows // 2)

    @property
    def half_depth(self) -> int:
        return self.chunk // 2

    @property
    def tiles(self) -> int:
        return sum(count for _, count in balanced(self.half_rows, self.schedule.rows))

    @property
    def chunks(self) -> int:
        return self.depth // self.chunk

    @property
    def sums(self) -> Buffer:
        """Sums of rows: [which, row, step]."""
        extents = index(SUMS, self.half_rows, self.half_depth)
        return Buffer("sums", self.dtype, extents, Scope.HEAP)

    def body(self) -> Stmt:
        """The whole product, chunk by chunk."""
        kinds = balanced(self.half_rows, self.schedule.rows)
        blocks = self.columns // 2 // self.schedule.width
        chunk, job, block, tile = Var("chunk"), Var("job"), Var("block"), Var("tile")
        quarters: Stmt = self.of_kind(chunk, block, tile, kinds)
        indices = unflattened(job, (blocks, self.tiles))
        for var, value in ((tile, indices[1]), (block, indices[0])):
            quarters = Let(var, value, quarters)
        jobs = For(job, Const(0), Const(blocks * self.tiles), quarters, LoopKind.PARALLEL)
        both = Block((self.summed(chunk), jobs))
        return Allocate(self.sums, For(chunk, Const(0), Const(self.chunks), both))

    def of_kind(
        self, chunk: Expr, block: Expr, tile: Expr, kinds: tuple[tuple[int, int], ...]
    ) -> Stmt:
        """The tile of that number, which is of the first size or of the second."""
        (size, count), *rest = kinds
        first = _Quarters(self, size, chunk, block, tile).body(times(tile, size))
        if not rest:
            return first
        beyond = plus(times(plus(tile, -count), rest[0][0]), size * count)
        second = _Quarters(self, rest[0][0], chunk, block, tile).body(beyond)
        return If(Compare(CompareKind.LESS, tile, Const(count)), first, second)

    def below(self, row: Expr) -> Expr:
        """The row half the rows further on, or the last one where there is none."""
        found = plus(row, self.half_rows)
        if self.rows % 2 == 0:
            return found
        return Binary(BinaryKind.MINIMUM, found, Const(self.rows - 1))

    def summed(self, chunk: Expr) -> Stmt:
        """The sums of rows of one chunk; a row that the lower half lacks is zero."""
        row = Var("summed_row")
        both = self.rows - self.half_rows
        whole = For(row, Const(0), Const(both), self.summed_row(chunk, row, "_s"))
        if both == self.half_rows:
            return whole
        return Block((whole, self.summed_row(chunk, Const(both), "_t")))

    def summed_row(self, chunk: Expr, row: Expr, tag: str) -> Stmt:
        start = times(chunk, self.chunk)
        alone = row == Const(self.rows - self.half_rows)

        def part(span: Span) -> Stmt:
            near, far = (
                Span(plus(plus(start, first), span.first), span.lanes, 0, "").index
                for first in (0, self.half_depth)
            )
            a11, a12 = (Term(self.element(row, steps)) for steps in (near, far))
            zero = Term(Const(0.0, self.dtype, span.lanes))
            below = plus(row, self.half_rows)
            a21, a22 = (
                zero if alone else Term(self.element(below, steps)) for steps in (near, far)
            )
            names = [Var(f"sum{n}{span.tag}", self.dtype, span.lanes) for n in range(SUMS)]
            values = (a21 + a22, Term(names[0]) - a11, a11 - a21, a12 - Term(names[1]))
            stores = (Store(self.sums, (Const(n), row, span.index), names[n]) for n in range(SUMS))
            body: Stmt = Block(tuple(stores))
            for name, value in reversed(list(zip(names, values, strict=True))):
                body = Let(name, value.expr, body)
            return body

        return along(self.half_depth, math.gcd(self.half_depth, self.schedule.lanes), tag, part)


class _Quarters:
    """Writes a register tile of each quarter."""

    def __init__(self, product: Strassen, size: int, chunk: Expr, block: Expr, tile: Expr) -> None:
        schedule = product.schedule
        self.product, self.size = product, size
        self.chunk, self.block, self.tile = chunk, block, tile
        self.lanes, self.vectors = schedule.lanes, schedule.vectors
        self.row = Var(f"row_{size}")
        self.tiles = [
            Tile(size, schedule.vectors, schedule.lanes, f"_{size}p{number}", product.dtype)
            for number in range(PRODUCTS)
        ]
        extents = index(QUARTERS + KEPT, size, schedule.vectors, schedule.lanes)
        self.kept = Buffer(f"kept_{size}", product.dtype, extents, Scope.HEAP)

    def body(self, row: Expr) -> Stmt:
        """The seven products in an order that keeps three tiles beside the quarters.

        In other orders the code generator keeps a tile in registers that are not there.
        """
        first, second, third = range(QUARTERS, QUARTERS + KEPT)
        steps = (
            *(self.tiles[0].clear(), self.multiplied(0, self.upper(0)), self.keep(0, first)),
            *(self.follow(1, 0), self.multiplied(1, self.summed(1)), self.keep(1, second)),
            *(self.follow(2, 1), self.multiplied(2, self.summed(2)), self.keep(2, third)),
            *(self.follow(3, 2), self.multiplied(3, self.lower), self.keep(3, 2)),
            *(self.tiles[4].clear(), self.multiplied(4, self.summed(0)), self.keep(4, 3, third)),
            *(self.follow(5, 4, second), self.multiplied(5, self.summed(3)), self.keep(5, 1)),
            *(self.resume(6, first), self.multiplied(6, self.upper(1)), self.keep(6, 0)),
            self.stored(),
        )
        body: Stmt = Block(steps)
        for buffer in (self.kept, *(tile.accumulators for tile in self.tiles)):
            body = Allocate(buffer, body)
        return Let(self.row, row, body)

    def upper(self, half: int) -> Callable[[Expr, Expr], Expr]:
        product = self.product
        start = plus(times(self.chunk, product.chunk), half * product.half_depth)
        return lambda row, step: product.element(row, plus(start, step))

    def lower(self, row: Expr, step: Expr) -> Expr:
        product = self.product
        start = plus(times(self.chunk, product.chunk), product.half_depth)
        return product.element(product.below(row), plus(start, step))

    def summed(self, which: int) -> Callable[[Expr, Expr], Expr]:
        return lambda row, step: Load(self.product.sums, (Const(which), row, step))

    def multiplied(self, number: int, element: Callable[[Expr, Expr], Expr]) -> Stmt:
        """One product, added to what its tile holds."""
        tile, product = self.tiles[number], self.product
        step = Var(f"step{tile.tag}")

        def weights(vector: int) -> Expr:
            lanes = Ramp(Const(vector * tile.lanes), 1, tile.lanes)
            return Load(product.weights, (self.chunk, self.block, Const(number), step, lanes))

        sums = tile.step(lambda pixel: element(plus(self.row, pixel), step), weights)
        both = Block((self.ahead(number, step), sums))
        return For(step, Const(0), Const(product.half_depth), both)

    def ahead(self, number: int, step: Expr) -> Stmt:
        """Ask for weights of the next block, so that all tiles together ask for all of them."""
        product = self.product
        line = LINE_BYTES // product.dtype.numpy.itemsize
        counted = plus(times(plus(times(self.tile, PRODUCTS), number), product.half_depth), step)
        spread = max(1, product.tiles * line // product.schedule.width)
        place = times(_over(counted, spread), line)
        block = plus(self.block, 1)
        return Prefetch(product.weights, (self.chunk, block, Const(0), Const(0), place))

    def saved(self, place: int, pixel: int, vector: int) -> Expr:
        return Load(self.kept, (Const(place), *self.tiles[0].at(pixel, vector)))

    def keep(self, number: int, place: int, added: int | None = None) -> Stmt:
        """Put a tile's sums into a place, together with those in another one."""
        tile = self.tiles[number]
        return tile.each(
            lambda p, v: Store(
                self.kept, (Const(place), *tile.at(p, v)), self.with_saved(tile, p, v, added)
            )
        )

    def resume(self, number: int, place: int) -> Stmt:
        """Go on from the sums in a place."""
        tile = self.tiles[number]
        return tile.each(
            lambda p, v: Store(tile.accumulators, tile.at(p, v), self.saved(place, p, v))
        )

    def follow(self, number: int, earlier: int, added: int | None = None) -> Stmt:
        """Go on from another tile's sums, together with those in a place."""
        tile, before = self.tiles[number], self.tiles[earlier]
        return tile.each(
            lambda p, v: Store(
                tile.accumulators, tile.at(p, v), self.with_saved(before, p, v, added)
            )
        )

    def with_saved(self, tile: Tile, pixel: int, vector: int, added: int | None) -> Expr:
        value = tile.value(pixel, vector)
        if added is None:
            return value
        return Binary(BinaryKind.ADD, value, self.saved(added, pixel, vector))

    def stored(self) -> Stmt:
        """The quarters to memory, vector by vector: epilogues can be long."""
        product = self.product
        down, across, pixel, vector, line = (
            Var(f"{name}_{self.size}") for name in ("down", "across", "pixel", "vector", "line")
        )
        row = plus(plus(self.row, pixel), times(down, product.half_rows))
        column = times(plus(times(self.block, self.vectors), vector), self.lanes)
        column = plus(column, times(across, product.columns // 2))
        quarter = plus(times(down, 2), across)
        value = Load(self.kept, (quarter, pixel, vector, Ramp(Const(0), 1, self.lanes)))
        body = self.chunked(Spot(Const(0), line, column, self.lanes, None), value)
        body = For(vector, Const(0), Const(self.vectors), body)
        if product.rows % 2:  # the lower half lacks a row
            body = If(Compare(CompareKind.LESS, line, Const(product.rows)), body)
        body = Let(line, row, body)
        for var, count in ((pixel, self.size), (across, 2), (down, 2)):
            body = For(var, Const(0), Const(count), body)
        return body

    def chunked(self, spot: Spot, value: Expr) -> Stmt:
        """The sums of this chunk with those before it; through the epilogue after the last."""
        product = self.product
        if product.chunks == 1:
            return product.finish(spot, value)
        buffer, place = product.result(spot.row, spot.columns)
        total = Binary(BinaryKind.ADD, value, Load(buffer, place))
        last = Compare(CompareKind.EQUAL, self.chunk, Const(product.chunks - 1))
        first = Compare(CompareKind.EQUAL, self.chunk, Const(0))
        later = If(last, product.finish(spot, total), Store(buffer, place, total))
        return If(first, Store(buffer, place, value), later)


def _over(left: Expr, right: int) -> Expr:
    return left if right == 1 else Binary(BinaryKind.FLOOR_DIVIDE, left, Const(right))
