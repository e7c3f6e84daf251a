"""Checks of a region's results: against the host's, or by a cheap look at a few elements.

What is asked here is whether a device still computes what it computed when it was checked, on data
that nobody chose. So tolerances are ten times those of the check before a region is trusted
(`byoc/trust.py`): faults of devices are gross, and a false alarm costs the user the accelerator.
Where a device rounds float32 to something coarser, a network may amplify that without limit: there
results may also differ by a multiple of what the host's move by if inputs are rounded so.

The look reads at most 256 elements of each result, evenly spread, and others the next time. One
that is not finite, or that all are the same, is no proof of a fault, so it only says when to
compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

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
MOVEMENT = 16.0  # times what the host's results move by where inputs change in their last bit
_STEPS = 13  # of 8-bit numbers, 5 % of their range: layers pass on what rounding tips by one


ELEMENTS = 256  # looked at per result
_FEWEST = 16  # elements that may well be equal by chance
# What outputs hold before a run that is to be checked. As a float it is a NaN that no arithmetic
# makes; as an integer it is a number that is rarely met.
_FLOAT_POISON, _OTHER_POISON = 0xFF, 0xA5


class Difference(NamedTuple):
    """How far results are from the host's, and that in words."""

    largest: float
    text: str


def find_difference(
    results: Sequence[Array],
    expected: Sequence[Array],
    rounding: DType = DType.FLOAT32,
    nearby: Sequence[Array] | None = None,
) -> Difference | None:
    """The first result that differs by more than its type allows, or than a coarser one does that
    float32 is rounded to on the way; None where all agree. `nearby` are the host's results on
    inputs that are moved by a last bit."""
    others = expected if nearby is None else nearby
    for index, (ours, theirs, near) in enumerate(zip(results, expected, others, strict=True)):
        bound = _bound(dtype_of(theirs.dtype), rounding)
        difference = compare_arrays(ours, theirs, bound, near)
        if not difference.agrees:
            words = difference.words("the host's")
            return Difference(difference.max_absolute or 1.0, f"result {index} {words}")
    return None


def _bound(dtype: DType, rounding: DType) -> Bound:
    if dtype in (DType.INT8, DType.UINT8):
        return Bound(steps=_STEPS)
    if not dtype.is_float:
        return EQUAL
    relative, of_largest = TOLERANCES.get(dtype, _NARROWEST)
    if dtype is DType.FLOAT32 and rounding is not DType.FLOAT32:
        relative, of_largest = _NARROWEST  # networks may amplify what each layer rounds
    return Bound(relative=relative, of_largest=of_largest, movement=MOVEMENT)


def poison(arrays: Sequence[Array]) -> None:
    """Fill arrays with what no result has by chance."""
    for array in arrays:
        if array.dtype.kind not in "Ob":
            array.reshape(-1).view(np.uint8).fill(_poison(array))


def unwritten(arrays: Sequence[Array]) -> str:
    """Which float results still hold the poison somewhere, in words; integers may by chance."""
    for index, array in enumerate(arrays):
        if array.dtype.kind in "Obiu" or not array.size:
            continue
        words = array.reshape(-1).view(f"u{min(array.dtype.itemsize, 8)}")  # two per complex128
        count = int(np.count_nonzero(words == np.iinfo(words.dtype).max))
        if count:
            return f"{count} of {array.size} elements of result {index} were not written"
    return ""


def suspicion(arrays: Sequence[Array], iteration: int = 0) -> str:
    """What is odd about results, in words; empty where nothing is. Which elements are looked at
    goes by `iteration`: in as many iterations as they are apart, it is all of them."""
    for index, array in enumerate(arrays):
        size, dtype = array.size, array.dtype
        if not size or dtype.kind == "O":
            continue
        apart = -(-size // ELEMENTS)
        sample = array.reshape(-1)[iteration % apart :: apart]
        if dtype.kind == "c":
            sample = np.abs(sample)
        elif dtype.kind not in "biuf" or dtype == np.float16:  # slow in NumPy, or not known to it
            sample = sample.astype(np.float32)
        least, largest = np.minimum.reduce(sample), np.maximum.reduce(sample)
        if not (-np.inf < least and largest < np.inf):  # nor is NaN
            return f"result {index} is not finite"
        if least == largest and size >= _FEWEST:
            return f"result {index} has the same number everywhere"
    return ""


def _poison(array: Array) -> int:
    return _OTHER_POISON if array.dtype.kind in "iu" else _FLOAT_POISON
