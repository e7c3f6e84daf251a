"""Results of a region beside the host's: arrays in, the worst difference out.

What is asked here is whether a device still computes what it computed when it was checked, on data
that nobody chose. So tolerances are ten times those of the check before a region is trusted
(`byoc/trust.py`): faults of devices are gross, and a false alarm costs the user the accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of

# (relative to the element, relative to the largest element) by type
TOLERANCES: dict[DType, tuple[float, float]] = {
    DType.FLOAT64: (1e-5, 1e-8),
    DType.FLOAT32: (1e-2, 1e-3),
    DType.FLOAT16: (1e-1, 2e-2),
    DType.BFLOAT16: (2e-1, 1e-1),
}
_NARROWEST = (2e-1, 1e-1)  # floats of 8 bits and fewer
# Rounding may tip quantised numbers by one, here and there.
_NARROW = (np.dtype(np.int8), np.dtype(np.uint8))
_TIPPED = 0.05


class Difference(NamedTuple):
    """How far results are from the host's, and that in words."""

    largest: float
    text: str


def find_difference(results: Sequence[Array], expected: Sequence[Array]) -> Difference | None:
    """The first result that differs by more than its type allows; None where all agree."""
    for index, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        found = _difference(ours, theirs)
        if found is not None:
            return Difference(found.largest, f"result {index} {found.text}")
    return None


def _difference(result: Array, expected: Array) -> Difference | None:
    if result.dtype.kind in "OUS" or dtype_of(result.dtype).is_complex:
        same = np.array_equal(result, expected)
        return None if same else Difference(np.inf, "differs from the host's")
    if result.dtype.kind in "biu":
        return _integer_difference(result, expected)
    with np.errstate(all="ignore"):
        return _float_difference(result.astype(np.float64), expected.astype(np.float64), result)


def _integer_difference(result: Array, expected: Array) -> Difference | None:
    wrong = result != expected
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    distance = np.abs(result[wrong].astype(np.float64) - expected[wrong].astype(np.float64))
    largest = float(distance.max())
    if result.dtype in _NARROW and largest <= 1 and count <= max(_TIPPED * result.size, 1):
        return None
    text = f"differs from the host's in {count} of {result.size} elements, by up to {largest:.3g}"
    return Difference(largest, text)


def _float_difference(ours: Array, theirs: Array, result: Array) -> Difference | None:
    nans = int(np.count_nonzero(np.isnan(ours) != np.isnan(theirs)))
    if nans:
        return Difference(np.inf, f"is NaN where the host's is not, or the reverse, {nans} times")
    finite = np.isfinite(theirs)
    infinite = ~finite & ~np.isnan(theirs)
    if np.any(ours[infinite] != theirs[infinite]):
        return Difference(np.inf, "is not infinite where the host's is")
    relative, absolute = TOLERANCES.get(dtype_of(result.dtype), _NARROWEST)
    error, magnitude = np.abs(ours[finite] - theirs[finite]), np.abs(theirs[finite])
    scale = float(magnitude.max(initial=0.0))
    if np.all(error <= absolute * scale + relative * magnitude):
        return None
    largest = float(error.max())
    text = f"differs from the host's by {largest:.3g} where the largest is {scale:.3g}"
    return Difference(largest, text)
