"""The intrinsic functions a `Call` may name: arity, result dtype and meaning in NumPy.

One table that the builder, the verifier and the interpreter share; a code generator has to know
exactly these names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.loop.ir import BinaryKind


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """How many arguments, what it means, and whether it gives another dtype or one lane."""

    arity: int
    meaning: Callable[..., Any]
    to: DType | None = None  # what it gives; None: what its arguments are
    reduces: bool = False  # from a vector to a scalar
    across: bool = False  # whether lanes of the result are made of several of an argument
    integers: bool = False  # takes integers too
    operations: int = 1  # what it counts as beside an addition
    reinterprets: bool = False  # gives the bits of a float, or of it as float32, as an integer
    is_chain: bool = False  # takes a long chain of instructions that depend on one another

    def result(self, dtype: DType) -> DType:
        """The dtype of the result for arguments of `dtype`."""
        if self.reinterprets:
            return DType.INT64 if dtype is DType.FLOAT64 else DType.INT32
        return self.to or dtype


def _fma(left: Any, right: Any, addend: Any) -> Any:
    """Float32 products are exact in double, so only the last rounding is (rarely) a double one."""
    if left.dtype.itemsize <= 4 and not isinstance(left, np.ndarray):
        return left.dtype.type(float(left) * float(right) + float(addend))
    if left.dtype.itemsize <= 4:
        return (left.astype(np.float64) * right + addend).astype(left.dtype)
    return (left.astype(np.longdouble) * right + addend).astype(left.dtype)


def _erf(value: Any) -> Any:
    array = np.asarray(value)
    return np.vectorize(math.erf, otypes=[array.dtype])(array)[()]


def _gelu(value: Any) -> Any:
    """x Φ(x), with its limit at minus infinity."""
    array = np.asarray(value)
    normal = np.vectorize(lambda x: math.erfc(-x * math.sqrt(0.5)) / 2, otypes=[array.dtype])(array)
    return (np.where(np.isneginf(array), array.dtype.type(0), array) * normal)[()]


def _sigmoid(value: Any) -> Any:
    decay = np.exp(-np.abs(value))  # never overflows
    return (np.where(value >= 0, value.dtype.type(1), decay) / (1 + decay))[()]


def _bit_count(value: Any) -> Any:
    array = np.asarray(value)
    return np.bitwise_count(array.view(f"u{array.dtype.itemsize}")).astype(array.dtype)[()]


def _float_bits(value: Any) -> Any:
    array = np.asarray(value, None if np.asarray(value).itemsize >= 4 else np.float32)
    return array.view(f"i{array.itemsize}")[()]


def _mask_bits(value: Any) -> Any:
    """A number with a bit for each lane that is true, the first lane's the lowest."""
    return sum(int(lane) << number for number, lane in enumerate(np.atleast_1d(value)))


def _leading_zeros(value: Any) -> Any:
    array = np.asarray(value)
    width = 8 * array.dtype.itemsize
    lengths = [width - int(bits).bit_length() for bits in array.view(f"u{width // 8}").ravel()]
    return np.array(lengths, array.dtype).reshape(array.shape)[()]


def _dot4(unsigned: Any, signed: Any, addend: Any) -> Any:
    """Per 32-bit lane, the dot product of four unsigned with four signed bytes, accumulated."""
    left = np.asarray(unsigned, np.int32)[..., None].view(np.uint8).astype(np.int64)
    right = np.asarray(signed, np.int32)[..., None].view(np.int8).astype(np.int64)
    return ((left * right).sum(axis=-1) + addend).astype(np.int32)[()]


def _interleave4(value: Any) -> Any:
    """Word i of n: bytes i, n + i, 2n + i and 3n + i, the first in the lowest bits."""
    rows = np.asarray(value).reshape(4, -1)
    return np.ascontiguousarray(rows.T).view(np.int32)[:, 0]


def _join2(value: Any) -> Any:
    """Pairs of neighbouring 16-bit numbers, the first in the lower bits of a word."""
    return np.ascontiguousarray(value).view(np.int32)[()]


def _add_pairs(first: Any, second: Any) -> Any:
    """Sums of neighbouring lanes, alternating between the two vectors."""
    pairs = np.stack([first, second]).reshape(2, -1, 2)
    return np.ascontiguousarray(pairs.sum(axis=-1).T).reshape(-1)


def _interleaved(first: Any, second: Any) -> Any:
    """The lanes of two vectors interleaved: twice as many."""
    return np.stack([first, second], axis=-1).reshape(-1)


