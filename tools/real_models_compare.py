"""Whether two runs of a model agree: outputs in, the first that differs and the largest error out.

Integers, booleans and strings have to be equal. Floats may differ by a share of their own size and
of the largest number in their tensor: what comes of adding in another order grows with the sums,
not with what is left of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# By dtype: the share of a number, and of the largest one beside it, that it may be off by.
_TOLERANCES = {"float16": 1e-2, "float32": 1e-3, "float64": 1e-6}


@dataclass(frozen=True)
class Agreement:
    """The first output that differs, in words ("" if none), and the largest relative error."""

    difference: str
    error: float


def agreement(names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any]) -> Agreement:
    """Compare outputs one by one."""
    if len(expected) != len(actual):
        return Agreement(f"{len(actual)} outputs instead of {len(expected)}", np.inf)
    found = [_compared(*pair) for pair in zip(expected, actual, strict=True)]
    first = next(
        (f"{n}: {f.difference}" for n, f in zip(names, found, strict=True) if f.difference), ""
    )
    return Agreement(first, max((f.error for f in found), default=0.0))


def _compared(expected: Any, actual: Any) -> Agreement:
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or list(expected) != list(actual):
            return Agreement("another map", np.inf)
        return _compared(list(expected.values()), list(actual.values()))
    if isinstance(expected, list):
        if not isinstance(actual, list):
            return Agreement(f"{type(actual).__name__} instead of a sequence", np.inf)
        return agreement([f"[{i}]" for i in range(len(expected))], expected, actual)
    return _arrays(np.asarray(expected), np.asarray(actual))


def _arrays(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> Agreement:
    if expected.shape != actual.shape:
        return Agreement(f"shape {actual.shape} instead of {expected.shape}", np.inf)
    if expected.dtype != actual.dtype:
        return Agreement(f"{actual.dtype} instead of {expected.dtype}", np.inf)
    if expected.dtype.kind != "f":
        wrong = int(np.sum(expected != actual))
        return Agreement(f"{wrong} of {expected.size} differ" if wrong else "", float(wrong > 0))
    return _floats(expected.astype(np.float64), actual.astype(np.float64), expected.dtype.name)


def _floats(expected: Any, actual: Any, dtype: str) -> Agreement:
    finite = np.isfinite(expected)
    odd = ~finite
    if not np.array_equal(expected[odd], actual[odd], equal_nan=True):
        return Agreement("infinities or NaNs elsewhere", np.inf)
    if not np.all(np.isfinite(actual[finite])):
        return Agreement("infinities or NaNs where there were numbers", np.inf)
    if not finite.any():
        return Agreement("", 0.0)
    away, size = np.abs(expected[finite] - actual[finite]), np.abs(expected[finite])
    largest = max(float(size.max()), np.finfo(np.float32).tiny)
    error = float(away.max()) / largest
    tolerance = _TOLERANCES[dtype]
    if np.all(away <= tolerance * size + tolerance * 0.1 * largest):
        return Agreement("", error)
    wrong = int(np.sum(away > tolerance * size + tolerance * 0.1 * largest))
    return Agreement(f"{wrong} of {expected.size} differ, by {error:.1e} of the largest", error)
