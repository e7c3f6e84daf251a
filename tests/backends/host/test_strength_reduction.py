"""Cheaper operations give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.checking import graph_of, operators, run_pass

import graft
from graft.backends.host.passes.strength_reduction import strength_reduction
from graft.base.dims import symbol
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import tensor

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("constant", [True, False])
def test_distances_are_sums_of_differences(constant: bool) -> None:
    vectors = RANDOM.standard_normal((7, 5)).astype(np.float32)

    def build(g: Builder, x: Value, y: Value) -> Value:
        return g("ml.squared_distance", x, g.constant(vectors) if constant else y)

    types = tensor("float32", symbol("n"), 5), tensor("float32", 7, 5)
    graph = graph_of(build, *types)
    after = strength_reduction(graph)
    assert "ml.squared_distance" not in operators(after)
    assert operators(after).count("transpose") == (not constant)
    module = graft.compile(graph, strict=True)
    for rows in (0, 1, 33):
        x = RANDOM.standard_normal((rows, 5)).astype(np.float32) * 1000
        x[:1] = [np.inf, np.nan, 0, 1, 2]
        (expected,) = evaluate(graph, [x, vectors])
        (found,) = evaluate(after, [x, vectors])
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        (found,) = module.run(None, {"x0": x, "x1": vectors})
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_features_that_may_differ_in_number_stay_compared() -> None:
    types = tensor("float32", 4, symbol("m")), tensor("float32", 7, symbol("n"))
    graph = graph_of(lambda g, x, y: g("ml.squared_distance", x, y), *types)
    assert strength_reduction(graph) is graph


@pytest.mark.each_value
@pytest.mark.parametrize("features", [0, 1, 12, 131])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_a_single_output_is_a_sum(features: int, dtype: str) -> None:
    weight = (RANDOM.standard_normal((1, features)) * 9).astype(dtype)

    def build(g: Builder, x: Value) -> Value:
        return g("nn.dense", x, g.constant(weight))

    graph = graph_of(build, tensor(dtype, symbol("n"), features))
    after = strength_reduction(graph)
    assert ("nn.dense" in operators(after)) == (dtype in ("float16", "int32"))
    module = graft.compile(graph, strict=True)
    for rows in (0, 1, 33):
        x = (RANDOM.standard_normal((rows, features)) * 9).astype(dtype)
        (expected,) = evaluate(graph, [x])
        for (found,) in (evaluate(after, [x]), module.run(None, {"x0": x})):
            assert found.shape == (rows, 1)
            np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "float16" else 1e-4)


@pytest.mark.parametrize("exponent", [3, 4, -3, 0.5])
def test_small_powers_are_products(exponent: float) -> None:
    def build(g: Builder, x: Value) -> Value:
        return g("power", x, g.constant(np.float32(exponent)))

    x = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf, -1.5, 3e13, 1e-14]], np.float32)
    graph = graph_of(build, tensor("float32", 1, 8))
    after = run_pass(strength_reduction, graph, [x])
    assert ("power" in operators(after)) == (exponent not in (3, 4))


@pytest.mark.parametrize("is_transposed", [True, False])
@pytest.mark.parametrize("shape", [(9, 5), (2, 3, 5), (1, 5), (0, 5)])
def test_layers_by_weights_that_are_data_are_products(
    shape: tuple[int, ...], is_transposed: bool
) -> None:
    def build(g: Builder, x: Value, y: Value) -> Value:
        return g("nn.dense", x, g("transpose", y, axes=(1, 0)) if is_transposed else y)

    weights = RANDOM.standard_normal((5, 7) if is_transposed else (7, 5)).astype(np.float32)
    graph = graph_of(build, tensor("float32", *shape), tensor("float32", *weights.shape))
    after = run_pass(strength_reduction, graph)
    few = int(np.prod(shape[:-1])) < 4 and not is_transposed
    assert ("nn.dense" in operators(after)) == few
    assert not is_transposed or "transpose" not in operators(after)
    x = RANDOM.standard_normal(shape).astype(np.float32)
    (expected,) = evaluate(graph, [x, weights])
    (found,) = graft.compile(graph, strict=True).run(None, {"x0": x, "x1": weights})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_layers_by_constant_weights_stay() -> None:
    weights = RANDOM.standard_normal((7, 5)).astype(np.float32)
    types = [tensor("float32", 9, 5)]
    graph = graph_of(lambda g, x: g("nn.dense", x, g.constant(weights)), *types)
    assert strength_reduction(graph) is graph
