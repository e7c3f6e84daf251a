"""Attention, linear attention and rotary embedding.

The operators of Graft see heads as an axis of their own; here merged heads are taken apart and put
together again, caches are joined to new keys, and masks are brought to the length of the keys.
"""

from __future__ import annotations

import numpy as np

from graft.base.dim_questions import provably_equal
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, cast_to, extent
from graft.frontends.onnx.registry import lowers
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value

_SCORES = ("raw", "capped", "biased", "probabilities")  # by qk_matmul_output_mode


def apart(call: Call, x: Value, heads: int) -> Value:
    """[batch, length, heads * size] -> [batch, length, heads, size]."""
    if heads < 1:
        call.fail(f"the number of heads is {heads}")
    merged = x.shape[2] if x.shape is not None and len(x.shape) == 3 else None
    if isinstance(merged, int) and merged % heads:
        call.fail(f"a hidden size of {merged} does not divide into {heads} heads")
    size = merged // heads if isinstance(merged, int) else -1
    return call.op("reshape", x, shape=[0, 0, heads, size])


def split_heads(call: Call, x: Value, heads: int) -> Value:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    return call.op("transpose", apart(call, x, heads), axes=[0, 2, 1, 3])


def merge_heads(call: Call, x: Value) -> Value:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    moved = call.op("transpose", x, axes=[0, 2, 1, 3])
    merged = -1 if moved.shape is None else product(moved.shape[2:])
    return call.op("reshape", moved, shape=[0, 0, merged if isinstance(merged, int) else -1])


def _positions(call: Call, query: Value) -> tuple[Value | None, Value | None]:
    """(how many keys are real in each batch, at which of them the queries start)."""
    past_key, lengths = call.optional(4), call.optional(6)
    if past_key is not None:
        return None, extent(call, past_key, 2)
    if lengths is not None:
        return lengths, call.op("subtract", lengths, extent(call, query, 2))
    return None, None


def _mask(call: Call, mask: Value, key: Value, dtype: DType) -> Value:
    """The mask as bool or `dtype`, as long as the keys; what it lacks is out of sight."""
    if mask.dtype not in (DType.BOOL, dtype):
        mask = call.op("cast", mask, dtype=dtype)
    if call.opset < 24:
        return mask
    rank = call.rank(mask)
    if not rank or (mask.shape and key.shape and provably_equal(mask.shape[-1], key.shape[2])):
        return mask
    missing = call.op("subtract", extent(call, key, 2), extent(call, mask, rank - 1))
    widths = (call.constant(np.zeros(1, np.int64)), call.op("expand_dims", missing, axes=[0]))
    hidden = call.scalar(False if mask.dtype is DType.BOOL else -np.inf, mask)
    return call.op("nn.pad", mask, hidden, call.op("concatenate", *widths, axis=0), axes=[-1])


def _joined(call: Call, position: int, new: Value) -> Value:
    past = call.optional(position)
    return new if past is None else call.op("concatenate", past, new, axis=2)


@lowers("Attention")
def _attention(call: Call) -> tuple[Value | None, ...]:
    query, key, value = call.input(0), call.input(1), call.input(2)
    _check_caches(call)
    is_merged = call.rank(query) == 3
    if is_merged:
        heads, kv_heads = call.int("q_num_heads"), call.int("kv_num_heads")
        query = split_heads(call, query, heads)
        key, value = split_heads(call, key, kv_heads), split_heads(call, value, kv_heads)
    for x, what in ((query, "query"), (key, "key"), (value, "value")):
        if x.shape is not None and len(x.shape) != 4:
            call.fail(f"the {what} has rank {len(x.shape)}, not 4")
    key, value = _joined(call, 4, key), _joined(call, 5, value)
    dtype = query.dtype
    mask = call.optional(3)
    if mask is not None:
        mask = _mask(call, mask, key, dtype)
    windows = {side: call.int(f"{side}_size", -1) for side in ("left_window", "right_window")}
    causal = bool(call.int("is_causal", 0))
    lengths, offset = _positions(call, query)
    if not causal and set(windows.values()) == {-1}:
        offset = None
    results = call.ops(
        "nn.attention",
        *(query, key, cast_to(call, value, dtype), mask, lengths, offset),
        causal=causal,
        softcap=call.float("softcap", 0.0),
        scale=call.float("scale", None),
        **windows,
        **_softmax_dtype(call),
        **({"scores": _stage(call)} if call.has_output(3) else {}),
    )
    result = merge_heads(call, results[0]) if is_merged else results[0]
    return (result, key, value, *results[1:])


