"""Reading elements at positions that are data, and positions as one-hot vectors.

Positions count from the end where negative. One that lies outside the tensor is an
`EvaluationError`, never a silent read. Shapes and index tuples are laid out as in ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dim_questions import provably_below, provably_different
from graft.base.dims import UNKNOWN, AnyDim, Dim
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs
from graft.ir.op import Kind
from graft.ir.types import TensorType
from graft.loop.build import Term, cast, equal, minimum, select, term
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.index_bounds import along_axis, by_tuples
from graft.ops.rules import (
    normalize_axis,
    operator,
    require,
    require_same_dim,
)
from graft.program.guards import INSIDE, Guard


@dataclass(frozen=True, slots=True)
class AxisAttrs(Attrs):
    axis: int = 0


def require_integers(indices: TensorType) -> None:
    require(indices.dtype.is_integer, f"the indices are {indices.dtype}, not integers")


def positions(indices: Array, extent: int, axis: int) -> Array:
    """Indices counted from the front, or an error that names one out of range."""
    numbers = indices.astype(np.int64, copy=False)
    check_indices(numbers, Guard(axis, extent))
    return np.where(numbers < 0, numbers + extent, numbers)


def check_indices(indices: Array, guard: Guard) -> None:
    """Refuse indices outside of the axis that a guard names."""
    worst = largest_outside(indices, guard)
    if worst != INSIDE:
        raise guard.refusal(worst)


def largest_outside(indices: Array, guard: Guard) -> int:
    """The largest of the indices that do not lie in an axis; INSIDE where there is none."""
    extent: Any = guard.extent
    count: Any = guard.count
    low, high = -extent if guard.wraps else 0, extent - count
    outside = indices[(indices < low) | (indices > high)] if count else indices[:0]
    return max(int(outside.max()), INSIDE + 1) if outside.size else INSIDE


def _take_type(attrs: AxisAttrs, data: TensorType, indices: TensorType) -> TensorType:
    require_integers(indices)
    if data.shape is None or indices.shape is None:
        return TensorType(data.dtype, None)
    axis = normalize_axis(attrs.axis, len(data.shape))
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    return TensorType(data.dtype, shape)


@operator(
    "take", "data indices", _take_type, kind=Kind.INJECTIVE, on_dims=True, index_bounds=along_axis
)
def _take(attrs: AxisAttrs, data: Array, indices: Array) -> Array:
    """Slices along an axis, by indices of any shape (NumPy's take)."""
    axis = attrs.axis % data.ndim
    return np.take(data, positions(indices, data.shape[axis], axis), axis=axis)


def _gather_type(attrs: AxisAttrs, data: TensorType, indices: TensorType) -> TensorType:
    require_integers(indices)
    require_inside(attrs, data, indices)
    return TensorType(data.dtype, indices.shape)


def require_inside(attrs: AxisAttrs, data: TensorType, indices: TensorType) -> None:
    """Refuse indices of another rank than the data, or that reach further along other axes."""
    if data.shape is None or indices.shape is None:
        return
    rank = len(data.shape)
    same = len(indices.shape) == rank
    require(same, f"the indices have rank {len(indices.shape)}, the data {rank}")
    axis = normalize_axis(attrs.axis, rank)
    for i, (have, want) in enumerate(zip(data.shape, indices.shape, strict=True)):
        fits = i == axis or not provably_below(have, want)
        require(fits, f"the indices reach to {want} along axis {i}, the data only to {have}")


def positions_along(axis: int, data: Array, indices: Array) -> tuple[Array, ...]:
    """Where each entry of `indices` points: its own place, with `axis` taken from its value."""
    if indices.ndim != data.ndim or not data.ndim:
        raise EvaluationError(f"the indices have rank {indices.ndim}, the data {data.ndim}")
    axis %= data.ndim
    for i, (have, want) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if i != axis and want > have:
            raise EvaluationError(
                f"the indices reach to {want} along axis {i}, the data only to {have}"
            )
    where: list[Array] = list(np.ogrid[tuple(slice(extent) for extent in indices.shape)])
    where[axis] = positions(indices, data.shape[axis], axis)
    return tuple(where)


@operator("gather", "data indices", _gather_type, kind=Kind.INJECTIVE, index_bounds=along_axis)
def _gather(attrs: AxisAttrs, data: Array, indices: Array) -> Array:
    """Per element of the indices the element at that index along an axis (take_along_axis)."""
    return np.asarray(data[positions_along(attrs.axis, data, indices)])


@dataclass(frozen=True, slots=True)
class GatherNdAttrs(Attrs):
    batch_dims: int = 0


def tuple_length(data: TensorType, indices: TensorType, batch: int) -> int | None:
    """How many axes one position names; None where it is not known."""
    require_integers(indices)
    if indices.shape is None:
        return None
    require(len(indices.shape) > batch, f"the indices have rank {len(indices.shape)}")
    length = indices.shape[-1]
    if not isinstance(length, int):
        return None
    rank = len(data.shape) - batch if data.shape is not None else length
    require(1 <= length <= rank, f"the indices name {length} axes, but there are {rank}")
    return length


def _gather_nd_type(attrs: GatherNdAttrs, data: TensorType, indices: TensorType) -> TensorType:
    batch = attrs.batch_dims
    require(batch >= 0, f"batch_dims is {batch}")
    length = tuple_length(data, indices, batch)
    if data.shape is None or indices.shape is None:
        return TensorType(data.dtype, None)
    for have, want in zip(data.shape[:batch], indices.shape[:batch], strict=True):
        require_same_dim(have, want, "batch extents")
    if length is None:
        return TensorType(data.dtype, None)
    return TensorType(data.dtype, (*indices.shape[:-1], *data.shape[batch + length :]))


def positions_of_tuples(data: Array, indices: Array, batch: int) -> tuple[Array, ...]:
    """Index tuples as NumPy takes them: one array per axis, the batch axes included."""
    outer, rank = indices.shape[:-1], data.ndim - batch
    if not indices.ndim or not 1 <= indices.shape[-1] <= rank:
        raise EvaluationError(f"indices of shape {indices.shape} do not name 1 to {rank} axes")
    if data.shape[:batch] != outer[:batch]:
        raise EvaluationError(f"batch extents differ: {data.shape[:batch]} and {outer[:batch]}")
    grid: list[Array] = list(np.ogrid[tuple(slice(extent) for extent in outer)])[:batch]
    for i in range(indices.shape[-1]):
        axis = batch + i
        grid.append(positions(indices[..., i], data.shape[axis], axis))
    return tuple(grid)


@operator("gather_nd", "data indices", _gather_nd_type, kind=Kind.INJECTIVE, index_bounds=by_tuples)
def _gather_nd(attrs: GatherNdAttrs, data: Array, indices: Array) -> Array:
    """Slices by tuples of indices, which lie along the indices' last axis."""
    return np.asarray(data[positions_of_tuples(data, indices, attrs.batch_dims)])


@dataclass(frozen=True, slots=True)
class OneHotAttrs(Attrs):
    depth: Dim | None = None
    axis: int = -1


def _one_hot_type(
    attrs: OneHotAttrs, indices: TensorType, values: TensorType, depth: TensorType | None
) -> TensorType:
    require_integers(indices)
    pair = values.rank in (None, 1) and not provably_different(values.size, 2)
    require(pair, f"the values are {values}, not a pair [off, on]")
    require(attrs.depth is not None or depth is not None, "the depth is missing")
    if indices.shape is None:
        return TensorType(values.dtype, None)
    extent: AnyDim = UNKNOWN if attrs.depth is None else attrs.depth
    require(not provably_below(extent, 0), f"the depth is {extent}")
    axis = normalize_axis(attrs.axis, len(indices.shape) + 1)
    return TensorType(values.dtype, (*indices.shape[:axis], extent, *indices.shape[axis:]))


@operator("one_hot", "indices values depth?", _one_hot_type, kind=Kind.INJECTIVE)
def _one_hot(attrs: OneHotAttrs, indices: Array, values: Array) -> Array:
    """Vectors along a new axis with one value at an index and another everywhere else."""
    extent: Any = attrs.depth
    if extent < 0:
        raise EvaluationError(f"the depth is {extent}")
    check_extents((*indices.shape, extent), values.dtype, "one_hot")
    if indices.dtype.kind == "u":
        indices = np.minimum(indices.astype(np.uint64), extent)  # beyond the depth is no position
    targets = np.expand_dims(indices.astype(np.int64), attrs.axis)
    targets = np.where(targets < 0, targets + extent, targets)
    axis = attrs.axis % targets.ndim
    classes = np.arange(extent).reshape(-1, *[1] * (targets.ndim - 1 - axis))
    return np.asarray(np.where(targets == classes, values[1], values[0]))


# Tensor expressions. Positions count from the end where negative. One that lies outside reads the
# nearest element, since a loop cannot raise an error; nothing is read that is not there.
# `out_of_range` reports them.


def _position(indices: Tensor, at: list[Term], extent: AnyDim) -> Term:
    """The coordinate along an axis that an element of `indices` gives, clamped to the axis."""
    position = cast(DType.INT64, te.read(indices, at))
    if not indices.dtype.is_unsigned_integer:
        position = select(position < 0, position + extent, position)
    return te.clamped(position, extent)


def _is_empty(data: Tensor, types: te.Types) -> bool:
    """Whether the result has elements though the data have none, which is an error."""
    return 0 in te.sizes(data) and 0 not in te.extents_of(types[0])


@te.expresses("take")
def _express_take(attrs: Any, out: te.Out, data: Tensor, indices: Tensor) -> te.Results:
    """Whole slices along an axis."""
    axis = normalize_axis(attrs.axis, len(data.shape))
    if _is_empty(data, out.types):
        return te.Unexpressed("there is nothing to take")
    count, extent = len(indices.shape), te.sizes(data)[axis]

    def element(*at: Term) -> Term:
        position = _position(indices, list(at[axis : axis + count]), extent)
        return te.unless_empty(data, te.read(data, [*at[:axis], position, *at[axis + count :]]))

    return out.of(element)


@te.expresses("gather")
def _express_gather(attrs: Any, out: te.Out, data: Tensor, indices: Tensor) -> te.Results:
    """One element per index, at the index's own place but for one axis."""
    axis = normalize_axis(attrs.axis, len(data.shape))
    if _is_empty(data, out.types):
        return te.Unexpressed("there is nothing to gather")
    extent = te.sizes(data)[axis]

    def element(*at: Term) -> Term:
        position = _position(indices, list(at), extent)
        return te.unless_empty(data, te.read(data, [*at[:axis], position, *at[axis + 1 :]]))

    return out.of(element)


@te.expresses("gather_nd")
def _express_gather_nd(attrs: Any, out: te.Out, data: Tensor, indices: Tensor) -> te.Results:
    """Slices at tuples of indices."""
    batch, shape = attrs.batch_dims, te.sizes(data)
    if _is_empty(data, out.types):
        return te.Unexpressed("there is nothing to gather")
    count = len(indices.shape) - 1
    (named,) = te.numbers(te.sizes(indices)[-1:], "how many axes the positions name")

    def element(*at: Term) -> Term:
        coordinates = [
            _position(indices, [*at[:count], term(entry)], shape[batch + entry])
            for entry in range(named)
        ]
        return te.unless_empty(data, te.read(data, [*at[:batch], *coordinates, *at[count:]]))

    return out.of(element)


@te.expresses("one_hot")
def _express_one_hot(
    attrs: Any, out: te.Out, indices_: Tensor, values: Tensor, *_: Tensor | None
) -> te.Results:
    """The second value where an index equals the coordinate along the new axis, else the first."""
    axis = normalize_axis(attrs.axis, len(indices_.shape) + 1)
    depth = out.shape[axis]

    def element(*indices: Term) -> Term:
        index = te.read(indices_, [*indices[:axis], *indices[axis + 1 :]])
        if index.dtype.is_unsigned_integer and index.dtype.bits == 64:
            index = minimum(index, cast(index.dtype, depth))  # one beyond the depth matches nothing
        target = cast(indices[0].dtype, index)
        target = select(target < 0, target + depth, target)
        return select(equal(target, indices[axis]), values[1], values[0])

    return out.of(element)
