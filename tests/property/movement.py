"""Draws movement of data, index operators, reductions, and shapes that only the data decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tests.property import data
from tests.property.elementwise import always, any_value
from tests.property.sketch import (
    EXACT,
    FUZZY,
    LARGEST_BOUND,
    LARGEST_SIZE,
    Sketch,
    is_float,
    is_small,
    typical_size,
)

from graft.base.dims import AnyDim
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.ir.types import Shape

ANY = data.EVERY
FAR = 2**31 - 1  # beyond every axis


def tensor_of(s: Sketch, least: int, dtypes: Sequence[DType] = ANY, level: int = FUZZY) -> Value:
    """A value with at least so many axes."""
    found = s.find(
        lambda v: (
            is_small(v)
            and v.dtype in dtypes
            and len(v.shape or ()) >= least
            and s.level(v) >= level
        )
    )
    if found is not None and not s.chance(6):
        return found
    return s.source(s.pick(dtypes), s.shape(max(least, 1), max(least, 4)), bounded=True)


def axis_of(s: Sketch, value: Value) -> int:
    """Some axis, at times counted from the end."""
    rank = len(value.shape or ())
    axis = s.number(0, rank - 1)
    return axis - rank if s.chance(3) else axis


def extent(value: Value, axis: int) -> AnyDim:
    return (value.shape or ())[axis]


def permutation(s: Sketch, count: int) -> list[int]:
    order = list(range(count))
    return [order.pop(s.number(0, len(order) - 1)) for _ in range(count)]


def reshape(s: Sketch) -> None:
    x = tensor_of(s, 0)
    for _ in range(s.number(1, 2)):
        shape = x.shape or ()
        if not s.can_write(shape):
            s.add("reshape", x, shape=[-1])
            return
        known = [dim for dim in shape if isinstance(dim, int)]
        choice = s.number(0, 3)
        if choice == 0:
            wanted: list[AnyDim] = [-1] if 0 not in known else list(shape)
        elif choice == 1 and len(shape) > 1:  # merge two neighbours
            at = s.number(0, len(shape) - 2)
            wanted = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
        elif choice == 2 and len(known) == len(shape):  # split one
            wanted = [part for dim in shape for part in _parts(dim)]
        else:
            wanted = [*shape[::-1], 1]
        x = s.add("reshape", x, shape=wanted, allowzero=0 in wanted)


def _parts(dim: AnyDim) -> tuple[AnyDim, ...]:
    return (2, dim // 2) if isinstance(dim, int) and dim and dim % 2 == 0 else (dim,)


def transpose(s: Sketch) -> None:
    """Once, or twice, which may cancel; or on both operands of an addition."""
    x = tensor_of(s, 1)
    rank = len(x.shape or ())
    for _ in range(s.number(1, 3)):
        axes: list[int] | None = permutation(s, rank)
        if s.chance(4):
            axes = [axis - rank for axis in axes or ()]
        x = s.add("transpose", x, axes=None if s.chance(8) else axes)
        if is_float(x) and s.chance(3):
            x = s.add(s.pick(("negative", "nn.relu", "abs")), x, level=EXACT)
        if rank >= 2 and s.chance(5):
            x = s.add("trilu", x, upper=s.chance(2), k=s.number(-1, 1))


def transposed_pair(s: Sketch) -> None:
    x = tensor_of(s, 2, (*data.WIDE_FLOATS, DType.INT32), EXACT)
    axes = permutation(s, len(x.shape or ()))
    one = s.add("transpose", x, axes=axes)
    other = s.add("transpose", s.add("negative", x), axes=axes)
    if s.chance(3):
        other = s.number_like(x, 2, s.number(0, len(axes) + 1))
    s.add("subtract", one, other, bound=2 * s.bound(x) + 2)


def axes_of_one(s: Sketch) -> None:
    x = tensor_of(s, 0)
    rank = len(x.shape or ())
    at = s.number(0, rank)
    more = s.add("expand_dims", x, axes=[at - rank - 1 if s.chance(3) else at])
    if s.chance(2):
        more = s.add("negative", more) if x.dtype in data.WIDE_FLOATS else more
    if s.chance(2):
        s.add("squeeze", more, axes=None if more.tensor.is_static and s.chance(2) else [at])


def strided_slice(s: Sketch) -> None:
    x = tensor_of(s, 1)
    rank = len(x.shape or ())
    axes = permutation(s, rank)[: s.number(1, rank)]
    if s.chance(3):  # the whole of it, forwards or backwards
        ways = [s.pick(((0, FAR, 1), (-1, -FAR, -1))) for _ in axes]
        begin, end, strides = ([way[i] for way in ways] for i in range(3))
        s.add("strided_slice", x, begin=begin, end=end, strides=strides, axes=axes)
        return
    end = [s.pick((FAR, 2, -1, 0, -FAR, 100)) for _ in axes]
    strides = [s.pick((1, 2, -1, 3, -2)) for _ in axes]
    begin = [s.pick((0, 1, -1, 3, -2, -4, -9, -FAR, FAR)) for _ in axes]
    listed = {} if axes == list(range(len(axes))) and s.chance(2) else {"axes": axes}
    s.add("strided_slice", x, begin=begin, end=end, strides=strides, **listed)


def concatenate(s: Sketch) -> None:
    x = tensor_of(s, 1)
    axis = axis_of(s, x)
    for _ in range(s.number(1, 3)):
        axis = axis_of(s, x) if s.chance(3) else axis
        parts = [x, *([x] if s.chance(3) else [])]
        if x.tensor.is_static:
            shape = list(x.shape or ())
            shape[axis] = s.number(0, 2)
            parts.append(s.tame_constant(x.dtype, [dim for dim in shape if isinstance(dim, int)]))
        x = s.add("concatenate", *parts, axis=axis, bound=s.bound(*parts))


def split(s: Sketch) -> None:
    x = tensor_of(s, 1)
    axis = axis_of(s, x)
    size = extent(x, axis)
    if not isinstance(size, int):
        s.add("split", x, axis=axis, sections=1)
    elif s.chance(2):
        first = s.number(0, size)
        s.add("split", x, axis=axis, sizes=[first, size - first])
    else:
        s.add("split", x, axis=axis, sections=s.number(1, 2) if size >= 2 else 1)


def pad(s: Sketch) -> None:
    x = tensor_of(s, 1, tuple(d for d in ANY if d not in (*data.COMPLEX, *data.NARROW_FLOATS)))
    shape = x.shape or ()
    mode = s.pick(("constant", "constant", "edge", "reflect", "wrap"))
    if any(not isinstance(dim, int) or dim == 0 for dim in shape):
        mode = "constant"
    low = -1 if all(isinstance(dim, int) and dim >= 2 for dim in shape) else 0
    widths = [s.number(low, 2) for _ in range(2 * len(shape))]
    number = s.pick((None, None, 0, 1, -0.0))
    if not x.dtype.is_number or mode != "constant":
        number = None
    if s.chance(5):
        widths = [0] * len(widths)
        if low < 0 and s.chance(2):  # as much is cut off as is added
            axis = axis_of(s, x) % len(shape)
            widths[axis], widths[axis + len(shape)] = 1, -1
    bound = max(s.bound(x), 1.0)
    s.add("nn.pad", x, pad_width=widths, value=number, mode=mode, bound=bound)


def repeat(s: Sketch) -> None:
    x = tensor_of(s, 0)
    shape = x.shape or ()
    if not s.can_write(shape) or s.chance(2):
        s.add("tile", x, reps=[s.pick((1, 1, 2, 0)) for _ in shape])
        return
    wide: list[AnyDim] = [s.number(1, 3) if dim == 1 else dim for dim in shape]
    s.add("broadcast_to", x, shape=[*([s.number(1, 2)] if s.chance(2) else []), *wide])


def take(s: Sketch) -> None:
    x = tensor_of(s, 1)
    axis = axis_of(s, x)
    size = extent(x, axis)
    if not isinstance(size, int):
        indices = s.constant(np.zeros(s.number(0, 2), np.int64))
        s.add("take", x, indices, axis=axis, bound=s.bound(x))
    elif size:
        positions = [s.number(-size, size - 1) for _ in range(s.number(0, 3))]
        array = np.array(positions, s.pick((np.int64, np.int32))).reshape(s.pick(((-1,), (-1, 1))))
        s.add("take", x, s.constant(array), axis=axis, bound=s.bound(x))


def gather(s: Sketch) -> None:
    x = tensor_of(s, 1)
    axis = axis_of(s, x)
    if not x.tensor.is_static or 0 in (x.shape or ()):
        return
    size = extent(x, axis)
    assert isinstance(size, int)
    shape = tuple(dim for dim in x.shape or () if isinstance(dim, int))
    places = np.random.default_rng(s.seed()).integers(-size, size, shape)
    indices = s.constant(places.astype(np.int64))
    if s.chance(3) and x.dtype is not DType.STRING:
        s.add("scatter_elements", x, s.constant(abs(places) * 0), x, axis=axis, bound=s.bound(x))
    else:
        s.add("gather", x, indices, axis=axis, bound=s.bound(x))


def slices(s: Sketch) -> None:
    """Gathered or scattered by an index per slice, repeated over its elements."""
    x = tensor_of(s, 1)
    axis, count = axis_of(s, x), s.number(0, 3)
    if not x.tensor.is_static or 0 in (x.shape or ()) or x.dtype is DType.STRING:
        return
    shape = [dim for dim in x.shape or () if isinstance(dim, int)]
    places = np.random.default_rng(s.seed()).integers(-shape[axis], shape[axis], count)
    own = [1] * len(shape)
    own[axis] = shape[axis] = count
    indices = s.add("broadcast_to", s.constant(places.reshape(own)), shape=shape)
    gathered = s.add("gather", x, indices, axis=axis, bound=s.bound(x))
    if s.chance(2):
        s.add("scatter_elements", x, indices, gathered, axis=axis, bound=s.bound(x))


def reduction(s: Sketch) -> None:
    dtypes = (*data.WIDE_FLOATS, *data.SIGNED, *data.UNSIGNED)
    x = any_value(s, dtypes, always)
    rank = len(x.shape or ())
    axes = permutation(s, rank)[: s.number(0, rank)] if s.chance(3) else None
    if axes is None and rank and s.chance(2):
        axes = [axis_of(s, x)]
    name = s.pick(("sum", "mean", "max", "min", "prod"))
    bound = _reduced_bound(s, name, x)
    if is_float(x) and s.level(x) == FUZZY and not bound <= LARGEST_BOUND:
        name, bound = "max", math.inf if typical_size(x.shape) == 0 else s.bound(x)
    level = EXACT if name in ("max", "min") else FUZZY
    level = level if is_float(x) else EXACT
    s.add(name, x, axes=axes, keepdims=s.chance(2), level=level, bound=bound)


def _reduced_bound(s: Sketch, name: str, x: Value) -> float:
    if typical_size(x.shape) == 0 or not x.tensor.is_static or s.bound(x) == math.inf:
        return math.inf  # an empty reduction gives infinity or NaN
    count = max(typical_size(x.shape), 1)
    if name == "prod":
        return max(s.bound(x), 1.0) ** count if s.bound(x) * count <= 50 else math.inf
    return s.bound(x) * (count if name == "sum" else 1)


def arg_extreme(s: Sketch) -> None:
    x = tensor_of(s, 1, (*data.WIDE_FLOATS, *data.SIGNED), EXACT)
    axis = axis_of(s, x)
    if extent(x, axis) == 0 or not isinstance(extent(x, axis), int):
        return
    name = s.pick(("argmax", "argmin"))
    s.add(name, x, axis=axis, keepdims=s.chance(2), select_last_index=s.chance(2), bound=8.0)


def running_total(s: Sketch) -> None:
    x = tensor_of(s, 1, (*data.WIDE_FLOATS, DType.INT32, DType.INT64), EXACT)
    level = FUZZY if is_float(x) else EXACT
    options = {"exclusive": s.chance(2), "reverse": s.chance(2)}
    s.add("cumsum", x, axis=axis_of(s, x), level=level, bound=math.inf, **options)


def topk(s: Sketch) -> None:
    x = tensor_of(s, 1, (*data.WIDE_FLOATS, *data.SIGNED), EXACT)
    axis = axis_of(s, x)
    size = extent(x, axis)
    options = {"axis": axis, "largest": s.chance(2)}
    if isinstance(size, int) and not s.chance(3):
        s.add("topk", x, k=s.number(0, size), level=EXACT, **options)
        return
    shape = s.add("shape_of", x, bound=8.0)
    one = s.add("take", shape, s.constant(np.array([axis])), bound=8.0)
    k = s.add("minimum", one, s.counts(None), bound=8.0)
    s.add("topk", x, k, level=EXACT, bound=math.inf, **options)


def nonzero(s: Sketch) -> None:
    dtypes = (*data.WIDE_FLOATS, *data.SIGNED, DType.BOOL)
    x = any_value(s, dtypes, lambda v: is_small(v) and s.level(v) > FUZZY)
    if s.chance(3) and x.shape:
        flat = s.add("reshape", x, shape=[-1]) if 0 not in x.shape else x
        s.add("unique", flat, sorted=s.chance(2), level=EXACT, bound=math.inf)
        return
    found = s.add("nonzero", x, bound=64.0)
    if s.chance(2):  # as many numbers as were found
        shape = s.add("shape_of", found, bound=64.0)
        last = s.add("take", shape, s.constant(np.array([1])), bound=64.0)
        s.add("full", s.constant(np.float32(1.5)), last, bound=2.0)


def from_shape(s: Sketch) -> None:
    """Shape arithmetic that feeds a reshape, a filled tensor, a range or a slice."""
    x = tensor_of(s, 1)
    shape = s.add("shape_of", x, bound=64.0)
    kind = s.number(0, 3)
    if kind == 0 and 0 not in (x.shape or ()):
        ends = s.add("strided_slice", shape, begin=[0], end=[1])
        rest = s.constant(np.array([-1]))
        s.add("reshape", x, s.add("concatenate", ends, rest, axis=0), bound=s.bound(x))
    elif kind == 1:
        doubled = s.add("multiply", shape, s.constant(np.array(2)), bound=64.0)
        if typical_size(x.shape) * 2 ** len(x.shape or ()) <= LARGEST_SIZE:
            s.add("full", s.constant(np.array([-0.0], np.float32)), doubled, bound=0.0)
    elif kind == 2:
        first = s.add("take", shape, s.constant(np.array(0)))
        zero, one = s.constant(np.array(0)), s.constant(np.array(1))
        s.add("arange", zero, first, one, bound=64.0)
    else:
        ends = s.add("subtract", shape, s.constant(np.array(1)), bound=64.0)
        begin = s.constant(np.zeros(len(x.shape or ()), np.int64))
        s.add("strided_slice", x, begin, ends, bound=s.bound(x))


def from_counts(s: Sketch) -> None:
    """Operands that only the data decide."""
    x = tensor_of(s, 1)
    rank = len(x.shape or ())
    numbers = s.counts(rank)
    kind = s.number(0, 3)
    if kind == 0 and typical_size(x.shape) * 3**rank <= LARGEST_SIZE:
        s.add("tile", x, numbers, bound=s.bound(x))
    elif kind == 1:
        s.add("full", s.constant(np.float32(0.5)), numbers, bound=0.5)
    elif kind == 2:
        begin = s.add("subtract", numbers, s.constant(np.array(2)), bound=8.0)
        s.add("strided_slice", x, begin, numbers, bound=s.bound(x))
    else:
        wide = s.add("full", s.constant(np.array([7], np.int32)), numbers, bound=8.0)
        s.add("reshape", wide, shape=[-1])


def one_hot(s: Sketch) -> None:
    indices = s.find(lambda v: is_small(v) and v.dtype in data.SIGNED) or s.counts(2)
    if len(indices.shape or ()) > 3 or typical_size(indices.shape) > LARGEST_SIZE // 8:
        return
    values = s.tame_constant(s.pick((DType.FLOAT32, DType.INT8)), (2,))
    s.add("one_hot", indices, values, depth=s.number(0, 4), axis=s.pick((-1, 0)), bound=2.0)


def blocks(s: Sketch) -> None:
    x = tensor_of(s, 0, (DType.FLOAT32, DType.INT64))
    shape: Shape = (1, 4, 2, 2)
    wide = s.source(x.dtype, shape, bounded=True)
    mode = s.pick(("DCR", "CRD"))
    s.add(s.pick(("depth_to_space", "space_to_depth")), wide, block_size=2, mode=mode)


EMITTERS = (
    reshape,
    reshape,
    transpose,
    transpose,
    transposed_pair,
    axes_of_one,
    strided_slice,
    concatenate,
    split,
    pad,
    repeat,
    take,
    gather,
    slices,
    reduction,
    reduction,
    arg_extreme,
    running_total,
    topk,
    nonzero,
    from_shape,
    from_shape,
    from_counts,
    one_hot,
    blocks,
)
