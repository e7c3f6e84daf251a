"""Formulas that exporters write out become the operators they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.passes.checking import Build, data_for, graph_of, node_of, operators, run_pass

from graft.base.dims import symbol
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import TensorType, tensor
from graft.passes.pipeline import optimize
from graft.passes.recognize import recognize

X = tensor("float32", 2, 3)
TOLERANCE = 1e-5


class Numbers:
    """Writes formulas: constants take the dtype of the first operand."""

    def __init__(self, g: Builder, x: Value, rank: int = 0) -> None:
        self.g, self.dtype, self.rank = g, x.dtype.numpy, rank

    def __call__(self, op: str, *operands: Any, **attrs: Any) -> Value:
        return self.g(op, *(self.value(o) for o in operands), **attrs)

    def value(self, given: Any) -> Value:
        if isinstance(given, Value):
            return given
        return self.g.constant(np.full((1,) * self.rank, given, self.dtype))


def erf_part(f: Numbers, x: Value, how: str = "divide") -> Value:
    inner = f("divide", x, 2**0.5) if how == "divide" else f("multiply", 0.5**0.5, x)
    return f("add", 1.0, f("erf", inner))


def tanh_part(f: Numbers, x: Value, cube: str = "power") -> Value:
    cubed = f("power", x, 3.0) if cube == "power" else f("multiply", x, f("multiply", x, x))
    inner = f("add", x, f("multiply", cubed, 0.044715))
    return f("add", f("tanh", f("multiply", 0.7978845608, inner)), 1.0)


def product(part: Any, order: str, **options: str) -> Build:
    def build(g: Builder, x: Value) -> Value:
        f = Numbers(g, x)
        rest = part(f, x, **options)
        if order == "half first":
            return f("multiply", f("multiply", x, 0.5), rest)
        if order == "half second":
            return f("multiply", x, f("multiply", 0.5, rest))
        return f("multiply", f("multiply", x, rest), 0.5)

    return build


GELUS: dict[str, tuple[Build, bool]] = {
    "half first": (product(erf_part, "half first"), False),
    "half second": (product(erf_part, "half second"), False),
    "half last": (product(erf_part, "half last"), False),
    "by a factor": (product(erf_part, "half first", how="multiply"), False),
    "tanh": (product(tanh_part, "half first"), True),
    "tanh, half second": (product(tanh_part, "half second"), True),
    "tanh, cube by products": (product(tanh_part, "half first", cube="products"), True),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", GELUS)
def test_gelu(name: str, dtype: str) -> None:
    build, approximate = GELUS[name]
    tolerance = 5e-3 if dtype == "float16" else TOLERANCE
    after = run_pass(recognize, graph_of(build, tensor(dtype, 2, 3)), tolerance=tolerance)
    assert operators(after) == ["nn.gelu"]
    assert node_of(after, "nn.gelu").attrs.approximate is approximate


def _of_another(g: Builder, x: Value) -> Value:
    f = Numbers(g, x)
    return f("multiply", f("multiply", g("abs", x), 0.5), erf_part(f, x))


def _with_another_number(g: Builder, x: Value) -> Value:
    f = Numbers(g, x)
    return f("multiply", f("multiply", x, 0.6), erf_part(f, x))


def _with_more_axes(g: Builder, x: Value) -> Value:
    f = Numbers(g, x, rank=3)
    return f("multiply", f("multiply", x, 0.5), erf_part(f, x))


def _with_many_halves(g: Builder, x: Value) -> Value:
    f = Numbers(g, x)
    halves = g.constant(np.full((4, 1, 1), 0.5, np.float32))
    return f("multiply", f("multiply", x, halves), erf_part(f, x))


@pytest.mark.parametrize(
    "build", [_of_another, _with_another_number, _with_more_axes, _with_many_halves]
)
def test_no_gelu(build: Build) -> None:
    graph = graph_of(build, X)
    assert recognize(graph) is graph


def test_a_gelu_whose_inside_is_read_elsewhere_leaves_that_behind() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        f = Numbers(g, x)
        part = erf_part(f, x)
        return f("multiply", f("multiply", x, 0.5), part), part

    after = run_pass(recognize, graph_of(build, X), tolerance=TOLERANCE)
    assert sorted(operators(after)) == ["add", "divide", "erf", "nn.gelu"]


def layer_norm(
    g: Builder, x: Value, axis: int = -1, square: str = "power", rank: int = 0, keep: bool = True
) -> Value:
    f = Numbers(g, x, rank)
    centered = f("subtract", x, g("mean", x, axes=[axis], keepdims=keep))
    squares = (
        g("power", centered, g.constant(np.float32(2)))
        if square == "power"
        else f("multiply", centered, centered)
    )
    variance = g("mean", squares, axes=[axis], keepdims=keep)
    return f("divide", centered, f("sqrt", f("add", variance, 1e-3)))


def affine(g: Builder, y: Value, *shape: int) -> Value:
    gamma, beta = (g.constant(np.full(shape, n, np.float32)) for n in (1.5, -0.25))
    return g("add", g("multiply", gamma, y), beta)


NORMS: dict[str, tuple[Build, int]] = {
    "plain": (lambda g, x: layer_norm(g, x), 1),
    "squares by product": (lambda g, x: layer_norm(g, x, square="product"), 1),
    "axis from the front": (lambda g, x: layer_norm(g, x, axis=1), 1),
    "with scale and shift": (lambda g, x: affine(g, layer_norm(g, x), 3), 3),
}


@pytest.mark.parametrize("name", NORMS)
def test_layer_norm(name: str) -> None:
    build, operands = NORMS[name]
    after = run_pass(recognize, graph_of(build, X), tolerance=TOLERANCE)
    assert operators(after) == ["nn.layer_norm"]
    node = node_of(after, "nn.layer_norm")
    assert len(node.inputs) == operands
    assert node.attrs.epsilon == pytest.approx(1e-3)


@pytest.mark.parametrize("axis", [1, -3])
def test_layer_norm_over_the_channels_of_images(axis: int) -> None:
    images = tensor("float32", 2, 5, 3, 4)
    graph = graph_of(lambda g, x: layer_norm(g, x, axis=axis), images)
    after = run_pass(recognize, graph, tolerance=TOLERANCE)
    assert operators(after) == ["transpose", "nn.layer_norm", "transpose"]


NO_NORMS: dict[str, Build] = {
    "first axis": lambda g, x: layer_norm(g, x, axis=0),
    "epsilon with more axes": lambda g, x: layer_norm(g, x, rank=4),
    "axes dropped": lambda g, x: layer_norm(g, g("reshape", x, shape=[1, 6]), keep=False),
}


@pytest.mark.parametrize("name", NO_NORMS)
def test_no_layer_norm(name: str) -> None:
    graph = graph_of(NO_NORMS[name], X)
    after = run_pass(recognize, graph, tolerance=TOLERANCE)
    assert "nn.layer_norm" not in operators(after)


def test_scale_of_another_shape_stays_outside() -> None:
    graph = graph_of(lambda g, x: affine(g, layer_norm(g, x), 2, 1), X)
    after = run_pass(recognize, graph, tolerance=TOLERANCE)
    assert operators(after) == ["nn.layer_norm", "multiply", "add"]


def group_norm(
    g: Builder, x: Value, grouped: tuple[int, ...], back: tuple[int, ...] = (2, 6, 4, 5)
) -> Value:
    groups = np.arange(1, grouped[1] + 1, dtype=np.float32)
    cut = g("reshape", x, shape=grouped)
    normal = g("nn.instance_norm", cut, g.constant(groups), g.constant(-groups), epsilon=1e-3)
    return g("reshape", normal, shape=back)


IMAGES = tensor("float32", 2, 6, 4, 5)


@pytest.mark.parametrize("grouped", [(2, 3, 40), (2, 1, 120), (2, 2, 5, 12)])
def test_group_norm(grouped: tuple[int, ...]) -> None:
    graph = graph_of(lambda g, x: group_norm(g, x, grouped), IMAGES)
    after = run_pass(recognize, graph, tolerance=TOLERANCE)
    assert operators(after) == ["nn.group_norm"]
    assert node_of(after, "nn.group_norm").attrs.num_groups == grouped[1]


NO_GROUPS: dict[str, Build] = {
    "torn channels": lambda g, x: group_norm(g, x, (2, 4, 30)),
    "torn instances": lambda g, x: group_norm(g, x, (4, 3, 20)),
    "another shape": lambda g, x: group_norm(g, x, (2, 3, 40), (2, 6, 5, 4)),
}


@pytest.mark.parametrize("name", NO_GROUPS)
def test_no_group_norm(name: str) -> None:
    after = run_pass(recognize, graph_of(NO_GROUPS[name], IMAGES), tolerance=TOLERANCE)
    assert "nn.group_norm" not in operators(after)


QUERY = tensor("float32", 2, 4, 5, 8)
KEY = tensor("float32", 2, 4, 8, 7)
VALUE = tensor("float32", 2, 4, 7, 3)


def attention(
    g: Builder, q: Value, k: Value, v: Value, mask: Value | None = None, axis: int = -1
) -> Value:
    scores = g("nn.batch_matmul", q, k)
    if mask is not None:
        scores = g("add", mask, scores)
    return g("nn.batch_matmul", g("nn.softmax", scores, axis=axis), v)


@pytest.mark.parametrize("axis", [-1, 3])
def test_attention(axis: int) -> None:
    graph = graph_of(lambda g, q, k, v: attention(g, q, k, v, axis=axis), QUERY, KEY, VALUE)
    after = run_pass(recognize, graph, tolerance=TOLERANCE)
    assert operators(after) == ["transpose", "nn.attention"]
    assert node_of(after, "nn.attention").attrs.scale == 1.0


MASKS = [(5, 7), (1, 7), (5, 1), (2, 4, 5, 7), (2, 1, 1, 7)]


@pytest.mark.parametrize("shape", MASKS)
def test_masked_attention(shape: tuple[int, ...]) -> None:
    types = (QUERY, KEY, VALUE, tensor("float32", *shape))
    after = run_pass(recognize, graph_of(attention, *types), tolerance=TOLERANCE)
    assert operators(after) == ["transpose", "nn.attention"]
    assert node_of(after, "nn.attention").inputs[3] is after.inputs[3]


@pytest.mark.parametrize("mask", [None, (5, 7), (2, 5, 7), (1, 1, 7)])
def test_attention_without_heads(mask: tuple[int, ...] | None) -> None:
    """As non-local blocks are written, and attention with batch and heads in one axis."""
    types = [tensor("float32", 2, 5, 8), tensor("float32", 2, 8, 7), tensor("float32", 2, 7, 3)]
    masks = [] if mask is None else [tensor("float32", *mask)]
    after = run_pass(recognize, graph_of(attention, *types, *masks), tolerance=TOLERANCE)
    assert operators(after).count("nn.attention") == 1
    assert not {"nn.softmax", "nn.batch_matmul"} & set(operators(after))


def test_attention_of_scaled_queries_and_keys() -> None:
    """As ViT is exported: queries and keys each times the fourth root, keys transposed."""

    def build(g: Builder, q: Value, k: Value, v: Value) -> Value:
        root = g.constant(np.float32(8**-0.25))
        turned = g("transpose", k, axes=[0, 1, 3, 2])
        return attention(g, g("multiply", q, root), g("multiply", root, turned), v)

    types = (QUERY, tensor("float32", 2, 4, 7, 8), VALUE)
    after = run_pass(optimize, graph_of(build, *types), tolerance=TOLERANCE)
    assert operators(after) == ["nn.attention"]
    assert node_of(after, "nn.attention").inputs[:3] == after.inputs
    assert node_of(after, "nn.attention").attrs.scale == pytest.approx(8**-0.5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("operator", "number", "scale"),
    [("multiply", np.float32(0.25), 0.25), ("divide", np.full((1, 1), 8, np.float32), 0.125)],
)
def test_attention_of_scaled_scores(operator: str, number: Any, scale: float, masked: bool) -> None:
    """As BERT is exported, and as ONNX Runtime's optimiser writes it."""

    def build(g: Builder, q: Value, k: Value, v: Value, mask: Value) -> Value:
        scores = g(operator, g("nn.batch_matmul", q, k), g.constant(number))
        scores = g("add", scores, mask) if masked else scores
        return g("nn.batch_matmul", g("nn.softmax", scores), v)

    graph = graph_of(build, QUERY, KEY, VALUE, tensor("float32", 2, 1, 1, 7))
    after = run_pass(recognize, graph, tolerance=TOLERANCE)
    assert operators(after) == ["transpose", "nn.attention"]
    assert node_of(after, "nn.attention").attrs.scale == scale
    assert len(node_of(after, "nn.attention").args) == 3 + masked


