"""Operators of generative language models: rotary embedding, attention over a growing cache."""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, cast_to, counted, extent
from graft.frontends.onnx.lower.attention import merge_heads, split_heads
from graft.frontends.onnx.lower.microsoft.contract import (
    lowers_microsoft,
    main,
    refuse_attribute,
    refuse_operand,
)
from graft.ir.graph import Value


@lowers_microsoft(
    "RotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    "interleaved is_packed_batching num_heads rotary_embedding_dim scale",
)
def _rotary_embedding(call: Call) -> Value:
    """Positions are all listed, or only the first of them."""
    refuse_attribute(call, "is_packed_batching", 0)
    refuse_attribute(call, "scale", 1.0)
    x, positions = call.input(0), call.input(1)
    rank = call.rank(x)
    if call.rank(positions) == 1:
        numbers = counted(call, extent(call, x, 2 if rank == 4 else 1))
        positions = call.op("expand_dims", call.op("add", positions, numbers), axes=(0,))
    return _rotated(call, x, positions, call.input(2), call.input(3), call.int("num_heads", 0))


def _rotated(
    call: Call, x: Value, positions: Value, cosines: Value, sines: Value, heads: int
) -> Value:
    """ONNX's rotary embedding; merged heads whose number is not given are as large as the cache."""
    attributes = {
        "interleaved": call.int("interleaved", 0),
        "rotary_embedding_dim": call.int("rotary_embedding_dim", 0),
    }
    if call.rank(x) == 3:
        attributes["num_heads"] = heads or _heads_by_cache(call, x, cosines)
    return main(call, "RotaryEmbedding", x, cosines, sines, positions, **attributes)


def _heads_by_cache(call: Call, x: Value, cosines: Value) -> int:
    width, half = (value.shape[-1] if value.shape else None for value in (x, cosines))
    if not isinstance(width, int) or not isinstance(half, int) or not half or width % (2 * half):
        call.unsupported(f"{call.node.op_type} cannot tell the number of heads", "give num_heads")
    return width // (2 * half)


@lowers_microsoft(
    "GroupQueryAttention",
    "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache?"
    " position_ids? attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight?",
    "causal do_rotary k_quant_type kv_cache_bit_width kv_num_heads local_window_size num_heads"
    " qk_norm_epsilon qk_output rotary_interleaved scale sliding_window_cache smooth_softmax"
    " softcap v_quant_type",
)
def _group_query_attention(call: Call) -> tuple[Value, ...]:
    """Queries see the keys up to their own; the keys of each batch end at its own length."""
    _refuse_extensions(call)
    query, key, value = _parts(call)
    lengths = call.op("add", cast_to(call, call.input(5), DType.INT64), call.constant(np.int64(1)))
    lengths = call.op("reshape", lengths, shape=(-1,))
    # A prompt may be padded, and then be shorter than there are queries.
    starts = call.op("subtract", lengths, extent(call, query, 2))
    starts = call.op("maximum", starts, call.constant(np.int64(0)))
    if call.int("do_rotary", 0):
        query, key = (_at_positions(call, x, starts) for x in (query, key))
    keys = _written(call, call.optional(3), key, starts)
    values = _written(call, call.optional(4), value, starts)
    window = call.int("local_window_size", -1)
    result = call.op(
        "nn.attention",
        *(query, keys, values, _bias(call, keys), lengths, starts),
        causal=bool(call.int("causal", 1)),
        left_window=window - 1 if window > 0 else -1,
        softcap=call.float("softcap", 0.0),
        scale=call.float("scale", 0.0) or None,
    )
    return merge_heads(call, result), keys, values


def _refuse_extensions(call: Call) -> None:
    for position, name in enumerate(
        ("head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight"), start=11
    ):
        refuse_operand(call, position, name)
    for name, neutral in (
        ("k_quant_type", "NONE"),
        ("v_quant_type", "NONE"),
        ("sliding_window_cache", 0),
        ("qk_output", 0),
    ):
        refuse_attribute(call, name, neutral)
    if call.int("smooth_softmax", -1) == 1:
        call.unsupported("GroupQueryAttention with smooth_softmax=1 is not supported")
    if (call.optional(3) is None) != (call.optional(4) is None):
        call.fail("past_key and past_value come together or not at all")


def _parts(call: Call) -> tuple[Value, Value, Value]:
    """Queries, keys and values as [batch, heads, length, size]; they may come side by side."""
    heads, kv_heads = call.int("num_heads"), call.int("kv_num_heads")
    query, key, value = call.input(0), call.optional(1), call.optional(2)
    if (key is None) != (value is None):
        call.fail("key and value come together or not at all")
    if key is None or value is None:
        width = query.shape[-1] if query.shape else None
        if not isinstance(width, int) or heads + 2 * kv_heads < 1 or width % (heads + 2 * kv_heads):
            call.fail(
                f"{width} columns do not hold {heads} heads and {kv_heads} of keys and values"
            )
        size = width // (heads + 2 * kv_heads)
        sizes = (heads * size, kv_heads * size, kv_heads * size)
        query, key, value = call.ops("split", query, axis=2, sizes=sizes)
    return (
        split_heads(call, query, heads),
        split_heads(call, key, kv_heads),
        split_heads(call, value, kv_heads),
    )


def _at_positions(call: Call, x: Value, starts: Value) -> Value:
    """Queries or keys turned by their positions: given ones, or counted from where they start."""
    positions = call.optional(9)
    if positions is None:
        numbers = counted(call, extent(call, x, 2))
        positions = call.op("add", call.op("expand_dims", starts, axes=(1,)), numbers)
    cosines, sines = call.input(7), call.input(8)
    size = x.shape[3] if x.shape else None
    half = cosines.shape[1] if cosines.shape else None
    partial = isinstance(size, int) and isinstance(half, int) and 2 * half != size
    return main(
        call,
        "RotaryEmbedding",
        *(x, cosines, sines, positions),
        interleaved=call.int("rotary_interleaved", 0),
        rotary_embedding_dim=2 * half if partial and isinstance(half, int) else 0,
    )


def _written(call: Call, past: Value | None, new: Value, starts: Value) -> Value:
    """The cache with new rows from `starts` on, as long as all tokens or as it was if longer."""
    if past is None:
        return new
    total = call.op("reshape", cast_to(call, call.input(6), DType.INT64), shape=())
    before = extent(call, past, 2)
    grown = call.op("subtract", call.op("maximum", total, before), before)
    room = _padded(call, past, grown, 2)
    return call.op("tensor_scatter", room, new, starts, axis=2)


def _padded(call: Call, x: Value, count: Value, axis: int) -> Value:
    """The tensor with `count` zeros behind an axis."""
    none = call.constant(np.zeros(1, np.int64))
    widths = call.op("concatenate", none, call.op("expand_dims", count, axes=(0,)), axis=0)
    return call.op("nn.pad", x, call.scalar(0, x), widths, axes=[axis])


def _bias(call: Call, keys: Value) -> Value | None:
    """What is added to the scores, with something for the rows of the cache that are not used."""
    bias = call.optional(10)
    if bias is None:
        return None
    missing = call.op("subtract", extent(call, keys, 2), extent(call, bias, 3))
    return _padded(call, bias, missing, 3)
