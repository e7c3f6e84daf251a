"""Results of a region beside the host's: arrays in, the worst difference out.

What is asked here is whether a device still computes what it computed when it was checked, on data
that nobody chose. So tolerances are ten times those of the check before a region is trusted
(`byoc/trust.py`): faults of devices are gross, and a false alarm costs the user the accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graft.base.compare import EQUAL, Bound, compare_arrays
from graft.base.dtypes import Array, DType, dtype_of

# (relative to the element, relative to the largest element) by type
TOLERANCES: dict[DType, tuple[float, float]] = {
    DType.FLOAT64: (1e-5, 1e-8),
    DType.FLOAT32: (1e-2, 1e-3),
    DType.FLOAT16: (1e-1, 2e-2),
    DType.BFLOAT16: (2e-1, 1e-1),
}
_NARROWEST = (2e-1, 1e-1)  # floats of 8 bits and fewer
_TIPPED = 0.05  # share of quantised numbers that rounding may tip by one


class Difference(NamedTuple):
    """How far results are from the host's, and that in words."""

    largest: float
    text: str


def find_difference(results: Sequence[Array], expected: Sequence[Array]) -> Difference | None:
    """The first result that differs by more than its type allows; None where all agree."""
    for index, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        difference = compare_arrays(ours, theirs, _bound(dtype_of(theirs.dtype)))
        if not difference.agrees:
            words = difference.words("the host's")
            return Difference(difference.max_absolute or 1.0, f"result {index} {words}")
    return None


def _bound(dtype: DType) -> Bound:
    if dtype in (DType.INT8, DType.UINT8):
        return Bound(steps=1, share=_TIPPED)
    if not dtype.is_float:
        return EQUAL
    relative, of_largest = TOLERANCES.get(dtype, _NARROWEST)
    return Bound(relative=relative, of_largest=of_largest)
