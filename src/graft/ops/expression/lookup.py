"""Looking numbers up among keys that are part of the code: `ml.label_map`.

Integers that lie close together index a table. Others are counted down to their place among the
sorted keys: first among every b-th key, then among the b keys from there on, so that n keys take
about 2 sqrt(n) comparisons without a branch between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.loop.build import Term, cast, equal, maximum, minimum, select
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses, table
from graft.ops.expression.shapes import by_index, extents_of, number, present, read, reduce_axes
from graft.ops.ml_features import LabelMapAttrs, unknown_of

# A table may have so many entries, or so many per key.
_ENTRIES, _ENTRIES_PER_KEY = 1024, 8


@expresses("ml.label_map")
def label_map(attrs: LabelMapAttrs, inputs: Inputs, types: Types, name: str) -> Results:
    """Each element's value; what stands for unknown elements where it is no key."""
    data, unknown = present(inputs[0]), unknown_of(attrs)
    keys, values = attrs.keys.array, attrs.values.array
    if object in (keys.dtype, values.dtype):
        return Unexpressed("machine code has no strings")
    if unknown is None:
        return Unexpressed("an unknown element is an error, and no index that a guard could see")
    keys, last = np.unique(keys[::-1], return_index=True)  # NaN counts as equal to itself
    values = values[::-1][last]
    default = number(unknown.item(), types[0].dtype)
    if not keys.size:
        return (by_index(name, extents_of(types[0]), lambda *_: default),)
    if data.dtype.is_integer and _span(keys) <= max(_ENTRIES, _ENTRIES_PER_KEY * len(keys)):
        found = _indexed(data, keys, values, unknown, name)
    else:
        found = _searched(data, keys, values, unknown, name)
    return (by_index(name, extents_of(types[0]), found),)


def _span(keys: Array) -> int:
    return int(keys[-1]) - int(keys[0]) + 1


def _indexed(
    data: Tensor, keys: Array, values: Array, unknown: Array, name: str
) -> Callable[..., Term]:
    """By a table with an entry for every integer from the lowest key to the highest."""
    low, high = int(keys[0]), int(keys[-1])
    entries = np.full(_span(keys), unknown, values.dtype)
    entries[(keys - keys[0]).astype(np.int64)] = values
    stored = table(f"{name}_entries", entries)
    default = number(unknown.item(), stored.dtype)

    def element(*at: Term) -> Term:
        value = read(data, at)
        inside = (value >= low) & (value <= high)
        # Clamped before anything is subtracted, so that nothing overflows.
        place = cast(DType.INT64, minimum(maximum(value, low), high)) - low
        return select(inside, stored[place], default)

    return element


def _searched(
    data: Tensor, keys: Array, values: Array, unknown: Array, name: str
) -> Callable[..., Term]:
    """By the number of keys that are no higher."""
    default = number(unknown.item(), dtype_of(values.dtype))
    of_nan = values[-1].item() if keys[-1] != keys[-1] else None
    if of_nan is not None:
        keys, values = keys[:-1], values[:-1]
    if keys.size:
        stored, results = table(f"{name}_keys", keys), table(f"{name}_values", values)
        places = _places(data, keys, name)

    def element(*at: Term) -> Term:
        value, result = read(data, at), default
        if keys.size:
            place = read(places, at)
            result = select(equal(stored[place], value), results[place], default)
        if of_nan is not None:
            result = select(equal(value, value), result, number(of_nan, default.dtype))
        return result

    return element


def _places(data: Tensor, keys: Array, name: str) -> Tensor:
    """Per element the last key that is no higher, or the first key."""
    block = max(1, math.isqrt(len(keys)))
    firsts = keys[::block]
    # Behind the keys stand copies of the last, which an element beyond the keys does not reach.
    filled = np.append(keys, np.full(len(firsts) * block - len(keys), keys[-1]))
    coarse, fine = table(f"{name}_firsts", firsts), table(f"{name}_blocks", filled)
    last = len(keys) - 1

    def blocks(*at: Term) -> Reduce:
        (entry,) = reduce_axes([len(firsts)])
        return sum_(cast(DType.INT64, coarse[entry] <= read(data, at)), [entry])

    of_block = by_index(f"{name}_block", data.shape, blocks)

    def place(*at: Term) -> Reduce:
        (entry,) = reduce_axes([block])
        start = maximum(read(of_block, at) - 1, 0) * block
        return sum_(cast(DType.INT64, fine[start + entry] <= read(data, at)), [entry])

    within = by_index(f"{name}_within", data.shape, place)

    def position(*at: Term) -> Term:
        start = maximum(read(of_block, at) - 1, 0) * block
        return minimum(maximum(start + read(within, at) - 1, 0), last)

    return by_index(f"{name}_place", data.shape, position)
