"""Feature preparation: looking labels up, and maps to and from tensors.

A map is a `dict` at run time. As a tensor it is a row, `[1, columns]`: a batch of one sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs
from graft.ir.graph import Node
from graft.ir.literal import Literal
from graft.ir.op import Kind, movement_work
from graft.ir.types import MapType, SequenceType, TensorType, Type
from graft.loop.build import Term, cast, equal, maximum, minimum, select
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops.index_bounds import IndexBounds
from graft.ops.rules import operator, require, require_same_dim


@dataclass(frozen=True, slots=True)
class LabelMapAttrs(Attrs):
    """Keys and what each becomes; of equal keys the last counts, and NaN equals NaN.

    `default` is for elements that are no key; without it they are an error.
    """

    keys: Literal
    values: Literal
    default: Literal | None = None


def _label_map_type(attrs: LabelMapAttrs, data: TensorType) -> TensorType:
    keys, values, default = attrs.keys.type, attrs.values.type, attrs.default
    require(keys.rank == 1, f"the keys are {keys}, not a list")
    require(values.shape == keys.shape, f"there are {keys.size} keys but {values.size} values")
    require(data.dtype == keys.dtype, f"keys of {keys.dtype} do not fit {data.dtype} elements")
    if default is not None:
        fits = default.type.dtype == values.dtype and default.type.size == 1
        require(fits, f"the default is {default.type}, not one {values.dtype}")
    return TensorType(values.dtype, data.shape)


def _find(keys: Array, data: Array) -> Array:
    """The position of each element among the keys; -1 where it is none of them."""
    if keys.dtype == object or not keys.size:
        positions = {key: at for at, key in enumerate(keys.tolist())}
        result = [positions.get(item, -1) for item in data.reshape(-1).tolist()]
        return np.array(result, np.int64).reshape(data.shape)
    distinct, first = np.unique(keys[::-1], return_index=True)
    at = np.minimum(np.searchsorted(distinct, data), len(distinct) - 1)
    same = (distinct[at] == data) | ((distinct[at] != distinct[at]) & (data != data))
    return np.asarray(np.where(same, len(keys) - 1 - first[at], -1))


def unknown_of(attrs: LabelMapAttrs) -> Array | None:
    """What code that cannot raise errors makes of an element that is no key.

    Without a default it is the number behind the last value, where the values are positions, so
    that whoever looks at the result sees the mistake; elsewhere there is no such value.
    """
    values = attrs.values.array
    if attrs.default is not None:
        return attrs.default.array.reshape(())
    positions = values.dtype.kind == "i" and np.array_equal(values, np.arange(values.size))
    return np.array(values.size, values.dtype) if positions else None


def _among_keys(node: Node) -> IndexBounds | None:
    """The result of a lookup without a default, where unknown elements get the index behind all."""
    attrs = node.attrs
    if attrs.default is not None or unknown_of(attrs) is None:
        return None
    count = attrs.keys.array.size
    message = f"an element is not one of the {count} categories"
    return IndexBounds(node.output, (0,), (count,), wraps=False, message=message)


@operator(
    "ml.label_map",
    "data",
    _label_map_type,
    kind=Kind.ELEMENTWISE,
    work=movement_work,
    index_bounds=_among_keys,
)
def _label_map(attrs: LabelMapAttrs, data: Array) -> Array:
    """Each element looked up in a table of keys and values."""
    at = _find(attrs.keys.array, data)
    if attrs.default is None:
        unknown = data[at < 0]
        if unknown.size:
            raise EvaluationError(f"{unknown.reshape(-1)[0]!r} is not one of the categories")
        return np.asarray(attrs.values.array[at])
    choices = np.append(attrs.values.array, attrs.default.array.reshape(1))
    return np.asarray(choices[at])  # -1 is the default, at the end


def _value_dtype(map_: Type, keys: DType) -> DType:
    """The dtype of a map's values; the keys have to be of the given dtype."""
    if not isinstance(map_, MapType):
        require(False, f"wants a map, not {map_}")
    assert isinstance(map_, MapType)
    require(map_.key == keys, f"wants {keys} keys, not {map_.key}")
    require(isinstance(map_.value, TensorType), f"the map's values are {map_.value}")
    assert isinstance(map_.value, TensorType)
    return map_.value.dtype


