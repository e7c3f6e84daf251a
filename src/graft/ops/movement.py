"""Movement: the same elements in another shape or order, joined, cut up or repeated.

Tensors of any dtype enter and leave; no arithmetic happens. Shape-like parameters are attributes,
or operands where only the data decide them. Most meanings work on arrays of symbolic dims too, so
that shape computations made of these operators are followed while a graph is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dim_questions import provably_below, provably_different
from graft.base.dims import UNKNOWN, AnyDim, ceildiv, product
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs, Dims, Ints
from graft.ir.op import Kind, no_work
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term, select
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.creation import shape_operand
from graft.ops.rules import (
    normalize_axes,
    normalize_axis,
    operator,
    require,
    require_same_dim,
    same_dtype,
    shape_of,
    spreads,
    unknown_shape,
)


def length_of(operand: TensorType | None, what: str) -> AnyDim:
    """How many numbers a list-like operand holds; a scalar counts as one."""
    require(operand is not None, f"{what} are given neither as operand nor as attribute")
    assert operand is not None
    require(operand.dtype in (DType.INT64, DType.INT32), f"{what} are {operand.dtype}, not int64")
    return operand.size


@dataclass(frozen=True, slots=True)
class ReshapeAttrs(Attrs):
    shape: Dims | None = None
    allowzero: bool = False


def resolve_shape(target: Shape, data: Shape | None, allowzero: bool) -> Shape:
    """`target` with 0 replaced by the extent it copies and -1 by the inferred extent."""
    dims = list(target)
    copied = [i for i, dim in enumerate(dims) if dim == 0 and not allowzero]
    for i in copied:
        require(
            data is None or i < len(data), f"0 at position {i} copies an axis that is not there"
        )
        dims[i] = UNKNOWN if data is None else data[i]
    holes = [i for i, dim in enumerate(dims) if dim == -1]
    require(len(holes) <= 1, f"-1 stands more than once in {list(target)}")
    negative = any(isinstance(dim, int) and dim < -1 for dim in dims)
    require(not negative, f"a negative extent in {list(target)}")
    if holes and data is None:
        dims[holes[0]] = UNKNOWN
    elif holes and data is not None:
        # What stands on both sides is left out, which gives an answer even where that is 0.
        total = [dim for i, dim in enumerate(data) if i not in copied]
        rest = [dim for i, dim in enumerate(dims) if i not in (*copied, *holes)]
        while 0 in total and 0 in rest:
            total.remove(0)
            rest.remove(0)
        require(0 not in rest, f"-1 in {list(target)} may be anything beside an extent of 0")
        dims[holes[0]] = product(total) // product(rest)
    if data is not None:
        have, want = product(data), product(dims)
        require(not provably_different(have, want), f"{have} elements do not fill {list(target)}")
    return tuple(dims)


def _reshape_type(attrs: ReshapeAttrs, data: TensorType, shape: TensorType | None) -> TensorType:
    if attrs.shape is None:
        return TensorType(data.dtype, shape_operand(None, shape))
    return TensorType(data.dtype, resolve_shape(attrs.shape, data.shape, attrs.allowzero))


@operator("reshape", "data shape?", _reshape_type, kind=Kind.INJECTIVE, work=no_work, on_dims=True)
def _reshape(attrs: ReshapeAttrs, data: Array) -> Array:
    """The same elements in another shape; -1 is what is left, 0 the data's extent."""
    extents: Any = resolve_shape(attrs.shape or (), data.shape, attrs.allowzero)
    return data.reshape(extents)


@dataclass(frozen=True, slots=True)
class TransposeAttrs(Attrs):
    axes: Ints | None = None


def transpose_order(attrs: TransposeAttrs, rank: int) -> tuple[int, ...]:
    """Per axis of the result, the operand's axis that it is."""
    axes = tuple(reversed(range(rank))) if attrs.axes is None else attrs.axes
    require(len(axes) == rank, f"{list(axes)} does not order {rank} axes")
    return normalize_axes(axes, rank)


def _transpose_type(attrs: TransposeAttrs, data: TensorType) -> TensorType:
    if data.shape is None:
        return TensorType(
            data.dtype, None if attrs.axes is None else unknown_shape(len(attrs.axes))
        )
    order = transpose_order(attrs, len(data.shape))
    return TensorType(data.dtype, tuple(data.shape[axis] for axis in order))


@operator("transpose", "data", _transpose_type, kind=Kind.INJECTIVE, on_dims=True)
def _transpose(attrs: TransposeAttrs, data: Array) -> Array:
    """Axes in another order, by default reversed."""
    return np.transpose(data, attrs.axes)


