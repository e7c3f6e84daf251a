"""DLPack: tensors of other libraries in the GPU's memory, and results for them, without a copy."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
    py_object,
)
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from graft.base.errors import UserError

_CUDA = 2, 0  # memory of the first GPU, in DLPack's words
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # of NumPy's kinds of numbers
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", c_int * 2),
        ("rank", c_int),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p))


_deleter_type = ctypes.PYFUNCTYPE(None, c_void_p)
_api = ctypes.pythonapi
_api.PyCapsule_New.restype = py_object
_api.PyCapsule_New.argtypes = (c_void_p, c_char_p, c_void_p)
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyCapsule_GetPointer.argtypes = (py_object, c_char_p)
_is_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _api))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTensor:
    """A tensor in rows in the GPU's memory, which is there as long as its owner is."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA

    def __dlpack__(self, **_options: Any) -> Any:
        """A capsule that keeps the memory until whoever takes it is done; all is computed by then,
        so that no stream has to wait."""
        extents = (c_int64 * len(self.shape))(*self.shape)
        kind, bits = _CODES[self.dtype.kind], self.dtype.itemsize * 8
        device, rank = (c_int * 2)(*_CUDA), len(self.shape)
        tensor = _Tensor(self.address, device, rank, kind, bits, 1, extents, None, 0)
        managed = _Managed(tensor, None, ctypes.cast(_delete, c_void_p))
        address = ctypes.addressof(managed)
        _lent[address] = managed, extents, self.owner
        return _api.PyCapsule_New(address, _NAME, ctypes.cast(_destroy, c_void_p))


_lent: dict[int, tuple[Any, ...]] = {}  # what capsules refer to, by address


def _forget(address: int) -> None:
    _lent.pop(address, None)


def _forget_untaken(capsule: int) -> None:
    """Called with a capsule that goes: one that nobody has taken has its name still."""
    if _is_valid(capsule, _NAME):
        _lent.pop(_pointer_of(capsule, _NAME), None)


_delete, _destroy = _deleter_type(_forget), _deleter_type(_forget_untaken)


def borrow(tensor: Any, stream: int) -> DeviceTensor:
    """Another library's tensor where it lies; work on it that is under way comes before whatever is
    put into the stream. The capsule stays whole, so that it frees the tensor when it goes."""
    if tuple(tensor.__dlpack_device__()) != _CUDA:
        raise UserError(
            f"the tensor is not in the memory of the first GPU: {type(tensor).__name__}"
        )
    capsule = tensor.__dlpack__(stream=stream)
    found = _Managed.from_address(_api.PyCapsule_GetPointer(capsule, _NAME)).tensor
    shape = tuple(found.shape[: found.rank])
    rows = [prod(shape[axis + 1 :]) for axis in range(found.rank)]
    extents = zip(shape, found.strides[: found.rank] if found.strides else rows, rows, strict=True)
    if any(extent > 1 and step != row for extent, step, row in extents):
        raise UserError(
            "the tensor does not lie in rows", hint="x.contiguous() makes one that does"
        )
    kinds = [kind for kind, code in _CODES.items() if code == found.code]
    if not kinds or found.lanes != 1:
        raise UserError(f"there is no type of NumPy's for code {found.code} of DLPack")
    dtype = np.dtype(f"{kinds[0]}{found.bits // 8}")
    return DeviceTensor((found.data or 0) + found.offset, shape, dtype, capsule)
