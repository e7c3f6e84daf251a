"""Identities that hold bit for bit are used; those that almost hold are not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.passes.checking import Build, graph_of, node_of, operators, run_pass

from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.passes.simplify_algebra import simplify_algebra

AWKWARD = np.array([[-0.0, 0.0, np.nan], [np.inf, -np.inf, -1.5]])


def number(value: float, shape: tuple[int, ...] = ()) -> Build:
    """A constant of x's dtype."""
    return lambda g, x: g.constant(np.full(shape, value).astype(x.dtype.numpy))


def binary(op: str, constant: Build, flip: bool = False) -> Build:
    def build(g: Builder, x: Value) -> Value:
        pair = (x, constant(g, x))
        return g(op, *pair[:: -1 if flip else 1])

    return build


def chain(*names: str, **attrs: Any) -> Build:
    def build(g: Builder, x: Value) -> Value:
        for name in names:
            x = g(name, x, **attrs)
        return x

    return build


# graph, dtype of the input, operators afterwards
CASES: dict[str, tuple[Build, str, list[str]]] = {
    "x * 1": (binary("multiply", number(1)), "float32", []),
    "1 * x": (binary("multiply", number(1), flip=True), "float16", []),
    "x * ones": (binary("multiply", number(1, (2, 3))), "float32", []),
    "x * 1 broadcast": (binary("multiply", number(1, (1, 1, 1))), "float32", ["multiply"]),
    "x * almost 1": (binary("multiply", number(1.001)), "float32", ["multiply"]),
    "x / 1": (binary("divide", number(1)), "bfloat16", []),
    "1 / x": (binary("divide", number(1), flip=True), "float32", ["divide"]),
    "x - 0": (binary("subtract", number(0)), "float32", []),
    "x - -0": (binary("subtract", number(-0.0)), "float32", ["subtract"]),
    "0 - x": (binary("subtract", number(0), flip=True), "float32", ["subtract"]),
    "x + 0.0": (binary("add", number(0)), "float32", ["add"]),
    "integer x + 0": (binary("add", number(0)), "int32", []),
    "integer 0 + x": (binary("add", number(0), flip=True), "uint8", []),
    "x ** 1": (binary("power", number(1)), "float32", []),
    "x ** 2": (binary("power", number(2)), "int32", ["multiply"]),
    "x ** 2 broadcast": (binary("power", number(2, (2, 1, 1))), "int32", ["power"]),
    "x * 0.0": (binary("multiply", number(0)), "float32", ["multiply"]),
    "integer x * zeros": (binary("multiply", number(0, (2, 3))), "int32", []),
    "integer x * 0": (binary("multiply", number(0)), "int32", ["multiply"]),
    "--x": (chain("negative", "negative"), "float32", []),
    "---x": (chain(*["negative"] * 3), "float32", ["negative"]),
    "not not x": (chain("logical_not", "logical_not"), "bool", []),
    "~~x": (chain("bitwise_not", "bitwise_not"), "int8", []),
    "abs abs x": (chain("abs", "abs"), "float32", ["abs"]),
    "relu relu x": (chain("nn.relu", "nn.relu", "nn.relu"), "float32", ["nn.relu"]),
    "floor ceil x": (chain("ceil", "floor"), "float32", ["ceil", "floor"]),
    "sign sign x": (chain("sign", "sign"), "float32", ["sign"]),
    "round round x": (chain("round", "round"), "float64", ["round"]),
    "exp exp x": (chain("exp", "exp"), "float32", ["exp", "exp"]),
    "clip by nothing": (chain("clip"), "float32", []),
    "clip at 0": (chain("clip", a_min=0), "float32", ["nn.relu"]),
    "clip at 1": (chain("clip", a_min=1), "float32", ["clip"]),
    "clip between": (chain("clip", a_min=0, a_max=6), "float32", ["clip"]),
}


def _data(dtype: str) -> np.ndarray[Any, Any]:
    if DType(dtype).is_float:
        return AWKWARD.astype(DType(dtype).numpy)
    return np.array([[0, 1, 2], [3, 100, 127]]).astype(DType(dtype).numpy)


@pytest.mark.parametrize("name", CASES)
def test_identity(name: str) -> None:
    build, dtype, expected = CASES[name]
    graph = graph_of(build, tensor(dtype, 2, 3))
    after = run_pass(simplify_algebra, graph, [_data(dtype)])
    assert operators(after) == expected


def test_squares_of_negatives() -> None:
    def build(g: Builder, x: Value) -> Value:
        return g("multiply", g("negative", x), g("negative", x))

    after = run_pass(simplify_algebra, graph_of(build, tensor("float32", 2, 3)))
    assert operators(after) == ["multiply"]
    assert node_of(after, "multiply").inputs == after.inputs * 2


