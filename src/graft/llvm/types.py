"""How element types look to LLVM.

In goes a `DType`; out come the type its values have in registers and in memory, and constants as
LLVM text. A bool is a bit in a register and a byte in memory. float16 and bfloat16 travel as 16-bit
integers and smaller floats as bytes; they become float32 to be computed with, so that no target
needs to know them. Integers of less than eight bits have a byte each.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError

# Floats of 16 bits, smaller floats, integers of less than a byte, and all floats that are computed
# with in float32.
SMALL_FLOATS = (DType.FLOAT16, DType.BFLOAT16)
NARROW_FLOATS = (
    *(DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ),
    *(DType.FLOAT4E2M1FN, DType.FLOAT8E8M0FNU),
)
NARROW_INTEGERS = (DType.INT2, DType.UINT2, DType.INT4, DType.UINT4)
WIDENED = (*SMALL_FLOATS, *NARROW_FLOATS)
_REGISTER_TYPES = {
    **{dtype: f"i{dtype.bits}" for dtype in DType if dtype.is_integer},
    **dict.fromkeys((*NARROW_INTEGERS, *NARROW_FLOATS), "i8"),
    **dict.fromkeys(SMALL_FLOATS, "i16"),
    DType.BOOL: "i1",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
}


def register_type(dtype: DType) -> str:
    """The LLVM type of one value in a register."""
    if dtype not in _REGISTER_TYPES:
        raise UnsupportedError(
            f"machine code cannot hold elements of {dtype}",
            hint="pack or widen them to 8 bits or more first",
        )
    return _REGISTER_TYPES[dtype]


def memory_type(dtype: DType) -> str:
    """The LLVM type of one element in memory."""
    return "i8" if dtype is DType.BOOL else register_type(dtype)


def byte_size(dtype: DType) -> int:
    """Bytes that an element takes in memory."""
    return 1 if dtype is DType.BOOL else int(register_bits(register_type(dtype)) // 8)


def register_bits(element: str) -> int:
    """The width of a scalar LLVM type."""
    return {"float": 32, "double": 64}.get(element) or int(element[1:])


def vector_type(element: str, lanes: int) -> str:
    """The LLVM type of that many elements; a single one is a scalar."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def literal(value: float | int | bool, element: str) -> str:
    """A number as LLVM writes it for a scalar type. Hexadecimal floats lose nothing."""
    if element == "i1":
        return "true" if value else "false"
    if element in ("float", "double"):
        number = float(np.float32(value)) if element == "float" else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    bits = register_bits(element)
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def small_float_bits(value: float | int | bool, dtype: DType) -> int:
    """The bits of a number that is computed with in float32."""
    array: np.ndarray[Any, Any] = np.array(value).astype(dtype.numpy)
    return int(array.view(np.uint16 if dtype in SMALL_FLOATS else np.uint8))
