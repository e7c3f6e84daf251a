"""Element types, as one string enumeration.

A member equals its own name (`DType.FLOAT32 == "float32"`), which is what backend predicates
compare with. Exotic types come from `ml_dtypes`; strings are NumPy object arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from graft.base.errors import UnsupportedError

Array = npt.NDArray[Any]


class DType(StrEnum):
    """The type of a tensor's elements."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT2 = "uint2"
    UINT4 = "uint4"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT4E2M1FN = "float4_e2m1fn"
    FLOAT6E2M3FN = "float6_e2m3fn"
    FLOAT6E3M2FN = "float6_e3m2fn"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8E8M0FNU = "float8_e8m0fnu"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    STRING = "string"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype that holds it."""
        return _NUMPY_OF[self]

    @property
    def bits(self) -> int:
        """Bits an element takes when packed; strings count as a pointer."""
        return _BITS_OF[self]

    @property
    def is_float(self) -> bool:
        return self.value.startswith(("float", "bfloat"))

    @property
    def is_complex(self) -> bool:
        return self.value.startswith("complex")

    @property
    def is_signed_integer(self) -> bool:
        return self.value.startswith("int")

    @property
    def is_unsigned_integer(self) -> bool:
        return self.value.startswith("uint")

    @property
    def is_integer(self) -> bool:
        return self.value.startswith(("int", "uint"))

    @property
    def is_number(self) -> bool:
        return self not in (DType.BOOL, DType.STRING)


def _numpy_dtype(member: DType) -> np.dtype[Any]:
    if member is DType.STRING:
        return np.dtype(object)
    if hasattr(ml_dtypes, member.value):
        exotic: np.dtype[Any] = np.dtype(getattr(ml_dtypes, member.value))
        return exotic
    return np.dtype(member.value)


def _bits(member: DType) -> int:
    if member.value.startswith(("int", "uint")):
        return int(member.value.removeprefix("u").removeprefix("int"))
    if member.value.startswith(("float4_", "float6_")):
        return int(member.value[5])
    return int(_NUMPY_OF[member].itemsize) * 8


_NUMPY_OF = {member: _numpy_dtype(member) for member in DType}
_BITS_OF = {member: _bits(member) for member in DType}


@cache
def dtype_of(numpy_dtype: np.dtype[Any]) -> DType:
    """The `DType` of a NumPy dtype; any kind of string or object array holds strings."""
    if numpy_dtype.kind in "OUST":
        return DType.STRING
    for member, candidate in _NUMPY_OF.items():
        if candidate == numpy_dtype:
            return member
    raise UnsupportedError(f"arrays of {numpy_dtype} have no Graft dtype")


def array_type(array: Array) -> str:
    """Dtype and shape of an array, as types are written: `float32[2, 3]`. It may be any array."""
    name = DType.STRING.value if array.dtype.kind == "O" else array.dtype.name
    return f"{name}[{', '.join(map(str, array.shape))}]"


def array_types(arrays: Iterable[Any]) -> str:
    """The same for operands; empty where all of them are in a device's memory."""
    operands = list(arrays)
    if not any(isinstance(operand, np.ndarray) for operand in operands):
        return ""
    return ", ".join(
        array_type(one) if isinstance(one, np.ndarray) else "none" if one is None else "a tensor"
        for one in operands
    )


def float_info(dtype: Any) -> Any:
    """Precision and range of a float dtype of NumPy's or of `ml_dtypes`."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def integer_info(dtype: Any) -> Any:
    """Range and bits of an integer dtype of NumPy's or of `ml_dtypes`."""
    return ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
