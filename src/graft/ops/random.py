"""Random numbers: uniform, normal, draws from given odds; dropout as training does it.

Without a seed each run draws anew. With one, element i of the result depends on the seed and i
alone, through a short integer hash (SplitMix64), so that a backend, on however many threads, can
make the same numbers as the reference. The operators are not pure: nothing folds or merges them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Dims
from graft.ir.types import TensorType
from graft.ops.creation import shape_operand
from graft.ops.rules import (
    operator,
    ranked_shape,
    require,
)

_STEP = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
# Bits of the fraction that a uniform number has, so that rounding never makes it reach 1.
_DIGITS = {DType.BFLOAT16: 8, DType.FLOAT16: 11, DType.FLOAT32: 24, DType.FLOAT64: 53}


def random_bits(seed: float | None, count: int) -> Array:
    """`count` words of 64 random bits."""
    start = secrets.randbits(64) if seed is None else int(np.float64(seed).view(np.uint64))
    words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP) + np.uint64(start)
    for shift, factor in _FACTORS:
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def _fractions(words: Array, digits: int = 53) -> Array:
    """Numbers in [0, 1) from words, each a multiple of 2 to the power of -digits."""
    return (words >> np.uint64(64 - digits)).astype(np.float64) * 2.0**-digits


@dataclass(frozen=True, slots=True)
class UniformAttrs(Attrs):
    shape: Dims | None = None
    low: float = 0.0
    high: float = 1.0
    seed: float | None = None
    dtype: DType = DType.FLOAT32


@dataclass(frozen=True, slots=True)
class NormalAttrs(Attrs):
    shape: Dims | None = None
    mean: float = 0.0
    scale: float = 1.0
    seed: float | None = None
    dtype: DType = DType.FLOAT32


def _random_type(attrs: UniformAttrs | NormalAttrs, shape: TensorType | None) -> TensorType:
    require(attrs.dtype in _DIGITS, f"random numbers cannot be {attrs.dtype}")
    return TensorType(attrs.dtype, shape_operand(attrs.shape, shape))


def _extents(attrs: UniformAttrs | NormalAttrs) -> tuple[Any, ...]:
    extents: Any = attrs.shape or ()
    check_extents(extents, np.dtype(np.uint64), "random")
    return tuple(extents)


@operator("random.uniform", "shape?", _random_type, pure=False)
def _uniform(attrs: UniformAttrs) -> Array:
    """Uniformly distributed random numbers."""
    extents = _extents(attrs)
    words = random_bits(attrs.seed, int(np.prod(extents, dtype=np.int64)))
    numbers = attrs.low + _fractions(words, _DIGITS[attrs.dtype]) * (attrs.high - attrs.low)
    return numbers.reshape(extents).astype(attrs.dtype.numpy)


@operator("random.normal", "shape?", _random_type, pure=False)
def _normal(attrs: NormalAttrs) -> Array:
    """Normally distributed random numbers.

    Box and Muller's way: a radius from one uniform number, an angle from another.
    """
    extents = _extents(attrs)
    words = random_bits(attrs.seed, 2 * int(np.prod(extents, dtype=np.int64)))
    radius = np.sqrt(-2 * np.log1p(-_fractions(words[0::2])))
    angle = 2 * np.pi * _fractions(words[1::2])
    numbers = np.asarray(attrs.mean + attrs.scale * radius * np.cos(angle))
    return numbers.reshape(extents).astype(attrs.dtype.numpy)


@dataclass(frozen=True, slots=True)
class MultinomialAttrs(Attrs):
    sample_size: int = 1
    seed: float | None = None
    dtype: DType = DType.INT32


def _multinomial_type(attrs: MultinomialAttrs, data: TensorType) -> TensorType:
    require(data.dtype.is_float, f"wants floating-point logarithms of odds, not {data.dtype}")
    require(attrs.dtype.is_integer, f"outcomes cannot be {attrs.dtype}")
    require(attrs.sample_size >= 0, f"the sample size is {attrs.sample_size}")
    rows = ranked_shape(data, 2, "odds", "have")[0]
    return TensorType(attrs.dtype, (rows, attrs.sample_size))


@operator("random.multinomial", "data", _multinomial_type, pure=False)
def _multinomial(attrs: MultinomialAttrs, data: Array) -> Array:
    """Random indices, drawn with the log probabilities in each row.

    Each row's outcomes, by where a uniform number falls among the odds summed up.
    """
    odds = data.astype(np.float64)
    best = odds.max(axis=1, keepdims=True, initial=-np.inf)
    if not np.isfinite(best).all():
        raise ValueError("a row of odds has no possible outcome or an infinite one")
    sums = np.cumsum(np.exp(odds - best), axis=1)
    rows = odds.shape[0]
    result = np.zeros((rows, attrs.sample_size), attrs.dtype.numpy)
    draws = _fractions(random_bits(attrs.seed, result.size)).reshape(result.shape)
    for row, (limits, numbers) in enumerate(zip(sums, draws, strict=True)):
        last = np.searchsorted(limits, limits[-1])  # the last outcome that is possible
        value = np.searchsorted(limits, numbers * limits[-1], side="right")
        result[row] = np.minimum(value, last)
    return result


@dataclass(frozen=True, slots=True)
class DropoutAttrs(Attrs):
    """`ratio` is the share of elements dropped; without a seed every run draws anew."""

    ratio: float | None = None
    training_mode: bool | None = None
    seed: int | None = None


def _dropout_type(
    attrs: DropoutAttrs,
    data: TensorType,
    ratio: TensorType | None,
    training_mode: TensorType | None,
) -> tuple[TensorType, TensorType]:
    require(data.dtype.is_float, f"wants floating-point data, not {data.dtype}")
    require(ratio is None or ratio.dtype.is_float, "the ratio is not a floating-point number")
    is_bool = training_mode is None or training_mode.dtype is DType.BOOL
    require(is_bool, "training_mode is not bool")
    sensible = attrs.ratio is None or 0 <= attrs.ratio < 1
    require(sensible, f"the ratio is {attrs.ratio}, not between 0 and 1")
    return data, TensorType(DType.BOOL, data.shape)


@operator("nn.dropout", "data ratio? training_mode?", _dropout_type, outputs=2, pure=False)
def _dropout(attrs: DropoutAttrs, data: Array) -> tuple[Array, Array]:
    """Elements zeroed at random and the others scaled, in training only."""
    share = 0.5 if attrs.ratio is None else attrs.ratio
    if not attrs.training_mode or share == 0:
        return data, np.ones(data.shape, dtype=bool)
    mask = np.random.RandomState(attrs.seed).uniform(0, 1, data.shape) >= share
    scaled = data.astype(np.float64) * mask / (1 - share)
    return scaled.astype(data.dtype), np.asarray(mask)
