"""Whether two runs of a model agree: outputs in, the first that differs and the largest error out.

Integers, booleans and strings have to be equal. Floats may differ by a share of their own size and
of the largest number in their part of the output: what comes of adding in another order grows with
the sums, not with what is left of them.

Probabilities may be allowed a millionth, no matter how small all of them are: a sigmoid's rounding
is part of its scale, which is one, and ONNX Runtime clamps and approximates it. Where nothing is
found, scores of 3e-8 are as good as zeros. A millionth is eight roundings of one; where the largest
is above a hundredth, it at most doubles what is allowed anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import SparseTensor

from benchmarks.real_models.makeup import Makeup
from graft.base.compare import Bound, Difference, compare_arrays

SLACK = 1e-6  # what a probability may be off by, if it may

# By dtype: the share of a number, and of the largest one beside it, that it may be off by.
_TOLERANCES = {"float16": 1e-2, "float32": 1e-3, "float64": 1e-6}


@dataclass(frozen=True)
class Agreement:
    """The first output that differs, in words ("" if none), and the largest relative error."""

    difference: str
    error: float


def agreement(
    names: Sequence[str],
    expected: Sequence[Any],
    actual: Sequence[Any],
    makeups: Mapping[str, Makeup] = {},
    slack: float = 0.0,
    narrowest: str = "float64",
) -> Agreement:
    """Compare outputs one by one, by their parts; `slack` is what probabilities may be off by.

    `narrowest` is the narrowest float on the way: results can be no better than that."""
    if len(expected) != len(actual):
        return Agreement(f"{len(actual)} outputs instead of {len(expected)}", np.inf)
    found = [
        _compared(theirs, ours, makeups.get(name, Makeup()), slack, narrowest)
        for name, theirs, ours in zip(names, expected, actual, strict=True)
    ]
    return _first(names, found)


def _first(names: Sequence[str], found: Sequence[Agreement]) -> Agreement:
    """Many as one: the first difference, with its name, and the largest error."""
    named = zip(names, found, strict=True)
    first = next((f"{name}: {f.difference}" for name, f in named if f.difference), "")
    return Agreement(first, max((f.error for f in found), default=0.0))


def _compared(
    expected: Any, actual: Any, makeup: Makeup, slack: float, narrowest: str
) -> Agreement:
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or list(expected) != list(actual):
            return Agreement("another map", np.inf)
        sides = (_array(side.values()) for side in (expected, actual))
        return _compared(*sides, makeup, slack, narrowest)
    if isinstance(expected, list):
        if not isinstance(actual, list):
            return Agreement(f"{type(actual).__name__} instead of a sequence", np.inf)
        names = [f"[{i}]" for i in range(len(expected))]
        return agreement(names, expected, actual, slack=slack, narrowest=narrowest)
    if isinstance(expected, SparseTensor):
        expected = _dense(expected)
    return _arrays(np.asarray(expected), np.asarray(actual), makeup, slack, narrowest)


def _dense(sparse: Any) -> np.ndarray[Any, Any]:
    """A sparse tensor of ONNX Runtime as an array: Graft's constants are dense."""
    made = np.zeros(sparse.dense_shape(), sparse.values().dtype)
    indices = sparse.get_coo_data().indices()
    made[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, made.shape)] = (
        sparse.values()
    )
    return made


def _array(values: Iterable[Any]) -> np.ndarray[Any, Any]:
    """The values of a map as an array; what were floats of 32 bits are Python's by now."""
    array = np.asarray(list(values))
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _arrays(
    expected: np.ndarray[Any, Any],
    actual: np.ndarray[Any, Any],
    makeup: Makeup,
    slack: float,
    narrowest: str,
) -> Agreement:
    if expected.shape != actual.shape or expected.dtype.kind != "f":
        return _agreement(compare_arrays(actual, expected))
    tolerance = max(_TOLERANCES[name] for name in (expected.dtype.name, narrowest))
    # Numbers below the smallest normal one have only so many digits.
    least = 2 * float(np.finfo(expected.dtype).smallest_subnormal)
    found = []
    for theirs, ours, is_bounded in zip(
        makeup.parts(expected), makeup.parts(actual), makeup.bounded, strict=True
    ):
        absolute = max(least, slack if is_bounded else 0.0)
        bound = Bound(absolute, relative=tolerance, of_largest=0.1 * tolerance)
        found.append(_agreement(compare_arrays(ours, theirs, bound)))
    return found[0] if len(found) == 1 else _first([f"part {i}" for i in range(len(found))], found)


def _agreement(difference: Difference) -> Agreement:
    """The difference in words, and the error as a share of the largest number."""
    if difference.problem:
        return Agreement(difference.problem, np.inf)
    wrong = f"{difference.mismatches} of {difference.size} differ" if difference.mismatches else ""
    if not difference.is_float:
        return Agreement(wrong, float(bool(wrong)))
    error = difference.max_absolute / max(difference.largest, float(np.finfo(np.float32).tiny))
    if wrong:
        odd = difference.nans or difference.infinities
        wrong += ", by NaN or infinity" if odd else f", by {error:.1e} of the largest"
    return Agreement(wrong, error)
