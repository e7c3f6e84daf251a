"""`scatter_elements` and `scatter_nd` as native code: positions that meet, every reduction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.symbolic import (
    Build,
    Sizes,
    check,
    graph_of,
    kernel_of,
    random_numbers,
    run,
)

from graft.backends.host.kernel import Kernel
from graft.backends.host.kernels.expression.template import HELD
from graft.base.dtypes import Array
from graft.ir.graph import Value
from graft.llvm.compile import object_code
from graft.llvm.load import load
from graft.target.target import host_target

REDUCTIONS = ["none", "add", "mul", "max", "min"]
DTYPES = sorted(dtype.value for dtype in HELD)


def positions(least: int) -> Any:
    """Positions from the front and the end, many of them equal, and small numbers elsewhere."""

    def draw(value: Value) -> Array:
        if value.name == "x2":
            shape = tuple(dim for dim in value.shape or () if isinstance(dim, int))
            found = np.random.default_rng(shape).integers(-least, least, shape)
            return found.astype(value.dtype.numpy)
        return np.round(random_numbers(value, -3, 3) * 4).astype(value.dtype.numpy)

    return draw


def elements(
    data: tuple[Any, ...], indices: tuple[Any, ...], dtype: str = "float32", **attrs: Any
) -> Build:
    def build(s: Sizes) -> Value:
        shape, reach = (
            [getattr(s, dim) if isinstance(dim, str) else dim for dim in dims]
            for dims in (data, indices)
        )
        operands = s.input(*shape, dtype=dtype), s.input(*reach, dtype="int64")
        return s("scatter_elements", *operands, s.input(*reach, dtype=dtype), **attrs)

    return build


@pytest.mark.each_value
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_every_dtype(dtype: str, reduction: str) -> None:
    build = elements((5, 7), ("n", 7), dtype, reduction=reduction)
    check(build, *({"n": n} for n in (0, 1, 12)), draw=positions(5))


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_along_any_axis(axis: int, reduction: str) -> None:
    bindings = [{"n": n, "m": m} for n, m in ((1, 4), (6, 9), (300, 4), (4, 0))]
    build = elements(("n", 6, "m"), ("n", 6, "m"), axis=axis, reduction=reduction)
    check(build, *bindings[: 4 if axis == 1 else 3], draw=positions(4 if axis == -1 else 1))


def test_elements_that_reach_less_far() -> None:
    build = elements((4, 6, 8, 5), ("n", 3, 7, 2), axis=2, reduction="add")
    check(build, *({"n": n} for n in (0, 1, 3, 4)), draw=positions(8))


def test_many_elements_side_by_side() -> None:
    build = elements(("n", 32, 33), (3, 32, 33))
    check(build, *({"n": n} for n in (3, 40)), draw=positions(3))


def tuples(data: tuple[int, ...], length: int, dtype: str = "float32", **attrs: Any) -> Build:
    def build(s: Sizes) -> Value:
        operands = s.input(*data, dtype=dtype), s.input(s.n, length, dtype="int64")
        updates = s.input(s.n, *data[length:], dtype=dtype)
        return s("scatter_nd", *operands, updates, **attrs)

    return build


@pytest.mark.each_value
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_tuples(length: int, reduction: str) -> None:
    build = tuples((3, 4, 5), length, reduction=reduction)
    check(build, *({"n": n} for n in (0, 1, 10)), draw=positions(3))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("width", [63, 65, 256, 3001])
def test_threads_share_wide_slices(width: int, reduction: str) -> None:
    """Several updates of a slice come in order, however many threads there are."""
    build = tuples((4, width), 1, reduction=reduction)
    check(build, *({"n": n} for n in (0, 9)), draw=positions(4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tuples_of_every_dtype(dtype: str) -> None:
    check(tuples((4, 700), 1, dtype, reduction="add"), {"n": 9}, draw=positions(4))


def test_static_sizes_and_small_positions() -> None:
    def build(s: Sizes) -> Value:
        operands = s.input(3, 4), s.input(2, 4, dtype="int32"), s.input(2, 4)
        return s("scatter_elements", *operands, axis=0)

    check(build, {}, draw=positions(3))


def test_a_position_outside_changes_nothing() -> None:
    def build(s: Sizes) -> Value:
        return s("scatter_elements", s.input(4), s.input(3, dtype="int64"), s.input(3), axis=0)

    graph, target = graph_of(build, {}), host_target()
    kernel = kernel_of(graph, target)
    assert isinstance(kernel, Kernel)
    code = load(kernel.function, object_code(kernel.function, target))
    numbers = np.zeros(4, np.float32), np.array([4, -5, 2]), np.array([7, 8, 9], np.float32)
    (found,) = run(code, kernel, dict(zip(graph.inputs, numbers, strict=True)), {}, 2).values()
    np.testing.assert_array_equal(found, [0, 0, 9, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_unpooling(rank: int, dtype: str) -> None:
    """Windows of three every two overlap: of values with one index the last one stays."""

    def build(s: Sizes) -> Value:
        shape = (s.n, 3, *(4 for _ in range(rank)))
        data, indices = s.input(*shape, dtype=dtype), s.input(*shape, dtype="int64")
        return s(f"nn.max_unpool{rank}d", data, indices, pool_size=(3,) * rank, strides=(2,) * rank)

    def draw(value: Value) -> Array:
        if value.name == "x1":
            return random_numbers(value, -3, 3)
        shape = tuple(dim for dim in value.shape or () if isinstance(dim, int))
        return np.random.default_rng(0).integers(0, shape[0] * 3 * 9**rank // 4, shape)

    check(build, *({"n": n} for n in (1, 5)), draw=draw)