@dataclass(frozen=True, slots=True)
class AxesAttrs(Attrs):
    axes: Ints | None = None


def _expand_dims_type(attrs: AxesAttrs, data: TensorType, axes: TensorType | None) -> TensorType:
    count = len(attrs.axes) if attrs.axes is not None else length_of(axes, "axes")
    if data.shape is None or not isinstance(count, int):
        return TensorType(data.dtype, None)
    rank = len(data.shape) + count
    if attrs.axes is None:
        return TensorType(data.dtype, unknown_shape(rank))
    dims: list[AnyDim] = list(data.shape)
    for axis in sorted(normalize_axes(attrs.axes, rank)):
        dims.insert(axis, 1)
    return TensorType(data.dtype, tuple(dims))


@operator(
    "expand_dims",
    "data axes?",
    _expand_dims_type,
    kind=Kind.INJECTIVE,
    work=no_work,
    on_dims=True,
)
def _expand_dims(attrs: AxesAttrs, data: Array) -> Array:
    """New axes of extent 1 at these positions of the result."""
    return np.expand_dims(data, attrs.axes or ())


def _squeeze_type(attrs: AxesAttrs, data: TensorType, axes: TensorType | None) -> TensorType:
    if data.shape is None:
        return TensorType(data.dtype, None)
    rank = len(data.shape)
    if attrs.axes is None and axes is not None:
        count = length_of(axes, "axes")
        shape = unknown_shape(rank - count) if isinstance(count, int) else None
        return TensorType(data.dtype, shape)
    if attrs.axes is None:
        if not all(isinstance(dim, int) for dim in data.shape):
            return TensorType(data.dtype, None)
        return TensorType(data.dtype, tuple(dim for dim in data.shape if dim != 1))
    removed = normalize_axes(attrs.axes, rank)
    for axis in removed:
        extent = data.shape[axis]
        require(not provably_different(extent, 1), f"axis {axis} has extent {extent}, not 1")
    return TensorType(data.dtype, tuple(d for i, d in enumerate(data.shape) if i not in removed))


@operator("squeeze", "data axes?", _squeeze_type, kind=Kind.INJECTIVE, work=no_work, on_dims=True)
def _squeeze(attrs: AxesAttrs, data: Array) -> Array:
    """Without these axes of extent 1, or without all of them."""
    return np.squeeze(data, axis=attrs.axes)


@dataclass(frozen=True, slots=True)
class ConcatenateAttrs(Attrs):
    axis: int = 0


def _common_dim(dims: Sequence[AnyDim], axis: int) -> AnyDim:
    """The extent that operands share along an axis, a plain integer where one of them has it."""
    for dim in dims[1:]:
        require_same_dim(dims[0], dim, f"extents of axis {axis}")
    return next((dim for dim in dims if isinstance(dim, int)), dims[0])


def _concatenate_type(attrs: ConcatenateAttrs, *data: TensorType) -> TensorType:
    require(len(data) > 0, "there is nothing to join")
    dtype = same_dtype(*data)
    shapes = [type_.shape for type_ in data if type_.shape is not None]
    if not shapes:
        return TensorType(dtype, None)
    ranks = {len(shape) for shape in shapes}
    require(len(ranks) == 1, f"ranks differ: {sorted(ranks)}")
    rank = ranks.pop()
    axis = normalize_axis(attrs.axis, rank)
    dims = [_common_dim([s[i] for s in shapes], i) if i != axis else 0 for i in range(rank)]
    for type_ in data:
        dims[axis] = dims[axis] + (UNKNOWN if type_.shape is None else type_.shape[axis])
    return TensorType(dtype, tuple(dims))


@operator("concatenate", "*data", _concatenate_type, kind=Kind.INJECTIVE, on_dims=True)
def _concatenate(attrs: ConcatenateAttrs, *data: Array) -> Array:
    """Tensors one behind the other along an axis."""
    return np.concatenate(data, axis=attrs.axis)


@dataclass(frozen=True, slots=True)
class SplitAttrs(Attrs):
    """Parts of these sizes, or `sections` equal parts of which the last may be smaller.

    With sizes, `sections` says how many there are where their operand's type does not.
    """

    axis: int = 0
    sizes: Dims | None = None
    sections: int = 0


def _section_sizes(extent: AnyDim, sections: int) -> list[AnyDim]:
    part = ceildiv(extent, sections)
    last = extent - part * (sections - 1)
    require(not provably_below(last, 0), f"{extent} elements do not make {sections} parts")
    return [part] * (sections - 1) + [last]


