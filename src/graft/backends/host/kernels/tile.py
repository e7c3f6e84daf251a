"""A register tile: some pixels (or rows) times some vectors of channels, accumulated in registers.

Convolutions, matrix products and the inner product of Winograd's algorithm are all made of it: for
each step of the reduction, one vector of weights per vector of the tile is loaded, and one element
per pixel is broadcast and multiplied in. Where the sums are int32, an element is four bytes, and
so is each lane of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graft.backends.host.storage import index
from graft.base.dtypes import DType
from graft.llvm.target import Target
from graft.loop.build import constant
from graft.loop.ir import (
    Block,
    Broadcast,
    Buffer,
    Call,
    Const,
    Expr,
    Let,
    Load,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)


@dataclass(frozen=True, slots=True)
class Tile:
    """The shape of a register tile; `tag` keeps the names of several apart."""

    pixels: int
    vectors: int
    lanes: int
    tag: str
    dtype: DType = DType.FLOAT32

    @property
    def accumulators(self) -> Buffer:
        extents = (Const(self.pixels), Const(self.vectors), Const(self.lanes))
        return Buffer(f"sum{self.tag}", self.dtype, extents, Scope.REGISTER)

    def at(self, pixel: int, vector: int) -> tuple[Expr, ...]:
        """The indices of one accumulator."""
        return index(pixel, vector, Ramp(Const(0), 1, self.lanes))

    def value(self, pixel: int, vector: int) -> Expr:
        """What has been accumulated."""
        return Load(self.accumulators, self.at(pixel, vector))

    def clear(self, start: Callable[[int], Expr] | None = None) -> Stmt:
        """All accumulators zero, or what their vector starts with."""
        zero = Const(constant(0, self.dtype).value, self.dtype, self.lanes)

        def begin(pixel: int, vector: int) -> Stmt:
            first = zero if start is None else start(vector)
            return Store(self.accumulators, self.at(pixel, vector), first)

        return self.each(begin)

    def each(self, action: Callable[[int, int], Stmt]) -> Stmt:
        """A statement per accumulator."""
        pairs = ((p, v) for p in range(self.pixels) for v in range(self.vectors))
        return Block(tuple(action(p, v) for p, v in pairs))

    def step(self, element: Callable[[int], Expr], weights: Callable[[int], Expr]) -> Stmt:
        """One step of the reduction: an element per pixel times a vector of weights per vector."""
        names = [Var(f"w{v}{self.tag}", self.dtype, self.lanes) for v in range(self.vectors)]
        multiply = "dot4" if self.dtype is DType.INT32 else "fma"
        statements = []
        for pixel in range(self.pixels):
            name = Var(f"x{pixel}{self.tag}", self.dtype, self.lanes)
            updates = tuple(
                Store(
                    self.accumulators,
                    self.at(pixel, v),
                    Call(multiply, (name, names[v], self.value(pixel, v)), self.dtype),
                )
                for v in range(self.vectors)
            )
            spread = Broadcast(element(pixel), self.lanes)
            statements.append(Let(name, spread, Block(updates)))
        body: Stmt = Block(tuple(statements))
        for v in reversed(range(self.vectors)):
            body = Let(names[v], weights(v), body)
        return body


def most_pixels(target: Target, vectors: int) -> int:
    """How many pixels fit into the registers beside the weights and an element."""
    return max(1, (target.vector_registers - vectors - 2) // vectors)


def balanced(total: int, most: int) -> tuple[tuple[int, int], ...]:
    """`total` in as few tiles of at most `most` as it takes, all but equal: (size, count) pairs."""
    count = -(-total // most)
    size, larger = divmod(total, count)
    pairs = ((size + 1, larger), (size, count - larger))
    return tuple((tile, number) for tile, number in pairs if number and tile)
