"""Loads and stores.

Part of the emitter. In go buffers and indices; out come the fewest instructions that touch exactly
the elements meant: one vector access where lanes are neighbours, a wider one and a shuffle where
they are a few elements apart, gather and scatter elsewhere, masked where a condition says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from graft.base.dtypes import DType
from graft.llvm.context import Context, MemRef, Offset
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
    memref = context.memref(buffer)
    lanes = max((index.lanes for index in indices), default=1)
    if lanes == 1:
        return _load_plain(context, memref, _position(context, memref, indices, emit), 1)
    mask = None if memref.is_register else context.mask_for(lanes)
    spread = _evenly_spaced(memref, indices)
    if spread is None:
        straight = _load_unclamped(context, memref, indices, emit)
        if straight is not None:
            return straight
        pointers = _pointers(context, memref, indices, lanes, emit)
        return _gather(context, memref, pointers, mask)
    bases, stride = spread
    position = _position(context, memref, bases, emit)
    if stride == 0 and mask is None:
        return context.builder.splat(_load_plain(context, memref, position, 1), lanes)
    if stride == 1:
        if mask is None:
            align = _alignment(context, memref, bases, lanes)
            return _load_plain(context, memref, position, lanes, align)
        return _load_masked(context, "load", memref, _pointer(context, memref, position), mask)
    if mask is None and abs(stride) <= WIDEST_PICKED_STRIDE:
        return _load_picked(context, memref, position, lanes, stride)
    pointers = _spaced_pointers(context, memref, position, lanes, stride)
    return _gather(context, memref, pointers, mask)


def _load_unclamped(
    context: Context, memref: MemRef, indices: tuple[Expr, ...], emit: Emit
) -> Value | None:
    """A read along a border: lanes are neighbours unless the clamps of their index have an effect.

    They have none if they have none on the first and the last lane. That is worth a branch, which
    is almost always taken, since gathering costs as much as many loads.
    """
    position = next(k for k, index in enumerate(indices) if index.lanes > 1)
    clamped = _clamped(indices[position])
    if clamped is None or memref.strides[position] != 1:
        return None
    ramp, bounds = clamped
    builder = context.builder
    first = emit(context, ramp.base)
    last = builder.binary("add", first, constant(ramp.lanes - 1, first.element))
    inside = constant(True, "i1")
    for kind, bound in bounds:
        above = kind is BinaryKind.MAXIMUM
        end, predicate = (first, "sge") if above else (last, "sle")
        fits = builder.compare(predicate, end, emit(context, bound))
        inside = builder.binary("and", inside, fits)
    labels = [builder.fresh(hint) for hint in ("straight", "clamped", "loaded")]
    builder.branch(inside, labels[0], labels[1])
    builder.start(labels[0])
    plain = (*indices[:position], ramp, *indices[position + 1 :])
    straight = load(context, memref.buffer, plain, emit)
    sources = [(straight.text, builder.block)]
    builder.jump(labels[2])
    builder.start(labels[1])
    pointers = _pointers(context, memref, indices, ramp.lanes, emit)
    gathered = _gather(context, memref, pointers, context.mask_for(ramp.lanes))
    sources.append((gathered.text, builder.block))
    builder.jump(labels[2])
    builder.start(labels[2])
    return builder.phi(straight.element, straight.lanes, *sources)


def store(
    context: Context, buffer: Buffer, indices: tuple[Expr, ...], value: Value, emit: Emit
) -> None:
    """Write the element or vector; a vector only in the lanes of the context's mask."""
    memref, builder = context.memref(buffer), context.builder
    value = _to_memory(context, value, buffer.dtype)
    lanes = value.lanes
    mask = context.mask_for(lanes) if lanes > 1 else None
    spread = _evenly_spaced(memref, indices) if lanes > 1 else (indices, 1)
    if spread is None or spread[1] != 1:
        pointers = _pointers(context, memref, indices, lanes, emit)
        active = mask or constant(True, "i1", lanes)
        _call_masked(context, "scatter", memref, value, pointers, active)
        return
    pointer = _pointer(context, memref, _position(context, memref, spread[0], emit))
    if mask is None:
        align = _alignment(context, memref, spread[0], lanes)
        text = f"store {value.typed}, {pointer.typed}, align {align}{memref.aliasing}"
        builder.do(text)
    else:
        _call_masked(context, "store", memref, value, pointer, mask)