def _row(items: list[Any], dtype: DType) -> Array:
    """Scalars, which may come as arrays of one element, as a row."""
    plain = [item.item() if isinstance(item, np.ndarray) else item for item in items]
    return np.array(plain, dtype.numpy).reshape(1, len(plain))


@dataclass(frozen=True, slots=True)
class MapToTensorAttrs(Attrs):
    """`length` None: the values by ascending key; else each value in the column of its key.

    Columns that the map has no key for are zero, or `fill` where the values are strings.
    """

    dtype: DType
    length: int | None = None
    fill: str = ""


def _map_to_tensor_type(attrs: MapToTensorAttrs, data: Type) -> TensorType:
    dtype = _value_dtype(data, DType.INT64)
    require(dtype == attrs.dtype, f"the map's values are {dtype}, not {attrs.dtype}")
    length = attrs.length
    require(length is None or length > 0, f"the length is {length}")
    return TensorType(dtype, (1, UNKNOWN if length is None else length))


@operator("ml.map_to_tensor", "data", _map_to_tensor_type, tensors_only=False)
def _map_to_tensor(attrs: MapToTensorAttrs, data: dict[int, Any]) -> Array:
    """A map's values in the order of its keys, as a row."""
    if attrs.length is None:
        return _row([data[key] for key in sorted(data)], attrs.dtype)
    beyond = [key for key in data if not 0 <= key < attrs.length]
    if beyond:
        raise EvaluationError(f"the key {beyond[0]} is no column of {attrs.length}")
    missing = attrs.fill if attrs.dtype is DType.STRING else 0
    return _row([data.get(key, missing) for key in range(attrs.length)], attrs.dtype)


@dataclass(frozen=True, slots=True)
class DictVectorizeAttrs(Attrs):
    """The key of each column; keys of the map that have no column are left out."""

    vocabulary: Literal
    dtype: DType


def _dict_vectorize_type(attrs: DictVectorizeAttrs, data: Type) -> TensorType:
    vocabulary = attrs.vocabulary.type
    require(vocabulary.rank == 1, f"the vocabulary is {vocabulary}, not a list")
    dtype = _value_dtype(data, vocabulary.dtype)
    require(dtype == attrs.dtype, f"the map's values are {dtype}, not {attrs.dtype}")
    return TensorType(dtype, (1, vocabulary.size))


@operator("ml.dict_vectorize", "data", _dict_vectorize_type, tensors_only=False)
def _dict_vectorize(attrs: DictVectorizeAttrs, data: dict[Any, Any]) -> Array:
    """A map's values as a row, in the order of a vocabulary."""
    missing = "" if attrs.dtype is DType.STRING else 0
    items = [data.get(key, missing) for key in attrs.vocabulary.array.tolist()]
    return _row(items, attrs.dtype)


@dataclass(frozen=True, slots=True)
class ZipMapAttrs(Attrs):
    """The key of each column."""

    labels: Literal


def _zip_map_type(attrs: ZipMapAttrs, data: TensorType) -> SequenceType:
    labels = attrs.labels.type
    require(labels.rank == 1, f"the labels are {labels}, not a list")
    if data.shape is not None:
        require(len(data.shape) in (1, 2), "wants a tensor of shape [labels] or [rows, labels]")
        require_same_dim(data.shape[-1], labels.size, "the numbers of columns and of labels")
    return SequenceType(MapType(labels.dtype, TensorType(data.dtype, ())))


@operator("ml.zip_map", "data", _zip_map_type)
def _zip_map(attrs: ZipMapAttrs, data: Array) -> list[dict[Any, Any]]:
    """Each row as a map from labels to its elements."""
    labels = attrs.labels.array.tolist()
    rows = data if data.ndim == 2 else data[np.newaxis]
    return [dict(zip(labels, row, strict=True)) for row in rows.tolist()]


# Tensor expression of `ml.label_map`, whose keys are part of the code. Integers that lie close
# together index a table. Others are counted down to their place among the sorted keys: first among
# every b-th key, then among the b keys from there on, so that n keys take about 2 sqrt(n)
# comparisons without a branch between them.


# A table may have so many entries, or so many per key.
_ENTRIES, _ENTRIES_PER_KEY = 1024, 8


