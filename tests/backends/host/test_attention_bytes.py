"""Attention on bytes in one kernel: exact products, and which graphs become one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from tests.backends.host.test_integers import TARGETS

import graft
from graft.backends.host.passes.pipeline import prepare
from graft.backends.host.passes.use_integers import use_integers
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import host_target

MACHINES = [target.name for target in TARGETS if target.name in ("host", "x86-64-v3", "plain")]
ZERO_POINTS = {"uint8": (120, 131, 117), "int8": (-3, 7, 20)}


def whole(draw: np.random.Generator, dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return draw.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def agrees(graph: Graph, arrays: list[Array], machine: str = "host") -> None:
    """Natively what the reference gives, element by element."""
    (wanted,) = evaluate(graph, arrays)
    feeds = {value.name: array for value, array in zip(graph.inputs, arrays, strict=True)}
    options = {} if machine == "host" else {"machine": machine}
    (found,) = graft.compile(graph, strict=True, **options).run(None, feeds)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("heads", "shared", "queries", "keys", "size", "values"),
    [
        (2, 2, 3, 5, 4, 4),
        (4, 2, 19, 37, 8, 20),
        (3, 3, 50, 64, 64, 33),
        (1, 1, 1, 1, 4, 1),
        (2, 1, 13, 197, 32, 64),
    ],
)
def test_any_shape(
    heads: int,
    shared: int,
    queries: int,
    keys: int,
    size: int,
    values: int,
    dtype: str,
    machine: str,
) -> None:
    draw, g = np.random.default_rng(keys), Builder()
    shapes = (heads, queries, size), (shared, keys, size), (shared, keys, values)
    operands = [g.input(n, tensor(dtype, 2, *s)) for n, s in zip("qkv", shapes, strict=True)]
    attrs: dict[str, Any] = {"scale": 1e-4, "step": 1 / 255, "zero_points": ZERO_POINTS[dtype]}
    graph = g.build(g("qnn.attention", *operands, **attrs))
    agrees(graph, [whole(draw, dtype, 2, *shape) for shape in shapes], machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("most", [127, 255])
@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3, 4), (2, 5, 4), (2, 5, 4)],
        [(4, 19, 8), (2, 37, 8), (2, 37, 20)],
        [(1, 1, 4), (1, 1, 4), (1, 1, 1)],
        [(2, 13, 32), (1, 197, 32), (1, 197, 64)],
    ],
    ids=str,
)
def test_results_divided_by_the_sums_of_codes(
    shapes: list[tuple[int, int, int]], most: int, dtype: str, machine: str
) -> None:
    """Exponentials halfway between two codes may become either."""
    keys, g = shapes[1][1], Builder()
    draw = np.random.default_rng(keys)
    operands = [
        g.input(name, tensor(dtype, 2, *shape)) for name, shape in zip("qkv", shapes, strict=True)
    ]
    attrs: dict[str, Any] = {"scale": 1e-4, "step": 1 / most, "zero_points": ZERO_POINTS[dtype]}
    graph = g.build(g("qnn.attention", *operands, most=most, divided=True, **attrs))
    arrays = [whole(draw, dtype, 2, *shape) for shape in shapes]
    (wanted,) = evaluate(graph, arrays)
    options = {} if machine == "host" else {"machine": machine}
    feeds = {value.name: array for value, array in zip(graph.inputs, arrays, strict=True)}
    (found,) = graft.compile(graph, strict=True, **options).run(None, feeds)
    away = np.abs(found - wanted)
    assert away.max() < 255 / most * 3 / keys + 1e-3  # one or two codes of all that are summed
    assert (away > 1e-3).mean() < 0.02


@pytest.mark.parametrize("shape", [(2, 1, 19, 37), (37,), (1, 3, 1, 1)])
def test_masks_and_few_codes(shape: tuple[int, ...]) -> None:
    """Probabilities of 7 bits that reach beyond the highest code, batches counted at run time."""
    draw, g = np.random.default_rng(1), Builder()
    batch = symbol("batch") if shape[0] != 2 else 2
    shapes = (3, 19, 8), (3, 37, 8), (3, 37, 20)
    operands = [g.input(n, tensor("uint8", batch, *s)) for n, s in zip("qkv", shapes, strict=True)]
    mask = g.input("mask", tensor("float32", *shape))
    attrs: dict[str, Any] = {"zero_points": ZERO_POINTS["uint8"], "most": 127}
    attrs |= {"scale": 1e-3, "step": 0.002}
    graph = g.build(g("qnn.attention", *operands, mask, **attrs))
    added = draw.standard_normal(shape).astype(np.float32)
    added.reshape(-1)[1::5] = -np.inf
    agrees(graph, [*(whole(draw, "uint8", 2, *one) for one in shapes), added])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("masked", [None, 0, 1, 2])
def test_rounded_scores(masked: int | None, dtype: str, machine: str) -> None:
    """Twice, with a mask before, between or behind; the zero point of keys counts."""
    draw, g = np.random.default_rng(7), Builder()
    shapes = (4, 19, 8), (2, 37, 8), (2, 37, 20)
    operands = [g.input(n, tensor(dtype, 2, *s)) for n, s in zip("qkv", shapes, strict=True)]
    arrays = [whole(draw, dtype, 2, *one) for one in shapes]
    if masked is not None:
        operands.append(g.input("mask", tensor("float32", 2, 1, 19, 37)))
        added = draw.standard_normal((2, 1, 19, 37)).astype(np.float32)
        added.reshape(-1)[1::5] = -np.inf
        arrays.append(added)
    attrs: dict[str, Any] = {"scale": 0.04, "step": 1 / 255, "zero_points": ZERO_POINTS[dtype]}
    attrs["roundings"] = (0.0031, 0.05, -128.0, 127.0, 1.13, 0.04, -90.0, 165.0)
    graph = g.build(g("qnn.attention", *operands, masked=masked or 0, **attrs))
    agrees(graph, arrays, machine)


class Model:
    """Builds attentions of quantised operands."""

    def __init__(self, queries: int = 21, keys: int = 37, size: int = 12) -> None:
        self.g = g = Builder()
        lengths = queries, keys, keys
        self.operands = [
            g.input(name, tensor("float32", 1, 2, length, size))
            for name, length in zip("qkv", lengths, strict=True)
        ]

    def through(self, x: Value, scale: float, zero: int, dtype: str = "uint8") -> Value:
        """Quantised and dequantised."""
        parameters = self.g.constant(np.float32(scale)), self.g.constant(np.array(zero, dtype))
        codes = self.g("qnn.quantize", x, *parameters, dtype=dtype)
        return self.g("qnn.dequantize", codes, *parameters)

    def attention(
        self,
        mask: bool = False,
        shares: tuple[float, int, str] | None = (1 / 255, 0, "uint8"),
        rounded: Collection[str] = (),
        dtype: str = "uint8",
        divided: bool = False,
    ) -> Value:
        """With scores that are `rounded` behind some of the steps on the way to softmax; where it
        is `divided` last, its exponentials are rounded."""
        g = self.g
        zero, own = (110, 121) if dtype == "uint8" else (-18, -7)

        def maybe(step: str, value: Value, scale: float) -> Value:
            return self.through(value, scale, own, dtype) if step in rounded else value

        q, k, v = (self.through(x, 0.03, zero, dtype) for x in self.operands)
        scores = g("nn.batch_matmul", q, g("transpose", k, axes=(0, 1, 3, 2)))
        scores = maybe("product", scores, 0.1127)  # of which no sum is halfway between codes
        scores = maybe("factor", g("divide", scores, g.constant(np.float32(3))), 0.0371)
        if mask:
            added = maybe("mask", g.input("mask", tensor("float32", 1, 1, 1, 37)), 0.0293)
            scores = maybe("sum", g("add", scores, added), 0.0413)
        if divided and shares is not None:
            most = g("max", scores, axes=(-1,), keepdims=True)
            powers = self.through(g("exp", g("subtract", scores, most)), *shares)
            total = g("sum", powers, axes=(-1,), keepdims=True)
            return g("divide", g("nn.batch_matmul", powers, v), total)
        softmax = g("nn.softmax", scores, axis=-1)
        return g(
            "nn.batch_matmul", softmax if shares is None else self.through(softmax, *shares), v
        )


def _names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("size", [12, 10])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(
    "shares", [(1 / 255, 0, "uint8"), (1 / 255, -128, "int8"), (1 / 127, 0, "int8")]
)
def test_a_quantised_attention_is_one_kernel(
    size: int, mask: bool, shares: tuple[float, int, str]
) -> None:
    """Within a step of the result, and almost everywhere the same."""
    model = Model(size=size)
    step = 0.007
    graph = model.g.build(model.through(model.attention(mask, shares), step, 100))
    names = _names(use_integers(graph))
    assert names.count("qnn.attention") == 1
    assert not {"qnn.batch_matmul", "nn.batch_matmul", "nn.softmax"} & {*names}
    composites = [n for n in prepare(graph, host_target()).nodes if n.op.name == "composite"]
    (label,) = (n.attrs.label for n in composites if "qnn.attention" in n.attrs.label)
    assert "qnn.saturate" in label
    _is_near(graph, step)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("shares", [(1 / 255, 0, "uint8"), (1 / 255, -128, "int8")])
def test_an_attention_that_is_divided_last_is_one_kernel(
    mask: bool, shares: tuple[float, int, str]
) -> None:
    model = Model()
    result = model.attention(mask, shares, ("factor",), divided=True)
    graph = model.g.build(model.through(result, 0.007, 100))
    names = _names(use_integers(graph))
    assert names.count("qnn.attention") == 1
    assert not {"qnn.batch_matmul", "nn.batch_matmul", "exp", "sum", "max"} & {*names}
    _is_near(graph, 0.007)


def test_sums_of_codes_that_others_read_stay_apart() -> None:
    model = Model()
    result = model.attention(divided=True)
    for op in ("sum", "max", "exp"):
        (node,) = (node for node in model.g.build(result).nodes if node.op.name == op)
        made = use_integers(model.g.build(result, node.output))
        assert "qnn.attention" not in _names(made)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("rounded", "mask"),
    [
        (("product",), False),
        (("factor",), False),
        (("product", "factor"), False),
        (("product", "factor", "sum"), True),
        (("product", "factor", "mask", "sum"), True),
        (("factor",), True),
        (("sum",), True),
    ],
)
def test_scores_that_are_quantised_too(rounded: tuple[str, ...], mask: bool, dtype: str) -> None:
    """As ONNX Runtime's static quantisation writes them: still one kernel, and the same codes as
    from kernels of their own but where a last bit decides between two."""
    model = Model()
    step = 0.007
    zero = 100 if dtype == "uint8" else -28
    result = model.attention(mask, (1 / 255, 0, "uint8"), rounded, dtype)
    graph = model.g.build(model.through(result, step, zero, dtype))
    made = use_integers(graph)
    names = _names(made)
    assert names.count("qnn.attention") == 1
    assert not {"qnn.batch_matmul", "nn.batch_matmul", "nn.softmax"} & {*names}
    (node,) = (node for node in made.nodes if node.op.name == "qnn.attention")
    assert len(node.attrs.score_roundings) == len({*rounded} - {"mask"})
    _is_near(graph, step)


def test_scores_that_others_read_stay_apart() -> None:
    model = Model()
    result = model.attention(rounded=("product",))
    codes = [n for n in model.g.build(result).nodes if n.op.name == "qnn.quantize"]
    (scores,) = (n.output for n in codes if n.output.shape == (1, 2, 21, 37) and n is not codes[-1])
    assert "qnn.attention" not in _names(use_integers(model.g.build(result, scores)))


def _is_near(graph: Graph, step: float) -> None:
    """Within a step of what the reference gives, and almost everywhere the same."""
    draw = np.random.default_rng(4)
    arrays = [draw.standard_normal(static).astype(np.float32) for static in _shapes(graph)]
    (wanted,) = evaluate(graph, arrays)
    feeds = {value.name: array for value, array in zip(graph.inputs, arrays, strict=True)}
    (found,) = graft.compile(graph, strict=True).run(None, feeds)
    away = np.abs(found - wanted) / step
    assert away.max() < 1.01
    assert (away > 0.5).mean() < 0.01


def _shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [tuple(int(dim) for dim in value.tensor.shape or ()) for value in graph.inputs]


def test_probabilities_in_float_stay_there() -> None:
    model = Model()
    names = _names(use_integers(model.g.build(model.attention(shares=None))))
    assert "qnn.attention" not in names
    assert "qnn.batch_matmul" in names


def test_probabilities_that_others_read_stay_apart() -> None:
    model = Model()
    result = model.attention()
    (softmax,) = (node for node in model.g.build(result).nodes if node.op.name == "nn.softmax")
    names = _names(use_integers(model.g.build(result, softmax.output)))
    assert "qnn.attention" not in names
