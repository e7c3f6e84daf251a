"""Products of bytes that are both data: sums of what processors multiply, and what is to be added.

Two tensors of bytes and their zero points enter. Processors multiply unsigned bytes by signed ones,
so that signed ones count as more than they are on the left, and unsigned ones as less on the right.
That and the zero points come off again as multiples of the sums of rows and columns, of which there
are few beside the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from graft.backends.host.kernels.integer_weights import QUAD
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.ir.types import TensorType
from graft.ops.integer import BYTES, HALF
from graft.rewrite.driver import Site

Offset = int | Value  # a number, or one of int32 without axes


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes, and what they are counted from."""

    value: Value
    zero: Offset = 0
    is_turned: bool = False  # whether the last two axes are to be exchanged


def centred_bytes(site: Site, value: Value) -> Bytes | None:
    """What a value in int32 is: bytes, less a single number or nothing."""
    node = site.producer(value)
    if node is None:
        return None
    if node.op.name == "cast" and node.args[0].dtype in BYTES:
        return Bytes(node.args[0])
    if node.op.name != "subtract":
        return None
    data, zero = (site.producer(one) for one in node.args)
    if data is None or data.op.name != "cast" or data.args[0].dtype not in BYTES:
        return None
    if node.output.shape != data.output.shape:
        return None
    zero_point = site.array(node.args[1])
    if zero_point is not None:
        return Bytes(data.args[0], int(zero_point.reshape(-1)[0])) if zero_point.size == 1 else None
    shape = node.args[1].shape
    if zero is None or shape is None or any(dim != 1 for dim in shape):
        return None
    single = node.args[1]
    if shape:
        single = site.emit("squeeze", single, axes=tuple(range(len(shape))))
    return Bytes(data.args[0], single)


def are_known(*values: Value) -> bool:
    """Whether all extents are numbers, and none is zero."""
    types = [value.type for value in values]
    return all(
        isinstance(type_, TensorType) and type_.is_static and 0 not in (type_.shape or ())
        for type_ in types
    )


def turned_back(site: Site, right: Bytes) -> Bytes:
    """A matrix before its last two axes were exchanged: rows of four bytes then are words."""
    node = site.producer(right.value)
    rank = right.value.tensor.rank
    if node is None or node.op.name != "transpose" or rank is None:
        return right
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    is_swapped = tuple(node.attrs.axes or reversed(range(rank))) == swapped
    return Bytes(node.args[0], right.zero, True) if is_swapped else right


def byte_product(site: Site, left: Bytes, right: Bytes) -> Value:
    """The products of matrices [..., rows, depth] and [..., depth, columns], in int32."""
    more = HALF if left.value.dtype is DType.INT8 else 0
    less = HALF if right.value.dtype is DType.UINT8 else 0
    depth = -1 if right.is_turned else -2
    operands = in_fours(site, left.value, -1, 0), in_fours(site, right.value, depth, less)
    sums = site.emit("qnn.batch_matmul", *operands, transpose_b=right.is_turned)
    above, below = _plus(site, left.zero, more), _plus(site, right.zero, -less)
    if below != 0:
        rows = _plus(site, _wide(site, left.value), more)
        sums = _less(site, sums, _total(site, _times(site, rows, below), -1))
    if above != 0:
        columns = right.value
        if right.is_turned:  # before the sum, so that what follows it has the products' shape
            rank = len(columns.shape or ())
            columns = site.emit("expand_dims", columns, axes=(rank - 2,))
        columns = _wide(site, columns)
        if right.zero != 0:
            columns = _less(site, columns, _known(site, right.zero))
        scaled = _times(site, columns, above)
        sums = _less(site, sums, _total(site, scaled, depth, keepdims=not right.is_turned))
    return sums


def in_fours(site: Site, value: Value, axis: int, fill: int) -> Value:
    """Bytes that count for nothing at the end of an axis, so that there are fours of them."""
    shape = value.shape or ()
    extent = shape[axis]
    assert isinstance(extent, int)
    if extent % QUAD == 0:
        return value
    rank = len(shape)
    widths = [0] * (2 * rank)
    widths[rank + axis % rank] = -extent % QUAD
    padding = site.constant(np.array(fill, value.dtype.numpy))
    return site.emit("nn.pad", value, padding, pad_width=tuple(widths))


def _wide(site: Site, value: Value) -> Value:
    return site.emit("cast", value, dtype=DType.INT32)


def _total(site: Site, value: Value, axis: int, keepdims: bool = True) -> Value:
    """The sum; what it is multiplied by has been before, so that what follows the products has
    their shape and runs with them."""
    return site.emit("sum", value, axes=(axis,), keepdims=keepdims)


def _known(site: Site, offset: Offset) -> Value:
    return offset if isinstance(offset, Value) else site.constant(np.int32(offset))


T = TypeVar("T", Offset, Value)


def _plus(site: Site, value: T, number: int) -> T:
    if isinstance(value, int):
        return value + number
    return site.emit("add", value, site.constant(np.int32(number))) if number else value


def _times(site: Site, value: Value, factor: Offset) -> Value:
    return site.emit("multiply", value, _known(site, factor))


def _less(site: Site, value: Value, other: Value) -> Value:
    return site.emit("subtract", value, other)
