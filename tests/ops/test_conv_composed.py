"""Convolutions that are composed of others: quantised ones, and the causal one with a state."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of

from graft.base.dtypes import Array
from graft.base.errors import UserError

RANDOM = np.random.default_rng(5)


def integers(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


STEPS: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 2, 1]}


@pytest.mark.parametrize(("data", "weight"), [("uint8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_conv_integer_as_onnx_runtime(data: str, weight: str, with_zeros: bool, group: int) -> None:
    w = integers(weight, 4, 4 // group, 3, 2)
    feeds: dict[str, Array | None] = {"x": integers(data, 2, 4, 6, 7), "w": w}
    if with_zeros:
        feeds["x_zero"] = np.array(7, data)
        feeds["w_zero"] = np.array(3, weight)
    expected = by_runtime("ConvInteger", feeds, 10, group=group, **STEPS)
    for shape in ((2, 4, 6, 7), None):
        found = by_graft("ConvInteger", feeds, 10, group=group, shapes={"x": shape}, **STEPS)
        assert_same(found, expected, 0)


def test_conv_integer_with_a_zero_point_per_output() -> None:
    x, w = integers("int8", 1, 2, 5), integers("int8", 3, 2, 2)
    zeros = np.array([-128, 0, 127], np.int8)
    feeds = {"x": x, "w": w, "x_zero": None, "w_zero": zeros}
    centred = (w.astype(np.int64) - zeros.reshape(3, 1, 1)).astype(np.float64)
    expected = by_runtime("Conv", {"x": x.astype(np.float32), "w": centred.astype(np.float32)}, 11)
    assert_same(by_graft("ConvInteger", feeds, 10), [expected[0].astype(np.int32)], 0)


@pytest.mark.parametrize("data", ["uint8", "int8"])
@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
def test_qlinear_conv_as_onnx_runtime(
    data: str, per_output: bool, group: int, with_bias: bool
) -> None:
    """Bit for bit: rounding of ties and saturation included."""
    scale = np.float32([0.03, 0.5, 1e-3, 0.25]) if per_output else np.float32(0.03)
    zero = np.zeros(4, np.int8) if per_output else np.array(0, np.int8)
    feeds = {
        "x": integers(data, 2, 4, 9, 7),
        "x_scale": np.float32(0.05),
        "x_zero": np.array(100, data),
        "w": integers("int8", 4, 4 // group, 3, 2),
        "w_scale": np.asarray(scale),
        "w_zero": zero,
        "y_scale": np.float32(0.1),
        "y_zero": np.array(11, data),
        "bias": RANDOM.integers(-5000, 5000, 4).astype(np.int32) if with_bias else None,
    }
    feeds = {name: None if a is None else np.asarray(a) for name, a in feeds.items()}
    expected = by_runtime("QLinearConv", feeds, 10, group=group, **STEPS)
    info = np.iinfo(data)
    assert (expected[0] == info.min).any()
    assert (expected[0] == info.max).any()
    for shape in ((2, 4, 9, 7), ["n", 4, "h", "w"]):
        found = by_graft("QLinearConv", feeds, 10, group=group, shapes={"x": shape}, **STEPS)
        assert_same(found, expected, 0)


def test_ties_round_to_even_before_the_zero_point_is_added() -> None:
    x = np.array([[[1, 3, 5, 7]]], np.uint8)
    one, zero = np.array(1, np.float32), np.array(0, np.uint8)
    feeds = {
        "x": x, "x_scale": one, "x_zero": zero, "w": np.ones((1, 1, 1), np.uint8),
        "w_scale": one, "w_zero": zero, "y_scale": np.array(2, np.float32),
        "y_zero": np.array(1, np.uint8),
    }  # fmt: skip
    assert by_graft("QLinearConv", feeds, 10)[0].tolist() == [[[1, 3, 3, 5]]]


def causal(x: Array, w: Array, bias: Array | None, past: Array | None) -> tuple[Array, Array]:
    """By one dot product per position."""
    batch, channels, length = x.shape
    state = w.shape[2] - 1
    before = np.zeros((batch, channels, state), x.dtype) if past is None else past
    whole = np.concatenate([before, x], axis=2).astype(np.float64)
    positions = [(whole[:, :, i : i + state + 1] * w[:, 0]).sum(axis=2) for i in range(length)]
    result = np.stack(positions, axis=2) if length else np.zeros(x.shape)
    if bias is not None:
        result += bias.reshape(1, -1, 1)
    return result.astype(x.dtype), whole[:, :, length:].astype(x.dtype)


@pytest.mark.parametrize("kernel", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
@pytest.mark.parametrize(("with_bias", "with_past"), [(True, False), (False, True), (True, True)])
def test_causal_conv(kernel: int, length: int, with_bias: bool, with_past: bool) -> None:
    x, w = (RANDOM.standard_normal(s).astype(np.float32) for s in ((2, 3, length), (3, 1, kernel)))
    bias = RANDOM.standard_normal(3).astype(np.float32) if with_bias else None
    past = RANDOM.standard_normal((2, 3, kernel - 1)).astype(np.float32) if with_past else None
    expected = causal(x, w, bias, past)
    feeds = {"x": x, "w": w, "bias": bias, "past": past}
    for shape in ((2, 3, length), ["n", 3, "length"]):
        found = by_graft("CausalConvWithState", feeds, 27, outputs=2, shapes={"x": shape})
        assert_same(found, expected, 1e-5)
        activated = by_graft(
            "CausalConvWithState", feeds, 27, shapes={"x": shape}, activation="silu"
        )
        silu = expected[0] / (1 + np.exp(-expected[0]))
        assert_same(activated, [silu], 1e-5)


def test_causal_conv_in_pieces() -> None:
    """Handing the state on gives what the whole sequence gives."""
    x = RANDOM.standard_normal((1, 2, 10)).astype(ml_dtypes.bfloat16)
    w = RANDOM.standard_normal((2, 1, 4)).astype(ml_dtypes.bfloat16)
    options: dict[str, Any] = {"outputs": 2, "activation": "swish"}
    whole, last = by_graft("CausalConvWithState", {"x": x, "w": w}, 27, **options)
    state = np.zeros((1, 2, 3), ml_dtypes.bfloat16)
    pieces = []
    for first, end in ((0, 1), (1, 3), (3, 9), (9, 10)):
        feeds = {"x": x[:, :, first:end], "w": w, "bias": None, "past": state}
        piece, state = by_graft("CausalConvWithState", feeds, 27, **options)
        pieces.append(piece)
    assert_same([np.concatenate(pieces, axis=2), state], [whole, last], 0)


def test_refusals() -> None:
    feeds = {"x": np.ones((1, 2, 3), np.float32), "w": np.ones((2, 1, 2), np.float32)}
    with pytest.raises(UserError, match="activation is 'relu', none of none, silu, swish"):
        graph_of("CausalConvWithState", feeds, 27, activation="relu")
    with pytest.raises(UserError, match="wants to know the weight's shape"):
        graph_of("CausalConvWithState", feeds, 27, shapes={"w": [2, 1, "k"]})
