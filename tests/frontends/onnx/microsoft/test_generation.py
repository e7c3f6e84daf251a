"""Rotary embedding, and attention over a growing cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.microsoft.beside_runtime import (
    agrees,
    by_graft,
    by_runtime,
    floats,
    model,
)

from graft.base.dtypes import Array
from graft.base.errors import ModelError, UnsupportedError
from graft.frontends.onnx.importer import import_model

BATCH, LENGTH, HEADS, SIZE = 2, 4, 3, 16
COSINES, SINES = np.cos(floats(20, SIZE // 2)), np.sin(floats(20, SIZE // 2))
ONE_BY_ONE = np.random.default_rng(1).integers(0, 20, (BATCH, LENGTH))
FROM_THREE = np.array([3])


@pytest.mark.parametrize("positions", [ONE_BY_ONE, FROM_THREE])
@pytest.mark.parametrize("shape", [(BATCH, LENGTH, HEADS * SIZE), (BATCH, HEADS, LENGTH, SIZE)])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(positions: Array, shape: Any, interleaved: int) -> None:
    x = floats(*shape)
    agrees(
        "RotaryEmbedding",
        *(x, positions, COSINES, SINES),
        interleaved=interleaved,
        opened=False,
    )
    agrees(
        "RotaryEmbedding",
        *(x, positions, COSINES[:, :2], SINES[:, :2]),
        opened=False,
        interleaved=interleaved,
        rotary_embedding_dim=4,
        num_heads=HEADS,
    )


QUERIES, KEYS = 4, 2


def attention(
    length: int, past: int | None, lengths: list[int], total: int, **extras: Any
) -> tuple[list[Array | None], dict[str, Any]]:
    """Operands and attributes; the cache is `past` long, or missing."""
    batch = len(lengths)
    new = [floats(batch, length, heads * SIZE, seed=heads) for heads in (QUERIES, KEYS)]
    cache = [
        None if past is None else floats(batch, KEYS, past, SIZE, seed=seed) for seed in (5, 6)
    ]
    counts = np.array(lengths, np.int32) - 1, np.array(total, np.int32)
    rotary = extras.get("do_rotary", 0)
    tables = (COSINES, SINES) if rotary else (None, None)
    more = extras.pop("positions", None), extras.pop("bias", None)
    operands = [*new, new[1] * 2, *cache, *counts, *tables, *more]
    return operands, {"num_heads": QUERIES, "kv_num_heads": KEYS, **extras}


CASES: dict[str, tuple[Any, ...]] = {
    "a prompt": (5, None, [5, 5], 5, {}),
    "a prompt with an empty cache": (5, 0, [5, 5], 5, {}),
    "a token": (1, 6, [7, 7], 7, {}),
    "tokens at different places": (1, 6, [4, 7], 7, {}),
    "a cache with room": (1, 12, [7, 7], 7, {}),
    "a cache with room, at different places": (1, 12, [4, 7], 7, {}),
    "several tokens": (3, 6, [9], 9, {}),
    "turned": (5, 0, [5, 5], 5, {"do_rotary": 1}),
    "turned at different places": (1, 6, [4, 7], 7, {"do_rotary": 1}),
    "turned in pairs": (1, 6, [4, 7], 7, {"do_rotary": 1, "rotary_interleaved": 1}),
    "within a window": (5, 0, [5, 5], 5, {"local_window_size": 2}),
    "a token within a window": (1, 6, [7, 7], 7, {"local_window_size": 3}),
    "bent and scaled": (5, 0, [5, 5], 5, {"softcap": 0.5, "scale": 0.1}),
    "biased": (1, 6, [7, 7], 7, {"bias": floats(2, QUERIES, 1, 7)}),
    "biased in a cache with room": (1, 12, [7, 7], 7, {"bias": floats(1, 1, 1, 7)}),
    "seeing everything": (5, 0, [5, 5], 5, {"causal": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_group_query_attention(case: str) -> None:
    """What is in the cache behind a sequence's end is nobody's business."""
    length, past, lengths, total, extras = CASES[case]
    operands, attributes = attention(length, past, lengths, total, **dict(extras))
    outputs = "y keys values"
    op_type = "GroupQueryAttention"
    theirs = by_runtime(op_type, operands, outputs=outputs, **attributes)
    ours = by_graft(op_type, operands, outputs=outputs, **attributes)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert mine.shape == other.shape
        for batch, count in enumerate(lengths):
            used = np.s_[batch, :, :count]
            np.testing.assert_allclose(mine[used], other[used], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["a token", "a prompt with an empty cache"])
def test_a_model_for_any_batch_and_length(case: str) -> None:
    length, past, lengths, total, _ = CASES[case]
    operands, attributes = attention(length, past, lengths, total, do_rotary=1)
    cache = ("batch", KEYS, "past", SIZE)
    shapes = {0: ("batch", "length", QUERIES * SIZE), 3: cache, 4: cache, 5: ("batch",)}
    shapes |= dict.fromkeys((1, 2), ("batch", "length", KEYS * SIZE))
    options = {"shapes": shapes, "constants": [7, 8], "outputs": "y k v", "opened": False}
    agrees("GroupQueryAttention", *operands, **options, **attributes)


def test_given_positions_are_used() -> None:
    places = np.array([[9], [2]])
    operands, attributes = attention(1, 6, [4, 7], 7, do_rotary=1, positions=places)
    theirs = by_runtime("GroupQueryAttention", operands, outputs="y k v", **attributes)
    ours = by_graft("GroupQueryAttention", operands, outputs="y k v", **attributes)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)


def test_packed_queries_keys_and_values() -> None:
    operands, attributes = attention(1, 6, [7, 7], 7)
    (expected,) = by_graft("GroupQueryAttention", operands, **attributes)
    packed = np.concatenate([x for x in operands[:3] if x is not None], axis=2)
    (result,) = by_graft("GroupQueryAttention", [packed, None, None, *operands[3:]], **attributes)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"smooth_softmax": 1}, UnsupportedError, "smooth_softmax=1 is not supported"),
        ({"k_quant_type": "PER_TENSOR"}, UnsupportedError, "k_quant_type=PER_TENSOR"),
        ({"sliding_window_cache": 1}, UnsupportedError, "sliding_window_cache=1"),
        ({"num_heads": 5}, ModelError, "does not divide into 5 heads"),
    ],
)
def test_what_is_refused(change: dict[str, Any], error: Any, message: str) -> None:
    operands, attributes = attention(1, 6, [7, 7], 7)
    with pytest.raises(error, match=message):
        import_model(model("GroupQueryAttention", operands, **{**attributes, **change}))


@pytest.mark.parametrize("search", ["BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"])
def test_searches_around_a_decoder_are_refused_with_a_reason(search: str) -> None:
    decoder = model("Gelu", [floats(1, 4)]).graph
    operands = [np.ones((1, 4), np.int32), *(np.array([n], np.int32) for n in (8, 1, 2, 1))]
    given = model(search, operands, decoder=decoder, eos_token_id=0, pad_token_id=0)
    with pytest.raises(UnsupportedError, match=f"{search} runs a whole decoder") as caught:
        import_model(given)
    assert caught.value.hint == "export the decoder alone, and write the search around it"
    assert caught.value.location is not None
    assert caught.value.location.node == "it"
