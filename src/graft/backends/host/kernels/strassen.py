"""Products with constant weights in seven eighths of the multiplications.

Strassen's algorithm in Winograd's form, one level deep: rows, columns and depth are cut in halves,
and seven products of halves give the four quarters of the result. Each thread makes the sums of
rows for itself before it multiplies, and those of a block of weights when it gets to the block. A
register tile in each quarter is done at a time: the seven products follow one another in registers,
so nothing but finished sums goes to memory. Deep products are done in chunks of the depth; between
chunks, the result's memory holds what has been summed up.

The price: rounding errors grow by a small factor, since quarters are differences of larger sums,
and a row that holds an infinity spoils the row half the rows away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from graft.backends.host.coordinates import over, plus, times
from graft.backends.host.kernels.product import OutputVector, ProductSchedule, product_cycles
from graft.backends.host.kernels.tile import Tile, balanced
from graft.backends.host.kernels.vectors import Span, along
from graft.backends.host.storage import index
from graft.base.dtypes import Array, DType
from graft.loop.build import Term
from graft.loop.ir import (
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
from graft.loop.statements import with_memory
from graft.runtime.memory import aligned_empty
from graft.target.machine import LINE_BYTES
from graft.target.register_tile import (
    data_cycles,
    most_pixels,
    tile_cycles,
    weight_cycles,
)
from graft.target.target import Target

PRODUCTS = 7
QUARTERS, KEPT = 4, 3
LEAST_DEPTH = 256  # of a chunk
# The share of the plain product's time that has to be saved: rounding errors grow for it.
LEAST_GAIN = 0.05
# Above this the sums of rows take too much scratch memory.
MOST_ROWS = 2048
# The part of L2 that a block of weights and its sums may take.
CACHE_SHARE = 0.4
_FLOAT = 4  # bytes
VECTORS = 2  # of a tile: few, so that there are many blocks for the threads to share


def default_schedule(target: Target, dtype: DType, rows: int) -> ProductSchedule:
    """Tall tiles that fill the registers."""
    most = most_pixels(target.vector_registers, VECTORS)
    return ProductSchedule(min(-(-rows // 2), most), VECTORS, target.lanes(dtype))


def chunk_depth(target: Target, dtype: DType, rows: int, columns: int, depth: int) -> int:
    """How much of the depth is done at a time; 0 where the plain product is better."""
    width = default_schedule(target, dtype, rows).width
    unfit = rows < 2 or rows > MOST_ROWS or columns % (2 * width) or dtype is not DType.FLOAT32
    if unfit or depth < LEAST_DEPTH:
        return 0
    most = int(target.cache_bytes[1] * CACHE_SHARE / (PRODUCTS * width * _FLOAT)) * 2
    fitting = (size for size in range(2, min(depth, most) + 1, 2) if depth % size == 0)
    chunk = max(fitting, default=0)
    if chunk < min(depth, LEAST_DEPTH):
        return 0
    plain = product_cycles(target, dtype, rows, columns, depth)
    fast = strassen_cycles(target, rows, columns, depth, chunk)
    return chunk if fast <= (1 - LEAST_GAIN) * plain else 0


def strassen_cycles(target: Target, rows: int, columns: int, depth: int, chunk: int) -> float:
    """Cycles of a product on one core, the sums of rows twice: each thread makes them."""
    schedule, machine = default_schedule(target, DType.FLOAT32, rows), target.machine
    lanes, vectors = schedule.lanes, schedule.vectors
    half_rows, steps, blocks = -(-rows // 2), chunk // 2, columns // 2 // schedule.width
    load, store, add = 1 / machine.vector_loads, 1 / machine.vector_stores, 1 / machine.vector_fmas
    panel = schedule.width * _FLOAT
    weights = weight_cycles(machine, panel, (QUARTERS + SUMS) * panel * steps)
    total = 0.0
    for size, count in balanced(half_rows, schedule.rows):
        data = data_cycles(machine, size * _FLOAT)
        tile = tile_cycles(machine, size, vectors, steps, weights + data)
        finish = QUARTERS * size * vectors * (load + store)
        total += count * blocks * (PRODUCTS * (tile + size * vectors * load) + finish)
    of_weights = blocks * vectors * steps * SUMS * (load + store + add)
    of_rows = half_rows * steps / lanes * (PRODUCTS * store + QUARTERS * (load + add))
    return (total + of_weights + 2 * of_rows) * (depth // chunk)


def pack_quarters(weight: Array, width: int, chunk: int) -> Array:
    """[units, inputs] as [inputs / chunk, units / 2 width, chunk / 2, quarter, width]."""
    units, inputs = weight.shape
    blocks, half = units // 2 // width, chunk // 2
    split = weight.reshape(2, blocks, width, inputs // chunk, 2, half)
    transposed = split.transpose(3, 1, 5, 0, 4, 2)
    packed = aligned_empty((inputs // chunk, blocks, half, QUARTERS, width), weight.dtype)
    packed.reshape(transposed.shape)[...] = transposed
    return packed


# Per product its right operand: a quarter of the weights as it is, or one of the sums of quarters.
RIGHT = (
    ("quarter", 0),
    ("sum", 0),
    ("sum", 1),
    ("sum", 2),
    ("sum", 3),
    ("quarter", 3),
    ("quarter", 1),
)
SUMS = 4


def sums_of_weights(w11: Term, w21: Term, w12: Term, w22: Term) -> tuple[Term, ...]:
    """The right operands that are no quarters of the weights."""
    t1 = w12 - w11
    t2 = w22 - t1
    return t2, w22 - w12, w21 - t2, t1


def sums_of_rows(a11: Term, a12: Term, a21: Term, a22: Term) -> tuple[Term, ...]:
    """The left operands of the seven products, in their order."""
    s1 = a21 + a22
    s2 = s1 - a11
    return a11, s2, a11 - a21, a22, s1, a12 - s2, a12


@dataclass(frozen=True)
class StrassenProduct:
    """[rows, columns] sums over `depth`, of which `chunk` is done at a time."""

    rows: int
    columns: int
    depth: int
    chunk: int
    dtype: DType
    schedule: ProductSchedule
    element: Callable[[Expr, Expr], Expr]  # row, steps -> elements
    weights: Buffer  # as `pack_quarters` has them
    result: Callable[[Expr, Expr], tuple[Buffer, tuple[Expr, ...]]]  # row, columns -> where
    finish: Callable[[OutputVector, Expr], Stmt]  # what to do with a vector of sums

    @property
    def half_rows(self) -> int:
        return -(-self.rows // 2)

    @property
    def half_depth(self) -> int:
        return self.chunk // 2

    @property
    def chunks(self) -> int:
        return self.depth // self.chunk

    @property
    def kinds(self) -> tuple[tuple[int, int], ...]:
        """Sizes of tiles, with how many there are."""
        return balanced(self.half_rows, self.schedule.rows)

    @property
    def left(self) -> Buffer:
        """Left operands: [product, row, step]."""
        extents = index(PRODUCTS, self.half_rows, self.half_depth)
        return Buffer("left", self.dtype, extents, Scope.HEAP)

    @property
    def sums(self) -> Buffer:
        """Sums of the quarters of a block of weights: [step, which, column]."""
        extents = index(self.half_depth, SUMS, self.schedule.width)
        return Buffer("sums", self.dtype, extents, Scope.HEAP)

    def body(self) -> Stmt:
        """The whole product, chunk by chunk."""
        chunk, block = Var("chunk"), Var("block")
        tiles: list[Stmt] = []
        row = 0
        for size, count in self.kinds:
            tile = Var(f"tile_{size}")
            first = plus(times(tile, size), row)
            body = _Quarters(self, size, chunk, block).body(first)
            tiles.append(For(tile, Const(0), Const(count), body))
            row += size * count
        job = Block((self.summed_weights(chunk, block), *tiles))
        blocks = self.columns // 2 // self.schedule.width
        jobs = For(block, Const(0), Const(blocks), job, LoopKind.PARALLEL)
        both = Block((self.summed_rows(chunk), jobs))
        whole = For(chunk, Const(0), Const(self.chunks), both)
        return with_memory(whole, self.left, self.sums)

    def summed_weights(self, chunk: Expr, block: Expr) -> Stmt:
        """The sums of one block."""
        step, lanes = Var("summed_step"), self.schedule.lanes

        def part(vector: int) -> Stmt:
            columns = Ramp(Const(vector * lanes), 1, lanes)
            quarters = (
                Term(Load(self.weights, (chunk, block, step, Const(number), columns)))
                for number in range(QUARTERS)
            )
            values = sums_of_weights(*quarters)
            return Block(
                tuple(
                    Store(self.sums, (step, Const(number), columns), value.expr)
                    for number, value in enumerate(values)
                )
            )

        line = Block(tuple(part(vector) for vector in range(self.schedule.vectors)))
        return For(step, Const(0), Const(self.half_depth), line)

    def summed_rows(self, chunk: Expr) -> Stmt:
        """The left operands of one chunk; a row that the lower half lacks is zero."""
        row = Var("summed_row")
        both = self.rows - self.half_rows
        whole = For(row, Const(0), Const(both), self.summed_row(chunk, row, "_s", paired=True))
        if both == self.half_rows:
            return whole
        return Block((whole, self.summed_row(chunk, Const(both), "_t", paired=False)))

    def summed_row(self, chunk: Expr, row: Expr, tag: str, paired: bool) -> Stmt:
        start = times(chunk, self.chunk)
        below = plus(row, self.half_rows)

        def part(span: Span) -> Stmt:
            near, far = (
                Span(plus(plus(start, first), span.first), span.lanes, 0, "").index
                for first in (0, self.half_depth)
            )
            upper = [Term(self.element(row, steps)) for steps in (near, far)]
            zero = Term(Const(0.0, self.dtype, span.lanes))
            lower = [Term(self.element(below, s)) if paired else zero for s in (near, far)]
            values = sums_of_rows(*upper, *lower)
            return Block(
                tuple(
                    Store(self.left, (Const(number), row, span.index), value.expr)
                    for number, value in enumerate(values)
                )
            )

        return along(self.half_depth, math.gcd(self.half_depth, self.schedule.lanes), tag, part)


class _Quarters:
    """Writes a register tile of each quarter."""

    def __init__(self, product: StrassenProduct, size: int, chunk: Expr, block: Expr) -> None:
        schedule = product.schedule
        self.product, self.size, self.chunk, self.block = product, size, chunk, block
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
            *(self.tiles[0].clear(), self.multiplied(0), self.keep(0, first)),
            *(self.follow(1, 0), self.multiplied(1), self.keep(1, second)),
            *(self.follow(2, 1), self.multiplied(2), self.keep(2, third)),
            *(self.follow(3, 2), self.multiplied(3), self.keep(3, 2)),
            *(self.tiles[4].clear(), self.multiplied(4), self.keep(4, 3, third)),
            *(self.follow(5, 4, second), self.multiplied(5), self.keep(5, 1)),
            *(self.resume(6, first), self.multiplied(6), self.keep(6, 0)),
            self.stored(),
        )
        tiles = (tile.accumulators for tile in reversed(self.tiles))
        return Let(self.row, row, with_memory(Block(steps), *tiles, self.kept))

    def multiplied(self, number: int) -> Stmt:
        """One product, added to what its tile holds."""
        tile, product = self.tiles[number], self.product
        step = Var(f"step{tile.tag}")
        kind, which = RIGHT[number]

        def element(pixel: int) -> Expr:
            return Load(product.left, (Const(number), plus(self.row, pixel), step))

        def weights(vector: int) -> Expr:
            place = (step, Const(which), Ramp(Const(vector * tile.lanes), 1, tile.lanes))
            if kind == "sum":
                return Load(product.sums, place)
            return Load(product.weights, (self.chunk, self.block, *place))

        both = Block((self.ahead(number, step), tile.step(element, weights)))
        return For(step, Const(0), Const(product.half_depth), both)

    def ahead(self, number: int, step: Expr) -> Stmt:
        """Ask for weights of the next block, so that all tiles together ask for all of them."""
        product = self.product
        line = LINE_BYTES // product.dtype.numpy.itemsize
        steps = PRODUCTS * product.half_rows  # that a row of weights is spread over
        spread = max(1, steps * line // (QUARTERS * product.schedule.width * self.size))
        earlier = over(times(self.row, PRODUCTS), self.size)
        counted = plus(times(plus(earlier, number), product.half_depth), step)
        place = times(over(counted, spread), line)
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
        body = self.chunked(OutputVector(Const(0), line, column, self.lanes, None), value)
        body = For(vector, Const(0), Const(self.vectors), body)
        if product.rows % 2:  # the lower half lacks a row
            body = If(Compare(CompareKind.LESS, line, Const(product.rows)), body)
        body = Let(line, row, body)
        for var, count in ((pixel, self.size), (across, 2), (down, 2)):
            body = For(var, Const(0), Const(count), body)
        return body

    def chunked(self, output: OutputVector, value: Expr) -> Stmt:
        """The sums of this chunk with those before it; through the epilogue after the last."""
        product = self.product
        if product.chunks == 1:
            return product.finish(output, value)
        buffer, place = product.result(output.row, output.columns)
        total = Binary(BinaryKind.ADD, value, Load(buffer, place))
        last = Compare(CompareKind.EQUAL, self.chunk, Const(product.chunks - 1))
        first = Compare(CompareKind.EQUAL, self.chunk, Const(0))
        later = If(last, product.finish(output, total), Store(buffer, place, total))
        return If(first, Store(buffer, place, value), later)
