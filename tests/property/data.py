"""Arrays for random graphs: tame ones, whose arithmetic stays small, and wild ones.

Tame floats are quarters between -2 and 2, with zeros of both signs, so that every dtype holds them
exactly. Wild arrays have NaN, infinities and the extremes of their dtype among them.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np

from graft.base.dtypes import Array, DType

TAME_BOUND = 2.0

WIDE_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
NARROW_FLOATS = (
    DType.FLOAT8E4M3FN,
    DType.FLOAT8E5M2,
    DType.FLOAT8E4M3FNUZ,
    DType.FLOAT8E5M2FNUZ,
    DType.FLOAT8E8M0FNU,
    DType.FLOAT4E2M1FN,
)
SIGNED = (DType.INT64, DType.INT32, DType.INT8, DType.INT16)
UNSIGNED = (DType.UINT8, DType.UINT32, DType.UINT16, DType.UINT64)
TINY = (DType.INT4, DType.UINT4, DType.INT2, DType.UINT2)
INTEGERS = (*SIGNED, *UNSIGNED, *TINY)
COMPLEX = (DType.COMPLEX64, DType.COMPLEX128)
# Those drawn for new values; what comes first and often is what models have.
COMMON = (DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.BOOL)
EVERY = (
    *COMMON,
    *WIDE_FLOATS,
    *SIGNED,
    *UNSIGNED,
    *TINY,
    *NARROW_FLOATS,
    *COMPLEX,
    DType.STRING,
)

_WORDS = ("", "a", "graft", "ä\n", '"quoted"', "1.5", "none", "\\", "日本")
_WILD_FLOATS = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.5, 3e38, 1e-40, 70000.0)


def tame(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Small numbers, truth values or words."""
    return _filled(dtype, shape, seed, wild=False)


def wild(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Whatever the dtype can hold."""
    return _filled(dtype, shape, seed, wild=True)


def counts(shape: tuple[int, ...], seed: int) -> Array:
    """Numbers from 1 to 3, which serve as extents, repetitions and positions."""
    return np.random.default_rng(seed).integers(1, 4, shape).astype(np.int64)


def _filled(dtype: DType, shape: tuple[int, ...], seed: int, wild: bool) -> Array:
    candidates = _candidates(dtype, wild)
    drawn = np.random.default_rng(seed).integers(0, len(candidates), shape)
    return np.asarray(candidates[np.atleast_1d(drawn)]).reshape(shape)


@cache
def _candidates(dtype: DType, wild: bool) -> Array:
    """The elements to draw from."""
    if dtype is DType.STRING:
        return np.array(_WORDS, dtype=object)
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_integer:
        return _integers(dtype, wild)
    if dtype.is_complex:
        return np.array([0, 1, -1, 1j, 2 - 1j, 0.5 + 0.25j]).astype(dtype.numpy)
    quarters = np.array([*np.arange(-TAME_BOUND, TAME_BOUND + 0.25, 0.25), -0.0, -0.0, -0.0])
    with np.errstate(all="ignore"):
        if dtype is DType.FLOAT8E8M0FNU:  # powers of two only
            return np.array([0.5, 1.0, 2.0]).astype(dtype.numpy)
        if dtype is DType.FLOAT4E2M1FN:
            quarters = quarters * 2
        chosen = np.array(_WILD_FLOATS) if wild else quarters
        return chosen.astype(dtype.numpy)


def _integers(dtype: DType, wild: bool) -> Array:
    limits = ml_dtypes.iinfo(dtype.numpy)
    low, high = int(limits.min), int(limits.max)
    numbers = [low, high, low + 1, 0, 1] if wild else range(max(-2, low), min(2, high) + 1)
    return np.array([np.array(n).astype(dtype.numpy) for n in numbers])
