"""Whether two results are the same: what Graft computed beside what was expected.

Floating-point numbers may differ by a tolerance, everything else not at all. NaN equals NaN, an
infinity equals itself. The relative error is taken against the expected number or the absolute
tolerance, whichever is larger, so that it says something for numbers near zero too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.evaluate import Data

# Elements that are compared at once: the comparison's own memory stays small.
_BLOCK = 1 << 20
# Neighbouring numbers that two correct results may be apart.
_STEPS = 4
# NumPy's own knows nothing of the exotic dtypes.
_finfo: Any = ml_dtypes.finfo


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|actual - expected| may be as large as absolute + relative * |expected|.

    Unless it is meant `literally`, either is at least a few times what a dtype can tell apart
    from 1: no two implementations agree to 0.001 in float16.
    """

    relative: float = 1e-3
    absolute: float = 1e-4
    literally: bool = False

    def for_dtype(self, dtype: DType) -> Tolerance:
        """With what elements of a narrow dtype need."""
        if self.literally or not dtype.is_float:
            return self
        least = _STEPS * float(_finfo(dtype.numpy).eps)
        return replace(self, relative=max(self.relative, least), absolute=max(self.absolute, least))

    def for_values_like(self, expected: Data) -> Tolerance:
        """With an absolute part that grows with the size of a tensor's numbers beyond 1.

        Where a node adds up large numbers, its rounding is in proportion to these, even for a sum
        that comes out near zero.
        """
        if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fc":
            return self
        sizes = np.abs(expected[np.isfinite(expected)]).astype(np.float64)
        root_mean_square = float(np.sqrt(np.mean(sizes**2))) if sizes.size else 0.0
        return replace(self, absolute=self.absolute * max(1.0, root_mean_square))


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two results are apart; `problem` says why they cannot even be compared."""

    max_absolute: float = 0.0
    max_relative: float = 0.0
    mismatches: int = 0
    size: int = 0
    problem: str = ""

    @property
    def agrees(self) -> bool:
        return not self.problem and not self.mismatches


def compare(actual: Data, expected: Data, tolerance: Tolerance) -> Difference:
    """The difference between two values of any kind."""
    if isinstance(actual, list) and isinstance(expected, list):
        if len(actual) != len(expected):
            return Difference(problem=f"{len(actual)} items, not {len(expected)}")
        pairs = zip(actual, expected, strict=True)
        return _together(compare(mine, other, tolerance) for mine, other in pairs)
    if isinstance(actual, dict) and isinstance(expected, dict):
        if actual.keys() != expected.keys():
            return Difference(problem="other keys")
        return _together(compare(actual[key], expected[key], tolerance) for key in actual)
    if actual is None or expected is None:
        return Difference() if actual is expected else Difference(problem=_kinds(actual, expected))
    if isinstance(actual, list | dict) or isinstance(expected, list | dict):
        return Difference(problem=_kinds(actual, expected))
    return _compare_arrays(np.asarray(actual), np.asarray(expected), tolerance)


def _kinds(actual: Data, expected: Data) -> str:
    names = {list: "a sequence", dict: "a map", type(None): "empty"}
    mine, other = (names.get(type(data), "a tensor") for data in (actual, expected))
    return f"{mine}, not {other}"


def _together(parts: Iterable[Difference]) -> Difference:
    """The differences of all items as one."""
    total = Difference()
    for position, part in enumerate(parts):
        problem = f"item {position}: {part.problem}" if part.problem else ""
        total = Difference(
            max(total.max_absolute, part.max_absolute),
            max(total.max_relative, part.max_relative),
            total.mismatches + part.mismatches,
            total.size + part.size,
            total.problem or problem,
        )
    return total


def _compare_arrays(actual: Array, expected: Array, tolerance: Tolerance) -> Difference:
    mine, other = dtype_of(actual.dtype), dtype_of(expected.dtype)
    if mine != other:
        return Difference(problem=f"{mine}, not {other}")
    if actual.shape != expected.shape:
        return Difference(problem=f"shape {list(actual.shape)}, not {list(expected.shape)}")
    flat, flat_expected = actual.reshape(-1), expected.reshape(-1)
    if not (mine.is_float or mine.is_complex):
        wrong = int(np.count_nonzero(flat != flat_expected))
        largest = _largest_integer_error(flat, flat_expected) if wrong and mine.is_integer else 0.0
        return Difference(largest, 0.0, wrong, flat.size)
    tolerance = tolerance.for_dtype(mine)
    wide = np.complex128 if mine.is_complex else np.float64
    return _together(
        _compare_block(
            flat[start : start + _BLOCK].astype(wide),
            flat_expected[start : start + _BLOCK].astype(wide),
            tolerance,
        )
        for start in range(0, flat.size, _BLOCK)
    )


def _largest_integer_error(actual: Array, expected: Array) -> float:
    wrong = actual != expected
    pairs = zip(actual[wrong].tolist(), expected[wrong].tolist(), strict=True)
    return float(max(abs(int(mine) - int(other)) for mine, other in pairs))


def _compare_block(actual: Array, expected: Array, tolerance: Tolerance) -> Difference:
    with np.errstate(all="ignore"):
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        error = np.where(same, 0.0, np.abs(actual - expected))
        error[np.isnan(error)] = np.inf  # a number and a NaN
        size = np.abs(expected)
        wrong = ~same & ~(error <= tolerance.absolute + tolerance.relative * size)
        wrong |= np.isinf(error)
        relative = np.where(same, 0.0, error / np.maximum(size, tolerance.absolute))
    relative[np.isnan(relative)] = np.inf
    return Difference(
        float(error.max(initial=0.0)),
        float(relative.max(initial=0.0)),
        int(np.count_nonzero(wrong)),
        actual.size,
    )
