"""Whether data are what a program says: a value in, a check out that also binds symbols.

Whatever a program takes, or its instructions make, comes through here in every run, and a small
model has little else to do: what follows from the value alone is found out once, and the last
answer is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graft.base.dims import AnyDim, Dim, bare_symbol, substitute, symbols_of
from graft.base.errors import GraftError
from graft.program.program import Value

Data = Any
Symbols = dict[str, int]


class Check:
    """For one value of a program."""

    def __init__(self, value: Value) -> None:
        self._value = value
        self._dtype = None if value.dtype is None else value.dtype.numpy
        self._shape = value.shape
        # Numbers alone are compared as one; where there are symbols, that would only take time.
        self._static = value.shape if value.is_static else None
        extents = enumerate(_Extent(dim) for dim in value.shape or ())
        # Symbols get their numbers before what follows from them is looked at.
        self._extents = sorted(extents, key=lambda pair: pair[1].is_derived)
        self.is_derived = any(extent.is_derived for _, extent in self._extents)

    def __call__(self, data: Data, symbols: Symbols, error: type[GraftError]) -> Data:
        """The data, if it is what the program says; gives numbers to the symbols in its shape."""
        if self._dtype is None:
            if self._shape is not None and isinstance(data, np.ndarray):
                self._bind(data, symbols, error)
            return data
        array = data if type(data) is np.ndarray else np.asarray(data)
        if array.dtype is not self._dtype and array.dtype != self._dtype:
            raise error(
                f"'{self._value.name}' is {array.dtype} where {self._value.dtype} is wanted"
            )
        if self._shape is not None and array.shape != self._static:
            self._bind(array, symbols, error)
        return array

    def _bind(self, array: np.ndarray[Any, Any], symbols: Symbols, error: type[GraftError]) -> None:
        shape = array.shape
        if len(shape) != len(self._extents):
            raise self._misfit(array, error)
        for axis, extent in self._extents:
            if not extent.agrees(shape[axis], symbols):
                raise self._misfit(array, error)

    def _misfit(self, array: np.ndarray[Any, Any], error: type[GraftError]) -> GraftError:
        wanted = ", ".join(map(str, self._shape or ()))
        found = list(array.shape)
        return error(f"'{self._value.name}' has the shape {found} where [{wanted}] is wanted")


class _Extent:
    """A dim, which numbers are compared with."""

    def __init__(self, dim: Dim) -> None:
        self._dim = dim
        self._number = dim if isinstance(dim, int) else None
        self._name = bare_symbol(dim)
        self._symbols = tuple(symbols_of(dim))
        self.is_derived = bool(self._symbols) and self._name is None
        # The last numbers of the symbols and what came of them, replaced as one: runs may overlap.
        self._last: tuple[list[int | None], AnyDim] = [], dim

    def agrees(self, found: int, symbols: Symbols) -> bool:
        if self._number is not None:
            return self._number == found
        if self._name is not None:
            return symbols.setdefault(self._name, found) == found
        wanted = self._value(symbols)
        return wanted == found if isinstance(wanted, int) else True

    def _value(self, symbols: Mapping[str, int]) -> AnyDim:
        numbers = [symbols.get(name) for name in self._symbols]
        known, value = self._last
        if numbers != known:
            value = substitute(self._dim, symbols)
            self._last = numbers, value
        return value
