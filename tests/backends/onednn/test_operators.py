"""Each operator on shapes that divide into nothing, against what it means."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.onednn.regions import Case, check


@pytest.mark.parametrize(
    ("data", "weight", "attrs"),
    [
        ((1, 3, 13, 11), (5, 3, 3, 3), {}),
        ((2, 16, 9, 7), (24, 16, 1, 1), {"strides": (2, 1)}),
        ((1, 6, 10, 9), (9, 2, 3, 2), {"groups": 3, "padding": (1, 0, 2, 1)}),
        ((2, 7, 8, 8), (7, 1, 3, 3), {"groups": 7, "padding": (1, 1, 1, 1)}),
        ((1, 8, 17, 15), (16, 8, 3, 3), {"dilation": (2, 3), "padding": (2, 3, 2, 3)}),
        ((1, 4, 5, 5), (3, 4, 5, 5), {"padding": (4, 4, 4, 4)}),
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ],
)
def test_convolution(data: Any, weight: Any, attrs: dict[str, Any]) -> None:
    case = Case()
    check(case, case("nn.conv2d", case.input(*data), case.constant(*weight), **attrs))


def test_convolution_over_one_axis() -> None:
    case = Case()
    given = {"strides": (2,), "padding": (3, 1), "dilation": (2,)}
    check(case, case("nn.conv1d", case.input(2, 5, 23), case.constant(7, 5, 3), **given))


def test_convolution_over_three_axes() -> None:
    case = Case()
    given = {"strides": (1, 2, 1), "padding": (1, 0, 1, 0, 1, 1), "groups": 2}
    check(case, case("nn.conv3d", case.input(1, 4, 5, 6, 7), case.constant(6, 2, 3, 2, 3), **given))


def test_weights_that_are_computed() -> None:
    case = Case()
    weight = case("nn.relu", case.input(6, 5, 3, 3))
    check(case, case("nn.conv2d", case.input(1, 5, 7, 7), weight))


@pytest.mark.parametrize("shape", [(1, 5), (7, 13), (2, 3, 17), (2, 1, 5, 9)])
@pytest.mark.parametrize("constant", [True, False])
def test_dense(shape: tuple[int, ...], constant: bool) -> None:
    case = Case()
    weight = (case.constant if constant else case.input)(11, shape[-1])
    check(case, case("nn.dense", case.input(*shape), weight))


@pytest.mark.parametrize(
    ("first", "second", "attrs"),
    [
        ((5, 7), (7, 3), {}),
        ((3, 5, 7), (3, 7, 2), {}),
        ((3, 7, 5), (1, 7, 2), {"transpose_a": True}),
        ((2, 3, 5, 7), (4, 7), {"transpose_b": True}),
        ((1, 5, 7), (6, 7, 9), {}),
        ((2, 1, 4, 5), (3, 6, 4), {"transpose_a": True, "transpose_b": True}),
    ],
)
def test_batch_matmul(first: Any, second: Any, attrs: dict[str, Any]) -> None:
    case = Case()
    check(case, case("nn.batch_matmul", case.input(*first), case.input(*second), **attrs))


@pytest.mark.parametrize("kind", ["max", "avg", "avg with pads"])
@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((1, 3, 13, 11), {"pool_size": (3, 3), "strides": (2, 2)}),
        ((2, 8, 9, 9), {"pool_size": (3, 2), "padding": (1, 1, 1, 0)}),
        ((1, 5, 10, 10), {"pool_size": (2, 3), "strides": (3, 2), "padding": (1, 0, 0, 2)}),
        ((1, 4, 12), {"pool_size": (5,), "strides": (2,), "padding": (2, 2)}),
        ((1, 4, 6, 7, 5), {"pool_size": (2, 3, 2), "strides": (2, 2, 2)}),
    ],
)
def test_pooling(kind: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    case = Case()
    more = {"count_include_pad": True} if "pads" in kind else {}
    op = f"nn.{kind.split()[0]}_pool{len(shape) - 2}d"
    check(case, case(op, case.input(*shape), **attrs, **more))


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_windows_that_reach_beyond_the_data(kind: str) -> None:
    case = Case()
    given = {"pool_size": (3, 3), "strides": (2, 2), "ceil_mode": True, "padding": (0, 1, 0, 1)}
    check(case, case(f"nn.{kind}_pool2d", case.input(1, 9, 8, 10), **given))


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_last_windows_that_would_start_in_the_padding(kind: str) -> None:
    case = Case()
    given = {"pool_size": (2, 1), "ceil_mode": True, "padding": (1, 0, 0, 1)}
    check(case, case(f"nn.{kind}_pool2d", case.input(1, 3, 4, 5), **given))


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("nn.relu", {}),
        ("nn.leaky_relu", {"alpha": 0.3}),
        ("tanh", {}),
        ("abs", {}),
        ("sigmoid", {}),
        ("exp", {}),
        ("round", {}),
        ("nn.gelu", {}),
        ("nn.gelu", {"approximate": True}),
        ("clip", {"a_min": -0.25, "a_max": 0.5}),
        ("clip", {"a_min": 0.25}),
        ("clip", {"a_max": 0.25}),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (13,), (), (1, 2, 1, 3, 2, 5)])
def test_eltwise(op: str, attrs: dict[str, Any], shape: tuple[int, ...]) -> None:
    case = Case()
    check(case, case(op, case.input(*shape), **attrs))


@pytest.mark.parametrize("op", ["sqrt", "log"])
def test_eltwise_of_positive_numbers(op: str) -> None:
    case = Case()
    x = case("abs", case.input(3, 5, 1, 7))
    check(case, case(op, x))


BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum"]


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((2, 3, 5, 7), (2, 3, 5, 7)),
        ((2, 3, 5, 7), (3, 1, 1)),
        ((2, 3, 5, 7), (7,)),
        ((2, 3, 5, 7), (2, 1, 5, 1)),
        ((5, 3), ()),
        ((), ()),
        ((2, 1, 3, 1, 2, 5), (3, 1, 1, 5)),
    ],
)
def test_binary(op: str, first: Any, second: Any) -> None:
    case = Case()
    check(case, case(op, case.input(*first), case.input(*second)))


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
def test_binary_whose_first_operand_is_broadcast(op: str) -> None:
    case = Case()
    check(case, case(op, case.constant(1, 5, 1), case.input(3, 5, 9)))


def test_a_value_and_itself() -> None:
    case = Case()
    x = case("nn.conv2d", case.input(1, 3, 5, 5), case.constant(9, 3, 1, 1))
    check(case, case("multiply", x, x))


@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 17), -1), ((2, 9, 5, 3), 1), ((1,), 0)])
def test_softmax(op: str, shape: tuple[int, ...], axis: int) -> None:
    case = Case()
    check(case, case(op, case.input(*shape), axis=axis))


@pytest.mark.parametrize("shape", [(3, 13), (2, 5, 33), (1, 2, 3, 7)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    case = Case()
    scale, shift = case.constant(shape[-1]), case.input(1, shape[-1])
    check(case, case("nn.layer_norm", case.input(*shape), scale, shift, epsilon=1e-3))


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((2, 9, 5, 7), {"axes": (2, 3), "keepdims": True}),
        ((2, 9, 5, 7), {"axes": (-1, -2)}),
        ((1, 33, 6), {"axes": (2,)}),
        ((1, 3, 2, 4, 5), {"axes": (2, 3, 4), "keepdims": True}),
    ],
)
def test_mean_over_pixels(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    case = Case()
    check(case, case("mean", case.input(*shape), **attrs))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate(axis: int) -> None:
    case = Case()
    shapes: list[list[int]] = [[2, 3, 5, 4], [2, 3, 5, 4], [2, 3, 5, 4]]
    for extent, shape in zip((8, 3, 1), shapes, strict=True):
        shape[axis] = extent
    parts = [case.input(*shapes[0]), case.constant(*shapes[1]), case.input(*shapes[2])]
    check(case, case("concatenate", *parts, axis=axis))


def test_concatenate_one() -> None:
    case = Case()
    check(case, case("concatenate", case.input(3, 4), axis=1))


@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention(scale: float | None) -> None:
    case = Case()
    query, key, value = case.input(2, 3, 5, 8), case.input(2, 3, 7, 8), case.input(2, 3, 7, 9)
    check(case, case("nn.attention", query, key, value, scale=scale))


def test_movement() -> None:
    case = Case()
    x = case("nn.relu", case.input(2, 6, 4, 5))
    y = case("transpose", case("reshape", x, shape=(2, 3, 2, 20)), axes=(2, 0, 3, 1))
    y = case("squeeze", case("expand_dims", y, axes=(1,)), axes=(1,))
    parts = case.builder.call("split", y, axis=2, sizes=(3, 10, 7))
    check(case, parts[0], case("exp", parts[2]), case("tanh", parts[1]))
    check(case, case("transpose", x), y)
