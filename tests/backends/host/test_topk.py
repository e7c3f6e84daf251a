"""`topk` as native code: ties, NaN, every axis and dtype, at sizes that are known and not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.symbolic import Sizes, check, graph_of, kernel_of

from graft.backends.host.kernels.expression import HELD
from graft.base.dims import dim_min
from graft.base.dtypes import Array, DType
from graft.ir.graph import Value
from graft.llvm.target import host_target
from graft.rewrite.rule import Refusal

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


def test_static_sizes() -> None:
    check(lambda s: found(s, s.input(4, 1001), 17), {})
    check(lambda s: found(s, s.input(4, 5, 6), 5, axis=1), {}, draw=crowded)
    check(lambda s: found(s, s.input(4, 5), 0), {})


def test_more_than_there_may_be_is_refused() -> None:
    graph = graph_of(lambda s: found(s, s.input(s.n), s.m), {})
    refused = kernel_of(graph, host_target())
    assert isinstance(refused, Refusal)
    assert "more than the n that there are" in refused.reason


def test_what_machine_code_does_not_hold_is_refused() -> None:
    graph = graph_of(lambda s: found(s, s.input(8, dtype=DType.FLOAT8E4M3FN.value), 2), {})
    refused = kernel_of(graph, host_target())
    assert isinstance(refused, Refusal)
    assert "does not hold" in refused.reason
