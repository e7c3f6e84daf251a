"""Attention as ONNX Runtime fuses it: projections, masks of many forms, caches.

Heads are taken apart and put together again here; Graft's own operator sees them as an axis. A
mask only pushes scores down by a number (`mask_filter_value`), so that a query all of whose keys
are masked still gets their mean: masks become a bias, not a prohibition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dim_questions import provably_different, provably_equal
from graft.base.dims import UNKNOWN
from graft.frontends.onnx.call import Call, counted, extent
from graft.frontends.onnx.lower.attention import merge_heads, split_heads
from graft.frontends.onnx.lower.linear import matmul
from graft.frontends.onnx.lower.microsoft.activation import with_bias
from graft.frontends.onnx.lower.microsoft.contract import (
    lowers_microsoft,
    main,
    refuse_attribute,
    refuse_operand,
)
from graft.frontends.onnx.lower.microsoft.product import scaled_product
from graft.ir.graph import Value

_FILTER = -10000.0


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values as [batch, heads, length, size], what was cached in front."""

    query: Value
    key: Value
    value: Value
    start: Value | None = None  # where the queries stand among the keys, if something is cached
    lengths: Value | None = None  # of each batch: how many rows of a cache with room to grow count


def _attended(
    call: Call, heads: Heads, mask: Value | None, bias: Value | None, **attrs: str
) -> tuple[Value, ...]:
    """The result with its heads merged, and the scores where `attrs` ask for them."""
    added = None if mask is None else _mask_bias(call, mask, heads)
    if added is not None and bias is not None:
        added = call.op("add", added, bias)
    causal = bool(call.int("unidirectional", 0))
    start = heads.start if causal else None
    scale = call.float("scale", 0.0) or None
    operands = heads.query, heads.key, heads.value, bias if added is None else added
    result, *scores = call.ops(
        *("nn.attention", *operands, heads.lengths, start), scale=scale, causal=causal, **attrs
    )
    return merge_heads(call, result), *scores


def _mask_bias(call: Call, mask: Value, heads: Heads) -> Value:
    """What is added to the scores: the filter value where the mask hides a key."""
    if heads.lengths is not None:
        call.unsupported(f"{call.node.op_type} with a mask and a cache that has room to grow")
    visible = _visible(call, mask, heads)
    shown = call.scalar(0, heads.query)
    hidden = call.scalar(call.float("mask_filter_value", _FILTER), heads.query)
    return call.op("where", visible, shown, hidden)


def _visible(call: Call, mask: Value, heads: Heads) -> Value:
    """Which keys are seen, as bool[batch, 1, queries or 1, keys]."""
    rank = call.rank(mask)
    if rank == 1:
        return _visible_by_position(call, mask, heads)
    if rank not in (2, 3):
        call.unsupported(f"{call.node.op_type} with a mask of rank {rank}")
    is_visible = call.op("greater", mask, call.scalar(0, mask))
    return call.op("expand_dims", is_visible, axes=(1, 2) if rank == 2 else (1,))


def _visible_by_position(call: Call, mask: Value, heads: Heads) -> Value:
    """By one length for each of the batch, or by all the ends and then all the starts."""
    batch = (heads.query.shape or (UNKNOWN,))[0]
    count = (mask.shape or (UNKNOWN,))[0]
    keys = counted(call, extent(call, heads.key, 2))
    if provably_equal(count, batch):
        return call.op("less", keys, _per_batch(call, mask))
    if isinstance(batch, int) and count == 3 * batch + 2:  # running totals follow the lengths
        lengths = call.op("strided_slice", mask, begin=[0], end=[batch], axes=[0])
        return call.op("less", keys, _per_batch(call, lengths))
    if not (isinstance(batch, int) and isinstance(count, int)) or count != 2 * batch:
        if not provably_different(count, batch):  # lengths are usual, and sizes checked when run
            return call.op("less", keys, _per_batch(call, mask))
        call.unsupported(
            f"{call.node.op_type} with a mask of {count} numbers for a batch of {batch}",
            "give the batch and the mask the same size, or use a mask with an axis for the keys",
        )
    ends, starts = (_per_batch(call, half) for half in call.ops("split", mask, axis=0, sections=2))
    before_end = call.op("less", keys, ends)
    return call.op("logical_and", before_end, call.op("greater_equal", keys, starts))


def _per_batch(call: Call, numbers: Value) -> Value:
    return call.op("expand_dims", call.op("cast", numbers, dtype="int64"), axes=(1, 2, 3))


@lowers_microsoft(
    "Attention",
    "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
    "do_rotary mask_filter_value num_heads past_present_share_buffer qkv_hidden_sizes"
    " rotary_embedding_dim scale unidirectional",
)
def _attention(call: Call) -> tuple[Value | None, ...]:
    projected = with_bias(call, matmul(call, call.input(0), call.input(1)), call.optional(2))
    cached = call.optional(4), call.optional(6)
    return _self_attention(call, projected, call.optional(3), cached, call.optional(5))


@lowers_microsoft(
    "QAttention",
    "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point?"
    " past?",
    "do_rotary mask_filter_value num_heads past_present_share_buffer scale unidirectional",
)
def _qattention(call: Call) -> tuple[Value | None, ...]:
    """Only the projection is quantised; its sums are exact."""
    data = call.input(0), call.input(3), call.optional(6)
    weight = call.input(1), call.input(4), call.optional(7)
    projected = with_bias(call, scaled_product(call, data, weight), call.input(2))
    refuse_attribute(call, "past_present_share_buffer", 0)
    return _self_attention(call, projected, call.optional(5), (call.optional(8), None), None)


