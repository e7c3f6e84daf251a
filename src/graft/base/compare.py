"""How far two arrays are apart: actual, expected and a bound in; a difference in numbers out.

The one comparator behind `graft check`, the checks of regions before and while they run, the
author's kit, fuzzing and the tests. They differ in the bounds that they ask for. NaN equals NaN and
an infinity itself; either beside anything else is a mismatch, whatever the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of, float_info

# Elements that are compared at once: the comparison's own memory stays small.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Bound:
    """|actual - expected| may be as large as the sum of these; nothing else than numbers has any.

    Integers may be off by `steps`. Those of 64 bits, which floats do not hold exactly, may besides
    have a relative error.
    """

    absolute: float = 0.0
    relative: float = 0.0  # of the expected element
    of_largest: float = 0.0  # of the largest finite element that is expected
    movement: float = 0.0  # of what the expected element moves by on inputs nearby
    steps: int = 0


EQUAL = Bound()


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two results are apart; `problem` says why they cannot even be compared."""

    max_absolute: float = 0.0
    max_relative: float = 0.0
    mismatches: int = 0
    size: int = 0
    problem: str = ""
    largest: float = 0.0  # finite magnitude that was expected
    nans: int = 0  # mismatches because one side alone is NaN
    infinities: int = 0  # mismatches because one side alone is infinite, or has the other sign
    is_float: bool = True

    @property
    def agrees(self) -> bool:
        return not self.problem and not self.mismatches

    def words(self, whose: str) -> str:
        """The difference from the results of `whose`, in words; empty if there is none."""
        if self.problem:
            return f"is {self.problem}"
        if self.nans:
            return f"is NaN where {whose} is not, or the other way round, {self.nans} times"
        if self.infinities:
            return f"is not infinite where {whose} is, or the other way round"
        if not self.mismatches:
            return ""
        if self.is_float:
            return (
                f"differs from {whose} by {self.max_absolute:.3g}"
                f" where the largest is {self.largest:.3g}"
            )
        return f"differs from {whose} in {self.mismatches} of {self.size} elements"


def compare_arrays(
    actual: Array, expected: Array, bound: Bound = EQUAL, nearby: Array | None = None
) -> Difference:
    """The difference of two arrays. `nearby` is what was expected on inputs moved by a last bit:
    where it is another integer, NaN or infinity, anything will do."""
    mine, other = dtype_of(actual.dtype), dtype_of(expected.dtype)
    if mine != other:
        return Difference(problem=f"{mine}, not {other}")
    if actual.shape != expected.shape:
        return Difference(problem=f"shape {list(actual.shape)}, not {list(expected.shape)}")
    flat, flat_expected = actual.reshape(-1), expected.reshape(-1)
    flat_nearby = None if nearby is None else nearby.reshape(-1)
    if not (mine.is_float or mine.is_complex):
        return _compare_exactly(flat, flat_expected, bound, flat_nearby, mine.is_integer)
    wide = np.complex128 if mine.is_complex else np.float64
    total = Difference(largest=_largest(flat_expected, wide) if flat.size else 0.0)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        part = _compare_block(
            flat[block].astype(wide),
            flat_expected[block].astype(wide),
            bound,
            None if flat_nearby is None else flat_nearby[block].astype(wide),
            total.largest,
        )
        total = together(total, part)
    return total


def moved(draw: np.random.Generator, array: Array, rounding: DType = DType.FLOAT32) -> Array:
    """Floats changed in the last bit, up or down, and denormals flushed to zero, which some devices
    do; other data as they are. float32 is changed in the last bit of `rounding`."""
    dtype = dtype_of(array.dtype)
    if not dtype.is_float:
        return array
    last_bit = float_info((rounding if dtype is DType.FLOAT32 else dtype).numpy).eps
    wide = array.astype(np.float64)
    factor = 1.0 + float(last_bit) * np.where(draw.random(array.shape) < 0.5, -1.0, 1.0)
    least = float(float_info(array.dtype).tiny)
    return np.where(np.abs(wide) < least, 0.0 * wide, wide * factor).astype(array.dtype)


def together(one: Difference, other: Difference) -> Difference:
    """Combine the differences of two parts."""
    return Difference(
        max(one.max_absolute, other.max_absolute),
        max(one.max_relative, other.max_relative),
        one.mismatches + other.mismatches,
        one.size + other.size,
        one.problem or other.problem,
        max(one.largest, other.largest),
        one.nans + other.nans,
        one.infinities + other.infinities,
        one.is_float and other.is_float,
    )


def _largest(array: Array, wide: type[np.generic]) -> float:
    """The largest finite magnitude."""
    largest = 0.0
    for start in range(0, array.size, _BLOCK):
        sizes = np.abs(array[start : start + _BLOCK].astype(wide))
        largest = max(largest, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
    return largest


def _compare_block(
    actual: Array, expected: Array, bound: Bound, nearby: Array | None, largest: float
) -> Difference:
    with np.errstate(all="ignore"):
        nans = np.isnan(actual), np.isnan(expected)
        same = (actual == expected) | (nans[0] & nans[1])
        error = np.where(same, 0.0, np.abs(actual - expected))
        error[np.isnan(error)] = np.inf  # a number and a NaN, or two infinities
        size = np.abs(expected)
        allowed = bound.absolute + bound.of_largest * largest + bound.relative * size
        if nearby is not None:
            allowed = allowed + bound.movement * np.abs(expected - nearby)
            settled = np.isfinite(nearby) == np.isfinite(expected)
            settled &= np.isnan(nearby) == nans[1]
            error[~settled] = 0.0
        wrong = (error > 0) & (~(error <= allowed) | np.isinf(error))
        relative = np.where(error > 0, error / np.maximum(size, bound.absolute), 0.0)
    relative[np.isnan(relative)] = np.inf
    one_nan = wrong & (nans[0] != nans[1])
    return Difference(
        float(error.max(initial=0.0)),
        float(relative.max(initial=0.0)),
        int(np.count_nonzero(wrong)),
        actual.size,
        nans=int(np.count_nonzero(one_nan)),
        infinities=int(np.count_nonzero(wrong & ~one_nan & np.isinf(error))),
    )


def _compare_exactly(
    actual: Array, expected: Array, bound: Bound, nearby: Array | None, is_integer: bool
) -> Difference:
    wrong = actual != expected
    if nearby is not None:
        wrong &= (expected == nearby) | bool(bound.steps)
    count = int(np.count_nonzero(wrong))
    if not (count and is_integer):
        return Difference(mismatches=count, size=actual.size, is_float=False)
    errors = _integer_errors(actual[wrong], expected[wrong])
    if bound.steps:
        allowed = bound.steps + bound.relative * np.abs(expected[wrong].astype(np.float64))
        allowed += bound.of_largest * _largest(expected, np.float64)
        if nearby is not None:
            allowed += _integer_errors(expected[wrong], nearby[wrong])
        errors = errors[errors > allowed]
    largest = float(errors.max(initial=0))
    return Difference(largest, 0.0, len(errors), actual.size, is_float=False)


def _integer_errors(actual: Array, expected: Array) -> Array:
    """Distances as floats; those of 64-bit integers by Python's, which do not overflow."""
    if actual.dtype.itemsize < 8:
        return np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    pairs = zip(actual.tolist(), expected.tolist(), strict=True)
    return np.array([float(abs(int(one) - int(other))) for one, other in pairs])
