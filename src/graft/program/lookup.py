"""Strings and maps, which machine code does not hold: looked up in tables and packed, in Python.

Arrays enter; arrays of what a table has for their elements leave, or lists of maps. Each costs one
pass over the elements and nothing else, since whole batches come through here in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError

Item = str | int | float

# Rows below which maps are packed one by one: a column costs as much as ten rows gain by it.
_FEW_ROWS = 32


class _Entries(dict[Item, Item]):
    """Values by key; what is no key has the default, or is refused."""

    def __init__(self, keys: Sequence[Item], values: Sequence[Item], default: Item | None) -> None:
        super().__init__(zip(keys, values, strict=True))
        self._default = default

    def __missing__(self, key: Item) -> Item:
        if self._default is None:
            raise EvaluationError(f"{key!r} is not one of the categories")
        return self._default


@dataclass(frozen=True, slots=True)
class Table:
    """Keys and what each stands for, of one dtype; `default` is for everything else.

    A table without keys has its values by position. NaN is no key: it does not equal itself."""

    dtype: DType
    values: tuple[Item, ...]
    keys: tuple[Item, ...] | None = None
    default: Item | None = None
    _entries: _Entries | None = field(init=False, compare=False, repr=False)
    _array: Array = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        by_key = self.keys is not None and _Entries(self.keys, self.values, self.default)
        object.__setattr__(self, "_entries", by_key or None)
        object.__setattr__(self, "_array", np.array(self.values, self.dtype.numpy))

    def look_up(self, data: Array) -> Array:
        """What the table has for each element."""
        if self._entries is None:
            return self._array.take(data)
        items = map(self._entries.__getitem__, data.ravel().tolist())
        return np.fromiter(items, self.dtype.numpy, data.size).reshape(data.shape)

    def zip_with(self, data: Array) -> list[dict[Item, Any]]:
        """Each row as a map from the values to the row's elements."""
        rows = data if data.ndim == 2 else data[np.newaxis]
        if len(rows) < _FEW_ROWS:
            return [dict(zip(self.values, row, strict=True)) for row in rows.tolist()]
        # Pairs by column, so that nothing but `dict` runs per row.
        pairs = [
            zip(repeat(value), column.tolist(), strict=False)
            for value, column in zip(self.values, rows.T, strict=True)
        ]
        return list(map(dict, zip(*pairs, strict=True)))
