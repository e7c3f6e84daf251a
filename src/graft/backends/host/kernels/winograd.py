"""Winograd's algorithm F(4x4, 3x3): 3x3 convolutions with a quarter of the multiplications.

Tiles of 6x6 input pixels become 36 numbers per channel, the weights 36 per pair of channels; 36
matrix products over the channels replace the convolution, and a transform back gives 4x4 pixels.
A job is a chunk of tiles and a share of the result's channel blocks: it transforms its tiles into
scratch memory, multiplies, and transforms back through the epilogue. The price is rounding: the
transforms' numbers grow, and the largest error is some ten times that of direct summation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Parameters, Stores
from graft.backends.host.kernels.border import zero_border
from graft.backends.host.kernels.tile import Tile, balanced, most_pixels
from graft.backends.host.point import BlockedPoint, computed, plus, times
from graft.backends.host.storage import Halo, Storage
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.llvm.target import Target
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
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.rewrite.rule import Refusal

OUT, IN = 4, 6  # pixels of a tile along one side
POINTS = IN * IN

# Where the polynomials behind the algorithm are evaluated, beside infinity. The textbook's nodes
# 0, 1, -1, 2, -2 make five times the error; these and the matrices for data are exact in binary.
NODES = (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2))


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the product of x minus each root."""
    found = [Fraction(1)]
    for root in roots:
        raised = [Fraction(0), *found]
        found = [r - root * f for r, f in zip(raised, [*found, Fraction(0)], strict=True)]
    return found


def _matrices() -> tuple[Array, Array, Array]:
    """Toom and Cook's construction: the transforms of data, of results and of weights."""
    others = [[n for n in NODES if n != node] for node in NODES]
    data = [[*_polynomial(rest), Fraction(0)] for rest in others]
    data.append(_polynomial(NODES))
    result = [[*(n**i for n in NODES), Fraction(i == OUT - 1)] for i in range(OUT)]
    scale = [math.prod(n - o for o in rest) for n, rest in zip(NODES, others, strict=True)]
    weight = [[n**i / s for i in range(3)] for n, s in zip(NODES, scale, strict=True)]
    weight.append([Fraction(0), Fraction(0), Fraction(1)])
    data_array, result_array, weight_array = (
        np.array([[float(number) for number in row] for row in matrix])
        for matrix in (data, result, weight)
    )
    return data_array, result_array, weight_array


_INPUT, _OUTPUT, _WEIGHT = _matrices()

# Fewer tiles than this do not pay: the transformed weights would be read for too little.
LEAST_TILES = 12
LEAST_CHANNELS = 32


@dataclass(frozen=True, slots=True)
class WinogradSchedule:
    """What a search may vary: lanes, tiles of a chunk, and into how many shares blocks go."""

    lanes: int
    chunk: int
    shares: int


