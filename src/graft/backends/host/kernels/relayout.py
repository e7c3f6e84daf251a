"""Copies a tensor from one storage to another.

Two storages of one tensor enter, a function of two buffers (source, target) leaves, which writes
zeros to the target's halo. Where both sides are blocked, vectors that neither side's blocks cut
are copied. Between blocks and rows squares of floats are transposed in registers; single elements
would be stores of a few bytes, of which too few are under way to keep memory busy. What squares do
not cover goes channel by channel, so that one side is walked in order and the other stays in the
nearest cache. Rows of bytes become blocks of four a
vector of words at a time, each joined from four rows. The threads share the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from graft.backends.host.coordinates import Channels, minus, modulo, over, plus, times
from graft.backends.host.extents import Extents
from graft.backends.host.kernels.border import Bordered
from graft.backends.host.kernels.image import shared
from graft.backends.host.kernels.integer_weights import QUAD, joined_bytes
from graft.backends.host.kernels.tile import runs
from graft.backends.host.kernels.vectors import mask_of, masked_store
from graft.backends.host.kernels.writing import copy_run
from graft.backends.host.storage import Storage
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.loop.build import Term
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Function,
    If,
    Let,
    Load,
    Ramp,
    Stmt,
    Store,
    Var,
)
from graft.loop.statements import bound
from graft.ops.integer import BYTES
from graft.target.target import Target

VECTOR_BYTES = 64  # the widest vectors there are; narrower machines split them
PIXELS = 8  # that are copied side by side
# Squares of a wider machine that are smaller are slower than their elements one by one: on a Zen 5,
# 4x512x7x7 floats in squares of four take 25 us, else 13.
_LEAST_SIDE, _SMALLEST_SIDE = 8, 4
_ZIPPED = ("zip_low", "zip_high")
_LANES = VECTOR_BYTES // QUAD  # of words

_BATCH, _BLOCK, _ROW = Var("batch"), Var("block"), Var("row")


def relayout(source: Storage, target: Storage, extents: Extents, machine: Target) -> Function:
    """A copy of an image in another storage, of which one at least is in blocks."""
    if source.shape != target.shape or source.dtype is not target.dtype:
        raise InternalError(f"{source} and {target} are not of one tensor")
    joins = target.block == QUAD and not source.block and source.dtype in BYTES
    memory = _words(target) if joins else target
    buffers = source.buffer("source", extents), memory.buffer("target", extents)
    shape = ", ".join(map(str, source.shape))
    note = f"{source.dtype}[{shape}] in {_named(source)} to {_named(target)}"
    if not (source.block or target.block) or len(source.shape) != 4 or 0 in source.shape:
        raise InternalError(f"{source} is no image")
    batches, _, height, width = map(extents.expr, source.shape)
    lanes = machine.lanes(source.dtype)
    image = (_Words if joins else _Image)(source, target, buffers, batches, height, width, lanes)
    return Function("relayout", (*buffers, *extents.scalars), image.copied(), (note,))


def copied(count: Dim, extents: Extents) -> Function:
    """A copy of so many bytes, whatever they are."""
    size = extents.expr(count)
    source, target = (
        Buffer(name, DType.UINT8, (size,), alignment=1) for name in ("source", "target")
    )
    body = copy_run(source, target, Term(size), VECTOR_BYTES)
    scalars = extents.mentioned(body, (source, target))
    return Function("copy", (source, target, *scalars), body, ("copy",))


def _words(storage: Storage) -> Storage:
    """The memory of an image in blocks of four bytes, as words."""
    *shape, last = storage.extents
    assert last == QUAD
    return Storage(DType.INT32, (*shape, 1))


def _named(storage: Storage) -> str:
    return f"blocks of {storage.block}" if storage.block else "rows"


@dataclass(frozen=True, slots=True)
class _Image:
    """A copy of an image, of whose storages at least one is in blocks."""

    source: Storage
    target: Storage
    buffers: tuple[Buffer, Buffer]
    batches: Expr
    height: Expr
    width: Expr
    lanes: int  # of the machine's vectors of such elements

    @property
    def size(self) -> int:
        """Channels of the blocks that are gone through."""
        return self.target.block or self.source.block

    def copied(self) -> Stmt:
        """All of it, and the target's halo."""
        line = self.vectors() if self.in_vectors() else self.squares() or self.elements()
        if self.target.block:
            image = Bordered(self.target, self.buffers[1], self.height, self.width)
            line += image.filled(_BATCH, _BLOCK, _ROW)
        blocks = -(-self.target.channels // self.size)
        parts = ((_BATCH, self.batches), (_BLOCK, blocks), (_ROW, self.height))
        return shared(parts, Block(tuple(line)))

    def in_vectors(self) -> bool:
        """Whether neighbouring channels are neighbours in memory on both sides."""
        single = self.source.shape[2:] == (1, 1)
        storages = self.source, self.target
        near = all(storage.block > 1 or (single and not storage.block) for storage in storages)
        return near and self.target.channels % self.size == 0

    def vectors(self) -> list[Stmt]:
        """A row in vectors of channels."""
        most = VECTOR_BYTES // self.source.dtype.numpy.itemsize
        whole = math.gcd(self.size, self.source.block or self.size)
        lanes = max(n for n in range(1, most + 1) if whole % n == 0)

        def copied(column: Expr) -> list[Stmt]:
            return [self.vector(column, first, lanes) for first in range(0, self.size, lanes)]

        return self.across(max(1, PIXELS * lanes // self.size), copied)

    def vector(self, column: Expr, first: int, lanes: int) -> Stmt:
        """Some channels of a pixel."""
        size = self.size
        channels = Channels(_BATCH, _BLOCK, _ROW, column, size, first, lanes)
        loaded = channels.load(self.source, self.buffers[0])
        if self.target.block:
            at = _pixel(self.target, _BLOCK, column)
            return Store(self.buffers[1], (*at, Ramp(Const(first), 1, lanes)), loaded)
        channel = Ramp(plus(times(_BLOCK, size), first), 1, lanes)
        return Store(self.buffers[1], (_BATCH, channel, _ROW, column), loaded)

    def squares(self) -> list[Stmt]:
        """A row in squares of channels and pixels; nothing where none fits, or both are in blocks.

        The last square may begin before the one before it ends: it copies the same again."""
        is_mixed = not (self.source.block and self.target.block)
        most = int(self.width.value) if isinstance(self.width, Const) else _LEAST_SIDE
        sides = (n for n in (1, 2, 4, 8, 16) if n <= min(most, self.lanes))
        side = max(n for n in sides if self.size % n == 0)
        if (
            not is_mixed
            or self.source.dtype is not DType.FLOAT32
            or side < min(_LEAST_SIDE, self.lanes)
        ):
            return []
        number, column = Var("square"), Var("column")
        count = over(plus(self.width, side - 1), side)
        at = Binary(BinaryKind.MINIMUM, times(number, side), minus(self.width, Const(side)))
        body = Block(tuple(self.square(column, n, side) for n in range(0, self.size, side)))
        squares = For(number, Const(0), count, Let(column, at, body))
        if isinstance(self.width, Const):
            return [squares]
        fits = Compare(CompareKind.GREATER_EQUAL, self.width, Const(side))
        return [If(fits, squares, Block(tuple(self.elements())))]

    def square(self, column: Expr, first: int, side: int) -> Stmt:
        """Some channels of a block, for as many pixels."""
        bindings: list[tuple[Var, Expr]] = []

        def named(expr: Expr) -> Expr:
            bindings.append((Var(f"part{first}_{len(bindings)}", expr.dtype, side), expr))
            return bindings[-1][0]

        source, target = self.buffers
        channels, last = self.target.channels, Const(self.target.channels - 1)
        ends = [plus(times(_BLOCK, self.size), first + number) for number in range(side)]
        along, across = Ramp(column, 1, side), Ramp(Const(first), 1, side)
        rows: list[tuple[Expr, ...]] = [
            (_BATCH, end if channels % self.size == 0 else _least(end, last), _ROW, along)
            for end in ends
        ]
        blocked = self.target if self.target.block else self.source
        pixels: list[tuple[Expr, ...]] = [
            (*_pixel(blocked, _BLOCK, plus(column, number)), across) for number in range(side)
        ]
        to_blocks = bool(self.target.block)
        read, written = (rows, pixels) if to_blocks else (pixels, rows)
        parts = transposed([named(Load(source, at)) for at in read], named)
        stores: list[Stmt] = [
            Store(target, at, part) for at, part in zip(written, parts, strict=True)
        ]
        if not to_blocks and channels % self.size:
            exists = (Compare(CompareKind.LESS_EQUAL, end, last) for end in ends)
            stores = [If(one, store) for one, store in zip(exists, stores, strict=True)]
        return bound(bindings, Block(tuple(stores)))

    def elements(self) -> list[Stmt]:
        """A row channel by channel, element by element."""
        channel = Var("channel")

        def copied(column: Expr) -> list[Stmt]:
            read = Load(self.buffers[0], _element(self.source, self.size, channel, column))
            return [Store(self.buffers[1], _element(self.target, self.size, channel, column), read)]

        row = Block(tuple(self.across(PIXELS, copied)))
        count: Expr = Const(self.size)
        if self.target.channels % self.size:
            remaining = minus(Const(self.target.channels), times(_BLOCK, self.size))
            count = Binary(BinaryKind.MINIMUM, count, remaining)
        return [For(channel, Const(0), count, row)]

    def across(self, most: int, copied: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """A row, some pixels side by side."""

        def tile(size: int, column: Expr) -> Stmt:
            pixels = (copied(plus(column, pixel)) for pixel in range(size))
            return Block(tuple(chain.from_iterable(pixels)))

        tiles = enumerate(runs(self.width, most))
        return [run.loop(Var(f"tile{n}"), partial(tile, run.size)) for n, run in tiles]


@dataclass(frozen=True, slots=True)
class _Words(_Image):
    """A copy of rows of bytes to blocks of four: `buffers` has the target's memory as words."""

    def copied(self) -> Stmt:
        if isinstance(self.width, Const):
            whole, left = divmod(int(self.width.value), _LANES)
            body = [self.vectors_of(Const(whole))]
            if left:
                body.append(self.words(Const(whole * _LANES), Const(left)))
        else:
            body = [self.vectors_of(over(plus(self.width, _LANES - 1), _LANES))]
        fill = int.from_bytes(bytes([self.target.fill & 255]) * QUAD, "little", signed=True)
        words = replace(_words(self.target), block=1, halo=self.target.halo, fill=fill)
        image = Bordered(words, self.buffers[1], self.height, self.width)
        body += image.filled(_BATCH, _BLOCK, _ROW)
        parts = ((_BATCH, self.batches), (_BLOCK, self.target.blocks), (_ROW, self.height))
        return shared(parts, Block(tuple(body)))

    def vectors_of(self, count: Expr) -> Stmt:
        """So many vectors of a row, of which the last may be cut where its width is not known."""
        number = Var("number")
        first = times(number, _LANES)
        left = None if isinstance(self.width, Const) else minus(self.width, first)
        return For(number, Const(0), count, self.words(first, left))

    def words(self, first: Expr, left: Expr | None = None) -> Stmt:
        """A vector of pixels, or as many of them as are left."""
        condition = None if left is None else mask_of(left, _LANES)
        count = QUAD if self.target.blocks > 1 else self.target.channels
        parts = (self.byte(number, Ramp(first, 1, _LANES)) for number in range(count))
        word = joined_bytes(parts)
        *leading, column = _pixel(self.target, _BLOCK, first)
        at = (*leading, Ramp(column, 1, _LANES), Const(0))
        return masked_store(self.buffers[1], at, word, condition)

    def byte(self, number: int, along: Expr) -> Expr:
        """A channel of a block in the lowest bits of words; the last channel stands for those that
        are not there."""
        channel = plus(times(_BLOCK, QUAD), number)
        if self.target.channels % QUAD:
            channel = Binary(BinaryKind.MINIMUM, channel, Const(self.target.channels - 1))
        wide: Expr = Cast(DType.INT32, Load(self.buffers[0], (_BATCH, channel, _ROW, along)))
        if self.source.dtype is DType.INT8:
            wide = Binary(BinaryKind.AND, wide, Const(255, DType.INT32, _LANES))
        return wide


def transposed(vectors: list[Expr], named: Callable[[Expr], Expr]) -> list[Expr]:
    """As many vectors as one has lanes, with lanes for vectors: a perfect shuffle of halves, as
    often as the number of lanes can be halved."""
    half = len(vectors) // 2
    for _ in range(half.bit_length()):
        pairs = [(vectors[number], vectors[number + half]) for number in range(half)]
        vectors = [named(Call(name, pair, DType.FLOAT32)) for pair in pairs for name in _ZIPPED]
    return vectors


def _least(one: Expr, other: Expr) -> Expr:
    return Binary(BinaryKind.MINIMUM, one, other)


def _element(storage: Storage, size: int, channel: Expr, column: Expr) -> tuple[Expr, ...]:
    """Indices of a channel, counted within blocks of some size."""
    if storage.block == size:
        return (*_pixel(storage, _BLOCK, column), channel)
    number = plus(times(_BLOCK, size), channel)
    if not storage.block:
        return _BATCH, number, _ROW, column
    at = _pixel(storage, over(number, storage.block), column)
    return (*at, modulo(number, storage.block))


def _pixel(storage: Storage, block: Expr, column: Expr) -> tuple[Expr, ...]:
    top, left, _, _ = storage.halo
    return _BATCH, block, plus(_ROW, top), plus(column, left)