@te.expresses("ml.label_map")
def _express_label_map(attrs: LabelMapAttrs, out: te.Out, data: Tensor) -> te.Results:
    """The value of each element, or the default of elements that are no key."""
    unknown = unknown_of(attrs)
    keys, values = attrs.keys.array, attrs.values.array
    if object in (keys.dtype, values.dtype):
        return te.Unexpressed("machine code has no strings")
    if unknown is None:
        return te.Unexpressed("an unknown element is an error, and no index that a guard could see")
    keys, last = np.unique(keys[::-1], return_index=True)  # NaN counts as equal to itself
    values = values[::-1][last]
    default = te.number(unknown.item(), out.dtype)
    if not keys.size:
        return out.of(lambda *_: default)
    if data.dtype.is_integer and _span(keys) <= max(_ENTRIES, _ENTRIES_PER_KEY * len(keys)):
        result = _look_up_by_index(data, keys, values, unknown, out.name)
    else:
        result = _look_up_by_search(data, keys, values, unknown, out.name)
    return out.of(result)


def _span(keys: Array) -> int:
    return int(keys[-1]) - int(keys[0]) + 1


def _look_up_by_index(
    data: Tensor, keys: Array, values: Array, unknown: Array, name: str
) -> Callable[..., Term]:
    """Look elements up in a table with an entry for every integer between the outermost keys."""
    low, high = int(keys[0]), int(keys[-1])
    entries = np.full(_span(keys), unknown, values.dtype)
    entries[(keys - keys[0]).astype(np.int64)] = values
    stored = te.table(f"{name}_entries", entries)
    default = te.number(unknown.item(), stored.dtype)

    def element(*at: Term) -> Term:
        value = te.read(data, at)
        inside = (value >= low) & (value <= high)
        # Clamped before anything is subtracted, so that nothing overflows.
        position = cast(DType.INT64, minimum(maximum(value, low), high)) - low
        return select(inside, stored[position], default)

    return element


def _look_up_by_search(
    data: Tensor, keys: Array, values: Array, unknown: Array, name: str
) -> Callable[..., Term]:
    """Look elements up by counting the keys that are no higher."""
    default = te.number(unknown.item(), dtype_of(values.dtype))
    of_nan = values[-1].item() if keys[-1] != keys[-1] else None
    if of_nan is not None:
        keys, values = keys[:-1], values[:-1]
    if keys.size:
        stored, results = te.table(f"{name}_keys", keys), te.table(f"{name}_values", values)
        positions = _places(data, keys, name)

    def element(*at: Term) -> Term:
        value, result = te.read(data, at), default
        if keys.size:
            position = te.read(positions, at)
            result = select(equal(stored[position], value), results[position], default)
        if of_nan is not None:
            result = select(equal(value, value), result, te.number(of_nan, default.dtype))
        return result

    return element


def _places(data: Tensor, keys: Array, name: str) -> Tensor:
    """Per element the last key that is no higher, or the first key."""
    block = max(1, math.isqrt(len(keys)))
    firsts = keys[::block]
    # Behind the keys stand copies of the last, which an element beyond the keys does not reach.
    filled = np.append(keys, np.full(len(firsts) * block - len(keys), keys[-1]))
    coarse, fine = te.table(f"{name}_firsts", firsts), te.table(f"{name}_blocks", filled)
    last = len(keys) - 1

    def blocks(*at: Term) -> Reduce:
        (entry,) = te.reduce_axes([len(firsts)])
        return sum_(cast(DType.INT64, coarse[entry] <= te.read(data, at)), [entry])

    of_block = te.by_index(f"{name}_block", data.shape, blocks)

    def place(*at: Term) -> Reduce:
        (entry,) = te.reduce_axes([block])
        start = maximum(te.read(of_block, at) - 1, 0) * block
        return sum_(cast(DType.INT64, fine[start + entry] <= te.read(data, at)), [entry])

    within = te.by_index(f"{name}_within", data.shape, place)

    def position(*at: Term) -> Term:
        start = maximum(te.read(of_block, at) - 1, 0) * block
        return minimum(maximum(start + te.read(within, at) - 1, 0), last)

    return te.by_index(f"{name}_place", data.shape, position)