def _scaled_by(operator: str, number: Any) -> Build:
    def build(g: Builder, q: Value, k: Value, v: Value) -> Value:
        scores = g(operator, g("nn.batch_matmul", q, k), g.constant(number))
        return g("nn.batch_matmul", g("nn.softmax", scores), v)

    return build


def _softmax_over_queries(g: Builder, q: Value, k: Value, v: Value) -> Value:
    return attention(g, q, k, g("reshape", v, shape=[2, 4, 7, 3]), axis=2)


def _softmax_read_twice(g: Builder, q: Value, k: Value, v: Value) -> tuple[Value, Value]:
    weights = g("nn.softmax", g("nn.batch_matmul", q, k))
    return g("nn.batch_matmul", weights, v), weights


def _transposed_product(g: Builder, q: Value, k: Value, v: Value) -> Value:
    turned = g("transpose", k, axes=[0, 1, 3, 2])
    scores = g("nn.batch_matmul", q, turned, transpose_b=True)
    return g("nn.batch_matmul", g("nn.softmax", scores), v)


NO_ATTENTION: dict[str, tuple[Build, tuple[TensorType, ...]]] = {
    "softmax over queries": (_softmax_over_queries, (QUERY, KEY, VALUE)),
    "softmax read twice": (_softmax_read_twice, (QUERY, KEY, VALUE)),
    "transposed product": (_transposed_product, (QUERY, KEY, VALUE)),
    "keys scaled one by one": (
        _scaled_by("multiply", np.arange(1, 8, dtype=np.float32)),
        (QUERY, KEY, VALUE),
    ),
    "a scale with an axis of its own": (
        _scaled_by("multiply", np.full((1, 1, 1, 1, 1), 0.5, np.float32)),
        (QUERY, KEY, VALUE),
    ),
    "shared values": (attention, (QUERY, KEY, tensor("float32", 7, 3))),
    "one head of values": (attention, (QUERY, KEY, tensor("float32", 2, 1, 7, 3))),
    "five axes": (
        attention,
        tuple(tensor("float32", 2, 1, 2, *last) for last in ((5, 8), (8, 7), (7, 3))),
    ),
    "vectors of any length": (
        attention,
        (
            tensor("float32", 2, 4, 5, symbol("n")),
            tensor("float32", 2, 4, symbol("n"), 7),
            tensor("float32", 2, 4, 7, 3),
        ),
    ),
    "a mask that repeats the query": (
        attention,
        (tensor("float32", 2, 4, 1, 8), KEY, VALUE, tensor("float32", 5, 7)),
    ),
    "a mask of one axis": (attention, (QUERY, KEY, VALUE, tensor("float32", 7))),
}


@pytest.mark.parametrize("name", NO_ATTENTION)
def test_no_attention(name: str) -> None:
    build, types = NO_ATTENTION[name]
    graph = graph_of(build, *types)
    after = run_pass(recognize, graph, data_for(graph, {"n": 6}), tolerance=TOLERANCE)
    assert "nn.attention" not in operators(after)
