"""Attention, softmax and normalisation of any number of rows: one kernel for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.symbolic import Sizes, check

import graft
from graft.backends.host.kernel import Kernel
from graft.base.dims import symbol
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import tensor

# Queries (n) and keys (m): none, one, what is left of one vector and of two, several tiles.
SIZES = [(1, 1), (0, 4), (5, 3), (16, 16), (17, 40), (31, 7), (32, 32), (33, 70), (100, 5)]
PAIRS = [{"n": n, "m": m} for n, m in SIZES]


def by_template(kernel: Kernel) -> bool:
    """Whether the operands have the names that only the template gives them."""
    return {"query", "key"} <= {one.name for one in kernel.function.parameters}


def heads(s: Sizes, rows: object, size: int = 8, count: int = 2) -> Value:
    return s.input(2, count, rows, size)


@pytest.mark.parametrize("values", [1, 7, 40])
def test_plain_attention(values: int) -> None:
    def build(s: Sizes) -> Value:
        return s("nn.attention", heads(s, s.n), heads(s, s.m), heads(s, s.m, values))

    assert by_template(check(build, *PAIRS))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_batch_and_shared_heads(dtype: str) -> None:
    def build(s: Sizes) -> Value:
        query = s.input(s.n, 4, s.m, 5, dtype=dtype)
        key, value = s.input(s.n, 2, 9, 5, dtype=dtype), s.input(s.n, 2, 9, 3, dtype=dtype)
        return s("nn.attention", query, key, value, softcap=3.0)

    assert by_template(check(build, *PAIRS))


@pytest.mark.parametrize("attrs", [{"causal": True}, {"left_window": 2, "right_window": 3}])
def test_keys_out_of_sight(attrs: dict[str, object]) -> None:
    def build(s: Sizes) -> Value:
        return s("nn.attention", heads(s, s.n), heads(s, s.m), heads(s, s.m), **attrs)

    assert by_template(check(build, *PAIRS))


@pytest.mark.parametrize("leading", [(1, 1, 1), (2, 1, 1), (2, 2, 0), (1, 1, 0)])
def test_masks(leading: tuple[int, ...]) -> None:
    """Where 0 stands for the number of queries."""

    def build(s: Sizes) -> Value:
        mask = s.input(*(extent or s.n for extent in leading), s.m)
        plain = s("nn.attention", heads(s, s.n), heads(s, s.m), heads(s, s.m), mask)
        return s("nn.relu", s("add", plain, s.input(2, 2, s.n, 8)))

    assert by_template(check(build, *PAIRS))


def test_masks_that_may_be_repeated_are_left_to_the_default_schedule() -> None:
    def build(s: Sizes) -> Value:
        mask = s.input(1, 1, 1, s.n)
        return s("nn.attention", heads(s, 3), heads(s, s.m), heads(s, s.m), mask)

    assert not by_template(check(build, {"n": 1, "m": 5}, {"n": 5, "m": 5}))


@pytest.mark.parametrize("scale", [None, 0.25])
def test_heads_and_vectors_counted_at_run_time(scale: float | None) -> None:
    def build(s: Sizes) -> Value:
        query, key = s.input(2, s.n, 3, s.m), s.input(2, s.n, 6, s.m)
        return s("nn.attention", query, key, s.input(2, s.n, 6, s.m), scale=scale)

    assert not by_template(check(build, {"n": 0, "m": 2}, {"n": 1, "m": 0}, {"n": 3, "m": 17}))


def test_shared_heads_counted_at_run_time() -> None:
    def build(s: Sizes) -> Value:
        key, value = s.input(1, s.m, 6, 4), s.input(1, s.m, 6, 5)
        return s("nn.attention", s.input(1, s.n, 3, 4), key, value)

    assert not by_template(check(build, {"n": 6, "m": 2}, {"n": 4, "m": 4}))


@pytest.mark.parametrize("name", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize("length", [1, 5, 16, 77])
def test_softmax_of_any_rows(name: str, length: int) -> None:
    check(lambda s: s(name, s.input(s.n, 3, s.m, length), axis=-1), *PAIRS)


@pytest.mark.parametrize("name", ["nn.layer_norm", "nn.rms_norm"])
def test_normalised_rows(name: str) -> None:
    def build(s: Sizes) -> Value:
        scale = s.constant(33)
        more = (s.constant(33),) if name == "nn.layer_norm" else ()
        return s(name, s.input(s.n, s.m, 33), scale, *more, axis=-1)

    check(build, *PAIRS)


def test_in_a_model_with_threads() -> None:
    g = Builder()
    n, m = symbol("n"), symbol("m")
    query, key = (g.input(x, tensor("float32", n, 3, m, 8)) for x in ("query", "key"))
    graph = g.build(g("nn.attention", query, key, key))
    native = graft.compile(graph, strict=True, threads=2)
    for shape in ((1, 3, 1, 8), (2, 3, 50, 8), (0, 3, 4, 8), (5, 3, 129, 8)):
        data = [np.random.default_rng(s).standard_normal(shape, dtype=np.float32) for s in (1, 2)]
        (found,) = native.run(None, dict(zip(("query", "key"), data, strict=True)))
        np.testing.assert_allclose(found, evaluate(graph, data)[0], rtol=1e-4, atol=1e-5)


def named(kernel: Kernel, *names: str) -> bool:
    return {*names} <= {one.name for one in kernel.function.parameters}


@pytest.mark.each_value
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("first_turned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_any_matrices(turned: bool, first_turned: bool, dtype: str) -> None:
    """Rows, columns and steps: none, one, some that fill no vector, several blocks."""

    def build(s: Sizes) -> Value:
        left = s.input(3, s.n, 7, dtype=dtype) if not first_turned else s.input(7, s.n, dtype=dtype)
        right = s.input(3, s.m, 7, dtype=dtype) if turned else s.input(1, 7, s.m, dtype=dtype)
        return s("nn.batch_matmul", left, right, transpose_a=first_turned, transpose_b=turned)

    assert named(check(build, *PAIRS, {"n": 3, "m": 0}), "left", "right")


def test_any_depth_and_batch() -> None:
    def build(s: Sizes) -> Value:
        left, right = s.input(s.n, 2, 5, s.m), s.input(s.n, 1, s.m, 70)
        product = s("nn.batch_matmul", left, right)
        return s("nn.relu", s("add", product, s.input(s.n, 2, 5, 70)))

    assert named(check(build, *PAIRS, {"n": 3, "m": 0}), "left", "right")
