"""Loads and stores.

Part of the emitter. In go buffers and indices; out come the fewest instructions that touch exactly
the elements meant: one vector access where lanes are neighbours, a wider one and a shuffle where
they are a few elements apart, gather and scatter elsewhere, masked where a condition says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from graft.base.dtypes import DType
from graft.llvm.context import Context, Offset
from graft.llvm.narrow import fitted, packed
from graft.llvm.text import Builder, Value, constant, constants, type_suffix
from graft.llvm.types import NARROW_INTEGERS, byte_size, memory_type, vector_type
from graft.loop.index import is_index, polynomial
from graft.loop.ir import Binary, BinaryKind, Buffer, Const, Expr, Ramp
from graft.loop.vectors import scalar_of

Emit = Callable[[Context, Expr], Value]

# Strides up to this one are read as one wide vector, of which the lanes are picked.
WIDEST_PICKED_STRIDE = 4
_LARGEST_GPU_ACCESS = 16  # bytes that one thread reads or writes at once


def affine(expr: Expr) -> tuple[Expr, int] | None:
    """Base and stride of an index whose lanes are evenly spaced, if that can be seen."""
    match expr:
        case Ramp():
            return expr.base, expr.stride
        case Binary(kind=BinaryKind.ADD | BinaryKind.SUBTRACT):
            left, right = affine(expr.left), affine(expr.right)
            if left is None or right is None:
                return None
            sign = 1 if expr.kind is BinaryKind.ADD else -1
            return Binary(expr.kind, left[0], right[0]), left[1] + sign * right[1]
    scalar = scalar_of(expr)
    return None if scalar is None else (scalar, 0)


def _clamped(expr: Expr) -> tuple[Ramp, list[tuple[BinaryKind, Expr]]] | None:
    """A ramp of neighbours and the bounds within which its lanes are kept, if the index is such."""
    bounds: list[tuple[BinaryKind, Expr]] = []
    while isinstance(expr, Binary) and expr.kind in (BinaryKind.MINIMUM, BinaryKind.MAXIMUM):
        bound, rest = scalar_of(expr.right), expr.left
        if bound is None:
            bound, rest = scalar_of(expr.left), expr.right
        if bound is None:
            return None
        bounds.append((expr.kind, bound))
        expr = rest
    is_ramp = isinstance(expr, Ramp) and expr.stride == 1 and expr.dtype.is_signed_integer
    return (expr, bounds) if isinstance(expr, Ramp) and is_ramp and bounds else None


def load(context: Context, buffer: Buffer, indices: tuple[Expr, ...], emit: Emit) -> Value:
    """The element, or the vector of elements, at the indices."""
    return _Access(context, buffer, indices, emit).load()


def store(
    context: Context, buffer: Buffer, indices: tuple[Expr, ...], value: Value, emit: Emit
) -> None:
    """Write the element or vector; a vector only in the lanes of the context's mask."""
    _Access(context, buffer, indices, emit).store(_to_memory(context, value, buffer.dtype))


def address(context: Context, buffer: Buffer, indices: tuple[Expr, ...], emit: Emit) -> Value:
    """A pointer to an element, or one to each."""
    access = _Access(context, buffer, indices, emit)
    if access.lanes > 1:
        return access.pointers()
    return access.pointer(access.position(indices))


@dataclass(frozen=True, slots=True)
class _Position:
    """An element, counted from the buffer's first: elements that code counts, and a constant.

    The constant becomes a displacement. Added up with the rest, it would be to LLVM a part of what
    a loop does not change: a register for each of a tile's pixels, where one will do."""

    moving: Offset
    fixed: int = 0