def _split_sizes(attrs: SplitAttrs, extent: AnyDim, sizes: TensorType | None) -> list[AnyDim]:
    if attrs.sizes is not None:
        require_same_dim(extent, sum(attrs.sizes), "the extent and the sum of the sizes")
        return list(attrs.sizes)
    if sizes is None:
        require(attrs.sections > 0, "neither sizes nor the number of sections is given")
        return _section_sizes(extent, attrs.sections)
    count = length_of(sizes, "sizes")
    parts = count if isinstance(count, int) else attrs.sections
    require(parts > 0, "the number of parts is unknown")
    return [UNKNOWN] * parts


def _split_type(
    attrs: SplitAttrs, data: TensorType, sizes: TensorType | None
) -> tuple[TensorType, ...]:
    if data.shape is None:
        parts = len(_split_sizes(attrs, UNKNOWN, sizes))
        return (TensorType(data.dtype, None),) * parts
    axis = normalize_axis(attrs.axis, len(data.shape))
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    extents = _split_sizes(attrs, data.shape[axis], sizes)
    return tuple(TensorType(data.dtype, (*before, size, *after)) for size in extents)


@operator("split", "data sizes?", _split_type, kind=Kind.INJECTIVE, outputs=None)
def _split(attrs: SplitAttrs, data: Array) -> tuple[Array, ...]:
    """Slices along an axis, of given sizes or of equal ones."""
    extent = data.shape[attrs.axis]
    extents: Any = _section_sizes(extent, attrs.sections) if attrs.sizes is None else attrs.sizes
    ends = list(accumulate(extents))
    if ends[-1] != extent or min(extents) < 0:
        raise EvaluationError(f"sizes {list(extents)} do not add up to the extent {extent}")
    return tuple(np.split(data, ends[:-1], axis=attrs.axis))


@dataclass(frozen=True, slots=True)
class BroadcastToAttrs(Attrs):
    shape: Dims | None = None


def _broadcast_to_type(
    attrs: BroadcastToAttrs, data: TensorType, shape: TensorType | None
) -> TensorType:
    target = shape_operand(attrs.shape, shape)
    if target is None or data.shape is None:
        return TensorType(data.dtype, target)
    fresh = len(target) - len(data.shape)
    require(fresh >= 0, f"rank {len(data.shape)} does not broadcast to rank {len(target)}")
    dims = list(target)
    for axis, extent in enumerate(data.shape, fresh):
        fits = spreads(extent, dims[axis])
        require(fits, f"extents of axis {axis} differ: {extent} and {dims[axis]}")
        if isinstance(extent, int) and extent != 1:
            dims[axis] = extent
    return TensorType(data.dtype, tuple(dims))


@operator("broadcast_to", "data shape?", _broadcast_to_type, kind=Kind.INJECTIVE, on_dims=True)
def _broadcast_to(attrs: BroadcastToAttrs, data: Array) -> Array:
    """The data repeated along axes of extent 1, as broadcasting with the shape does."""
    extents: Any = attrs.shape
    check_extents(extents, data.dtype, "broadcast_to")
    return np.broadcast_to(data, extents)


@dataclass(frozen=True, slots=True)
class TileAttrs(Attrs):
    reps: Dims | None = None


def _tile_type(attrs: TileAttrs, data: TensorType, reps: TensorType | None) -> TensorType:
    count = len(attrs.reps) if attrs.reps is not None else length_of(reps, "repetitions")
    if data.shape is None:
        return TensorType(data.dtype, unknown_shape(count) if isinstance(count, int) else None)
    rank = len(data.shape)
    require(not provably_different(count, rank), f"{count} repetitions for {rank} axes")
    if attrs.reps is None:
        return TensorType(data.dtype, unknown_shape(rank))
    negative = any(provably_below(repeat, 0) for repeat in attrs.reps)
    require(not negative, f"a negative number of repetitions in {list(attrs.reps)}")
    pairs = zip(shape_of(data), attrs.reps, strict=True)
    return TensorType(data.dtype, tuple(dim * repeat for dim, repeat in pairs))


@operator("tile", "data reps?", _tile_type, kind=Kind.INJECTIVE, on_dims=True)
def _tile(attrs: TileAttrs, data: Array) -> Array:
    """The data repeated along each axis."""
    repeats: Any = attrs.reps
    if len(repeats) != data.ndim or min(repeats, default=0) < 0:
        raise EvaluationError(f"{list(repeats)} are no repetitions for {data.ndim} axes")
    extents = [extent * repeat for extent, repeat in zip(data.shape, repeats, strict=True)]
    check_extents(extents, data.dtype, "tile")
    return np.tile(data, repeats)


