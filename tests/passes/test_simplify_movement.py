"""Chains of data movement become one; padding joins the convolution behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.passes.checking import Build, data_for, graph_of, node_of, operators, run_pass

from graft.base.dims import symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.parser import from_text
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.passes.simplify_movement import simplify_movement

X = tensor("float32", 2, 3, 4)


def transposes(*orders: list[int] | None) -> Build:
    def build(g: Builder, x: Value) -> Value:
        for axes in orders:
            x = g("transpose", x, axes=axes)
        return x

    return build


# graph, operators afterwards, attributes of the one that is left
CASES: dict[str, tuple[Build, list[str], dict[str, Any]]] = {
    "reshape of reshape": (
        lambda g, x: g("reshape", g("reshape", x, shape=[6, 4]), shape=[4, 6]),
        ["reshape"],
        {"shape": (4, 6)},
    ),
    "and back": (
        lambda g, x: g("reshape", g("reshape", x, shape=[6, 4]), shape=[2, 3, 4]),
        [],
        {},
    ),
    "squeeze of expand_dims": (
        lambda g, x: g("squeeze", g("expand_dims", x, axes=[0, 2]), axes=[0]),
        ["reshape"],
        {"shape": (2, 1, 3, 4)},
    ),
    "transposes that cancel": (transposes([2, 0, 1], [1, 2, 0]), [], {}),
    "transposes that merge": (transposes([2, 0, 1], [2, 0, 1]), ["transpose"], {"axes": (1, 2, 0)}),
    "three transposes": (transposes([1, 0, 2], [0, 2, 1], [1, 0, 2]), ["transpose"], {}),
    "axes from the end": (transposes([-1, 0, 1], [0, 1, 2]), ["transpose"], {"axes": (2, 0, 1)}),
    "axes not written out": (transposes(None, None), ["transpose", "transpose"], {}),
    "concatenate": (
        lambda g, x: g("concatenate", g("concatenate", x, x, axis=-1), x, axis=2),
        ["concatenate"],
        {"axis": 2},
    ),
    "concatenate along two axes": (
        lambda g, x: g("concatenate", *[g("concatenate", x, x, axis=0)] * 2, axis=1),
        ["concatenate", "concatenate"],
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_chain(name: str) -> None:
    build, expected, attributes = CASES[name]
    after = run_pass(simplify_movement, graph_of(build, X))
    assert operators(after) == expected
    for attribute, value in attributes.items():
        assert getattr(after.nodes[-1].attrs, attribute) == value


def test_views_without_elements() -> None:
    graph = graph_of(
        lambda g, x: g("reshape", g("expand_dims", x, axes=[0]), shape=[3, 1, 0], allowzero=True),
        tensor("float32", 0, 3),
    )
    after = run_pass(simplify_movement, graph)
    assert operators(after) == ["reshape"]
    assert after.outputs[0].shape == (3, 1, 0)


@pytest.mark.parametrize("axes", [[1, 0, 2], [-2, -3, -1], [0, 2, 1]])
def test_transposes_of_unit_axes_are_reshapes(axes: list[int]) -> None:
    graph = graph_of(transposes(axes), tensor("float32", 1, 5, 1))
    after = run_pass(simplify_movement, graph)
    assert operators(after) == ["reshape"]


def test_transposes_whose_type_says_less_than_their_operands() -> None:
    """As it is behind a branch that was inlined: `d0` is no symbol to put into an attribute."""
    text = """graph @main(%x: float32[2, 1]) {
      %y: float32[d0, 2] = transpose(%x) {axes=[1, 0]}
      return %y
    }"""
    after = run_pass(simplify_movement, verify(from_text(text)))
    assert node_of(after, "reshape").attrs.shape == (1, 2)


def test_a_transpose_that_moves_elements_stays() -> None:
    for axes in ([1, 0], [-1, 0]):
        graph = graph_of(transposes(axes), tensor("float32", 2, 3))
        assert simplify_movement(graph) is graph


def test_symbolic_views() -> None:
    n = symbol("n")
    type_ = tensor("float32", n, 4)
    back = graph_of(lambda g, x: g("reshape", g("reshape", x, shape=[n * 4]), shape=[n, 4]), type_)
    assert operators(run_pass(simplify_movement, back, data_for(back, {"n": 3}))) == []
    on = graph_of(lambda g, x: g("reshape", g("reshape", x, shape=[n * 4]), shape=[n, 2, 2]), type_)
    assert simplify_movement(on) is on


def test_an_inner_transpose_with_another_reader_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        inner = g("transpose", x, axes=[2, 0, 1])
        return g("transpose", inner, axes=[1, 2, 0]), inner

    after = run_pass(simplify_movement, graph_of(build, X))
    assert operators(after) == ["transpose"]
    assert after.outputs[0] is after.inputs[0]


def test_a_concatenation_that_others_read_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        inner = g("concatenate", x, x)
        return g("concatenate", inner, x), inner

    graph = graph_of(build, X)
    assert simplify_movement(graph) is graph


def padded_convolution(**pad: Any) -> Graph:
    def build(g: Builder, x: Value) -> Value:
        weight = g.constant(np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3) - 17)
        options = {"pad_width": [0, 0, 1, 2, 0, 0, 0, 1], **pad}
        padding = [1, 0, 1, 0]
        return g("nn.conv2d", g("nn.pad", x, **options), weight, padding=padding, strides=[2, 1])

    return graph_of(build, tensor("float32", 1, 2, 5, 4))


@pytest.mark.parametrize("value", [None, 0, 0.0, -0.0])
def test_zero_padding_joins_the_convolution(value: float | None) -> None:
    after = run_pass(simplify_movement, padded_convolution(value=value))
    assert operators(after) == ["nn.conv2d"]
    assert node_of(after, "nn.conv2d").attrs.padding == (2, 2, 1, 1)  # type: ignore[attr-defined]
    assert node_of(after, "nn.conv2d").attrs.strides == (2, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "pad",
    [
        {"value": 1.0},
        {"value": float("nan")},
        {"mode": "edge"},
        {"pad_width": [0, 0, -1, 0, 0, 0, 0, 0]},
        {"pad_width": [1, 0, 0, 0, 0, 0, 0, 0]},
        {"pad_width": [1, 2], "axes": [2]},
    ],
)
def test_other_padding_stays(pad: dict[str, Any]) -> None:
    graph = padded_convolution(**pad)
    assert simplify_movement(graph) is graph
    run_pass(simplify_movement, graph)


def test_padding_that_others_read_joins_and_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        wide = g("nn.pad", x, pad_width=[0, 0, 1, 0, 0, 1])
        return g("nn.conv1d", wide, g.constant(np.ones((1, 2, 3), np.float32))), wide

    after = run_pass(simplify_movement, graph_of(build, tensor("float32", 1, 2, 5)))
    assert operators(after) == ["nn.pad", "nn.conv1d"]
    assert node_of(after, "nn.conv1d").inputs[0] is after.inputs[0]
