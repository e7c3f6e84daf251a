"""Accumulators in registers: tiles of products, and vectors of partial results of a reduction.

Convolutions, matrix products and the inner product of Winograd's algorithm are made of a tile: some
pixels (or rows) times some vectors of channels. For each step of the reduction, one vector of
weights per vector of the tile is loaded, and one element per pixel is broadcast and multiplied in.
Where narrow numbers are multiplied, an element is a word of them, and so is each lane of the
weights.

A tile of one vector loads an element for each multiply-add. Where loads are the bound, sums are
split: an element is a pair of neighbouring inputs, repeated along the lanes; each of two vectors of
weights has both inputs of half of the channels (the even ones or the odd ones, so that half of the
sums are in place already); a channel's two sums are added in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graft.backends.host.coordinates import modulo, over, plus, times
from graft.backends.host.kernels.words import product_of
from graft.backends.host.storage import index
from graft.base.dtypes import DType
from graft.loop.build import constant
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Call,
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
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.tensor import identity


@dataclass(frozen=True, slots=True)
class Tile:
    """The shape of a register tile; `tag` keeps the names of several apart."""

    pixels: int
    vectors: int
    lanes: int
    tag: str
    dtype: DType = DType.FLOAT32
    is_paired: bool = False  # whether elements are pairs of 16 bits
    split: int = 1  # sums of a channel, neighbouring lanes of as many accumulators

    @property
    def sums(self) -> int:
        """The accumulators of a pixel."""
        return self.vectors * self.split

    @property
    def accumulators(self) -> Buffer:
        extents = (Const(self.pixels), Const(self.sums), Const(self.lanes))
        return Buffer(f"sum{self.tag}", self.dtype, extents, Scope.REGISTER)

    def at(self, pixel: int, vector: int) -> tuple[Expr, ...]:
        """The indices of one accumulator."""
        return index(pixel, vector, Ramp(Const(0), 1, self.lanes))

    def value(self, pixel: int, vector: int) -> Expr:
        """What has been accumulated."""
        return Load(self.accumulators, self.at(pixel, vector))

    def total(self, pixel: int, vector: int) -> Expr:
        """The sums of a vector of channels."""
        if self.split == 1:
            return self.value(pixel, vector)
        halves = (self.value(pixel, 2 * vector), self.value(pixel, 2 * vector + 1))
        return Call("add_pairs", halves, self.dtype)

    def clear(self, start: Callable[[int], Expr] | None = None) -> Stmt:
        """All accumulators zero, or what their vector starts with."""
        zero = constant(0, self.dtype, self.lanes)

        def begin(pixel: int, vector: int) -> Stmt:
            first = zero if start is None else start(vector)
            return Store(self.accumulators, self.at(pixel, vector), first)

        return self.each(begin)

    def each(self, action: Callable[[int, int], Stmt]) -> Stmt:
        """A statement per accumulator."""
        pairs = ((p, v) for p in range(self.pixels) for v in range(self.sums))
        return Block(tuple(action(p, v) for p, v in pairs))

    def step(self, element: Callable[[int], Expr], weights: Callable[[int], Expr]) -> Stmt:
        """One step of the reduction: an element per pixel times a vector of weights per vector."""
        names = [Var(f"w{v}{self.tag}", self.dtype, self.lanes) for v in range(self.sums)]
        multiply = product_of(self.dtype, self.is_paired)
        statements = []
        for pixel in range(self.pixels):
            name = Var(f"x{pixel}{self.tag}", self.dtype, self.lanes)
            updates = tuple(
                Store(
                    self.accumulators,
                    self.at(pixel, v),
                    Call(multiply, (name, names[v], self.value(pixel, v)), self.dtype),
                )
                for v in range(self.sums)
            )
            spread = Broadcast(element(pixel), self.lanes)
            statements.append(Let(name, spread, Block(updates)))
        body: Stmt = Block(tuple(statements))
        for v in reversed(range(self.sums)):
            body = Let(names[v], weights(v), body)
        return body


def balanced(total: int, most: int) -> tuple[tuple[int, int], ...]:
    """`total` in as few tiles of at most `most` as it takes, all but equal: (size, count) pairs."""
    count = -(-total // most)
    size, larger = divmod(total, count)
    pairs = ((size + 1, larger), (size, count - larger))
    return tuple((tile, number) for tile, number in pairs if number and tile)


@dataclass(frozen=True, slots=True)
class Run:
    """Tiles of one size one behind the other, none of which begins behind the limit."""

    size: int
    first: Expr
    count: Expr
    limit: Expr | None = None

    def tile(self, number: Var, body: Callable[[Expr], Stmt]) -> Stmt:
        """What is done in the tile of some number, given where it begins."""
        start = plus(times(number, self.size), self.first)
        if self.limit is None:
            return body(start)
        begin = Var(f"{number.name}_at")
        return Let(begin, Binary(BinaryKind.MINIMUM, start, self.limit), body(begin))

    def loop(self, number: Var, body: Callable[[Expr], Stmt]) -> Stmt:
        """The same for each tile."""
        return For(number, Const(0), self.count, self.tile(number, body))


def numbered_tile(number: Var, tiles: Sequence[Run], body: Callable[[Expr, int], Stmt]) -> Stmt:
    """The tile of that number among all of some runs, given where it begins and its size."""
    first, *others = tiles
    own = first.tile(number, lambda start: body(start, first.size))
    if not others:
        return own
    later = Var(f"{number.name}_{others[0].size}")
    beyond = Binary(BinaryKind.SUBTRACT, number, first.count)
    inside = Compare(CompareKind.LESS, number, first.count)
    return If(inside, own, Let(later, beyond, numbered_tile(later, others, body)))


def runs(total: Expr, most: int, sizes: Sequence[int] = ()) -> list[Run]:
    """An extent in tiles of at most `most`: all but equal, or, where it is not known, as many of
    one size as there is room for, and one that is as small as will do for what is left, of those
    smaller `sizes` (or halves of halves).

    That one is moved back until it is whole, and does some of its neighbour's work again. Where
    there is not room for a single tile, two that overlap cover everything."""
    if not isinstance(total, Const):
        return _unknown_runs(total, [most, *(sizes or halves(most))])
    tiles: list[Run] = []
    start = 0
    for size, count in balanced(int(total.value), most):
        tiles.append(Run(size, Const(start), Const(count)))
        start += size * count
    return tiles


def parts(total: Expr, most: int) -> list[Run]:
    """The same without overlaps: what is left of an extent that is not known goes one by one."""
    if isinstance(total, Const):
        return runs(total, most)
    rest = modulo(total, most)
    whole = Run(most, Const(0), over(total, most))
    return [whole, Run(1, Binary(BinaryKind.SUBTRACT, total, rest), rest)]


def halves(size: int) -> list[int]:
    """Half of it, half of that, and so on to one."""
    return [size >> n for n in range(1, size.bit_length())]


def _unknown_runs(total: Expr, sizes: Sequence[int]) -> list[Run]:
    wide = sizes[0]
    fits = Compare(CompareKind.GREATER_EQUAL, total, Const(wide))
    rest = modulo(total, wide)
    nothing = Const(0)
    smaller = [*sizes[1:], 0]
    whole = Select(fits, over(plus(total, wide - smaller[0] - 1), wide), nothing)
    tiles = [Run(wide, nothing, whole, plus(total, -wide))]
    for wider, size, next_size in zip(sizes, smaller, smaller[1:], strict=False):
        remainder = Select(_between(rest, next_size, size), Const(1), nothing)
        few = Select(
            _between(total, size - 1, wider - 1), over(plus(total, size - 1), size), nothing
        )
        limit = plus(total, -size)
        first = Select(fits, limit, nothing)
        tiles.append(Run(size, first, Select(fits, remainder, few), limit))
    return tiles


def _between(value: Expr, low: int, high: int) -> Expr:
    """Whether an index is above one number and not above another."""
    above = Compare(CompareKind.GREATER, value, Const(low))
    below = Compare(CompareKind.LESS_EQUAL, value, Const(high))
    return Binary(BinaryKind.AND, above, below)


# The operation of each operator that reduces.
REDUCTIONS = {
    "sum": BinaryKind.ADD,
    "mean": BinaryKind.ADD,
    "prod": BinaryKind.MULTIPLY,
    "max": BinaryKind.MAXIMUM,
    "min": BinaryKind.MINIMUM,
}


@dataclass(frozen=True, slots=True)
class Running:
    """`slots` vectors of partial results of a reduction, side by side."""

    name: str
    kind: BinaryKind
    slots: int
    lanes: int
    dtype: DType

    @property
    def buffer(self) -> Buffer:
        extents = (Const(self.slots), Const(self.lanes))
        return Buffer(self.name, self.dtype, extents, Scope.REGISTER)

    def at(self, slot: int) -> tuple[Expr, ...]:
        return index(slot, Ramp(Const(0), 1, self.lanes) if self.lanes > 1 else 0)

    def value(self, slot: int) -> Expr:
        """The partial result of a slot."""
        return Load(self.buffer, self.at(slot))

    def clear(self) -> Stmt:
        start = identity(self.kind, self.dtype, self.lanes)
        return Block(tuple(Store(self.buffer, self.at(s), start) for s in range(self.slots)))

    def add(self, slot: int, value: Expr) -> Stmt:
        """Combine a vector into a slot."""
        return Store(self.buffer, self.at(slot), Binary(self.kind, self.value(slot), value))