def _check_caches(call: Call) -> None:
    past_key, past_value = call.optional(4), call.optional(5)
    if (past_key is None) != (past_value is None):
        call.fail("past_key and past_value come together or not at all")
    if past_key is not None and call.optional(6) is not None:
        call.fail("nonpad_kv_seqlen does not go together with past_key")


def _stage(call: Call) -> str:
    mode = call.int("qk_matmul_output_mode", 0)
    if not 0 <= mode < len(_SCORES):
        call.fail(f"qk_matmul_output_mode is {mode}, not one of 0 to {len(_SCORES) - 1}")
    return _SCORES[mode]


def _softmax_dtype(call: Call) -> dict[str, DType]:
    if not call.has("softmax_precision"):
        return {}
    dtype = dtype_from_onnx(call.int("softmax_precision"))
    if not dtype.is_float:
        call.fail(f"softmax_precision is {dtype}, not a floating-point type")
    return {"softmax_dtype": dtype}


# Whether a rule takes (decay, beta).
_UPDATE_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


@lowers("LinearAttention")
def _linear_attention(call: Call) -> tuple[Value, ...]:
    rule = call.string("update_rule", "gated_delta")
    if rule not in _UPDATE_RULES:
        call.fail(f"update_rule is '{rule}', not one of {', '.join(_UPDATE_RULES)}")
    decay, beta = call.optional(4), call.optional(5)
    for expected, operand, name in zip(
        _UPDATE_RULES[rule], (decay, beta), ("decay", "beta"), strict=True
    ):
        if expected != (operand is not None):
            call.fail(f"update_rule '{rule}' {'wants' if expected else 'takes no'} {name}")
    heads, kv_heads = call.int("q_num_heads"), call.int("kv_num_heads")
    query = split_heads(call, call.input(0), heads)
    key, value = (split_heads(call, call.input(i), kv_heads) for i in (1, 2))
    if decay is not None:
        decay = split_heads(call, decay, kv_heads)
    if beta is not None:
        beta = call.op("expand_dims", call.op("transpose", beta, axes=[0, 2, 1]), axes=[3])
    scale = call.float("scale", 0.0) or None
    result, state = call.ops(
        "nn.linear_attention", query, key, value, call.optional(3), decay, beta, scale=scale
    )
    return merge_heads(call, result), state


@lowers("RotaryEmbedding")
def _rotary_embedding(call: Call) -> Value:
    x = call.input(0)
    is_merged = call.rank(x) == 3
    if is_merged:
        x = apart(call, x, call.int("num_heads", 0))
    cosine, sine = (_of_positions(call, position, is_merged) for position in (1, 2))
    dim = call.int("rotary_embedding_dim", 0)
    if not dim:
        result = _rotated(call, x, cosine, sine)
    else:
        rotated_part = call.op("strided_slice", x, begin=[0], end=[dim], axes=[3], strides=[1])
        rest = call.op("strided_slice", x, begin=[dim], end=[_END], axes=[3], strides=[1])
        parts = (_rotated(call, rotated_part, cosine, sine), rest)
        result = call.op("concatenate", *parts, axis=3)
    return _shaped_like(call, result, call.input(0)) if is_merged else result


_END = np.iinfo(np.int64).max  # slices as far as there is something


def _shaped_like(call: Call, x: Value, like: Value) -> Value:
    return call.op("reshape", x, call.op("shape_of", like), allowzero=True)


def _of_positions(call: Call, position: int, is_merged: bool) -> Value:
    """The cosines or sines for each token, with an axis of extent 1 where x has its heads."""
    cache, ids = call.input(position), call.optional(3)
    if ids is not None:
        cache = call.op("take", cache, ids, axis=0)
    return call.op("expand_dims", cache, axes=[2 if is_merged else 1])


def _rotated(call: Call, x: Value, cosine: Value, sine: Value) -> Value:
    """Pairs of elements turned by their angle: neighbours if interleaved, else across halves."""
    interleaved = bool(call.int("interleaved", 0))
    if interleaved:
        first, second = (
            call.op("strided_slice", x, begin=[i], end=[_END], axes=[3], strides=[2])
            for i in (0, 1)
        )
    else:
        half = call.op("divide", extent(call, x, 3), call.constant(np.int64(2)))
        half = call.op("expand_dims", half, axes=[0])
        sizes = call.op("concatenate", half, half, axis=0)
        first, second = call.ops("split", x, sizes, axis=3)
    pair = [
        call.op("subtract", call.op("multiply", cosine, first), call.op("multiply", sine, second)),
        call.op("add", call.op("multiply", sine, first), call.op("multiply", cosine, second)),
    ]
    if not interleaved:
        return call.op("concatenate", *pair, axis=3)
    woven = call.op("concatenate", *(call.op("expand_dims", p, axes=[4]) for p in pair), axis=4)
    return _shaped_like(call, woven, x)
