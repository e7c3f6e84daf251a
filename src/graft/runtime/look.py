"""A cheap look at results: arrays in, a suspicion out, in a few microseconds.

It reads at most 256 elements of each result, evenly spread, and others the next time. One that is
not finite, or that all are the same, is no proof of a fault: some regions do give infinities or
constants. So the look only tells whom to ask; whether the host computes the same decides
(`guard.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graft.base.dtypes import Array

ELEMENTS = 256  # looked at per result
_FEWEST = 16  # elements that may well be equal by chance
# What outputs hold before a run that is to be checked. As a float it is a NaN that no arithmetic
# makes; as an integer it is a number that is rarely met.
_FLOAT_POISON, _OTHER_POISON = 0xFF, 0xA5


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
        looked = array.reshape(-1)[iteration % apart :: apart]
        if dtype.kind == "c":
            looked = np.abs(looked)
        elif dtype.kind not in "biuf" or dtype == np.float16:  # slow in NumPy, or not known to it
            looked = looked.astype(np.float32)
        least, largest = np.minimum.reduce(looked), np.maximum.reduce(looked)
        if not (-np.inf < least and largest < np.inf):  # nor is NaN
            return f"result {index} is not finite"
        if least == largest and size >= _FEWEST:
            return f"result {index} has the same number everywhere"
    return ""


def _poison(array: Array) -> int:
    return _OTHER_POISON if array.dtype.kind in "iu" else _FLOAT_POISON
