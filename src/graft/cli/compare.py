"""Comparison of results: what Graft computed beside what was expected.

Floating-point numbers may differ by a tolerance, everything else must be equal; sequences and maps
are compared item by item (`base/compare.py` compares arrays). The relative error is relative to the
expected number or the absolute tolerance, whichever is larger, so that it is meaningful near zero,
too.

Rows of outputs may belong together, as boxes, scores and labels of detections do. Their number
depends on data, and their order on comparisons of almost equal numbers, so rows that agree in all
outputs are equal wherever they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from graft.base.compare import Bound, Difference, compare_arrays, together
from graft.base.dims import IndexExpr, symbols_of
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.quantities import counted, number
from graft.cli.options import not_negative
from graft.cli.report import error_text
from graft.ir.evaluate import Data
from graft.ir.graph import Graph

# Neighbouring numbers that two correct results may be apart.
_STEPS = 4
# NumPy's own knows nothing of the exotic dtypes.
_finfo: Any = ml_dtypes.finfo


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|actual - expected| may be as large as absolute + relative * |expected|.

    Unless it is meant `literally`, either is at least a few times the resolution of the dtype: no
    two implementations agree to 0.001 in float16."""

    relative: float = 1e-3
    absolute: float = 1e-4
    literally: bool = False

    @property
    def bound(self) -> Bound:
        return Bound(absolute=self.absolute, relative=self.relative)

    def for_dtype(self, dtype: DType) -> Tolerance:
        """The tolerance for elements of a dtype."""
        if self.literally or not dtype.is_float:
            return self
        least = _STEPS * float(_finfo(dtype.numpy).eps)
        return replace(self, relative=max(self.relative, least), absolute=max(self.absolute, least))

    def for_values(self, expected: Data) -> Tolerance:
        """The tolerance for a value; items of a sequence or map have dtypes of their own."""
        is_array = isinstance(expected, np.ndarray | np.generic)
        return self.for_dtype(dtype_of(expected.dtype)) if is_array else self

    def for_values_like(self, expected: Data) -> Tolerance:
        """The tolerance with an absolute part that grows with the magnitude of a tensor beyond 1.

        The rounding error of a sum is in proportion to its terms, even if the sum is near zero."""
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
    return compare_arrays(mine, other, tolerance.for_values(other).bound)


def difference_figures(difference: Difference) -> tuple[str, str, str, str]:
    """Cells of a table: the largest errors, the number of wrong elements, and the verdict."""
    if difference.problem:
        return "-", "-", "-", f"DIFFERS: {difference.problem}"
    verdict = "agrees" if difference.size else "agrees, but is empty"
    return (
        error_text(difference.max_absolute),
        error_text(difference.max_relative),
        f"{number(difference.mismatches)} of {number(difference.size)}",
        verdict if difference.agrees else "DIFFERS",
    )


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


def in_expected_order(
    graph: Graph, actual: Sequence[Data], expected: Sequence[Data], tolerance: Tolerance
) -> tuple[list[Data], int]:
    """The actual outputs with rows in the order of the expected ones, and the number of rows
    moved."""
    aligned, moved = list(actual), 0
    for positions in _groups(graph):
        mine = [actual[position] for position in positions]
        other = [expected[position] for position in positions]
        order = _matching(mine, other, tolerance)
        if order is not None:
            moved += int(np.count_nonzero(order != np.arange(len(order))))
            for position in positions:
                aligned[position] = actual[position][order]
    return aligned, moved


def _groups(graph: Graph) -> list[list[int]]:
    """Positions of outputs that share a data-dependent first extent."""
    result: dict[IndexExpr, list[int]] = {}
    for position, value in enumerate(graph.outputs):
        shape = getattr(value.type, "shape", None)
        first = shape[0] if shape else None
        if isinstance(first, IndexExpr) and not symbols_of(first) <= graph.input_symbols:
            result.setdefault(first, []).append(position)
    return list(result.values())


