"""Coordinates of a vector of elements, and how operands are read there.

A kernel computes a vector of elements at a time; a coordinate says which. Operands are read at the
same coordinate as NumPy broadcasts them, from wherever their storage puts the elements. Sums and
products of indices are folded where they are numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graft.backends.host.storage import Storage, index
from graft.base.errors import InternalError
from graft.ir.graph import Node, Value
from graft.loop.build import Term, constant
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Broadcast,
    Buffer,
    Const,
    Expr,
    Load,
    Ramp,
    Select,
)
from graft.ops.pointwise import element_of


def _folded(
    kind: BinaryKind, compute: Callable[[int, int], int], neutral: int, commutes: bool = False
) -> Callable[[Expr | int, Expr | int], Expr]:
    """An operation on indices that folds constants and leaves out a neutral operand."""

    def operation(left: Expr | int, right: Expr | int) -> Expr:
        one, other = index(left, right)
        if isinstance(one, Const) and isinstance(other, Const):
            return Const(compute(int(one.value), int(other.value)))
        if other == Const(neutral):
            return one
        return other if commutes and one == Const(neutral) else Binary(kind, one, other)

    return operation


plus = _folded(BinaryKind.ADD, operator.add, 0, commutes=True)
minus = _folded(BinaryKind.SUBTRACT, operator.sub, 0)
times = _folded(BinaryKind.MULTIPLY, operator.mul, 1, commutes=True)
over = _folded(BinaryKind.FLOOR_DIVIDE, operator.floordiv, 1)


def modulo(left: Expr, right: Expr | int) -> Expr:
    """A remainder of indices."""
    (divisor,) = index(right)
    if isinstance(left, Const) and isinstance(divisor, Const):
        return Const(left.value % divisor.value)
    return Const(0) if divisor == Const(1) else Binary(BinaryKind.FLOOR_MODULO, left, divisor)


def where(condition: Expr, value: Expr) -> Expr:
    """The value, which memory is read for, in the lanes that are there, and zero in others."""
    return Select(condition, value, constant(0, value.dtype, value.lanes))


@dataclass(frozen=True, slots=True)
class BlockedCoordinate:
    """A vector of channels of one pixel: channels `block` * size + first, and the next lanes."""

    batch: Expr
    block: Expr
    row: Expr
    column: Expr
    first: int
    lanes: int
    size: int  # channels of a block

    def load(self, storage: Storage, buffer: Buffer, axis: int | None = None) -> Expr:
        """The operand's elements here; with an axis, of an operand that only runs along it."""
        vector = Ramp(Const(self.first), 1, self.lanes)
        if storage.block == self.size:
            top, left, _, _ = storage.halo
            pixel = plus(self.row, top), plus(self.column, left)
            return Load(buffer, (self.batch, self.block, *pixel, vector))
        if storage.block:
            raise InternalError(f"blocks of {storage.block} channels beside blocks of {self.size}")
        channel = Ramp(plus(times(self.block, self.size), self.first), 1, self.lanes)
        at = (self.batch, channel, self.row, self.column)
        return _row_major(storage, buffer, at if axis is None else (at[axis],), self.lanes)


@dataclass(frozen=True, slots=True)
class Channels:
    """Channels `block` * `size` + `offset` and the next ones, as many as there are lanes."""

    batch: Expr
    block: Expr
    row: Expr
    column: Expr
    size: int
    offset: int
    lanes: int

    def coordinate(self, size: int) -> BlockedCoordinate:
        """The same in smaller blocks, which have to divide the larger ones."""
        blocks, first = divmod(self.offset, size)
        block = plus(times(self.block, self.size // size), blocks)
        return BlockedCoordinate(self.batch, block, self.row, self.column, first, self.lanes, size)

    def load(self, storage: Storage, buffer: Buffer) -> Expr:
        """Their elements; no block of the storage may cut the vector."""
        if storage.block and self.size % storage.block == 0:
            return self.coordinate(storage.block).load(storage, buffer)
        channel = plus(times(self.block, self.size), self.offset)
        if not storage.block:
            return Load(buffer, (self.batch, Ramp(channel, 1, self.lanes), self.row, self.column))
        top, left, _, _ = storage.halo
        pixel = plus(self.row, top), plus(self.column, left)
        first = Ramp(modulo(channel, storage.block), 1, self.lanes)
        return Load(buffer, (self.batch, over(channel, storage.block), *pixel, first))


@dataclass(frozen=True, slots=True)
class PlainCoordinate:
    """An index per axis, the last of which may have lanes."""

    indices: tuple[Expr, ...]
    lanes: int = 1
    condition: Expr | None = None  # which lanes are there; None: all of them

    def load(self, storage: Storage, buffer: Buffer, axis: int | None = None) -> Expr:
        """The operand's elements here; with an axis, of an operand that only runs along it."""
        if storage.block:
            raise InternalError("a blocked operand at a row-major coordinate")
        at = self.indices if axis is None else (self.indices[axis],)
        vector = _row_major(storage, buffer, at, self.lanes)
        return vector if self.condition is None else where(self.condition, vector)


Coordinate = BlockedCoordinate | PlainCoordinate


def _row_major(storage: Storage, buffer: Buffer, at: Sequence[Expr], lanes: int) -> Expr:
    """An operand's elements, broadcast along axes of extent 1 and missing leading ones."""
    aligned = at[len(at) - len(storage.shape) :] if storage.shape else ()
    indices = tuple(
        Const(0) if extent == 1 else item
        for extent, item in zip(storage.shape, aligned, strict=True)
    )
    vector = Load(buffer, indices)
    return vector if vector.lanes == lanes else Broadcast(vector, lanes)


Reader = Callable[[Value, "int | None"], Expr]


def computed(nodes: Sequence[Node], known: dict[Value, Expr], read: Reader) -> dict[Value, Expr]:
    """The values of pointwise nodes at a coordinate; operands are known or read from memory."""
    values = dict(known)
    for node in nodes:
        # a bias runs along an axis instead of being broadcast from the last one on
        axes = (None, node.attrs.axis if node.op.name == "nn.bias_add" else None, None)
        operands = [
            Term(values[v] if v in values else read(v, axis))
            for v, axis in zip(node.args, axes, strict=False)
        ]
        values[node.output] = element_of(node, operands).expr
    return values
