"""Constant tensors: a read-only array with equality and hash by content.

Hashing touches a few elements only, so that large memory-mapped weights stay on disk.
"""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.types import TensorType

_SAMPLES = 16


class Literal:
    """An immutable constant tensor."""

    __slots__ = ("_hash", "array", "type")

    array: Array
    type: TensorType
    _hash: int | None

    def __init__(self, array: Array) -> None:
        view = array.view() if isinstance(array, np.ndarray) else np.asarray(array)
        dtype = dtype_of(view.dtype)
        if dtype is DType.STRING and view.dtype.kind != "O":
            view = view.astype(object)
        view.flags.writeable = False
        object.__setattr__(self, "array", view)
        object.__setattr__(self, "type", TensorType(dtype, tuple(view.shape)))
        object.__setattr__(self, "_hash", None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Literal does not change")

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.type, _sample(self.array))))
        return self._hash or 0

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Literal) or self.type != other.type or hash(self) != hash(other):
            return False
        return self.array is other.array or _same_content(self.array, other.array)

    def __repr__(self) -> str:
        return f"Literal({self.type})"


def _sample(array: Array) -> object:
    """A few elements, spread evenly; works on views without copying them."""
    positions = np.linspace(0, max(array.size - 1, 0), min(_SAMPLES, array.size)).astype(np.int64)
    sample = array[np.unravel_index(positions, array.shape)] if array.ndim else array
    return tuple(sample.flat) if array.dtype.kind == "O" else sample.tobytes()


def _same_content(first: Array, second: Array) -> bool:
    """Bit for bit, so that NaN equals itself and -0.0 differs from 0.0."""
    if first.dtype.kind == "O":
        return bool(first.tolist() == second.tolist())
    if _same_memory(first, second):
        return True
    as_bytes = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (first, second)]
    return bool(np.array_equal(as_bytes[0], as_bytes[1]))


def _same_memory(first: Array, second: Array) -> bool:
    one, two = first.__array_interface__, second.__array_interface__
    return bool(one["data"] == two["data"] and first.strides == second.strides)
