"""Emitters of movement: reshaping, cutting, joining, repeating, reading at positions, writing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.fuzzing.emitters import emits
from benchmarks.fuzzing.reduction import axis_of, has_axes, image
from benchmarks.fuzzing.sketch import FLOATS, INTEGERS, Sketch, Value

ANY = (*FLOATS, *INTEGERS, "bool")


def integers(s: Sketch, numbers: Any, dtype: str = "int64") -> Value:
    """A constant of positions or extents."""
    return s.constant(np.array(numbers, dtype))


@emits("Transpose")
def transpose(s: Sketch, op: str) -> None:
    value = s.operand(ANY)
    order = s.draw.shuffled(range(value.rank))
    s.add(op, [value], rounds=False, perm=order if s.draw.chance(0.85) else None)


@emits("Reshape")
def reshape(s: Sketch, op: str) -> None:
    value = s.operand(ANY)
    shape = list(value.shape)
    if value.is_static and value.arrays[0].size:
        shape = _factors(s, math.prod(shape))
        if s.draw.chance(0.4) and shape:
            shape[s.draw.between(0, len(shape) - 1)] = -1
    else:
        moving = [axis for axis in range(value.rank) if value.moves(axis)]
        shape = [0 if axis in moving else n for axis, n in enumerate(shape)]
        if value.rank > 1 and s.draw.chance(0.6):
            first = s.draw.between(0, value.rank - 2)
            shape[first : first + 2] = [-1]
            shape = [
                n if n or axis == first or axis in moving else 1 for axis, n in enumerate(shape)
            ]
    s.add(op, [value, integers(s, shape)], rounds=False)


def _factors(s: Sketch, size: int) -> list[int]:
    """A shape with so many elements."""
    found: list[int] = []
    while size > 1 and len(found) < 4 and s.draw.chance(0.8):
        factor = s.draw.among([n for n in range(1, size + 1) if size % n == 0])
        found.append(factor)
        size //= factor
    return s.draw.shuffled([*found, size])


@emits("Flatten")
def flatten(s: Sketch, op: str) -> None:
    value = s.operand(ANY)
    s.add(op, [value], rounds=False, axis=s.draw.between(-value.rank, value.rank))


@emits("Squeeze")
def squeeze(s: Sketch, op: str) -> None:
    value = s.operand(ANY, lambda one: 1 in one.shape)
    ones = [axis for axis, n in enumerate(value.shape) if n == 1 and not value.moves(axis)]
    if ones:
        axes = ones[: s.draw.between(1, len(ones))]
        given = [] if s.draw.chance(0.2) and value.is_static else [integers(s, axes)]
        s.add(op, [value, *given], rounds=False)


@emits("Unsqueeze")
def unsqueeze(s: Sketch, op: str) -> None:
    value = s.operand(ANY, lambda one: one.rank < 4)
    count = s.draw.between(1, 2)
    axes = s.draw.shuffled(range(value.rank + count))[:count]
    axes = [axis - value.rank - count if s.draw.chance(0.3) else axis for axis in axes]
    s.add(op, [value, integers(s, axes)], rounds=False)


@emits("Slice")
def cut(s: Sketch, op: str) -> None:
    value = s.operand(ANY, has_axes)
    if not value.rank:
        return
    axes = s.draw.shuffled(range(value.rank))[: s.draw.between(1, value.rank)]
    steps = [s.draw.among((1, 1, 2, 3, -1, -2)) for _ in axes]
    starts, ends = [], []
    for axis, step in zip(axes, steps, strict=True):
        n = value.shape[axis]
        one, other = s.draw.between(-n, n), s.draw.among((2**31 - 1, n, s.draw.between(-n, n)))
        starts.append(one if step > 0 else max(one, -1))
        ends.append(other if step > 0 else s.draw.among((-(2**31) + 1, 0, -n)))
    dtype = s.draw.among(("int32", "int64"))
    parts = [integers(s, part, dtype) for part in (starts, ends, axes, steps)]
    s.add(op, [value, *parts], rounds=False)


@emits("Pad")
def pad(s: Sketch, op: str) -> None:
    value = s.operand(ANY if s.opset > 13 else (*FLOATS, *INTEGERS), has_axes)
    mode = s.draw.among(("constant", "constant", "reflect", "edge", *(("wrap",) * (s.opset > 18))))
    low = -1 if mode == "constant" and s.draw.chance(0.3) else 0
    counts = []
    for axis in (*range(value.rank), *range(value.rank)):
        least = min(array.shape[axis] for array in value.arrays)
        counts.append(s.draw.between(low, 2 if mode == "constant" else min(2, least - 1)))
    filler = (
        [s.constant(np.array(1, value.dtype))] if mode == "constant" and s.draw.chance(0.5) else []
    )
    s.add(op, [value, integers(s, counts), *filler], rounds=False, mode=mode)


@emits("Concat")
def join(s: Sketch, op: str) -> None:
    value = s.operand(ANY, has_axes)
    if not value.rank:
        return
    axis = s.draw.between(0, value.rank - 1)
    parts = [value]
    for _ in range(s.draw.between(0, 2)):
        fitting = s.find(lambda one: one.dtype == value.dtype and _alike(one, value, axis))
        if value.is_static and s.draw.chance(0.3):
            shape = [*value.shape]
            shape[axis] = s.draw.extent(5)
            fitting = s.fresh(value.dtype, tuple(shape))
        parts.append(fitting or value)
    parts = s.draw.shuffled(parts)
    s.add(op, parts, rounds=False, axis=axis - value.rank if s.draw.chance(0.3) else axis)


def _alike(one: Value, other: Value, axis: int) -> bool:
    """Whether two shapes differ along one axis at most."""
    if one.rank != other.rank:
        return False
    pairs = zip(one.arrays, other.arrays, strict=True)
    return all(
        n == m
        for a, b in pairs
        for at, (n, m) in enumerate(zip(a.shape, b.shape, strict=True))
        if at != axis
    )


@emits("Split")
def split(s: Sketch, op: str) -> None:
    value = s.operand(ANY, has_axes)
    axes = [axis for axis in range(value.rank) if not value.moves(axis)]
    if not axes:
        return
    axis = s.draw.among(axes)
    extent, count = value.shape[axis], s.draw.between(1, 3)
    if s.opset >= 18 and s.draw.chance(0.4):
        s.add(op, [value], outputs=count, rounds=False, axis=axis, num_outputs=count)
        return
    marks = sorted(s.draw.between(0, extent) for _ in range(count - 1))
    parts = [b - a for a, b in zip([0, *marks], [*marks, extent], strict=True)]
    s.add(op, [value, integers(s, parts)], outputs=count, rounds=False, axis=axis)


@emits("Tile")
def tile(s: Sketch, op: str) -> None:
    value = s.operand(ANY)
    s.add(
        op,
        [value, integers(s, [s.draw.among((1, 1, 2, 3, 0)) for _ in range(value.rank)])],
        rounds=False,
    )


@emits("Expand")
def expand(s: Sketch, op: str) -> None:
    value = s.operand(ANY)
    shape = [
        1 if value.moves(axis) else n if n != 1 else s.draw.extent(5)
        for axis, n in enumerate(value.shape)
    ]
    lead = [s.draw.between(1, 3)] * s.draw.between(0, 1)
    s.add(op, [value, integers(s, [*lead, *shape])], rounds=False)


@emits("Gather")
def gather(s: Sketch, op: str) -> None:
    value = s.operand(ANY, has_axes)
    if not value.rank:
        return
    axis = axis_of(s, value)
    positions = _positions(
        s, min(a.shape[axis] for a in value.arrays), s.draw.shape(s.draw.between(0, 2))
    )
    s.add(op, [value, positions], rounds=False, axis=axis)


def _positions(s: Sketch, extent: int, shape: tuple[int, ...]) -> Value:
    """Positions along an axis, from either end; constants or an input."""
    generator = np.random.default_rng(s.draw.between(0, 9999))
    low = -extent if s.draw.chance(0.5) else 0
    found = generator.integers(low, max(low + 1, extent), shape)
    array = np.asarray(found).astype(s.draw.among(("int64", "int64", "int32")))
    if s.draw.chance(0.5):
        return s.constant(array)
    return s.input_of((array,) * s.setting.sizes, array.shape)


@emits("GatherElements")
def gather_elements(s: Sketch, op: str) -> None:
    value = s.operand(ANY, lambda one: one.rank > 0 and one.is_static)
    if not value.rank or not value.is_static:
        return
    axis = s.draw.between(0, value.rank - 1)
    shape = [n if at != axis else s.draw.between(1, 4) for at, n in enumerate(value.shape)]
    s.add(op, [value, _positions(s, value.shape[axis], tuple(shape))], rounds=False, axis=axis)


@emits("GatherND")
def gather_nd(s: Sketch, op: str) -> None:
    value = s.operand(ANY, lambda one: one.rank > 0 and one.is_static)
    if not value.rank or not value.is_static:
        return
    depth = s.draw.between(1, value.rank)
    least = min(value.shape[:depth])
    s.add(op, [value, _positions(s, least, (s.draw.between(1, 4), depth))], rounds=False)


@emits("ScatterElements")
def scatter_elements(s: Sketch, op: str) -> None:
    value = s.operand((*FLOATS, "int32", "int64"), lambda one: one.rank > 0 and one.is_static)
    if not value.rank or not value.is_static or 0 in value.shape:
        return
    axis = s.draw.between(0, value.rank - 1)
    ways = ["none", *(["add", "mul"] if s.opset >= 16 else [])]
    way = s.draw.among([*ways, *(["min", "max"] if s.opset >= 18 else [])])
    count = s.draw.between(1, value.shape[axis])
    shape = tuple(n if at != axis else count for at, n in enumerate(value.shape))
    # Each position once: which of two writes comes last is left open.
    generator = np.random.default_rng(s.draw.between(0, 9999))
    order = np.argsort(generator.random(value.shape), axis=axis, kind="stable")
    places = integers(s, np.take(order, range(count), axis=axis))
    updates = s.fresh(value.dtype, shape)
    s.add(
        op,
        [value, places, updates],
        rounds=way in ("add", "mul"),
        axis=axis,
        reduction=None if way == "none" else way,
    )


@emits("ScatterND")
def scatter_nd(s: Sketch, op: str) -> None:
    value = s.operand((*FLOATS, "int32", "int64"), lambda one: one.rank > 0 and one.is_static)
    if not value.rank or not value.is_static or 0 in value.shape:
        return
    depth = s.draw.between(1, value.rank)
    size = math.prod(value.shape[:depth])
    chosen = s.draw.shuffled(range(size))[: s.draw.between(1, min(4, size))]
    places = np.stack(np.unravel_index(np.array(chosen), value.shape[:depth]), axis=-1)
    ways = ["none", *(["add", "mul"] if s.opset >= 16 else [])]
    way = s.draw.among([*ways, *(["min", "max"] if s.opset >= 18 else [])])
    updates = s.fresh(value.dtype, (len(chosen), *value.shape[depth:]))
    s.add(
        op,
        [value, integers(s, places), updates],
        rounds=way in ("add", "mul"),
        reduction=None if way == "none" else way,
    )


@emits("OneHot")
def one_hot(s: Sketch, op: str) -> None:
    places = s.operand(("int64", "int32"), lambda one: one.rank < 4)
    depth = integers(s, s.draw.between(1, 6))
    values = s.constant(np.array([0, 1], s.draw.among(("float32", "int64", "int32"))))
    s.add(op, [places, depth, values], axis=s.draw.among((None, 0, -1)), rounds=False)


@emits("Trilu", since=14)
def triangle(s: Sketch, op: str) -> None:
    value = s.operand(("float32", "float64", "int64", "bool"), lambda one: one.rank > 1, rank=None)
    if value.rank > 1:
        by = [integers(s, s.draw.between(-3, 3))] if s.draw.chance(0.6) else []
        s.add(op, [value, *by], rounds=False, upper=s.draw.among((None, 0, 1)))


@emits("DepthToSpace", "SpaceToDepth")
def blocks(s: Sketch, op: str) -> None:
    block = s.draw.between(1, 3)
    base = (s.draw.between(1, 2), *(s.draw.between(1, 3) for _ in range(3)))
    n, c, h, w = base
    to_space = op == "DepthToSpace"
    shape = (n, c * block * block, h, w) if to_space else (n, c, h * block, w * block)
    mode = s.draw.among((None, "DCR", "CRD")) if to_space else None
    s.add(op, [s.fresh("float32", shape)], rounds=False, blocksize=block, mode=mode)


@emits("ReverseSequence")
def reverse(s: Sketch, op: str) -> None:
    value = s.operand(("float32", "int64"), lambda one: one.rank > 1 and one.is_static, rank=None)
    if value.rank < 2 or not value.is_static or 0 in value.shape:
        return
    axis = s.draw.between(0, 1)
    lengths = [s.draw.between(1, value.shape[axis]) for _ in range(value.shape[1 - axis])]
    s.add(op, [value, integers(s, lengths)], rounds=False, time_axis=axis, batch_axis=1 - axis)


@emits("Compress")
def compress(s: Sketch, op: str) -> None:
    value = s.operand(ANY, has_axes)
    if not value.rank or value.moves(0):
        return
    chosen = s.fresh("bool", (value.shape[0],))
    s.add(op, [value, chosen], rounds=False, axis=0)


@emits("Shape")
def shape_of(s: Sketch, op: str) -> None:
    value = s.operand(ANY)
    cuts: dict[str, Any] = {"start": s.draw.between(-2, 1), "end": s.draw.among((None, -1, 2))}
    s.add(op, [value], **(cuts if s.opset >= 15 and s.draw.chance(0.5) else {}))


@emits("Size")
def size_of(s: Sketch, op: str) -> None:
    s.add(op, [s.operand(ANY)])


@emits("ConstantOfShape")
def filled(s: Sketch, op: str) -> None:
    shape = s.find(
        lambda one: (
            one.dtype == "int64"
            and one.rank == 1
            and all((a >= 0).all() and (a < 20).all() for a in one.arrays)
        )
    )
    s.add(op, [shape or integers(s, s.draw.shape(2))], rounds=False)


@emits("Range")
def counting(s: Sketch, op: str) -> None:
    end = s.find(lambda one: one.dtype == "int64" and one.rank == 0)
    start, step = integers(s, s.draw.between(-2, 2)), integers(s, s.draw.among((1, 2)))
    s.add(op, [start, end or integers(s, s.draw.between(0, 9)), step])


@emits("EyeLike")
def identity_matrix(s: Sketch, op: str) -> None:
    value = s.operand(("float32", "int64", "int32"), rank=2)
    s.add(op, [value], rounds=False, k=s.draw.among((None, 0, 1, -1)))


@emits("CenterCropPad", since=18)
def center(s: Sketch, op: str) -> None:
    value = s.operand(("float32", "int64"), has_axes)
    if value.rank:
        s.add(op, [value, integers(s, [s.draw.extent(7) for _ in value.shape])], rounds=False)


_POSITIONS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@emits("Resize")
def resize(s: Sketch, op: str) -> None:
    value = image(s, low=4, high=4, dtypes=("float32",))
    mode = s.draw.among(("nearest", "linear", "cubic"))
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": s.draw.among(_POSITIONS),
    }
    if mode == "nearest":
        attributes["coordinate_transformation_mode"] = "asymmetric"
        attributes["nearest_mode"] = s.draw.among(("floor", "ceil"))
    if value.is_static and s.draw.chance(0.4):
        target = [*value.shape[:2], *(s.draw.between(1, 9) for _ in range(2))]
        s.add(op, [value, None, None, integers(s, target)], rounds=mode != "nearest", **attributes)
        return
    # Corners are aligned by ONNX with the product of extent and scale, be it a fraction, and by
    # ONNX Runtime with the extent that it is cut to.
    whole = attributes["coordinate_transformation_mode"] == "align_corners"
    choices = (1, 2, 3) if whole else (0.5, 1, 2, 2.5)
    scales = s.constant(np.array([1, 1, *(s.draw.among(choices) for _ in range(2))], "f"))
    s.add(op, [value, None, scales], rounds=mode != "nearest", **attributes)
