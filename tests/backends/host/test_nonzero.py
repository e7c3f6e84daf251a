"""`nonzero` as native code, and the numbers that it finds as sizes of what comes after."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.kernels.expression.template import HELD
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.types import TensorType, tensor

SHAPES = [(0,), (1,), (7,), (3, 5), (2, 0, 4), (2, 3, 4), (), (1000,)]


def _sparse(shape: tuple[int, ...], dtype: DType, share: float = 0.4) -> Array:
    random = np.random.default_rng(len(shape))
    numbers = random.choice([1, 2, 3], shape) * (random.random(shape) < share)
    return numbers.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", sorted(HELD), ids=str)
def test_every_dtype(dtype: DType) -> None:
    g = Builder()
    x = g.input("x", TensorType(dtype, (symbol("n"), 3)))
    arrays = [_sparse((n, 3), dtype) for n in (0, 1, 8, 301)]
    flow = check_flow(g.build(g("nonzero", x)), *([array] for array in arrays))
    assert flow == ["Segment", "BindSymbol", "Segment"]


@pytest.mark.each_value
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_static_shapes(shape: tuple[int, ...], share: float) -> None:
    g = Builder()
    x = g.input("x", TensorType(DType.FLOAT32, shape))
    check_flow(g.build(g("nonzero", x)), [_sparse(shape, DType.FLOAT32, share)])


def test_not_a_number_is_not_zero_and_minus_zero_is() -> None:
    g = Builder()
    graph = g.build(g("nonzero", g.input("x", tensor("float32", 5))))
    check_flow(graph, [np.array([np.nan, -0.0, 0.0, np.inf, 1e-45], np.float32)])


def test_what_comes_after_runs_natively_on_the_size_found() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 40))
    y = g.input("y", tensor("float32", 40, 3))
    first = g("squeeze", g("nonzero", g("greater", x, g.constant(np.float32(0)))), axes=(0,))
    second = g("squeeze", g("nonzero", g("less", x, g.constant(np.float32(0)))), axes=(0,))
    rows = g("take", y, first, axis=0)
    graph = g.build(g("exp", rows), g("take", y, second, axis=0), g("shape_of", rows))
    random = np.random.default_rng(0)
    table = random.standard_normal((40, 3)).astype(np.float32)
    lists = [random.standard_normal(40).astype(np.float32), np.ones(40, np.float32)]
    flow = check_flow(graph, *([one, table] for one in lists), tolerance=1e-6)
    assert flow == ["Segment", "BindSymbol", "BindSymbol", "Segment"]
