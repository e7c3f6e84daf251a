"""Seeded random draws: sizes, types and contents of random graphs and models.

Used by the kit, the property tests and the fuzzer. The source is a seed, or an object with the
interface of `random.Random`, such as Hypothesis' in property tests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from graft.base.dtypes import Array, DType, integer_info

T = TypeVar("T")

# Uneven, prime, one and none: where loops and vectors have their edges.
_EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17)
ODD_DTYPES = (
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.FLOAT64,
    DType.INT32,
    DType.INT64,
    DType.INT8,
    DType.UINT8,
    DType.BOOL,
)


class Draw:
    """A source of random decisions. `plain` excludes empty tensors and other types than float32;
    `dtype` is the dtype of all data."""

    def __init__(
        self, source: str | random.Random, plain: bool = False, dtype: DType | None = None
    ) -> None:
        self._random = random.Random(source) if isinstance(source, str) else source
        self.plain = plain
        self._dtype = dtype
        self.empty = not plain and self.chance(0.08)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def among(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def between(self, low: int, high: int) -> int:
        """A number, both ends included."""
        return self._random.randint(low, max(low, high))

    def extent(self, largest: int = 17) -> int:
        if self.empty and self.chance(0.3):
            return 0
        return self.among([extent for extent in _EXTENTS if extent <= largest])

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.among((0, 1, 2, 2, 3, 4, 4, 5)) if rank is None else rank
        return tuple(self.extent(17 if rank < 3 else 7) for _ in range(rank))

    def dtype(self) -> DType:
        if self._dtype is not None:
            return self._dtype
        if self.plain or self.chance(0.85):
            return DType.FLOAT32
        return self.among(ODD_DTYPES)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self._random.sample(list(items), len(items))

    def array(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Random contents of a constant."""
        generator = np.random.default_rng(self._random.getrandbits(32))
        if dtype is DType.BOOL:
            return generator.random(shape) < 0.5
        if dtype.is_float:
            return np.asarray(generator.standard_normal(shape)).astype(dtype.numpy)
        if dtype.bits <= 8:  # numbers for sure; wider integers may be indices or counts
            info = integer_info(dtype.numpy)
            low, high = int(info.min), int(info.max) + 1
            return np.asarray(generator.integers(low, high, shape)).astype(dtype.numpy)
        return np.asarray(generator.integers(0, 3, shape)).astype(dtype.numpy)
