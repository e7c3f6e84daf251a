"""Determinants as native code: pivots, signs, singular matrices, no matrices."""

from __future__ import annotations

import numpy as np
import pytest

import graft
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.types import TensorType


def native(data: Array) -> Array:
    builder = Builder()
    given = builder.input("x", TensorType(DType(str(data.dtype)), data.shape))
    graph = builder.build(builder("det", given))
    (found,) = graft.compile(graph, strict=True, threads=2).run(None, {"x": data})
    return found


@pytest.mark.parametrize("edge", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_random_matrices(edge: int, dtype: str) -> None:
    data = np.random.default_rng(edge).standard_normal((3, 2, edge, edge)).astype(dtype)
    tolerance = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
    wanted = np.linalg.det(data.astype(np.float64))
    np.testing.assert_allclose(native(data).astype(np.float64), wanted, tolerance, tolerance)


def test_zeros_on_the_diagonal_change_the_sign() -> None:
    turned = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], np.float32)
    assert native(turned) == 1
    assert native(turned[[1, 0, 2]]) == -1


def test_singular_and_special_matrices() -> None:
    assert native(np.ones((2, 2), np.float32)) == 0
    assert native(np.zeros((3, 3), np.float32)) == 0
    assert np.isnan(native(np.array([[np.nan, 1], [1, 2]], np.float32)))
    assert native(np.zeros((0, 2, 2), np.float32)).shape == (0,)
