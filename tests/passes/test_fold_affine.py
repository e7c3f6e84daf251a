"""Scales, shifts and batch normalisation move into weights; numbers stay close."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.passes.checking import Build, constant_of, graph_of, node_of, operators, run_pass

from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.passes.fold_affine import fold_affine

TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-2, "bfloat16": 5e-2}


def numbers(*shape: int, dtype: str = "float32", low: float = -2.0) -> Array:
    drawn = np.random.default_rng(len(shape)).uniform(low, 2.0, shape)
    return np.asarray(drawn).astype(DType(dtype).numpy)


def norm(g: Builder, x: Value, channels: int, **attrs: Any) -> Value:
    dtype = x.dtype.value
    parameters = [numbers(channels, dtype=dtype) for _ in range(3)]
    parameters.append(numbers(channels, dtype=dtype, low=0.5))
    return g("nn.batch_norm", x, *(g.constant(p) for p in parameters), **attrs)


def conv(g: Builder, x: Value, outputs: int = 4, **attrs: Any) -> Value:
    depth = 2 // attrs.get("groups", 1)
    weight = numbers(outputs, depth, 3, 3, dtype=x.dtype.value)
    return g("nn.conv2d", x, g.constant(weight), padding=[1] * 4, **attrs)


def vector(g: Builder, x: Value, *shape: int) -> Value:
    return g.constant(numbers(*shape, dtype=x.dtype.value))


def bias(g: Builder, x: Value, axis: int = 1) -> Value:
    return g("nn.bias_add", x, vector(g, x, (x.shape or ())[axis]), axis=axis)


IMAGE = (1, 2, 5, 3)
FOLDED: dict[str, tuple[Build, tuple[int, ...], list[str]]] = {
    "conv, norm": (lambda g, x: norm(g, conv(g, x), 4), IMAGE, ["nn.conv2d", "nn.bias_add"]),
    "conv, bias, norm": (
        lambda g, x: norm(g, bias(g, conv(g, x)), 4),
        IMAGE,
        ["nn.conv2d", "nn.bias_add"],
    ),
    "grouped conv, norm": (
        lambda g, x: norm(g, conv(g, x, groups=2), 4),
        IMAGE,
        ["nn.conv2d", "nn.bias_add"],
    ),
    "conv, scale": (
        lambda g, x: g("multiply", vector(g, x, 4, 1, 1), conv(g, x)),
        IMAGE,
        ["nn.conv2d"],
    ),
    "conv, number": (lambda g, x: g("multiply", conv(g, x), vector(g, x)), IMAGE, ["nn.conv2d"]),
    "conv, shift, scale, shift": (
        lambda g, x: g(
            "add",
            g("multiply", g("add", conv(g, x), vector(g, x, 1, 4, 1, 1)), vector(g, x, 4, 1, 1)),
            vector(g, x, 1),
        ),
        IMAGE,
        ["nn.conv2d", "nn.bias_add"],
    ),
    "dense, scale, shift": (
        lambda g, x: g(
            "add",
            g("multiply", g("nn.dense", x, vector(g, x, 4, 3)), vector(g, x, 4)),
            vector(g, x, 4),
        ),
        (2, 5, 3),
        ["nn.dense", "nn.bias_add"],
    ),
    "dense, norm": (
        lambda g, x: norm(g, g("nn.dense", x, vector(g, x, 4, 3)), 4, axis=-1),
        (5, 3),
        ["nn.dense", "nn.bias_add"],
    ),
    "transposed conv, norm": (
        lambda g, x: norm(
            g,
            g("nn.conv2d_transpose", x, vector(g, x, 2, 3, 3, 3), groups=2, strides=[2, 2]),
            6,
        ),
        IMAGE,
        ["nn.conv2d_transpose", "nn.bias_add"],
    ),
    "norm alone": (lambda g, x: norm(g, x, 2), IMAGE, ["multiply", "add"]),
    "norm alone along the last axis": (
        lambda g, x: norm(g, x, 3, axis=-1),
        IMAGE,
        ["multiply", "add"],
    ),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str, dtype: str) -> None:
    build, shape, expected = FOLDED[name]
    graph = graph_of(build, tensor(dtype, *shape))
    after = run_pass(fold_affine, graph, tolerance=TOLERANCE[dtype])
    assert operators(after) == expected


def test_weights_and_attributes() -> None:
    weight = np.arange(8, dtype=np.float32).reshape(4, 2, 1, 1)
    scale = np.array([1, 2, 0.5, -1], np.float32).reshape(4, 1, 1)

    def build(g: Builder, x: Value) -> Value:
        y = g("nn.conv2d", x, g.constant(weight), strides=[2, 1])
        return g("multiply", y, g.constant(scale), out="scaled")

    after = run_pass(fold_affine, graph_of(build, tensor("float32", *IMAGE)), tolerance=1e-6)
    node = node_of(after, "nn.conv2d")
    np.testing.assert_array_equal(constant_of(after, node.inputs[1]), weight * scale[:, None])
    assert node.attrs.strides == (2, 1)
    assert node.output.name == "scaled"


def dense3(g: Builder, x: Value) -> Value:
    return g("nn.dense", x, vector(g, x, 5, 3))


KEPT: dict[str, tuple[Build, tuple[int, ...]]] = {
    "along the width": (lambda g, x: g("multiply", conv(g, x), vector(g, x, 3)), IMAGE),
    "a whole image": (lambda g, x: g("add", conv(g, x), vector(g, x, 1, 1, 5, 3)), IMAGE),
    "one more axis": (lambda g, x: g("add", conv(g, x), vector(g, x, 1, 1, 1, 1, 1)), IMAGE),
    "one channel, four numbers": (
        lambda g, x: g("add", conv(g, x, outputs=1), vector(g, x, 4, 1, 1)),
        IMAGE,
    ),
    "not constant": (lambda g, x: g("multiply", conv(g, x), g("sum", x)), IMAGE),
    "weights not constant": (
        lambda g, x: g("multiply", g("nn.conv2d", x, g("abs", x)), vector(g, x)),
        (2, 2, 2, 2),
    ),
    "bias along the width": (
        lambda g, x: g("multiply", bias(g, conv(g, x), axis=3), vector(g, x)),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    build, shape = KEPT[name]
    graph = graph_of(build, tensor("float32", *shape))
    assert operators(run_pass(fold_affine, graph)) == operators(graph)


def test_norm_along_another_axis_than_the_channels() -> None:
    """A dense layer's channels come last, so statistics of axis 1 are none of theirs."""
    graph = graph_of(lambda g, x: norm(g, dense3(g, x), 5, axis=1), tensor("float32", 2, 5, 3))
    after = run_pass(fold_affine, graph, tolerance=1e-5)
    assert operators(after) == ["nn.dense", "multiply", "add"]


