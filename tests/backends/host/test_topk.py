"""`topk` as native code: ties, NaN, every axis and dtype, at sizes that are known and not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.flows import check_flow
from tests.backends.host.symbolic import (
    Draw,
    Sizes,
    check,
    graph_of,
    kernel_of,
    random_numbers,
)

from graft.backends.host.backend import HostBackend
from graft.backends.host.kernels.expression.template import HELD
from graft.base.dims import Dim, dim_min, symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.byoc.executable import Settings
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.rewrite.rule import Refusal
from graft.target.target import host_target

LISTS = [{"n": n} for n in (0, 1, 2, 7, 64, 1000)]
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0)
DTYPES = sorted(dtype.value for dtype in HELD - {DType.BOOL})


def crowded(value: Value) -> Array:
    """Few different numbers, so that most are equal to others, and all special ones."""
    shape = tuple(dim for dim in value.shape or () if isinstance(dim, int))
    random = np.random.default_rng(shape)
    if value.dtype.is_float:
        return random.choice(SPECIAL, shape).astype(value.dtype.numpy)
    info = np.iinfo(value.dtype.numpy)
    few = np.array([info.min, 0, 1, 2, info.max], value.dtype.numpy)
    return few[random.integers(0, len(few), shape)]


def found(s: Sizes, data: Value, k: object, **attrs: object) -> tuple[Value, ...]:
    return tuple(s.builder.call("topk", data, k=k, **attrs))


@pytest.mark.each_value
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_and_special_numbers_of_every_dtype(dtype: str, largest: bool) -> None:
    def build(s: Sizes) -> tuple[Value, ...]:
        return found(s, s.input(s.n, dtype=dtype), dim_min(s.n, 20), largest=largest)

    check(build, *LISTS, draw=crowded)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("largest", [True, False])
def test_any_axis(axis: int, largest: bool) -> None:
    def build(s: Sizes) -> tuple[Value, ...]:
        data = s.input(s.n, s.m, 3)
        extent = (s.n, s.m, 3)[axis]
        return found(s, data, dim_min(extent, 5), axis=axis, largest=largest)

    pairs = [(1, 1), (2, 9), (9, 2), (33, 17), (0, 4), (4, 0)]
    check(build, *({"n": n, "m": m} for n, m in pairs))


def test_everything_is_a_sort() -> None:
    check(lambda s: found(s, s.input(2, s.n), s.n, sorted=False), *LISTS)
    check(lambda s: found(s, s.input(2, s.n), s.n, largest=False), *LISTS, draw=crowded)


def ascending(value: Value) -> Array:
    """Every element but the first ones displaces another, or none of them does."""
    return np.sort(crowded(value) if value.dtype.is_integer else random_numbers(value, -9, 9), -1)


@pytest.mark.parametrize("count", [1, 30, 300, 700])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("draw", [None, crowded, ascending])
def test_few_of_many(count: int, dtype: str, draw: Draw | None) -> None:
    """More elements than there is room for candidates, sorted by counting and by digits."""

    def build(s: Sizes) -> tuple[Value, ...]:
        return found(s, s.input(s.n, dtype=dtype), dim_min(s.n, count), largest=count % 7 > 0)

    check(build, *({"n": n} for n in (count, count + 1, 2 * count + 130, 5000)), draw=draw)


@pytest.mark.parametrize("shape", [(37, 9), (3, 9, 37), (2, 9, 3), (40, 130)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
@pytest.mark.parametrize("largest", [True, False])
def test_rows_in_lanes(shape: tuple[int, ...], dtype: str, largest: bool) -> None:
    def build(s: Sizes) -> tuple[Value, ...]:
        return found(s, s.input(*shape, dtype=dtype), 2, axis=1, largest=largest)

    for draw in (None, crowded):
        check(build, {}, draw=draw)


def test_symbolic_rows_in_lanes() -> None:
    def build(s: Sizes) -> tuple[Value, ...]:
        return found(s, s.input(s.n, 9, s.m), 3, axis=1)

    check(build, *({"n": n, "m": m} for n, m in [(1, 1), (2, 40), (0, 3), (3, 0), (5, 16)]))


def test_static_sizes() -> None:
    check(lambda s: found(s, s.input(4, 1001), 17), {})
    check(lambda s: found(s, s.input(4, 5, 6), 5, axis=1), {}, draw=crowded)
    check(lambda s: found(s, s.input(4, 5), 0), {})


@pytest.mark.parametrize("wanted", [2, symbol("m")])
def test_more_than_there_are_is_an_error_of_the_run(wanted: Dim) -> None:
    build = Builder()
    data = build.input("x", tensor("float32", symbol("n")))
    build.input("y", tensor("int8", symbol("m")))
    graph = build.build(*build.call("topk", data, k=wanted))
    given = [[np.arange(n, dtype=np.float32), np.zeros(2, np.int8)] for n in (2, 9)]
    assert check_flow(graph, *given) == ["Segment"]
    native = HostBackend(Settings(threads=1)).build(graph)
    for n in (0, 1):
        with pytest.raises(EvaluationError, match=f"elements of n along axis 0 .*n = {n}"):
            native([np.zeros(n, np.float32), np.zeros(2, np.int8)])


def test_what_machine_code_does_not_hold_is_refused() -> None:
    graph = graph_of(lambda s: found(s, s.input(8, dtype=DType.FLOAT8E4M3FN.value), 2), {})
    refused = kernel_of(graph, host_target())
    assert isinstance(refused, Refusal)
    assert "does not hold" in refused.reason
