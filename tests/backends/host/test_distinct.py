"""`unique` as native code: every dtype, both orders, results as long as there are elements."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.kernels.expression.template import HELD
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.types import TensorType

FEW = np.array([np.nan, 3, 0.0, -0.0, 1, np.inf, 2, -np.inf, np.nan])


def _numbers(shape: tuple[int, ...], dtype: DType) -> Array:
    few = FEW if dtype.is_float else np.array([3, 0, 1, 2, 120])
    return np.random.default_rng(shape).choice(few, shape).astype(dtype.numpy)


@pytest.mark.each_value
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("dtype", sorted(HELD), ids=str)
def test_every_dtype(dtype: DType, in_order: bool) -> None:
    g = Builder()
    x = g.input("x", TensorType(dtype, (symbol("n"), 3)))
    graph = g.build(*g.call("unique", x, sorted=in_order))
    runs = [[_numbers((n, 3), dtype)] for n in (0, 1, 2, 50)]
    steps = check_flow(graph, *runs)
    assert steps == ["Segment", "Slice", "Slice", "Slice"]


def test_a_list_along_its_only_axis() -> None:
    g = Builder()
    x = g.input("x", TensorType(DType.INT32, (symbol("n"),)))
    values, *_ = g.call("unique", x, axis=0)
    graph = g.build(g("add", values, g.constant(np.int32(1))))
    runs = [[_numbers((n,), DType.INT32)] for n in (1, 7, 300)]
    assert check_flow(graph, *runs) == ["Segment", *["Slice"] * 3, "Segment"]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_slices_along_an_axis(axis: int, in_order: bool) -> None:
    g = Builder()
    x = g.input("x", TensorType(DType.FLOAT32, (symbol("n"), symbol("m"), symbol("k"))))
    graph = g.build(*g.call("unique", x, axis=axis, sorted=in_order))
    shapes = [(9, 2, 3), (1, 40, 2), (40, 1, 1), (2, 3, 60), (3, 2, 0), (0, 2, 3), (4, 0, 5)]
    runs = [[_numbers(shape, DType.FLOAT32)] for shape in shapes]
    runs += [[np.ones((5, 5, 5), np.float32)], [np.eye(6, dtype=np.float32).reshape(6, 2, 3)]]
    assert "Evaluate" not in check_flow(graph, *runs)


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.INT8, DType.FLOAT16, DType.UINT64], ids=str)
def test_rows_of_every_kind(dtype: DType) -> None:
    g = Builder()
    x = g.input("x", TensorType(dtype, (17, 2)))
    graph = g.build(*g.call("unique", x, axis=0))
    steps = check_flow(graph, [_numbers((17, 2), dtype)])
    assert steps == ["Segment", *["Slice"] * 3, "Segment"]


def test_slices_without_elements() -> None:
    g = Builder()
    x = g.input("x", TensorType(DType.FLOAT32, (symbol("n"), 1, 0)))
    graph = g.build(*g.call("unique", x, axis=0), *g.call("unique", x, axis=-2))
    assert "Evaluate" not in check_flow(graph, *([np.zeros((n, 1, 0), np.float32)] for n in (0, 3)))
