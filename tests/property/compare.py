"""Compares what a graph gives with what it gave before a pass, as exactly as each value demands.

Integers, truth values, strings, shapes and dtypes have to agree entirely, floats bit for bit but
for the payload of a NaN, unless they are fuzzy. For those the tolerance scales with the numbers;
where that is not enough, the graph is run with noise of the size of a rounding error on every fuzzy
value, and what moves so much by itself may differ so much.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from tests.property.graphs import Sample
from tests.property.sketch import FUZZY, STRICT, Info

from graft.base.compare import Bound, compare_arrays
from graft.base.dims import bare_symbol
from graft.base.dtypes import Array, dtype_of
from graft.ir.attrs import bind_attrs
from graft.ir.evaluate import run_op
from graft.ir.graph import Graph, Value

# Rounding errors, in units of the dtype's epsilon, that a pass may cause.
ALLOWED = 64
NOISE = 8
NOISY_RUNS = 8


def assert_preserved(sample: Sample, expected: Sequence[Array], found: Sequence[Array]) -> None:
    """Fail where a result of the sample's graph differs by more than it may."""
    assert len(expected) == len(found)
    for position, value in enumerate(sample.graph.outputs):
        before, after = expected[position], found[position]
        what = f"output {position}, %{value.name}"
        assert (before.dtype, before.shape) == (after.dtype, after.shape), what
        info = sample.info[value.name]
        if before.dtype == object:
            assert before.tolist() == after.tolist(), what
        elif not dtype_of(before.dtype).is_float or info.level > FUZZY:
            _assert_equal(before, after, info, what)
        else:
            _assert_close(sample, position, before, after, what)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def _assert_equal(before: Array, after: Array, info: Info, what: str) -> None:
    assert compare_arrays(after, before).agrees, f"{what}: {after} where there was {before}"
    if dtype_of(before.dtype).is_float and info.level == STRICT:
        number = ~np.isnan(_wide(before))
        signs = [np.signbit(_wide(array))[number] for array in (after, before)]
        np.testing.assert_array_equal(*signs, f"signs of {what}")


def _assert_close(sample: Sample, position: int, before: Array, after: Array, what: str) -> None:
    rounding = Bound(1e-30, of_largest=ALLOWED * _epsilon(before))
    found = compare_arrays(after, before, rounding)
    if not found.agrees:
        one, other = _wide(before), _wide(after)
        runs = [_noisy_run(sample, seed)[position] for seed in range(NOISY_RUNS)]
        with np.errstate(all="ignore"):
            moved = np.stack([_wide(run) - one for run in runs])
        settled = np.isfinite(moved).all(axis=0) | ~np.isfinite(one)
        spread = np.max(np.abs(moved[np.isfinite(moved)]), initial=0.0)
        tolerance = max(rounding.of_largest * found.largest, ALLOWED * spread)
        found = compare_arrays(other[settled], one[settled], Bound(absolute=tolerance))
    assert found.agrees, f"{what} {found.words('what was there before')}"


def _epsilon(array: Array) -> float:
    return float(ml_dtypes.finfo(array.dtype).eps)


def _noisy_run(sample: Sample, seed: int) -> list[Array]:
    """The graph's results where every fuzzy value is a little off."""
    noise = np.random.default_rng(seed)
    graph, values = sample.graph, dict(zip(sample.graph.inputs, sample.inputs, strict=True))
    symbols = _symbols(graph, sample.inputs)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            operands = [None if v is None else values[v] for v in node.inputs]
            results = run_op(node.op, bind_attrs(node.attrs, symbols), operands)
            for value, result in zip(node.outputs, results, strict=True):
                values[value] = _disturbed(sample, value, result, operands, noise)
    return [values[value] for value in graph.outputs]


def _disturbed(
    sample: Sample,
    value: Value,
    result: Array,
    operands: Sequence[Array | None],
    noise: np.random.Generator,
) -> Array:
    result = np.asarray(result)
    if not dtype_of(result.dtype).is_float or sample.info[value.name].level > FUZZY:
        return result
    scale = _magnitude(result)
    for operand in operands:
        if operand is not None and dtype_of(operand.dtype).is_float:
            scale = max(scale, scale * _magnitude(operand), _magnitude(operand))
    step = NOISE * _epsilon(result) * min(scale, 1e30)
    return (_wide(result) + noise.uniform(-step, step, result.shape)).astype(result.dtype)


def _magnitude(array: Array) -> float:
    wide = _wide(array)
    return float(np.max(np.abs(wide[np.isfinite(wide)]), initial=0.0))


def _symbols(graph: Graph, inputs: Sequence[Array]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value, array in zip(graph.inputs, inputs, strict=True):
        for dim, extent in zip(value.shape or (), array.shape, strict=True):
            name = bare_symbol(dim)
            if name is not None:
                found[name] = extent
    return found
