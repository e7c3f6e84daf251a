"""Linear attention against its recurrence by hand, rotary embedding against ONNX Runtime."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.one_node import Feeds, assert_same, by_graft, by_runtime, graph_of, normal

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.ir.types import tensor

HEADS = {"q_num_heads": 4, "kv_num_heads": 2}


def linear_by_hand(
    feeds: Feeds, heads: int, kv_heads: int, rule: str, scale: float | None
) -> tuple[Array, Array]:
    """The recurrence of LinearAttention, one head and step at a time, in float64."""
    q, k, v = (np.asarray(feeds[name], np.float64) for name in "qkv")
    batch, steps, _ = q.shape
    size, width = q.shape[2] // heads, v.shape[2] // kv_heads
    state = np.zeros((batch, kv_heads, size, width))
    if feeds.get("state") is not None:
        state += np.asarray(feeds["state"], np.float64)
    result = np.zeros((batch, steps, heads * width))
    for b, h, t in np.ndindex(batch, kv_heads, steps):
        key, value = k[b, t].reshape(kv_heads, -1)[h], v[b, t].reshape(kv_heads, -1)[h]
        if "gated" in rule:
            decay = np.asarray(feeds["decay"], np.float64)[b, t].reshape(kv_heads, -1)[h]
            state[b, h] = np.diag(np.exp(np.broadcast_to(decay, size))) @ state[b, h]
        if "delta" in rule:
            rate = np.asarray(feeds["beta"], np.float64)[b, t]
            value = rate[h % len(rate)] * (value - state[b, h].T @ key)
        state[b, h] += np.outer(key, value)
        for reader in range(heads // kv_heads):
            at = h * (heads // kv_heads) + reader
            asked = q[b, t].reshape(heads, -1)[at]
            read = asked @ state[b, h] * (scale or 1 / math.sqrt(size))
            result[b, t, at * width : (at + 1) * width] = read
    return result, state


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_linear_attention(rule: str, with_state: bool, per_head: bool) -> None:
    feeds: dict[str, Array | None] = {
        "q": normal(2, 5, 4 * 3),
        "k": normal(2, 5, 2 * 3) / 2,
        "v": normal(2, 5, 2 * 7),
        "state": normal(2, 2, 3, 7) if with_state else None,
        "decay": -abs(normal(2, 5, 2 if per_head else 6)) if "gated" in rule else None,
        "beta": abs(normal(2, 5, 1 if per_head else 2)) / 3 if "delta" in rule else None,
    }
    options: dict[str, Any] = {**HEADS, "update_rule": rule, "outputs": 2}
    if per_head:
        options["scale"] = 0.25
    expected = linear_by_hand(feeds, 4, 2, rule, options.get("scale"))
    actual = by_graft("LinearAttention", feeds, 27, **options)
    assert_same(actual, [array.astype(np.float32) for array in expected], 1e-5)
    shapes = {name: ["b", "t", a.shape[2]] for name, a in feeds.items() if a is not None}
    shapes["state"] = ["b", 2, 3, 7]
    graph = graph_of("LinearAttention", feeds, 27, shapes=shapes, **options)
    assert graph.outputs[0].type == tensor("float32", symbol("b"), symbol("t"), 28)
    assert_same(by_graft("LinearAttention", feeds, 27, shapes=shapes, **options), actual, 0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_linear_attention_keeps_the_dtype_of_its_state(dtype: Any) -> None:
    feeds: dict[str, Array] = {"q": normal(1, 3, 4, dtype=dtype), "k": normal(1, 3, 4, dtype=dtype)}
    feeds["v"] = normal(1, 3, 2, dtype=dtype)
    feeds["state"] = normal(1, 1, 4, 2)
    options: dict[str, Any] = {"q_num_heads": 1, "kv_num_heads": 1, "outputs": 2}
    actual = by_graft("LinearAttention", feeds, 27, update_rule="linear", **options)
    result, state = linear_by_hand(feeds, 1, 1, "linear", None)
    assert_same(actual[:1], [result.astype(dtype)], 1e-2)
    assert_same(actual[1:], [state.astype(np.float32)], 1e-5)


def test_linear_attention_over_no_steps_hands_its_state_on() -> None:
    feeds = {"q": normal(2, 0, 12), "k": normal(2, 0, 6), "v": normal(2, 0, 14)}
    feeds["state"] = normal(2, 2, 3, 7)
    options: dict[str, Any] = {**HEADS, "update_rule": "linear", "outputs": 2}
    actual = by_graft("LinearAttention", feeds, 27, **options)
    assert_same(actual, [np.zeros((2, 0, 28), np.float32), feeds["state"]], 0)


LINEAR_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"update_rule": "square"}, "update_rule is 'square', not one of linear, gated"),
    ({}, "update_rule 'gated_delta' wants decay"),
    ({"update_rule": "delta"}, "update_rule 'delta' wants beta"),
    ({"update_rule": "linear", "kv_num_heads": 3}, "4 query heads do not share 3 key heads"),
]


@pytest.mark.parametrize(("attributes", "message"), LINEAR_REFUSALS)
def test_linear_attention_refuses(attributes: dict[str, Any], message: str) -> None:
    feeds = {"q": normal(1, 2, 12), "k": normal(1, 2, 6), "v": normal(1, 2, 6)}
    with pytest.raises(UserError, match=message):
        by_graft("LinearAttention", feeds, 27, **{**HEADS, **attributes})


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dim", [0, 4])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("with_positions", [True, False])
def test_rotary_embedding(interleaved: int, dim: int, rank: int, with_positions: bool) -> None:
    half = (dim or 6) // 2
    cache = (9, half) if with_positions else (2, 5, half)
    feeds = {
        "x": normal(2, 5, 18) if rank == 3 else normal(2, 3, 5, 6),
        "cosine": np.cos(normal(*cache)),
        "sine": np.sin(normal(*cache)),
        "positions": np.arange(10).reshape(2, 5) % 9 if with_positions else None,
    }
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_embedding_dim": dim}
    options["num_heads"] = 3
    expected = by_runtime("RotaryEmbedding", feeds, 23, **options)
    assert_same(by_graft("RotaryEmbedding", feeds, 23, **options), expected, 1e-6)
    names = ["b", "s", 18] if rank == 3 else ["b", 3, "s", 6]
    shapes = {"x": names, "positions": ["b", "s"]}
    if not with_positions:
        shapes.update(cosine=["b", "s", half], sine=["b", "s", half])
    graph = graph_of("RotaryEmbedding", feeds, 23, shapes=shapes, **options)
    assert graph.outputs[0].type == graph.inputs[0].type
    assert_same(by_graft("RotaryEmbedding", feeds, 23, shapes=shapes, **options), expected, 1e-6)


def test_rotary_embedding_refuses() -> None:
    feeds = {"x": normal(2, 5, 18), "cosine": normal(2, 5, 3), "sine": normal(2, 5, 3)}
    with pytest.raises(UserError, match="the number of heads is 0"):
        by_graft("RotaryEmbedding", feeds, 23)
    with pytest.raises(UserError, match="extents 3 and 9 do not broadcast"):
        by_graft("RotaryEmbedding", feeds, 23, num_heads=1)