def _dot2(left: Any, right: Any, addend: Any) -> Any:
    """Per lane of float32, whose bits are two bfloat16, their dot product, accumulated; the same of
    the two int16 of an int32, which wraps around."""
    if np.asarray(addend).dtype == np.int32:
        pairs = (np.asarray(one, np.int32)[..., None].view(np.int16) for one in (left, right))
        return (np.multiply(*pairs, dtype=np.int64).sum(axis=-1) + addend).astype(np.int32)[()]
    brain = DType.BFLOAT16.numpy
    wide = (
        np.asarray(one, np.float32)[..., None].view(brain).astype(np.float32)
        for one in (left, right)
    )
    return (np.multiply(*wide).sum(axis=-1) + addend).astype(np.float32)[()]


def _to_tf32(value: Any) -> Any:
    """The nearest float32 of 10 bits behind the point, the larger one of two."""
    array = np.asarray(value, np.float32)
    bits = array.view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(array), array, rounded)[()]


def _nearest_byte(dtype: DType) -> Callable[..., Any]:
    """The nearest whole number, the even one of two, plus an offset, within the dtype's limits; NaN
    becomes the lowest."""
    limits = np.iinfo(dtype.numpy)

    def meaning(value: Any, offset: Any) -> Any:
        whole = np.rint(np.where(np.isnan(value), -np.inf, value)) + offset
        return np.clip(whole, limits.min, limits.max).astype(dtype.numpy)[()]

    return meaning


INTRINSICS: dict[str, Intrinsic] = {
    "exp": Intrinsic(1, np.exp, is_chain=True),
    "log": Intrinsic(1, np.log, is_chain=True),
    "sqrt": Intrinsic(1, np.sqrt),
    "rsqrt": Intrinsic(1, lambda x: x.dtype.type(1) / np.sqrt(x)),
    "erf": Intrinsic(1, _erf, is_chain=True),
    "gelu": Intrinsic(1, _gelu, operations=8, is_chain=True),
    "tanh": Intrinsic(1, np.tanh, is_chain=True),
    "sigmoid": Intrinsic(1, _sigmoid, is_chain=True),
    "sin": Intrinsic(1, np.sin, is_chain=True),
    "cos": Intrinsic(1, np.cos, is_chain=True),
    "atan": Intrinsic(1, np.arctan, is_chain=True),
    # exponents of integers are not negative
    "pow": Intrinsic(2, np.power, integers=True, is_chain=True),
    "fma": Intrinsic(3, _fma),
    "floor": Intrinsic(1, np.floor),
    "ceil": Intrinsic(1, np.ceil),
    "round": Intrinsic(1, np.rint),
    "trunc": Intrinsic(1, np.trunc),
    "abs": Intrinsic(1, np.abs, integers=True),
    "copysign": Intrinsic(2, np.copysign),
    "to_tf32": Intrinsic(1, _to_tf32),
    "isnan": Intrinsic(1, np.isnan, to=DType.BOOL),
    "isinf": Intrinsic(1, np.isinf, to=DType.BOOL),
    "bits": Intrinsic(1, _float_bits, reinterprets=True),
    "reduce_to_bits": Intrinsic(1, _mask_bits, to=DType.INT64, reduces=True, integers=True),
    "to_int8": Intrinsic(2, _nearest_byte(DType.INT8), to=DType.INT8, operations=3),
    "to_uint8": Intrinsic(2, _nearest_byte(DType.UINT8), to=DType.UINT8, operations=3),
    "nibble": Intrinsic(1, lambda x: (x & 15).astype(np.float32), to=DType.FLOAT32, integers=True),
    "interleave4": Intrinsic(1, _interleave4, to=DType.INT32, across=True, integers=True),
    "dot4": Intrinsic(3, _dot4, integers=True),
    "dot2": Intrinsic(3, _dot2, integers=True),
    "join2": Intrinsic(1, _join2, to=DType.INT32, across=True, integers=True),
    "add_pairs": Intrinsic(2, _add_pairs, across=True),
    # Interleaved lanes of two vectors: of their lower halves, and of their upper ones.
    "zip_low": Intrinsic(2, lambda x, y: _interleaved(x, y)[: len(x)], across=True),
    "zip_high": Intrinsic(2, lambda x, y: _interleaved(x, y)[len(x) :], across=True),
    "clz": Intrinsic(1, _leading_zeros, integers=True),
    "popcount": Intrinsic(1, _bit_count, integers=True),
    "reduce_add": Intrinsic(1, lambda x: np.add.reduce(x), reduces=True, integers=True),
    "reduce_multiply": Intrinsic(1, lambda x: np.multiply.reduce(x), reduces=True, integers=True),
    "reduce_max": Intrinsic(1, lambda x: np.maximum.reduce(x), reduces=True, integers=True),
    "reduce_min": Intrinsic(1, lambda x: np.minimum.reduce(x), reduces=True, integers=True),
}
# Those that combine the lanes of a vector.
ACROSS = {
    BinaryKind.ADD: "reduce_add",
    BinaryKind.MULTIPLY: "reduce_multiply",
    BinaryKind.MAXIMUM: "reduce_max",
    BinaryKind.MINIMUM: "reduce_min",
}
