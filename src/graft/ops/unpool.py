"""The partial inverse of max pooling: values go back to where they were the largest.

Values [batch, channels, ...] and their indices into the flattened result enter; a larger tensor
leaves that is zero everywhere else.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.ir.op import Kind, define, movement_work
from graft.ir.types import Shape, TensorType
from graft.ops.pool import PoolAttrs
from graft.ops.rules import require, require_same_dim
from graft.ops.window import RANKS, check_kernel, check_window, for_rank, ranked_shape, reach


def _result_shape(attrs: PoolAttrs, shape: Shape) -> Shape:
    """The smallest shape that, pooled, has the given one."""
    rank = len(attrs.strides)
    pads, extents = attrs.padding, shape[2:]
    return (
        *shape[:2],
        *(
            (extents[axis] - 1) * attrs.strides[axis]
            + reach(attrs.pool_size[axis], attrs.dilation[axis])
            - pads[axis]
            - pads[rank + axis]
            for axis in range(rank)
        ),
    )


def _max_unpool_type(attrs: PoolAttrs, data: TensorType, indices: TensorType) -> TensorType:
    rank = len(attrs.pool_size)
    require(indices.dtype is DType.INT64, f"the indices are {indices.dtype}, not int64")
    check_window(attrs, rank)
    check_kernel(attrs.pool_size)
    shape = ranked_shape(data, rank + 2, "the data")
    for dim, other in zip(shape, ranked_shape(indices, rank + 2, "the indices"), strict=True):
        require_same_dim(dim, other, "extents of the data and the indices")
    result = _result_shape(attrs, shape)
    negative = any(isinstance(dim, int) and dim < 0 for dim in result)
    require(not negative, f"the padding {list(attrs.padding)} is larger than the result")
    return TensorType(data.dtype, result)


def _max_unpool(attrs: PoolAttrs, data: Array, indices: Array) -> Array:
    shape: Any = _result_shape(attrs, data.shape)
    size = math.prod(shape)
    outside = (indices < 0) | (indices >= size)
    if outside.any():
        raise EvaluationError(f"nn.max_unpool: index {indices[outside][0]} is not below {size}")
    result = np.zeros(size, data.dtype)
    result[indices.reshape(-1)] = data.reshape(-1)
    return result.reshape(shape)


for _rank in RANKS:
    define(
        f"nn.max_unpool{_rank}d",
        "data indices",
        _max_unpool_type,
        _max_unpool,
        attrs=for_rank(PoolAttrs, _rank),
        kind=Kind.OPAQUE,
        work=movement_work,
        summary="puts values at their indices in a larger tensor of zeros",
    )