def eligible(conv: Node, weight: Array) -> bool:
    """Whether the algorithm is possible and pays."""
    attrs = conv.attrs
    shape = [dim for dim in conv.output.shape or () if isinstance(dim, int)]
    plain = weight.shape[2:] == (3, 3) and tuple(attrs.strides) == (1, 1)
    plain = plain and tuple(attrs.dilation) == (1, 1) and attrs.groups == 1
    if not plain or len(shape) != 4 or min(weight.shape[:2]) < LEAST_CHANNELS:
        return False
    return shape[0] * -(-shape[2] // OUT) * -(-shape[3] // OUT) >= LEAST_TILES


def halo(conv: Node) -> Halo:
    """The halo that whole tiles need around the image that the convolution reads."""
    _, _, height, width = (dim for dim in conv.args[0].shape or () if isinstance(dim, int))
    _, _, rows, columns = (dim for dim in conv.output.shape or () if isinstance(dim, int))
    top, left = int(conv.attrs.padding[0]), int(conv.attrs.padding[1])
    bottom = -(-rows // OUT) * OUT + IN - OUT - height - top
    right = -(-columns // OUT) * OUT + IN - OUT - width - left
    return top, left, max(0, bottom), max(0, right)


def default_schedule(target: Target, tiles: int, channels: int, blocks: int) -> WinogradSchedule:
    """Chunks whose transformed tiles take half of the second cache; shares to fill the threads."""
    lanes = min(target.lanes(DType.FLOAT32), 16)
    cache = target.cache_bytes[1] if len(target.cache_bytes) > 1 else 1 << 19
    most = max(LEAST_TILES, cache // 2 // (POINTS * channels * 4))
    wanted = 1 if tiles < 2 * LEAST_TILES else max(2, -(-tiles // most))
    chunk = -(-tiles // wanted)
    shares = next((s for s in (4, 2) if blocks % s == 0 and wanted < s), 1)
    return WinogradSchedule(lanes, chunk, shares)


def winograd(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """A 3x3 convolution with whatever follows it."""
    anchor = group.anchor
    if anchor is None or anchor.op.name != "nn.conv2d":
        return Refusal("there is no convolution")
    literal = group.constants.get(anchor.args[1])
    if literal is None or not eligible(anchor, literal.array):
        return Refusal("not a 3x3 convolution that is large enough")
    data, result = stores[group.outer(anchor.args[0])], stores[group.output]
    lanes = min(target.lanes(DType.FLOAT32), 16)
    if not data.block or data.block % lanes or not result.block or result.block % lanes:
        return Refusal("the images are not in blocks of whole vectors")
    if any(have < need for have, need in zip(data.halo, halo(anchor), strict=True)):
        return Refusal("the halo is too narrow for whole tiles")
    parameters = Parameters(group, stores)
    return parameters.kernel(_Writer(parameters, target, literal.array).body())


def pack_weights(weight: Array, block: int) -> Array:
    """Transformed weights as [out / block, point, in, block]."""
    transformed = _WEIGHT @ weight.astype(np.float64) @ _WEIGHT.T
    out, channels = weight.shape[:2]
    points = transformed.reshape(out // block, block, channels, POINTS)
    return np.ascontiguousarray(points.transpose(0, 3, 2, 1)).astype(weight.dtype)


class _Names:
    """Let-bound vectors, collected in order and then wrapped around a statement."""

    def __init__(self, tag: str, lanes: int) -> None:
        self.tag = tag
        self.lanes = lanes
        self.bound: list[tuple[Var, Expr]] = []

    def name(self, value: Expr) -> Var:
        var = Var(f"{self.tag}{len(self.bound)}", DType.FLOAT32, self.lanes)
        self.bound.append((var, value))
        return var

    def around(self, body: Stmt) -> Stmt:
        for var, value in reversed(self.bound):
            body = Let(var, value, body)
        return body


def _combined(names: _Names, row: Array, vectors: Sequence[Expr]) -> Expr:
    """A linear combination."""
    total: Expr | None = None
    for factor, vector in zip(row.tolist(), vectors, strict=True):
        if factor == 0:
            continue
        scaled = vector
        if abs(factor) != 1:
            number = Const(float(abs(factor)), DType.FLOAT32, names.lanes)
            scaled = Binary(BinaryKind.MULTIPLY, number, vector)
        if total is None:
            zero = Const(0.0, DType.FLOAT32, names.lanes)
            total = scaled if factor > 0 else Binary(BinaryKind.SUBTRACT, zero, scaled)
        else:
            kind = BinaryKind.ADD if factor > 0 else BinaryKind.SUBTRACT
            total = Binary(kind, total, scaled)
    assert total is not None
    return names.name(total)


def _transformed(names: _Names, matrix: Array, grid: list[list[Expr]]) -> list[list[Expr]]:
    """matrix @ grid @ matrix.T, of vectors."""
    columns = [
        [_combined(names, row, [line[c] for line in grid]) for row in matrix]
        for c in range(len(grid[0]))
    ]
    size = len(matrix)
    return [
        [_combined(names, row, [column[r] for column in columns]) for row in matrix]
        for r in range(size)
    ]


class _Writer:
    """Writes the loop nest."""

    def __init__(self, parameters: Parameters, target: Target, weight: Array) -> None:
        group = parameters.group
        anchor = group.anchor
        assert anchor is not None
        self.group = group
        self.anchor = anchor
        self.data, self.source = parameters.value(anchor.args[0], "data")
        self.result: Storage = parameters.stores[group.output]
        self.weights = parameters.packed(pack_weights(weight, self.result.block), "weights")
        self.epilogue = {v: parameters.value(v) for v in self._read_later()}
        self.target = parameters.value(group.output, "result")[1]
        self.channels = weight.shape[1]
        batch, outputs, rows, columns = self.result.shape
        self.blocks = outputs // self.result.block
        self.across, self.down = -(-columns // OUT), -(-rows // OUT)
        self.tiles = batch * self.down * self.across
        self.schedule = default_schedule(target, self.tiles, self.channels, self.blocks)
        self.most = most_pixels(target, self.result.block // self.schedule.lanes)
        chunk = Const(self.schedule.chunk)
        points, channels = Const(POINTS), Const(self.channels)
        block = Const(self.result.block)
        self.inputs = Buffer("inputs", DType.FLOAT32, (points, chunk, channels), Scope.HEAP)
        self.sums = Buffer("products", DType.FLOAT32, (points, chunk, block), Scope.HEAP)
        self.block, self.first = Var("block"), Var("first")

    def _read_later(self) -> list[Value]:
        inside = {value for node in self.group.nodes for value in node.outputs}
        reads = (v for node in self.group.epilogue for v in node.args if v not in inside)
        return list(dict.fromkeys(reads))

    def body(self) -> Stmt:
        chunks = -(-self.tiles // self.schedule.chunk)
        shares = self.schedule.shares
        share = self.blocks // shares
        job, local, count = Var("job"), Var("local"), Var("count")
        start = times(_over(job, shares), self.schedule.chunk)
        left = Binary(BinaryKind.SUBTRACT, Const(self.tiles), self.first)
        per_block = Let(
            self.block,
            plus(times(_modulo(job, shares), share), local),
            Block((self.products(), self.back(count), self.border())),
        )
        work: Stmt = Block((self.forward(count), For(local, Const(0), Const(share), per_block)))
        work = Allocate(self.inputs, Allocate(self.sums, work))
        fewer = Binary(BinaryKind.MINIMUM, Const(self.schedule.chunk), left)
        work = Let(self.first, start, Let(count, fewer, work))
        return For(job, Const(0), Const(chunks * shares), work, LoopKind.PARALLEL)

    def located(self, tile: Expr, tag: str, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """The body with the batch and the first row and column of a tile's result."""
        number, batch = Var(f"number{tag}"), Var(f"batch{tag}")
        row, column = Var(f"row{tag}"), Var(f"column{tag}")
        inner = body(batch, row, column)
        inner = Let(column, times(_modulo(number, self.across), OUT), inner)
        line = _modulo(_over(number, self.across), self.down)
        inner = Let(row, times(line, OUT), inner)
        inner = Let(batch, _over(number, self.across * self.down), inner)
        return Let(number, plus(self.first, tile), inner)

    def forward(self, count: Expr) -> Stmt:
        """The chunk's tiles, transformed into scratch memory."""
        tile, block = Var("tile_in"), Var("block_in")
        lanes, size = self.schedule.lanes, self.data.block
        padding = self.anchor.attrs.padding
        top, left = self.data.halo[0] - int(padding[0]), self.data.halo[1] - int(padding[1])

        def transform(batch: Expr, row: Expr, column: Expr) -> Stmt:
            statements = []
            for vector in range(size // lanes):
                names = _Names(f"in{vector}_", lanes)
                ramp = Ramp(Const(vector * lanes), 1, lanes)
                grid: list[list[Expr]] = [
                    [
                        names.name(
                            Load(
                                self.source,
                                (batch, block, plus(row, top + i), plus(column, left + j), ramp),
                            )
                        )
                        for j in range(IN)
                    ]
                    for i in range(IN)
                ]
                found = _transformed(names, _INPUT, grid)
                channel = Ramp(plus(times(block, size), vector * lanes), 1, lanes)
                stores = tuple(
                    Store(self.inputs, (Const(i * IN + j), tile, channel), found[i][j])
                    for i in range(IN)
                    for j in range(IN)
                )
                statements.append(names.around(Block(stores)))
            blocks = Const(self.channels // size)
            return For(block, Const(0), blocks, Block(tuple(statements)))

        return For(tile, Const(0), count, self.located(tile, "_in", transform))

    def products(self) -> Stmt:
        """For one block of the result, the 36 matrix products over the channels."""
        point, channel = Var("point"), Var("channel")
        lanes = self.schedule.lanes
        vectors = self.result.block // lanes
        parts: list[Stmt] = []
        start = 0
        for size, count in balanced(self.schedule.chunk, self.most):
            tile = Tile(size, vectors, lanes, f"_{start}")
            number = Var(f"part{tile.tag}")
            first = plus(times(number, size), start)
            parts.append(
                For(number, Const(0), Const(count), self.product(tile, point, channel, first))
            )
            start += size * count
        return For(point, Const(0), Const(POINTS), Block(tuple(parts)))

    def product(self, tile: Tile, point: Var, channel: Var, first: Expr) -> Stmt:
        own = Var(f"{channel.name}{tile.tag}")
        step = tile.step(
            lambda pixel: Load(self.inputs, (point, plus(first, pixel), own)),
            lambda v: Load(
                self.weights,
                (self.block, point, own, Ramp(Const(v * tile.lanes), 1, tile.lanes)),
            ),
        )
        store = tile.each(
            lambda pixel, v: Store(
                self.sums,
                (point, plus(first, pixel), Ramp(Const(v * tile.lanes), 1, tile.lanes)),
                tile.value(pixel, v),
            )
        )
        reduction = For(own, Const(0), Const(self.channels), step)
        return Allocate(tile.accumulators, Block((tile.clear(), reduction, store)))

    def back(self, count: Expr) -> Stmt:
        """The chunk's pixels of one block, through the epilogue to memory."""
        tile = Var("tile_out")

        def transform(batch: Expr, row: Expr, column: Expr) -> Stmt:
            vectors = self.result.block // self.schedule.lanes
            parts = tuple(self.pixels(tile, batch, row, column, v) for v in range(vectors))
            return Block(parts)

        return For(tile, Const(0), count, self.located(tile, "_out", transform))

    def pixels(self, tile: Var, batch: Expr, row: Expr, column: Expr, vector: int) -> Stmt:
        lanes = self.schedule.lanes
        names = _Names(f"out{vector}_", lanes)
        ramp = Ramp(Const(vector * lanes), 1, lanes)
        grid: list[list[Expr]] = [
            [names.name(Load(self.sums, (Const(i * IN + j), tile, ramp))) for j in range(IN)]
            for i in range(IN)
        ]
        found = _transformed(names, _OUTPUT, grid)
        rows: list[Stmt] = []
        for i in range(OUT):
            line = tuple(
                self.guarded(
                    self.store(batch, row, column, i, j, vector, found[i][j]), column, j, 3
                )
                for j in range(OUT)
            )
            rows.append(self.guarded(Block(line), row, i, 2))
        return names.around(Block(tuple(rows)))

    def guarded(self, body: Stmt, start: Expr, offset: int, axis: int) -> Stmt:
        """The body where a tile's row or column is within the image."""
        extent = self.result.shape[axis]
        if offset == 0 or extent % OUT == 0:
            return body
        return If(Compare(CompareKind.LESS, plus(start, offset), Const(extent)), body)

    def store(
        self, batch: Expr, row: Expr, column: Expr, i: int, j: int, vector: int, value: Expr
    ) -> Stmt:
        lanes, size = self.schedule.lanes, self.result.block
        here, there = plus(row, i), plus(column, j)
        point = BlockedPoint(batch, self.block, here, there, vector * lanes, lanes, size)
        values = computed(
            self.group.epilogue,
            {self.anchor.output: value},
            lambda operand, axis: point.load(*self.epilogue[operand], axis),
        )
        top, left = self.result.halo[0], self.result.halo[1]
        ramp = Ramp(Const(vector * lanes), 1, lanes)
        at = (batch, self.block, plus(here, top), plus(there, left), ramp)
        return Store(self.target, at, values[self.group.nodes[-1].output])

    def border(self) -> Stmt:
        """The result's halo; the job with a block's first chunk sees to it."""
        batch, row = Var("batch_border"), Var("row_border")
        zeros = zero_border(self.result, self.target, batch, self.block, row)
        if not zeros:
            return Block(())
        body: Stmt = For(row, Const(0), Const(self.result.shape[2]), Block(tuple(zeros)))
        body = For(batch, Const(0), Const(self.result.shape[0]), body)
        return If(Compare(CompareKind.EQUAL, self.first, Const(0)), body)


def _over(left: Expr, right: int) -> Expr:
    return left if right == 1 else Binary(BinaryKind.FLOOR_DIVIDE, left, Const(right))


def _modulo(left: Expr, right: int) -> Expr:
    return Const(0) if right == 1 else Binary(BinaryKind.FLOOR_MODULO, left, Const(right))