def _matching(
    actual: Sequence[Array], expected: Sequence[Array], tolerance: Tolerance
) -> Array | None:
    """For each expected row the actual row that is equal; None if there is none for some row."""
    if any(mine.shape != other.shape for mine, other in zip(actual, expected, strict=True)):
        return None
    free = dict.fromkeys(range(len(expected[0])))
    order = np.arange(len(free))
    for row in range(len(order)):
        candidates = (row, *free) if row in free else tuple(free)
        result = next((i for i in candidates if _same(actual, i, expected, row, tolerance)), None)
        if result is None:
            return None
        order[row] = result
        del free[result]
    return order


def _same(
    actual: Sequence[Array], i: int, expected: Sequence[Array], j: int, tolerance: Tolerance
) -> bool:
    pairs = zip(actual, expected, strict=True)
    return all(compare(mine[i], other[j], tolerance).agrees for mine, other in pairs)


def disagreements(
    graph: Graph, outputs: Mapping[str, Sequence[Data]], tolerance: Tolerance
) -> dict[str, str]:
    """Reasons to exclude contenders from a comparison, by contender; empty if all agree."""
    output_count = len(graph.outputs)
    misfits = {
        name: f"gives {counted(len(values), 'output')}, not {output_count}"
        for name, values in outputs.items()
        if len(values) != output_count
    }
    fitting = {name: values for name, values in outputs.items() if name not in misfits}
    return misfits | _minority(graph, fitting, tolerance)


def _minority(
    graph: Graph, outputs: Mapping[str, Sequence[Data]], tolerance: Tolerance
) -> dict[str, str]:
    """Contenders that differ from the largest group that agrees, with reasons."""
    result = {
        expected: {
            actual: _difference(graph, outputs[actual], outputs[expected], tolerance)
            for actual in outputs
        }
        for expected in outputs
    }
    groups = {
        expected: frozenset(name for name, reason in reasons.items() if not reason)
        for expected, reasons in result.items()
    }
    size = max(map(len, groups.values()), default=0)
    largest = {group for group in groups.values() if len(group) == size}
    if len(largest) == 1:
        believed = next(name for name, group in groups.items() if len(group) == size)
        return {name: f"differs from {believed}: {r}" for name, r in result[believed].items() if r}
    return {name: _without_majority(name, result) for name in outputs}


def _without_majority(name: str, differences: Mapping[str, Mapping[str, str]]) -> str:
    """A difference of two contenders, neither of which has a majority."""
    other, reason = next((other, one[name]) for other, one in differences.items() if one[name])
    return f"differs from {other}, and no majority tells which is right: {reason}"


def _difference(
    graph: Graph, actual: Sequence[Data], expected: Sequence[Data], tolerance: Tolerance
) -> str:
    """The first output that differs, in words; empty if none does."""
    aligned, _ = in_expected_order(graph, actual, expected, tolerance)
    for name, mine, other in zip(graph.output_names, aligned, expected, strict=True):
        difference = compare(mine, other, tolerance)
        if not difference.agrees:
            return f"output '{name}': {_in_words(difference)}"
    return ""


def _in_words(difference: Difference) -> str:
    if difference.problem:
        return difference.problem
    wrong = f"{number(difference.mismatches)} of {number(difference.size)} wrong"
    return f"{wrong}, max abs error {error_text(difference.max_absolute)}"


def add_tolerance_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --rtol and --atol."""
    usual = Tolerance()
    for name, default in (("rtol", usual.relative), ("atol", usual.absolute)):
        parser.add_argument(
            f"--{name}",
            metavar="X",
            type=not_negative,
            help=f"default {default:g}, and more for floats of 16 bits and less",
        )


def tolerance_of(options: argparse.Namespace) -> Tolerance:
    """The tolerance of the options, with defaults."""
    limits = {"relative": options.rtol, "absolute": options.atol}
    fields = {name: value for name, value in limits.items() if value is not None}
    return Tolerance(literally=bool(fields), **fields)