def address(context: Context, buffer: Buffer, indices: tuple[Expr, ...], emit: Emit) -> Value:
    """A pointer to an element, or one to each."""
    memref = context.memref(buffer)
    lanes = max((index.lanes for index in indices), default=1)
    if lanes > 1:
        return _pointers(context, memref, indices, lanes, emit)
    return _pointer(context, memref, _position(context, memref, indices, emit))


def _evenly_spaced(
    memref: MemRef, indices: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], int] | None:
    """Scalar indices of the first lane and the distance of the lanes in elements, if constant."""
    bases: list[Expr] = []
    total = 0
    for index, stride in zip(indices, memref.strides, strict=True):
        form = (index, 0) if index.lanes == 1 else affine(index)
        if form is None or (form[1] != 0 and not isinstance(stride, int)):
            return None
        bases.append(form[0])
        total += form[1] * (stride if isinstance(stride, int) else 0)
    return tuple(bases), total


def _alignment(context: Context, memref: MemRef, bases: tuple[Expr, ...], lanes: int) -> int:
    """What a vector at these indices is aligned to: an element, except where the processor accesses
    no vector at once that might not be aligned to its size (GPUs up to 16 bytes, Hexagon)."""
    size, target = byte_size(memref.buffer.dtype), context.builder.target
    largest = min(target.vector_bits // 8, memref.buffer.alignment) if target.is_hexagon else size
    largest = _LARGEST_GPU_ACCESS if target.is_gpu else largest
    widest = min(lanes, largest // size)
    if memref.is_register or widest < 2 or widest & widest - 1:
        return size
    for index, stride in zip(bases, memref.strides, strict=True):
        steps = polynomial(index).values()
        if not isinstance(stride, int) or any(step * stride % widest for step in steps):
            return size
    return size * widest


@dataclass(frozen=True, slots=True)
class _Position:
    """An element, counted from the buffer's first: elements that code counts, and a constant.

    The constant becomes a displacement. Added up with the rest, it would be to LLVM a part of what
    a loop does not change: a register for each of a tile's pixels, where one will do."""

    moving: Offset
    fixed: int = 0


def _position(context: Context, memref: MemRef, indices: tuple[Expr, ...], emit: Emit) -> _Position:
    moving: Offset = 0
    fixed = 0
    for index, stride in zip(indices, memref.strides, strict=True):
        rest = index
        if isinstance(stride, int):
            rest, summand = _without_constant(index)
            fixed += summand * stride
        if isinstance(rest, Const):
            value: Offset = int(rest.value)
        else:
            value = as_index(context, emit(context, rest), rest.dtype)
        moving = _add(context, moving, multiply(context, value, stride))
    return _Position(moving, fixed)


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


def _pointer(context: Context, memref: MemRef, position: _Position) -> Value:
    element, pointer = memory_type(memref.buffer.dtype), memref.pointer
    for offset in (position.moving, position.fixed):
        if offset != 0:
            # Without `inbounds`: the first lane of a masked access may lie outside.
            text = f"getelementptr {element}, {pointer.typed}, {_index_value(offset).typed}"
            pointer = context.builder.make("ptr", 1, text)
    return pointer


def _pointers(
    context: Context, memref: MemRef, indices: tuple[Expr, ...], lanes: int, emit: Emit
) -> Value:
    """A pointer per lane for indices of any kind."""
    builder = context.builder
    total = constant(0, "i64", lanes)
    for index, stride in zip(indices, memref.strides, strict=True):
        value = as_index(context, emit(context, index), index.dtype)
        if value.lanes == 1:
            value = builder.splat(value, lanes)
        step = builder.splat(_index_value(stride), lanes)
        total = builder.binary("add", total, builder.binary("mul", value, step))
    element = memory_type(memref.buffer.dtype)
    return builder.make(
        "ptr", lanes, f"getelementptr {element}, {memref.pointer.typed}, {total.typed}"
    )


def _spaced_pointers(
    context: Context, memref: MemRef, position: _Position, lanes: int, stride: int
) -> Value:
    first = _pointer(context, memref, position)
    steps = constants([lane * stride for lane in range(lanes)], "i64")
    element = memory_type(memref.buffer.dtype)
    return context.builder.make(
        "ptr", lanes, f"getelementptr {element}, {first.typed}, {steps.typed}"
    )


def _load_plain(
    context: Context, memref: MemRef, position: _Position, lanes: int, align: int | None = None
) -> Value:
    dtype = memref.buffer.dtype
    element, pointer = memory_type(dtype), _pointer(context, memref, position)
    align = align or byte_size(dtype)
    text = f"load {vector_type(element, lanes)}, {pointer.typed}, align {align}"
    loaded = context.builder.make(element, lanes, text + memref.aliasing)
    return _from_memory(context, loaded, dtype)


def _load_picked(
    context: Context, memref: MemRef, position: _Position, lanes: int, stride: int
) -> Value:
    """All elements from the first lane's to the last's in one vector, of which some are picked."""
    span = (lanes - 1) * abs(stride)
    first = replace(position, fixed=position.fixed - (span if stride < 0 else 0))
    wide = _load_plain(context, memref, first, span + 1)
    start = span if stride < 0 else 0
    order = [start + lane * stride for lane in range(lanes)]
    return context.builder.shuffle(wide, wide, order)


def _gather(context: Context, memref: MemRef, pointers: Value, mask: Value | None) -> Value:
    active = mask or constant(True, "i1", pointers.lanes)
    return _load_masked(context, "gather", memref, pointers, active)


def _load_masked(context: Context, kind: str, memref: MemRef, pointer: Value, mask: Value) -> Value:
    """Lanes that are not read hold zero, so that computing with them does no harm."""
    dtype = memref.buffer.dtype
    zeros = constant(0, memory_type(dtype), mask.lanes)
    return _from_memory(context, _call_masked(context, kind, memref, zeros, pointer, mask), dtype)


def _call_masked(
    context: Context, kind: str, memref: MemRef, value: Value, pointer: Value, mask: Value
) -> Value:
    """llvm.masked.load, store, gather or scatter; returns what it read."""
    builder = context.builder
    pointers = "p0" if pointer.lanes == 1 else f"v{pointer.lanes}p0"
    name = f"llvm.masked.{kind}.{type_suffix(value)}.{pointers}"
    align = f" align {byte_size(memref.buffer.dtype)}"
    where = f"{pointer.type}{align} {pointer.text}"
    if kind in ("load", "gather"):
        builder.module.declare(name, value.type, [pointer.type, mask.type, value.type])
        text = f"call {value.type} @{name}({where}, {mask.typed}, {value.typed}){memref.aliasing}"
        return builder.make(value.element, value.lanes, text)
    if kind == "store" and builder.target.is_x86 and byte_size(memref.buffer.dtype) < 4:
        mask = _hidden(builder, mask)
    builder.module.declare(name, "void", [value.type, pointer.type, mask.type])
    builder.do(f"call void @{name}({value.typed}, {where}, {mask.typed}){memref.aliasing}")
    return value


def _hidden(builder: Builder, mask: Value) -> Value:
    """The same mask, of which LLVM cannot know that it is constant.

    LLVM 22 writes four bytes where one lane of bytes is stored that were cut off wider numbers, if
    it knows that it is the only one."""
    bits = builder.reinterpret(mask, f"i{mask.lanes}", 1)
    whole = builder.convert("zext", bits, "i64")
    opaque = builder.make("i64", 1, f'call i64 asm "", "=r,0"({whole.typed})')
    narrow = builder.convert("trunc", opaque, f"i{mask.lanes}")
    return builder.reinterpret(narrow, "i1", mask.lanes)


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
