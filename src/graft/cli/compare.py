"""Whether two results are the same: what Graft computed beside what was expected.

Floating-point numbers may differ by a tolerance, everything else not at all; sequences and maps are
compared item by item (`base/compare.py` compares arrays). The relative error is taken against the
expected number or the absolute tolerance, whichever is larger, so that it says something for
numbers near zero too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from graft.base.compare import Bound, Difference, compare_arrays, together
from graft.base.dtypes import DType, dtype_of
from graft.ir.evaluate import Data

__all__ = ["Difference", "Tolerance", "compare"]

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

    @property
    def bound(self) -> Bound:
        return Bound(absolute=self.absolute, relative=self.relative)

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
    mine, other = np.asarray(actual), np.asarray(expected)
    return compare_arrays(mine, other, tolerance.for_dtype(dtype_of(other.dtype)).bound)


def _kinds(actual: Data, expected: Data) -> str:
    names = {list: "a sequence", dict: "a map", type(None): "empty"}
    mine, other = (names.get(type(data), "a tensor") for data in (actual, expected))
    return f"{mine}, not {other}"


def _together(parts: Iterable[Difference]) -> Difference:
    """The differences of all items as one."""
    total = Difference()
    for position, part in enumerate(parts):
        problem = f"item {position}: {part.problem}" if part.problem else ""
        total = together(total, replace(part, problem=problem))
    return total