def _self_attention(
    call: Call,
    projected: Value,
    mask: Value | None,
    cached: tuple[Value | None, Value | None],
    bias: Value | None,
) -> tuple[Value | None, ...]:
    """Attention over what one projection has made: queries, keys and values side by side.

    `cached` is what came before, and how much of it counts if it has room to grow."""
    refuse_attribute(call, "do_rotary", 0)
    past, length = cached
    if bool(call.int("past_present_share_buffer", 0)) != (length is not None):
        call.fail("past_sequence_length comes with past_present_share_buffer, and never without")
    count, sizes = call.int("num_heads"), call.ints("qkv_hidden_sizes", ())
    if len(sizes) not in (0, 3):
        call.fail(f"qkv_hidden_sizes has {len(sizes)} entries, not 3")
    split = {"sizes": sizes} if sizes else {"sections": 3}
    parts = call.ops("split", projected, axis=2, **split)
    query, key, value = (split_heads(call, part, count) for part in parts)
    past_key = past_value = None
    if past is not None:
        halves = call.ops("split", past, axis=0, sections=2)
        past_key, past_value = (call.op("squeeze", half, axes=(0,)) for half in halves)
    heads = _joined(call, query, key, value, past_key, past_value, length)
    present = None
    if call.has_output(1):
        both = (call.op("expand_dims", x, axes=(0,)) for x in (heads.key, heads.value))
        present = call.op("concatenate", *both, axis=0)
    return _attended(call, heads, mask, bias)[0], present


def _joined(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    past_key: Value | None,
    past_value: Value | None,
    length: Value | None,
) -> Heads:
    """Heads with the cache in front of the new keys and values.

    With a `length`, only so much of the cache counts, and the new rows are written behind it: the
    buffers of past and present are one in ONNX Runtime."""
    if past_key is None or past_value is None:
        return Heads(query, key, value)
    if length is None:
        keys = call.op("concatenate", past_key, key, axis=2)
        values = call.op("concatenate", past_value, value, axis=2)
        return Heads(query, keys, values, extent(call, past_key, 2))
    batch = call.op("expand_dims", extent(call, query, 0), axes=(0,))
    past = call.op("reshape", call.op("cast", length, dtype="int64"), shape=(1,))
    starts = main(call, "Expand", past, batch)
    keys = call.op("tensor_scatter", past_key, key, starts, axis=2)
    values = call.op("tensor_scatter", past_value, value, starts, axis=2)
    return Heads(query, keys, values, starts, call.op("add", starts, extent(call, key, 2)))


@lowers_microsoft(
    "MultiHeadAttention",
    "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value?"
    " past_sequence_length? cache_indirection?",
    "mask_filter_value num_heads scale unidirectional",
)
def _multi_head_attention(call: Call) -> tuple[Value | None, ...]:
    """Where nothing is cached, a length of the cache and an order of its beams mean nothing."""
    past_key, past_value = call.optional(6), call.optional(7)
    if (past_key is None) != (past_value is None):
        call.fail("past_key and past_value come together or not at all")
    if past_key is not None:
        refuse_operand(call, 9, "cache_indirection")
    query, key, value = _three(call)
    heads = _joined(call, query, key, value, past_key, past_value, call.optional(8))
    scores = {"scores": "biased"} if call.has_output(3) else {}
    results = _attended(call, heads, call.optional(4), call.optional(5), **scores)
    return results[0], heads.key, heads.value, *results[1:]


def _three(call: Call) -> tuple[Value, Value, Value]:
    """Queries, keys and values with their heads apart, from whichever form they come in."""
    query, count = call.input(0), call.int("num_heads")
    if call.rank(query) == 5:
        if call.optional(1) is not None or call.optional(2) is not None:
            call.fail("a packed query holds keys and values already")
        query, key, value = _unpacked(call, query, 3)
        return query, key, value
    key = call.input(1)
    if call.rank(key) == 5:
        key, value = _unpacked(call, key, 2)
        return split_heads(call, _biased(call, query, 0), count), key, value
    value = call.input(2)
    parts = [query, key, value]
    return tuple(  # type: ignore[return-value]
        _split_heads(call, part, position, count) for position, part in enumerate(parts)
    )


def _split_heads(call: Call, part: Value, position: int, count: int) -> Value:
    """One of the three with its bias; keys and values may have their heads apart already."""
    if call.rank(part) == 4:
        return part
    return split_heads(call, _biased(call, part, position), count)


def _biased(call: Call, part: Value, position: int) -> Value:
    """With its share of the bias: queries and keys have equal shares, values the rest."""
    bias = call.optional(3)
    if bias is None:
        return part
    width = (call.input(0).shape or (None,))[-1]
    if not isinstance(width, int):
        call.unsupported("MultiHeadAttention with a bias wants to know the hidden size")
    begin, end = (
        position * width,
        np.iinfo(np.int64).max if position == 2 else (position + 1) * width,
    )
    share = call.op("strided_slice", bias, begin=[begin], end=[end], axes=[0])
    return with_bias(call, part, share)


def _unpacked(call: Call, packed: Value, count: int) -> tuple[Value, ...]:
    """[batch, length, heads, count, size] -> so many of [batch, heads, length, size]."""
    if call.optional(3) is not None:
        call.unsupported("MultiHeadAttention of packed operands with a bias")
    parts = call.ops("split", packed, axis=3, sections=count)
    apart = (call.op("squeeze", part, axes=(3,)) for part in parts)
    return tuple(call.op("transpose", part, axes=(0, 2, 1, 3)) for part in apart)