# Tensor expressions.


# More operands of unknown extents than this are not joined in one expression: each is a branch.
MOST_PARTS = 3


@te.expresses("reshape", "squeeze", "expand_dims")
def _express_reshape(attrs: Any, out: te.Out, data: Tensor, *_: Tensor | None) -> te.Results:
    """The element with the same number in row-major order."""
    shape = out.shape
    wide_axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    had = [axis for axis, extent in enumerate(te.sizes(data)) if extent != 1]
    same = [shape[axis] for axis in wide_axes] == [te.sizes(data)[axis] for axis in had]

    def element(*indices: Term) -> Term:
        if same:  # only axes of extent 1 come and go
            at: list[te.Index] = [0] * len(data.shape)
            for source, axis in zip(had, wide_axes, strict=True):
                at[source] = indices[axis]
            return te.read(data, at)
        return te.read(data, _renumbered(indices, shape, data))

    return out.of(element)


def _renumbered(indices: te.Indices, shape: te.Extents, data: Tensor) -> list[Term]:
    """Where the data have the element with the same number.

    Runs of axes with equally many elements, as far as extents that are not known show it, need no
    numbers of the axes around them.
    """
    have, result = te.sizes(data), list[Term]()
    if all(map(te.is_known, (*have, *shape))):
        return te.unravelled(te.linear(indices, shape), have)
    last = first = 0
    for end in range(1, len(have) + 1):
        counts = (product(shape[first:stop]) for stop in range(first, len(shape) + 1))
        whole = product(have[last:end])
        stop = next((first + n for n, count in enumerate(counts) if count == whole), None)
        if end == len(have):
            stop = len(shape)
        if stop is not None:
            position = te.linear(indices[first:stop], shape[first:stop])
            result += te.unravelled(position, have[last:end])
            last, first = end, stop
    return result


@te.expresses("transpose")
def _express_transpose(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Axes in another order."""
    rank = len(data.shape)
    order = transpose_order(attrs, rank)

    def element(*indices: Term) -> Term:
        return te.read(data, [indices[order.index(axis)] for axis in range(rank)])

    return out.of(element)


@te.expresses("broadcast_to")
def _express_broadcast_to(attrs: Any, out: te.Out, data: Tensor, *_: Tensor | None) -> te.Results:
    """The element that NumPy's broadcasting puts there."""
    return out.of(lambda *indices: te.spread(data, indices, out.shape))


@te.expresses("concatenate")
def _express_concatenate(attrs: Any, out: te.Out, *data: Tensor) -> te.Results:
    """One operand after the other along an axis."""
    axis = normalize_axis(attrs.axis, len(data[0].shape))
    parts = [one for one in data if te.sizes(one)[axis] != 0] or data[:1]
    starts: list[AnyDim] = [0, *accumulate(te.sizes(part)[axis] for part in parts)]
    if len(parts) > MOST_PARTS and not all(isinstance(start, int) for start in starts):
        return te.Unexpressed("too many pieces of unknown sizes, each a branch of its own")

    def element(*indices: Term) -> Term:
        def of(part: int) -> Term:
            moved = list(indices)
            moved[axis] = indices[axis] - starts[part]
            return te.read(parts[part], moved)

        value = of(len(parts) - 1)
        for part in reversed(range(len(parts) - 1)):
            value = select(indices[axis] < starts[part + 1], of(part), value)
        return value

    return out.of(element)


@te.expresses("split")
def _express_split(attrs: Any, out: te.Out, data: Tensor, *_: Tensor | None) -> te.Results:
    """Slices along an axis, as long as the types of the results."""
    axis = normalize_axis(attrs.axis, len(data.shape))
    lengths = [te.extents_of(type_)[axis] for type_ in out.types]
    starts: list[AnyDim] = [0, *accumulate(lengths)]

    def part(number: int, start: AnyDim) -> Tensor:
        def element(*indices: Term) -> Term:
            return te.read(data, [*indices[:axis], indices[axis] + start, *indices[axis + 1 :]])

        name = f"{out.name}_{number}" if number else out.name
        return te.by_index(name, te.extents_of(out.types[number]), element)

    return tuple(part(number, start) for number, start in enumerate(starts[:-1]))


@te.expresses("tile")
def _express_tile(attrs: Any, out: te.Out, data: Tensor, *_: Tensor | None) -> te.Results:
    """The data again and again along each axis."""

    def element(*indices: Term) -> Term:
        pairs = zip(indices, te.sizes(data), out.shape, strict=True)
        return te.read(data, [i if have == want else i % have for i, have, want in pairs])

    return out.of(element)