class _Access:
    """An access to a buffer at some indices."""

    def __init__(
        self, context: Context, buffer: Buffer, indices: tuple[Expr, ...], emit: Emit
    ) -> None:
        self.context, self.builder, self.emit = context, context.builder, emit
        self.memref, self.indices = context.memref(buffer), indices
        self.dtype, self.element = buffer.dtype, memory_type(buffer.dtype)
        self.lanes = max((index.lanes for index in indices), default=1)

    def load(self) -> Value:
        lanes = self.lanes
        if lanes == 1:
            return self.load_plain(self.position(self.indices), 1)
        mask = None if self.memref.is_register else self.context.mask_for(lanes)
        spread = self.evenly_spaced()
        if spread is None:
            straight = self.load_unclamped()
            return self.gather(self.pointers(), mask) if straight is None else straight
        bases, stride = spread
        position = self.position(bases)
        if stride == 0 and mask is None:
            return self.builder.splat(self.load_plain(position, 1), lanes)
        if stride == 1:
            if mask is None:
                return self.load_plain(position, lanes, self.alignment(bases))
            return self.load_masked("load", self.pointer(position), mask)
        if mask is None and abs(stride) <= WIDEST_PICKED_STRIDE:
            return self.load_picked(position, stride)
        return self.gather(self.spaced_pointers(position, stride), mask)

    def load_unclamped(self) -> Value | None:
        """A read along a border: lanes are neighbours unless the clamps of their index have an
        effect.

        They have none if they have none on the first and the last lane. That is worth a branch,
        which is almost always taken, since gathering costs as much as many loads.
        """
        number = next(k for k, index in enumerate(self.indices) if index.lanes > 1)
        clamped = _clamped(self.indices[number])
        if clamped is None or self.memref.strides[number] != 1:
            return None
        ramp, bounds = clamped
        builder = self.builder
        first = self.emit(self.context, ramp.base)
        last = builder.binary("add", first, constant(ramp.lanes - 1, first.element))
        inside = constant(True, "i1")
        for kind, bound in bounds:
            above = kind is BinaryKind.MAXIMUM
            end, predicate = (first, "sge") if above else (last, "sle")
            fits = builder.compare(predicate, end, self.emit(self.context, bound))
            inside = builder.binary("and", inside, fits)
        labels = [builder.fresh(hint) for hint in ("straight", "clamped", "loaded")]
        builder.branch(inside, labels[0], labels[1])
        builder.start(labels[0])
        plain = (*self.indices[:number], ramp, *self.indices[number + 1 :])
        straight = load(self.context, self.memref.buffer, plain, self.emit)
        sources = [(straight.text, builder.block)]
        builder.jump(labels[2])
        builder.start(labels[1])
        gathered = self.gather(self.pointers(), self.context.mask_for(ramp.lanes))
        sources.append((gathered.text, builder.block))
        builder.jump(labels[2])
        builder.start(labels[2])
        return builder.phi(straight.element, straight.lanes, *sources)

    def store(self, value: Value) -> None:
        mask = self.context.mask_for(value.lanes) if value.lanes > 1 else None
        spread = self.evenly_spaced() if value.lanes > 1 else (self.indices, 1)
        if spread is None or spread[1] != 1:
            active = mask or constant(True, "i1", value.lanes)
            self.call_masked("scatter", value, self.pointers(), active)
            return
        pointer = self.pointer(self.position(spread[0]))
        if mask is None:
            place = f"{pointer.typed}, align {self.alignment(spread[0])}"
            self.builder.do(f"store {value.typed}, {place}{self.memref.aliasing}")
        else:
            self.call_masked("store", value, pointer, mask)

    def evenly_spaced(self) -> tuple[tuple[Expr, ...], int] | None:
        """Scalar indices of the first lane and the distance of the lanes in elements, if
        constant."""
        bases: list[Expr] = []
        total = 0
        for index, stride in zip(self.indices, self.memref.strides, strict=True):
            form = (index, 0) if index.lanes == 1 else affine(index)
            if form is None or (form[1] != 0 and not isinstance(stride, int)):
                return None
            bases.append(form[0])
            total += form[1] * (stride if isinstance(stride, int) else 0)
        return tuple(bases), total

    def alignment(self, bases: tuple[Expr, ...]) -> int:
        """What a vector at these indices is aligned to: an element, except where the processor
        accesses no vector at once that might not be aligned to its size (GPUs up to 16 bytes,
        Hexagon)."""
        size, target, buffer = byte_size(self.dtype), self.builder.target, self.memref.buffer
        largest = min(target.vector_bits // 8, buffer.alignment) if target.is_hexagon else size
        largest = _LARGEST_GPU_ACCESS if target.is_gpu else largest
        widest = min(self.lanes, largest // size)
        if self.memref.is_register or widest < 2 or widest & widest - 1:
            return size
        for index, stride in zip(bases, self.memref.strides, strict=True):
            steps = polynomial(index).values()
            if not isinstance(stride, int) or any(step * stride % widest for step in steps):
                return size
        return size * widest

    def position(self, indices: tuple[Expr, ...]) -> _Position:
        moving: Offset = 0
        fixed = 0
        for index, stride in zip(indices, self.memref.strides, strict=True):
            rest = index
            if isinstance(stride, int):
                rest, summand = _without_constant(index)
                fixed += summand * stride
            if isinstance(rest, Const):
                value: Offset = int(rest.value)
            else:
                value = as_index(self.context, self.emit(self.context, rest), rest.dtype)
            moving = _add(self.context, moving, multiply(self.context, value, stride))
        return _Position(moving, fixed)

    def offset(self, pointer: Value, offset: Value) -> Value:
        """A pointer, or one per lane, so many elements further on.

        Without `inbounds`: the first lane of a masked access may lie outside."""
        text = f"getelementptr {self.element}, {pointer.typed}, {offset.typed}"
        return self.builder.make("ptr", offset.lanes, text)

    def pointer(self, position: _Position) -> Value:
        pointer = self.memref.pointer
        for offset in (position.moving, position.fixed):
            if offset != 0:
                pointer = self.offset(pointer, _index_value(offset))
        return pointer

    def pointers(self) -> Value:
        """A pointer per lane for indices of any kind."""
        builder, lanes = self.builder, self.lanes
        total = constant(0, "i64", lanes)
        for index, stride in zip(self.indices, self.memref.strides, strict=True):
            value = as_index(self.context, self.emit(self.context, index), index.dtype)
            if value.lanes == 1:
                value = builder.splat(value, lanes)
            step = builder.splat(_index_value(stride), lanes)
            total = builder.binary("add", total, builder.binary("mul", value, step))
        return self.offset(self.memref.pointer, total)

    def spaced_pointers(self, position: _Position, stride: int) -> Value:
        steps = constants([lane * stride for lane in range(self.lanes)], "i64")
        return self.offset(self.pointer(position), steps)

    def load_plain(self, position: _Position, lanes: int, align: int | None = None) -> Value:
        pointer, align = self.pointer(position), align or byte_size(self.dtype)
        text = f"load {vector_type(self.element, lanes)}, {pointer.typed}, align {align}"
        loaded = self.builder.make(self.element, lanes, text + self.memref.aliasing)
        return _from_memory(self.context, loaded, self.dtype)

    def load_picked(self, position: _Position, stride: int) -> Value:
        """All elements from the first lane's to the last's in one vector, of which some are
        picked."""
        span = (self.lanes - 1) * abs(stride)
        start = span if stride < 0 else 0
        wide = self.load_plain(replace(position, fixed=position.fixed - start), span + 1)
        order = [start + lane * stride for lane in range(self.lanes)]
        return self.builder.shuffle(wide, wide, order)

    def gather(self, pointers: Value, mask: Value | None) -> Value:
        return self.load_masked("gather", pointers, mask or constant(True, "i1", pointers.lanes))

    def load_masked(self, kind: str, pointer: Value, mask: Value) -> Value:
        """Lanes that are not read hold zero, so that computing with them does no harm."""
        zeros = constant(0, self.element, mask.lanes)
        loaded = self.call_masked(kind, zeros, pointer, mask)
        return _from_memory(self.context, loaded, self.dtype)

    def call_masked(self, kind: str, value: Value, pointer: Value, mask: Value) -> Value:
        """llvm.masked.load, store, gather or scatter; returns what it read."""
        builder, aliasing = self.builder, self.memref.aliasing
        pointers = "p0" if pointer.lanes == 1 else f"v{pointer.lanes}p0"
        name = f"llvm.masked.{kind}.{type_suffix(value)}.{pointers}"
        where = f"{pointer.type} align {byte_size(self.dtype)} {pointer.text}"
        if kind in ("load", "gather"):
            builder.module.declare(name, value.type, [pointer.type, mask.type, value.type])
            text = f"call {value.type} @{name}({where}, {mask.typed}, {value.typed}){aliasing}"
            return builder.make(value.element, value.lanes, text)
        if kind == "store" and builder.target.is_x86 and byte_size(self.dtype) < 4:
            mask = _hidden(builder, mask)
        builder.module.declare(name, "void", [value.type, pointer.type, mask.type])
        builder.do(f"call void @{name}({value.typed}, {where}, {mask.typed}){aliasing}")
        return value


def _without_constant(index: Expr) -> tuple[Expr, int]:
    """An index as one without a constant summand, and that one."""
    match index:
        case Const():
            return Const(0), int(index.value)
        case Binary(BinaryKind.ADD, rest, Const() as summand) if is_index(index):
            return rest, int(summand.value)
    return index, 0


def as_index(context: Context, value: Value, dtype: DType) -> Value:
    """An integer of any width as 64 bits."""
    if value.element == "i64":
        return value
    operation = "sext" if dtype.is_signed_integer else "zext"
    return context.builder.convert(operation, value, "i64")


def _index_value(offset: Offset, lanes: int = 1) -> Value:
    return constant(offset, "i64", lanes) if isinstance(offset, int) else offset


def multiply(context: Context, left: Offset, right: Offset) -> Offset:
    """A product of positions, which never overflows; constants are folded."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if left == 1 or right == 1:
        return right if left == 1 else left
    if left == 0 or right == 0:
        return 0
    lanes = next(side.lanes for side in (left, right) if isinstance(side, Value))
    return context.builder.binary("mul nsw", _index_value(left, lanes), _index_value(right, lanes))


def _add(context: Context, left: Offset, right: Offset) -> Offset:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if left == 0 or right == 0:
        return right if left == 0 else left
    return context.builder.binary("add nsw", _index_value(left), _index_value(right))


def _hidden(builder: Builder, mask: Value) -> Value:
    """The same mask, of which LLVM cannot know that it is constant.

    LLVM 22 writes four bytes where one lane of bytes is stored that were cut off wider numbers, if
    it knows that it is the only one."""
    bits = builder.convert("bitcast", mask, f"i{mask.lanes}", 1)
    whole = builder.convert("zext", bits, "i64")
    opaque = builder.make("i64", 1, f'call i64 asm "", "=r,0"({whole.typed})')
    narrow = builder.convert("trunc", opaque, f"i{mask.lanes}")
    return builder.convert("bitcast", narrow, "i1", mask.lanes)


def _from_memory(context: Context, value: Value, dtype: DType) -> Value:
    if dtype in NARROW_INTEGERS:
        return fitted(context.builder, value, dtype)
    if dtype is not DType.BOOL:
        return value
    return context.builder.compare("ne", value, constant(0, "i8", value.lanes))


def _to_memory(context: Context, value: Value, dtype: DType) -> Value:
    if dtype in NARROW_INTEGERS:
        return packed(context.builder, value, dtype)
    return context.builder.convert("zext", value, "i8") if dtype is DType.BOOL else value