def test_a_layer_that_others_read_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        y = conv(g, x)
        return g("multiply", y, vector(g, x)), g("nn.relu", y)

    graph = graph_of(build, tensor("float32", *IMAGE))
    assert fold_affine(graph) is graph


def test_a_layer_that_is_an_output_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        y = conv(g, x)
        return g("multiply", y, vector(g, x)), y

    graph = graph_of(build, tensor("float32", *IMAGE))
    assert fold_affine(graph) is graph


@pytest.mark.parametrize("factor", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_not_folded(factor: float) -> None:
    """inf * (a - b) is not inf * a - inf * b."""
    graph = graph_of(
        lambda g, x: g("multiply", conv(g, x), g.constant(np.float32(factor))),
        tensor("float32", *IMAGE),
    )
    assert operators(run_pass(fold_affine, graph)) == ["nn.conv2d", "multiply"]


def test_weights_that_would_overflow_are_not_folded() -> None:
    def build(g: Builder, x: Value) -> Value:
        large = g.constant(np.full((1, 2, 1, 1), 60000, np.float16))
        return g("multiply", g("nn.conv2d", x, large), g.constant(np.float16(8)))

    graph = graph_of(build, tensor("float16", 1, 2, 2, 2))
    data = np.full((1, 2, 2, 2), 2.0**-10, np.float16)
    assert operators(run_pass(fold_affine, graph, [data])) == ["nn.conv2d", "multiply"]


def test_integers_are_left_alone() -> None:
    def build(g: Builder, x: Value) -> Value:
        weight = g.constant(np.ones((2, 3), np.int32))
        return g("multiply", g("nn.dense", x, weight), g.constant(np.int32(3)))

    graph: Graph = graph_of(build, tensor("int32", 2, 3))
    assert fold_affine(graph) is graph