@pytest.mark.parametrize("flip", [False, True])
def test_a_constant_times_zero(flip: bool) -> None:
    """Both are constants, and only one of them is zero."""

    def build(g: Builder, x: Value) -> Value:
        pair = g.constant(np.array([4, 5], np.int32)), g.constant(np.zeros(2, np.int32))
        return g("maximum", x, g("multiply", *pair[:: -1 if flip else 1]))

    after = run_pass(simplify_algebra, graph_of(build, tensor("int32", 2)))
    assert operators(after) == ["maximum"]


def test_numbers_without_a_sign() -> None:
    """In float8_e8m0fnu the negative of a number is NaN, and stays so."""

    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        y = g("negative", x)
        return g("negative", y), g("multiply", y, g("negative", x))

    graph = graph_of(build, tensor("float8_e8m0fnu", 2))
    after = run_pass(simplify_algebra, graph, [np.array([1, 2], ml_dtypes.float8_e8m0fnu)])
    assert operators(after) == operators(graph)


# from, through, to, whether the first cast can be left out
CASTS = [
    ("int8", "int32", "float32", True),
    ("uint8", "float16", "int64", True),
    ("float16", "float32", "int32", True),
    ("bfloat16", "float64", "float32", True),
    ("bool", "int8", "float32", True),
    ("bool", "float8_e8m0fnu", "float32", False),
    ("float32", "float16", "float32", False),
    ("int32", "float32", "int32", False),
    ("int32", "int8", "int32", False),
    ("int8", "uint8", "int32", False),
    ("int16", "float16", "float32", False),
    ("float32", "int32", "float32", False),
    ("float32", "bool", "float32", False),
    ("float16", "float32", "string", False),
]


@pytest.mark.parametrize(("source", "middle", "target", "merges"), CASTS)
def test_casts(source: str, middle: str, target: str, merges: bool) -> None:
    graph = graph_of(
        lambda g, x: g("cast", g("cast", x, dtype=middle), dtype=target), tensor(source, 4)
    )
    dtype = DType(source)
    numbers = [0.1, -1.5, 100.0, 3.7] if dtype.is_float else [0, 1, 100, 127]
    after = run_pass(simplify_algebra, graph, [np.array(numbers).astype(dtype.numpy)])
    assert operators(after) == (["cast"] if merges else ["cast", "cast"])


@pytest.mark.parametrize("saturate", [True, False])
def test_merged_casts_keep_how_they_round(saturate: bool) -> None:
    graph = graph_of(
        lambda g, x: g(
            "cast", g("cast", x, dtype="float32"), dtype="float8_e5m2", saturate=saturate
        ),
        tensor("bfloat16", 2),
    )
    data = np.array([1e6, -1.0], ml_dtypes.bfloat16)
    after = run_pass(simplify_algebra, graph, [data])
    assert node_of(after, "cast").attrs == graph.nodes[-1].attrs
    assert operators(after) == ["cast"]


# condition, which operand stands for the result (None: neither)
CONDITIONS: list[tuple[Any, int | None]] = [
    (True, 0),
    (False, 1),
    ([True, True, True], 0),
    ([[False]], 1),
    ([True, False, True], None),
    (np.ones((4, 1, 1), bool), None),  # broadcasts the result
]


@pytest.mark.parametrize(("condition", "taken"), CONDITIONS)
def test_where(condition: Any, taken: int | None) -> None:
    graph = graph_of(
        lambda g, x, y: g("where", g.constant(np.array(condition)), x, y),
        tensor("float32", 2, 3),
        tensor("float32", 2, 3),
    )
    after = run_pass(simplify_algebra, graph)
    if taken is None:
        assert operators(after) == ["where"]
    else:
        assert after.outputs == (graph.inputs[taken],)


def test_where_whose_other_operand_broadcasts_stays() -> None:
    graph = graph_of(
        lambda g, x, y: g("where", g.constant(np.array(True)), x, y),
        tensor("float32", 3),
        tensor("float32", 2, 3),
    )
    assert simplify_algebra(graph) is graph


def test_an_empty_condition_decides_nothing() -> None:
    graph = graph_of(
        lambda g, x: g("where", g.constant(np.zeros((0, 1), bool)), x, x), tensor("float32", 3)
    )
    assert simplify_algebra(graph) is graph


def test_clip_with_operands_stays() -> None:
    graph = graph_of(lambda g, x, low: g("clip", x, low), tensor("float32", 3), tensor("float32"))
    assert simplify_algebra(graph) is graph


def test_inside_a_branch() -> None:
    def branch(name: str) -> Graph:
        g = Builder(name)
        a = g.input("a", tensor("float32", 3))
        return g.build(g("negative", g("negative", g("exp", a))))

    graph = graph_of(
        lambda g, x, on: g("if", on, x, then_branch=branch("yes"), else_branch=branch("no")),
        tensor("float32", 3),
        tensor("bool"),
    )
    after = run_pass(simplify_algebra, graph)
    for _, body in node_of(after, "if").graphs():
        assert operators(body) == ["exp"]
