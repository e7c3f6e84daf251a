"""Writing elements at positions that are data: a changed copy of a tensor leaves.

Positions count from the end where negative; one outside the tensor is an `EvaluationError`. Where
several updates meet one element without a reduction, the last one stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_different
from graft.base.dims import UNKNOWN, Unknown, at_least
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs
from graft.ir.graph import Node
from graft.ir.op import Work, movement_work, traffic
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term, cast, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.index import (
    AxisAttrs,
    check_indices,
    positions_along,
    positions_of_tuples,
    require_inside,
    require_integers,
    tuple_length,
)
from graft.ops.index_bounds import IndexBounds, along_axis, bounds_of, by_tuples
from graft.ops.reduce import accumulator_of
from graft.ops.rules import normalize_axis, operator, require, require_same_dim, same_dtype
from graft.program.guards import Guard

# How updates that meet an element combine with it; without a function they replace it.
_REDUCTIONS: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _scatter_work(_attrs: Any, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """The tensor is copied; each update is read and combined once."""
    return Work(0, ins[2].size, traffic(ins, outs))


def _require_reduction(reduction: str, dtype: DType) -> None:
    require(reduction in _REDUCTIONS, f"reduction is '{reduction}', not {', '.join(_REDUCTIONS)}")
    fits = reduction == "none" or dtype is not DType.STRING
    require(fits, f"strings do not combine by '{reduction}'")


def _scattered(data: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """A copy of the data with the updates at `where`, which names the leading axes."""
    combine: Any = _REDUCTIONS[reduction]
    if combine is None:
        result = data.copy()
        result[where] = updates
        return result
    # NumPy combines fast at one-dimensional positions only.
    block = math.prod(data.shape[len(where) :])
    flat: Array = np.zeros((), np.int64)
    for extent, index in zip(data.shape, where, strict=False):
        flat = flat * extent + index
    flat = (flat[..., np.newaxis] * block + np.arange(block)).reshape(-1)
    wide = accumulator_of(data.dtype)
    result = np.array(data, dtype=wide, order="C")
    combine.at(result.reshape(-1), flat, updates.astype(wide, copy=False).reshape(-1))
    return result.astype(data.dtype, copy=False)


@dataclass(frozen=True, slots=True)
class ScatterElementsAttrs(AxisAttrs):
    reduction: str = "none"


def _scatter_elements_type(
    attrs: ScatterElementsAttrs, data: TensorType, indices: TensorType, updates: TensorType
) -> TensorType:
    require_integers(indices)
    _require_reduction(attrs.reduction, same_dtype(data, updates))
    require_inside(attrs, data, indices)
    _require_shape(updates, indices.shape)
    return data


def _require_shape(updates: TensorType, expected: Shape | None) -> None:
    if updates.shape is None or expected is None:
        return
    fits = len(updates.shape) == len(expected) and not any(
        provably_different(a, b) for a, b in zip(updates.shape, expected, strict=True)
    )
    require(
        fits, f"the updates are {updates}, but {TensorType(updates.dtype, expected)} are wanted"
    )


def _check_shape(updates: Array, expected: tuple[int, ...]) -> None:
    if updates.shape != expected:
        raise EvaluationError(f"the updates have shape {updates.shape}, not {expected}")


@operator(
    "scatter_elements",
    "data indices updates",
    _scatter_elements_type,
    work=_scatter_work,
    index_bounds=along_axis,
)
def _scatter_elements(
    attrs: ScatterElementsAttrs, data: Array, indices: Array, updates: Array
) -> Array:
    """A copy with elements written, added or the like at indices along an axis."""
    _check_shape(updates, indices.shape)
    return _scattered(data, positions_along(attrs.axis, data, indices), updates, attrs.reduction)


@dataclass(frozen=True, slots=True)
class ScatterNdAttrs(Attrs):
    reduction: str = "none"


def _scatter_nd_type(
    attrs: ScatterNdAttrs, data: TensorType, indices: TensorType, updates: TensorType
) -> TensorType:
    _require_reduction(attrs.reduction, same_dtype(data, updates))
    length = tuple_length(data, indices, 0)
    if length is not None and data.shape is not None and indices.shape is not None:
        _require_shape(updates, (*indices.shape[:-1], *data.shape[length:]))
    return data


@operator(
    "scatter_nd",
    "data indices updates",
    _scatter_nd_type,
    work=_scatter_work,
    index_bounds=by_tuples,
)
def _scatter_nd(attrs: ScatterNdAttrs, data: Array, indices: Array, updates: Array) -> Array:
    """A copy with slices written, added or the like at tuples of indices."""
    where = positions_of_tuples(data, indices, 0)
    _check_shape(updates, (*indices.shape[:-1], *data.shape[len(where) :]))
    return _scattered(data, where, updates, attrs.reduction)


@dataclass(frozen=True, slots=True)
class TensorScatterAttrs(Attrs):
    axis: int = -2
    mode: str = "linear"


def _tensor_scatter_type(
    attrs: TensorScatterAttrs, data: TensorType, update: TensorType, start: TensorType | None
) -> TensorType:
    require(attrs.mode in ("linear", "circular"), f"mode is '{attrs.mode}'")
    same_dtype(data, update)
    if start is not None:
        require_integers(start)
        require(start.rank in (None, 1), f"there is one write index per batch, not {start}")
    if data.shape is None:
        return data
    axis = normalize_axis(attrs.axis, len(data.shape))
    require(axis > 0, "axis 0 is the batch and cannot be the one to write along")
    if update.shape is not None:
        extent = update.shape[axis] if len(update.shape) == len(data.shape) else UNKNOWN
        _require_shape(update, (*data.shape[:axis], extent, *data.shape[axis + 1 :]))
    if start is not None and start.shape is not None:
        require_same_dim(start.shape[0], data.shape[0], "number of write indices and batch")
    return data


def _from_starts(node: Node) -> IndexBounds | None:
    """Where an update begins along an axis; all of it has to lie inside."""
    if node.attrs.mode != "linear" or len(node.args) < 3:
        return None
    axis = node.attrs.axis % len(node.args[0].shape or (0,))
    count = (node.args[1].shape or (0,))[axis]
    if isinstance(count, Unknown) or count == 0:
        return None
    return bounds_of(node, node.args[2], [axis], count=count, wraps=False)


@operator(
    "tensor_scatter",
    "data update write_indices?",
    _tensor_scatter_type,
    work=movement_work,
    index_bounds=_from_starts,
)
def _tensor_scatter(
    attrs: TensorScatterAttrs, data: Array, update: Array, start: Array | None
) -> Array:
    """A copy with updates written along an axis from an index per batch on, as caches are."""
    axis = attrs.axis % data.ndim
    extent, count = data.shape[axis], update.shape[axis]
    _check_shape(update, (*data.shape[:axis], count, *data.shape[axis + 1 :]))
    first = np.zeros(data.shape[0], np.int64) if start is None else start
    where = first[:, np.newaxis] + np.arange(count)
    if attrs.mode == "circular":
        where = where % max(extent, 1)
    else:
        check_indices(first, Guard(axis, extent, count, wraps=False))
    result = data.copy()
    batch = np.arange(data.shape[0])[:, np.newaxis]
    np.moveaxis(result, axis, 1)[batch, where] = np.moveaxis(update, axis, 1)
    return result


# Tensor expressions.


@te.expresses("tensor_scatter")
def _express_tensor_scatter(
    attrs: Any, out: te.Out, data: Tensor, update: Tensor, start: Tensor | None
) -> te.Results:
    """A part of an axis replaced, from an index per batch on; a circular one goes on in front."""
    axis = normalize_axis(attrs.axis, len(data.shape))
    extent, count = te.sizes(data)[axis], te.sizes(update)[axis]
    if not at_least(extent, count):
        return te.Unexpressed("whether there is room for all is known only at run time")
    if count == 0:
        return out.of(lambda *at: te.read(data, at))

    def element(*at: Term) -> Term:
        first = term(0) if start is None else cast(INDEX, te.read(start, [at[0]]))
        position = at[axis] - first
        if attrs.mode == "circular":
            position = position % extent
        inside = (position >= 0) & (position < count)
        bounded = te.clamped(position, count)
        new_value = te.read(update, [*at[:axis], bounded, *at[axis + 1 :]])
        return select(inside, new_value, te.read(data, at))

    return out.of(element)
