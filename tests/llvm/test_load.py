"""Kernels check what they are given."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tests.llvm.kernels import compiled, elementwise

from graft.base.dtypes import DType
from graft.base.errors import EvaluationError
from graft.llvm.load import Kernel, aligned, aligned_empty
from graft.loop.ir import Binary, BinaryKind


@pytest.fixture(scope="module")
def double() -> Kernel:
    twice = [lambda a: Binary(BinaryKind.ADD, a, a)]
    return compiled(elementwise([DType.FLOAT32], twice, [DType.FLOAT32], 8))


def arrays(count: int) -> dict:
    values = aligned(np.arange(count, dtype=np.float32))
    return {"in0": values, "out0": aligned(np.zeros(count, np.float32)), "n": count}


def test_a_kernel_outlives_the_objects_it_came_from(double: Kernel) -> None:
    gc.collect()
    given = arrays(10)
    double(given)
    np.testing.assert_array_equal(given["out0"], np.arange(10) * 2)


def test_many_kernels_of_one_name() -> None:
    kernels = []
    for factor in range(1, 5):
        formula = [lambda a, k=factor: sum_of([a] * k)]
        kernels.append(compiled(elementwise([DType.FLOAT32], formula, [DType.FLOAT32], 4)))
    for factor, kernel in enumerate(kernels, start=1):
        given = arrays(5)
        kernel(given)
        np.testing.assert_array_equal(given["out0"], np.arange(5) * factor)


def sum_of(parts: list) -> Binary:
    total = parts[0]
    for part in parts[1:]:
        total = Binary(BinaryKind.ADD, total, part)
    return total


def test_missing_argument(double: Kernel) -> None:
    given = arrays(4)
    del given["in0"]
    with pytest.raises(EvaluationError, match="kernel: argument 'in0' is missing"):
        double(given)


def test_wrong_dtype(double: Kernel) -> None:
    with pytest.raises(EvaluationError, match="'in0' has to be an array of float32"):
        double(arrays(4) | {"in0": np.zeros(4)})


def test_wrong_shape(double: Kernel) -> None:
    with pytest.raises(EvaluationError, match=r"'in0' has shape \(4,\) where \(5,\) is expected"):
        double(arrays(4) | {"n": 5})


def test_misaligned_memory(double: Kernel) -> None:
    memory = aligned_empty(64 + 16, 64)[4:20].view(np.float32)
    with pytest.raises(EvaluationError, match="dense and aligned to 64 bytes") as caught:
        double(arrays(4) | {"in0": memory})
    assert "aligned makes such a copy" in caught.value.hint


def test_strided_memory(double: Kernel) -> None:
    with pytest.raises(EvaluationError, match="dense and aligned"):
        double(arrays(4) | {"in0": aligned(np.zeros(8, np.float32))[::2]})


def test_aligned_copies() -> None:
    for shape in [(), (0,), (3, 5), (7, 0, 2)]:
        values = np.random.default_rng(0).normal(size=shape)
        copy = aligned(values, 128)
        assert copy.ctypes.data % 128 == 0 or copy.size == 0
        np.testing.assert_array_equal(copy, values)
