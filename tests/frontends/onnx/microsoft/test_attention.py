"""Attention with masks of every form, caches and biases, beside ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.microsoft.beside_runtime import (
    agrees,
    by_graft,
    floats,
    model,
    scalar,
    whole,
)

from graft.base.dtypes import Array
from graft.base.errors import ModelError, UnsupportedError
from graft.frontends.onnx.importer import import_model

BATCH, LENGTH, HEADS, SIZE, INPUTS = 2, 5, 3, 4, 7
HIDDEN, PAST = HEADS * SIZE, 3
TOTAL = LENGTH + PAST
X = floats(BATCH, LENGTH, INPUTS)
WEIGHT, BIAS = floats(INPUTS, 3 * HIDDEN, seed=1) / 2, floats(3 * HIDDEN, seed=2)


def positions(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


def bits(*shape: int) -> Array:
    return np.random.default_rng(3).integers(0, 2, shape).astype(np.int32)


MASKS = {
    "none": None,
    "lengths": positions(3, 5),
    "a length of zero": positions(0, 5),
    "ends and starts": positions(4, 5, 1, 2),
    "lengths and totals": positions(3, 4, 0, 3, 8, 0, 3, 8),
    "per key": np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0]], np.int32),
    "per query and key": bits(BATCH, LENGTH, LENGTH),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_masks(mask: str, causal: int) -> None:
    attributes = {"num_heads": HEADS, "unidirectional": causal}
    agrees("Attention", X, WEIGHT, BIAS, MASKS[mask], opened=False, **attributes)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    "mask", [None, positions(6, 8), bits(BATCH, TOTAL), bits(BATCH, LENGTH, TOTAL)]
)
def test_caches(mask: Array | None, causal: int) -> None:
    past = floats(2, BATCH, HEADS, PAST, SIZE, seed=4)
    attributes = {"num_heads": HEADS, "unidirectional": causal}
    operands = X, WEIGHT, BIAS, mask, past
    agrees("Attention", *operands, outputs="y present", opened=False, **attributes)


@pytest.mark.parametrize("shape", [(BATCH, HEADS), (1, HEADS), (BATCH, 1), (1, 1)])
def test_biases(shape: tuple[int, int]) -> None:
    added = floats(*shape, LENGTH, LENGTH, seed=5)
    agrees("Attention", X, WEIGHT, BIAS, None, None, added, opened=False, num_heads=HEADS)
    # Of a row that is masked as a whole, 10000 leaves three digits behind the point.
    operands = X, WEIGHT, BIAS, MASKS["per key"], None, added
    agrees("Attention", *operands, opened=False, tolerance=1e-3, num_heads=HEADS)


def test_sizes_scale_and_filter() -> None:
    widths = [HIDDEN, HIDDEN, HEADS * 6]
    weight, bias = floats(INPUTS, sum(widths), seed=1), floats(sum(widths), seed=2)
    attributes = {"num_heads": HEADS, "qkv_hidden_sizes": widths, "scale": 0.3}
    agrees("Attention", X, weight, bias, opened=False, **attributes)
    mask = MASKS["per key"]
    attributes = {"num_heads": HEADS, "mask_filter_value": -2.5}
    agrees("Attention", X, WEIGHT, BIAS, mask, opened=False, **attributes)


def test_present_without_past() -> None:
    agrees("Attention", X, WEIGHT, BIAS, outputs="y present", opened=False, num_heads=HEADS)


def test_no_bias_is_a_bias_of_zero() -> None:
    (without,) = by_graft("Attention", [X, WEIGHT], num_heads=HEADS)
    (zero,) = by_graft("Attention", [X, WEIGHT, BIAS * 0], num_heads=HEADS)
    np.testing.assert_array_equal(without, zero)


def test_open_extents() -> None:
    """Only the weights are known, as in a model for any batch and length."""
    mask, constants = MASKS["per key"], [1, 2]
    agrees("Attention", X, WEIGHT, BIAS, mask, constants=constants, num_heads=HEADS)


@pytest.mark.parametrize("causal", [0, 1])
def test_open_batches_and_lengths(causal: int) -> None:
    """One name for what is the same size, as exporters write it."""
    attributes = {"num_heads": HEADS, "unidirectional": causal, "opened": False}
    shapes: dict[int, tuple[int | str, ...]] = {0: ("batch", "length", INPUTS), 3: ("batch",)}
    operands = X, WEIGHT, BIAS, MASKS["lengths"]
    agrees("Attention", *operands, constants=[1, 2], shapes=shapes, **attributes)
    past = floats(2, BATCH, HEADS, PAST, SIZE, seed=4)
    shapes |= {3: ("batch", "total"), 4: (2, "batch", HEADS, "past", SIZE)}
    options = {"constants": [1, 2], "shapes": shapes, "outputs": "y present", **attributes}
    agrees("Attention", X, WEIGHT, BIAS, bits(BATCH, TOTAL), past, **options)


def test_open_batches_and_lengths_of_others() -> None:
    shapes = {0: ("batch", "length", HIDDEN), 1: ("batch", "keys", HIDDEN), 4: ("batch",)}
    operands = QUERY, KEY, VALUE, ALL_BIASES, positions(2, 6)
    options = {"shapes": shapes, "constants": [3], "outputs": "y k v", "opened": False}
    agrees("MultiHeadAttention", *operands, num_heads=HEADS, **options)


@pytest.mark.parametrize(
    ("operands", "attributes", "error", "message"),
    [
        ([X, WEIGHT], {"do_rotary": 1}, UnsupportedError, "do_rotary=1 is not supported"),
        ([X, WEIGHT, None, bits(BATCH, 1, 8, 8)], {}, UnsupportedError, "a mask of rank 4"),
        ([X, WEIGHT, None, positions(1, 2, 3)], {}, UnsupportedError, "a mask of 3 numbers"),
        ([X, WEIGHT], {"qkv_hidden_sizes": [12, 12]}, ModelError, "has 2 entries, not 3"),
        ([X, WEIGHT], {"num_heads": 5}, ModelError, "does not divide into 5 heads"),
    ],
)
def test_what_is_refused(
    operands: list[Array | None], attributes: dict[str, Any], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        import_model(model("Attention", operands, **{"num_heads": HEADS, **attributes}))


KEYS = 6
QUERY, KEY = floats(BATCH, LENGTH, HIDDEN), floats(BATCH, KEYS, HIDDEN, seed=1)
VALUE = floats(BATCH, KEYS, HEADS * 5, seed=2)
ALL_BIASES = floats(2 * HIDDEN + HEADS * 5, seed=3)


@pytest.mark.parametrize("bias", [None, ALL_BIASES])
@pytest.mark.parametrize(
    "mask", [None, positions(2, 6), bits(BATCH, KEYS), bits(BATCH, LENGTH, KEYS)]
)
def test_attention_to_others(bias: Array | None, mask: Array | None) -> None:
    operands = QUERY, KEY, VALUE, bias, mask
    agrees("MultiHeadAttention", *operands, outputs="y k v", opened=False, num_heads=HEADS)


def test_attention_to_others_with_scores_pushed() -> None:
    added = floats(1, HEADS, LENGTH, KEYS, seed=5)
    operands = QUERY, KEY, VALUE, ALL_BIASES, bits(BATCH, KEYS), added
    attributes = {"num_heads": HEADS, "mask_filter_value": -5.0, "scale": 0.2}
    agrees("MultiHeadAttention", *operands, opened=False, **attributes)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, bits(BATCH, TOTAL)])
def test_attention_with_a_cache(mask: Array | None, causal: int) -> None:
    past = [floats(BATCH, HEADS, PAST, SIZE, seed=seed) for seed in (6, 7)]
    operands = QUERY, QUERY * 2, QUERY - 1, floats(3 * HIDDEN, seed=8), mask, None, *past
    attributes = {"num_heads": HEADS, "unidirectional": causal}
    agrees("MultiHeadAttention", *operands, outputs="y k v", opened=False, **attributes)


def test_heads_that_are_apart_already() -> None:
    key, value = (floats(BATCH, HEADS, KEYS, SIZE, seed=seed) for seed in (1, 2))
    agrees("MultiHeadAttention", QUERY, key, value, opened=False, num_heads=HEADS)
    bias = floats(3 * HIDDEN, seed=3)
    agrees("MultiHeadAttention", QUERY, key, value, bias, opened=False, num_heads=HEADS)


def test_packed_operands_are_the_parts() -> None:
    """ONNX Runtime packs for other devices only."""
    parts = [floats(BATCH, LENGTH, HEADS, SIZE, seed=seed) for seed in (1, 2, 3)]
    flat = [part.reshape(BATCH, LENGTH, HIDDEN) for part in parts]
    (expected,) = by_graft("MultiHeadAttention", flat, num_heads=HEADS)
    (packed,) = by_graft("MultiHeadAttention", [np.stack(parts, axis=3)], num_heads=HEADS)
    np.testing.assert_array_equal(packed, expected)
    pair = np.stack(parts[1:], axis=3)
    (packed,) = by_graft("MultiHeadAttention", [flat[0], pair], num_heads=HEADS)
    np.testing.assert_array_equal(packed, expected)


def test_scores_are_those_before_the_softmax() -> None:
    mask = positions(2, 6)
    operands = [QUERY, KEY, VALUE, None, mask]
    *_, scores = by_graft("MultiHeadAttention", operands, outputs="y k v qk", num_heads=HEADS)
    apart = [x.reshape(BATCH, -1, HEADS, SIZE).transpose(0, 2, 1, 3) for x in (QUERY, KEY)]
    expected = apart[0] @ apart[1].swapaxes(-1, -2) / 2
    expected[0, :, :, 2:] -= 10000
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-3)


def test_quantised_projection() -> None:
    data, weight = whole(np.uint8, BATCH, LENGTH, INPUTS), whole(np.int8, INPUTS, 3 * HIDDEN) // 2
    scales = scalar(0.01), np.abs(floats(3 * HIDDEN)) / 100 + np.float32(0.001)
    zeros = scalar(120, np.uint8), whole(np.int8, 3 * HIDDEN, low=-3, high=3)
    past = floats(2, BATCH, HEADS, PAST, SIZE, seed=4)
    operands = data, weight, BIAS, *scales, positions(6, 8), *zeros, past
    attributes = {"num_heads": HEADS, "unidirectional": 1}
    agrees("QAttention", *operands, outputs="y present", opened=False, **attributes)
    operands = data, weight, BIAS, scalar(0.01), scalar(0.02)
    agrees("QAttention", *operands, None, zeros[0], opened=False, num_heads=HEADS)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, 3, 5])
def test_a_cache_with_room_to_grow(causal: int, past: int) -> None:
    """Past and present are one buffer: of it, so many rows count, and new ones go behind them."""
    rows = past + LENGTH + 2
    buffers = [floats(BATCH, HEADS, rows, SIZE, seed=seed) for seed in (6, 7)]
    shared = {"num_heads": HEADS, "unidirectional": causal, "outputs": "y k v"}
    operands = [QUERY, QUERY * 2, QUERY - 1, floats(3 * HIDDEN, seed=8), None, None]
    length = np.array([past], np.int32)
    y, *present = by_graft("MultiHeadAttention", [*operands, *buffers, length], **shared)
    cut = [buffer[:, :, :past] for buffer in buffers]
    expected, *grown = by_graft("MultiHeadAttention", [*operands, *cut], **shared)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    for buffer, row, whole_buffer in zip(present, grown, buffers, strict=True):
        np.testing.assert_array_equal(buffer[:, :, : past + LENGTH], row)
        np.testing.assert_array_equal(buffer[:, :, past + LENGTH :], whole_buffer[:, :, -2:])


def test_a_cache_in_one_piece_with_room_to_grow() -> None:
    past, rows = 3, 3 + LENGTH + 2
    buffer = floats(2, BATCH, HEADS, rows, SIZE, seed=4)
    attributes = {"num_heads": HEADS, "unidirectional": 1, "outputs": "y p"}
    operands = [X, WEIGHT, BIAS, None]
    given = [*operands, buffer, None, np.array([past], np.int32)]
    y, present = by_graft("Attention", given, past_present_share_buffer=1, **attributes)
    expected, grown = by_graft("Attention", [*operands, buffer[:, :, :, :past]], **attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(present[:, :, :, : past + LENGTH], grown)
    with pytest.raises(ModelError, match="past_sequence_length comes with"):
        by_graft("Attention", given, **attributes)


def test_what_is_said_of_a_cache_that_is_not_there_means_nothing() -> None:
    key, value = (floats(BATCH, HEADS, KEYS, SIZE, seed=seed) for seed in (1, 2))
    said = np.array([2], np.int32), np.zeros((BATCH, 1, 9), np.int32)
    operands = QUERY, key, value, None, None, None, None, None, *said
    agrees("MultiHeadAttention", *operands, opened=False, num_heads=HEADS)
