"""Samples for the templates that move data: by index, and from one storage to another."""

from __future__ import annotations

import math

import numpy as np
from tests.backends.host.property.pointwise import tail
from tests.backends.host.property.sketch import Sample, Shape, Sketch

from graft.backends.host.extents import Extents
from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernels.relayout import relayout
from graft.backends.host.storage import static_shape
from graft.ir.graph import Value
from graft.ir.op import Work
from graft.target.target import Target, host_target

MOVED = ("float32", "float32", "float64", "int64", "int32", "int16", "uint8", "bool")
MOST_SMALL, MOST_LARGE = 400, 20_000


def draw_movement(s: Sketch) -> Sample:
    s.dtype = s.pick(MOVED)
    s.special = s.chance(50)
    rank = s.number(1, 4)
    value = s.input(tuple(s.extent(6, 12) for _ in range(rank)))
    for number in range(s.number(1, 3)):
        if number and value.dtype.is_float and s.chance(30):
            value = tail(s, value, most=1)
        value = s.pick(MOVES if static_shape(value) else SCALAR_MOVES)(s, value)
    if static_shape(value) and s.chance(30):
        return s.finished(*_split(s, value))
    if value.dtype.is_float and s.chance(40):
        value = tail(s, value, most=2)
    return s.finished(value)


def _moved(s: Sketch, op: str, moved: Value, *operands: Value, **attrs: object) -> Value:
    info = s.info[moved]
    return s(op, moved, *operands, bound=info.bound, error=info.error, **attrs)


def _room(s: Sketch, value: Value) -> int:
    """By how much a value may still be repeated."""
    return (MOST_SMALL if s.small else MOST_LARGE) // math.prod(static_shape(value))


def _reshape(s: Sketch, value: Value) -> Value:
    return _moved(s, "reshape", value, shape=_factors(s, math.prod(static_shape(value))))


def _factors(s: Sketch, size: int) -> Shape:
    """Extents with that product."""
    found: list[int] = []
    while size > 1 and len(found) < 4:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        found.append(s.pick(divisors))
        size //= found[-1]
    return (*found, size)


def _transpose(s: Sketch, value: Value) -> Value:
    rank = len(static_shape(value))
    axes = list(range(rank))
    for place in range(rank - 1):
        other = s.number(place, rank - 1)
        axes[place], axes[other] = axes[other], axes[place]
    return _moved(s, "transpose", value, axes=None if s.chance(20) else tuple(axes))


def _expand(s: Sketch, value: Value) -> Value:
    return _moved(s, "expand_dims", value, axes=(s.number(0, len(static_shape(value))),))


def _broadcast(s: Sketch, value: Value) -> Value:
    shape = list(static_shape(value))
    room = _room(s, value)
    for axis, extent in enumerate(shape):
        if extent == 1 and room > 1:
            shape[axis] = s.number(1, min(5, room))
            room //= shape[axis]
    if room > 1 and len(shape) < 5:
        shape.insert(0, s.number(1, min(3, room)))
    return _moved(s, "broadcast_to", value, shape=tuple(shape))


def _tile(s: Sketch, value: Value) -> Value:
    room, reps = _room(s, value), []
    for _ in static_shape(value):
        reps.append(s.number(1, max(1, min(3, room))))
        room //= reps[-1]
    return _moved(s, "tile", value, reps=tuple(reps))


def _slice(s: Sketch, value: Value) -> Value:
    shape = static_shape(value)
    axes = [axis for axis in range(len(shape)) if s.chance(60)] or [0]
    begin, end, strides = [], [], []
    for axis in axes:
        extent = shape[axis]
        first, last = sorted((s.number(0, extent - 1), s.number(0, extent - 1)))
        stride = s.pick((1, 1, 2, 3, -1, -2))
        if stride > 0:
            begin.append(first if s.chance(60) else first - extent)
            end.append(last + 1)
        else:
            begin.append(last)
            end.append(first - 1 if first else -extent - 1)
        strides.append(stride)
    attrs = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    return _moved(s, "strided_slice", value, axes=tuple(axes), **attrs)


def _concatenate(s: Sketch, value: Value) -> Value:
    shape = static_shape(value)
    axis = s.number(0, len(shape) - 1)
    parts = [value]
    for _ in range(s.number(1, 2)):
        other = list(shape)
        other[axis] = s.number(1, 4)
        part = s.operand(tuple(other), value.dtype.value)
        if value.dtype.is_float and s.chance(30):
            part = s("negative", part, bound=2.0, error=0.0)
        parts.insert(s.number(0, len(parts)), part)
    infos = [s.info[part] for part in parts]
    bound, error = max(i.bound for i in infos), max(i.error for i in infos)
    return s(
        "concatenate", *parts, bound=bound, error=error, axis=s.pick((axis, axis - len(shape)))
    )


def _pad(s: Sketch, value: Value) -> Value:
    shape = static_shape(value)
    widths = [s.number(-1 if n > 2 else 0, 3) for n in (*shape, *shape)]
    fill = s.pick((None, 0, 1))
    return _moved(s, "nn.pad", value, pad_width=tuple(widths), value=fill)


def _take(s: Sketch, value: Value) -> Value:
    shape = static_shape(value)
    axis = s.number(-len(shape), len(shape) - 1)
    extent = shape[axis]
    wanted: tuple[int, ...] = s.pick(((), (1,), (3,), (2, 2)))
    low = 0 if wanted else -extent
    indices = s.random.integers(low, extent, wanted)
    return _moved(s, "take", value, s.constant(np.asarray(indices)), axis=axis)


def _split(s: Sketch, value: Value) -> tuple[Value, ...]:
    shape = static_shape(value)
    axis = s.number(0, len(shape) - 1)
    sizes = []
    left = shape[axis]
    while left:
        sizes.append(s.number(1, left))
        left -= sizes[-1]
    info = s.info[value]
    parts = s.builder.call("split", value, axis=axis, sizes=tuple(sizes))
    s.info.update((part, info) for part in parts)
    return parts


MOVES = (
    *(_transpose, _reshape, _transpose, _slice, _concatenate, _pad),
    *(_expand, _broadcast, _tile, _take),
)
SCALAR_MOVES = (_expand, _broadcast, _reshape)


def relayout_template(group: Group, stores: Stores, _target: Target) -> Kernel:
    """The copy of a group's operand to its result, each in its own storage."""
    source = group.outer(group.nodes[0].args[0])
    extents = Extents()
    function = relayout(stores[source], stores[group.output], extents, host_target())
    return Kernel(function, (source, group.output), Work(), extents.passed(function))


def draw_relayout(s: Sketch) -> Sample:
    s.dtype = s.pick(("float32", "float64"))
    s.special = True
    channels = s.pick((1, 2, 3, 8, 12, 16) if s.small else (3, 5, 12, 24, 32, 48, 64))
    pixels = (1, 1) if s.chance(15) else (s.extent(4, 9), s.extent(7, 40))
    shape = (s.extent(2, 3), channels, *pixels)
    sizes = [size for size in (1, 2, 3, 4, 8, 16, 24, channels) if channels % size == 0]
    one = s.pick((0, *sizes))
    two = s.pick((0, *sizes) if one else sizes)
    data = s.image(shape, one, s.halo()) if one else s.input(shape)
    return s.finished(_renamed(s, data), block=two, halo=s.halo() if two else (0, 0, 0, 0))


def _renamed(s: Sketch, value: Value) -> Value:
    """The same tensor once more, as a node that nothing computes."""
    return s("reshape", value, bound=2.0, error=0.0, shape=static_shape(value))
