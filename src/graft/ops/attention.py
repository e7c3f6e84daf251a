"""Attention: scaled dot-product attention, and linear attention with a running state.

Operands are 4-D, [batch, heads, length, size]. Keys and values may have fewer heads than queries:
each of theirs then serves a group of neighbouring query heads (grouped-query attention). Frontends
compose the rest (merged heads, growing caches) from other operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, Dim, product
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.op import Kind, Work, traffic
from graft.ir.types import Shape, TensorType, Type
from graft.loop.build import Term, call, cast, equal, maximum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, Tensor, max_, sum_
from graft.ops import expression as te
from graft.ops.rules import (
    operator,
    ranked_shape,
    require,
    require_same_dim,
    same_dtype,
)

SCORES = ("none", "raw", "capped", "biased", "probabilities")


@dataclass(frozen=True, slots=True)
class AttentionAttrs(Attrs):
    """How scores are made and which keys a query sees.

    Query i stands at position `offset` + i among the keys. It sees no later key if `causal`, none
    that is more than `left_window` before it or `right_window` after it (-1: no bound), and none
    at or beyond its batch's `kv_lengths`.
    """

    scale: float | None = None  # of the products; None is 1 / sqrt(size)
    causal: bool = False
    softcap: float = 0.0  # scores are bent into (-softcap, softcap); 0 leaves them
    left_window: int = -1
    right_window: int = -1
    offset: Dim = 0
    softmax_dtype: DType | None = None  # None: the operands' dtype
    scores: str = "none"  # which stage of the scores is the second result


def _check_heads(query: AnyDim, key: AnyDim) -> None:
    if isinstance(query, int) and isinstance(key, int):
        fits = key > 0 and query % key == 0 if query else True
        require(fits, f"{query} query heads do not share {key} key heads evenly")


def _attention_type(
    attrs: AttentionAttrs,
    query: TensorType,
    key: TensorType,
    value: TensorType,
    mask: TensorType | None,
    kv_lengths: TensorType | None,
    offset: TensorType | None,
) -> tuple[Type, ...]:
    dtype = same_dtype(query, key, value)
    require(dtype.is_float, f"wants floating-point operands, not {dtype}")
    require(attrs.scores in SCORES, f"scores is '{attrs.scores}', not one of {', '.join(SCORES)}")
    batch, heads, queries, size = ranked_shape(query, 4, "query")
    kv_batch, kv_heads, keys, key_size = ranked_shape(key, 4, "key")
    value_batch, value_heads, values, value_size = ranked_shape(value, 4, "value")
    for first, second, what in (
        (batch, kv_batch, "batches of query and key"),
        (kv_batch, value_batch, "batches of key and value"),
        (kv_heads, value_heads, "heads of key and value"),
        (keys, values, "lengths of key and value"),
        (size, key_size, "sizes of query and key"),
    ):
        require_same_dim(first, second, what)
    _check_heads(heads, kv_heads)
    scores = (batch, heads, queries, keys)
    if mask is not None:
        _check_mask(mask, dtype, scores)
    for operand, what in ((kv_lengths, "kv_lengths"), (offset, "offset")):
        if operand is not None:
            _check_positions(operand, what, batch)
    result = TensorType(dtype, (batch, heads, queries, value_size))
    return (result,) if attrs.scores == "none" else (result, TensorType(dtype, scores))


def _check_mask(mask: TensorType, dtype: DType, scores: Shape) -> None:
    require(mask.dtype in (DType.BOOL, dtype), f"the mask is {mask.dtype}, not bool or {dtype}")
    if mask.shape is None:
        return
    require(len(mask.shape) <= 4, f"the mask has rank {mask.rank}, more than 4")
    for dim, expected in zip(mask.shape[::-1], scores[::-1], strict=False):
        if dim != 1:
            require_same_dim(dim, expected, "extents of mask and scores")


def _check_positions(type_: TensorType, what: str, batch: AnyDim) -> None:
    require(type_.dtype.is_integer, f"{what} is {type_.dtype}, not of integers")
    require(type_.rank in (None, 0, 1), f"{what} has rank {type_.rank}, more than 1")
    if type_.shape and type_.shape[0] != 1:
        require_same_dim(type_.shape[0], batch, f"batch and {what}")


def _computing(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype in which the NumPy meanings compute."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _grouped(array: Array, heads: int) -> Array:
    """Keys or values with every head repeated for the query heads that share it."""
    groups = heads // array.shape[1] if array.shape[1] else 1
    return array if groups == 1 else np.repeat(array, groups, axis=1)


def visible_keys(
    attrs: AttentionAttrs, queries: int, keys: int, kv_lengths: Array | None, offset: Array | None
) -> Array:
    """Which keys each query may see, but for the mask: bool[batch or 1, 1, queries, keys]."""
    start = np.asarray(attrs.offset if offset is None else offset).reshape(-1, 1, 1, 1)
    key = np.arange(keys).reshape(1, 1, 1, keys)
    ahead = key - (start.astype(np.int64) + np.arange(queries).reshape(1, 1, queries, 1))
    visible = np.ones(ahead.shape, dtype=bool)
    if attrs.causal:
        visible &= ahead <= 0
    if attrs.left_window >= 0:
        visible &= ahead >= -attrs.left_window
    if attrs.right_window >= 0:
        visible &= ahead <= attrs.right_window
    if kv_lengths is not None:
        visible = visible & (key < kv_lengths.reshape(-1, 1, 1, 1))
    return visible


def _bias(visible: Array, mask: Array | None, dtype: np.dtype[np.generic]) -> Array:
    """What is added to the scores: the mask, and minus infinity for keys out of sight."""
    hidden = np.asarray(-np.inf, dtype)
    if mask is None:
        return np.where(visible, np.asarray(0, dtype), hidden)
    if mask.dtype == bool:
        return np.where(visible & mask, np.asarray(0, dtype), hidden)
    return np.where(visible, mask.astype(dtype), hidden)


def _probabilities(scores: Array, bias: Array, dtype: DType | None) -> Array:
    """The softmax of each row; a row that sees no key is all zeros."""
    exact = scores if dtype is None else scores.astype(dtype.numpy)
    exact = exact.astype(_computing(exact.dtype))
    greatest = np.max(exact, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(exact - np.where(np.isneginf(greatest), 0, greatest))
    total = np.sum(powers, axis=-1, keepdims=True)
    blind = np.isneginf(np.max(bias, axis=-1, keepdims=True, initial=-np.inf))
    weights = np.where(blind, 0, powers / np.where(total == 0, 1, total))
    return weights.astype(scores.dtype if dtype is None else dtype.numpy).astype(scores.dtype)


def _attention_work(
    _attrs: AttentionAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    query, key, result = ins[0], ins[1], outs[0]
    length = key.shape[2] if key.shape else UNKNOWN
    scores = product(query.shape[:3]) * length if query.shape else UNKNOWN
    macs = (query.size + result.size) * length
    return Work(macs, scores * 5, traffic(ins, outs))


@operator(
    "nn.attention",
    "query key value mask? kv_lengths? offset?",
    _attention_type,
    kind=Kind.ANCHOR,
    work=_attention_work,
    outputs=None,
)
def _attention(
    attrs: AttentionAttrs,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    kv_lengths: Array | None,
    offset: Array | None,
) -> tuple[Array, ...]:
    """softmax(query @ key.T * scale + mask) @ value, per head."""
    dtype = _computing(query.dtype)
    _, heads, queries, size = query.shape
    scale = (1 / math.sqrt(size) if size else 1.0) if attrs.scale is None else attrs.scale
    keys = _grouped(key, heads).astype(dtype)
    raw = np.matmul(query.astype(dtype) * scale, keys.swapaxes(-1, -2))
    capped = raw if attrs.softcap == 0 else attrs.softcap * np.tanh(raw / attrs.softcap)
    bias = _bias(visible_keys(attrs, queries, key.shape[2], kv_lengths, offset), mask, dtype)
    biased = capped + bias
    weights = _probabilities(biased, bias, attrs.softmax_dtype)
    result = np.matmul(weights, _grouped(value, heads).astype(dtype)).astype(query.dtype)
    if attrs.scores == "none":
        return (result,)
    stages = dict(zip(SCORES[1:], (raw, capped, biased, weights), strict=True))
    return result, stages[attrs.scores].astype(query.dtype)


@dataclass(frozen=True, slots=True)
class LinearAttentionAttrs(Attrs):
    scale: float | None = None  # of the result; None is 1 / sqrt(size)


def _linear_attention_type(
    _attrs: LinearAttentionAttrs,
    query: TensorType,
    key: TensorType,
    value: TensorType,
    state: TensorType | None,
    decay: TensorType | None,
    beta: TensorType | None,
) -> tuple[TensorType, TensorType]:
    dtype = same_dtype(query, key, value, decay, beta)
    require(dtype.is_float, f"wants floating-point operands, not {dtype}")
    batch, heads, length, size = ranked_shape(query, 4, "query")
    kv_heads, value_size = ranked_shape(key, 4, "key")[1], ranked_shape(value, 4, "value")[3]
    _check_heads(heads, kv_heads)
    states = (batch, kv_heads, size, value_size)
    per_step = (batch, kv_heads, length)
    for type_, expected, what in (
        (key, (*per_step, size), "key"),
        (value, (*per_step, value_size), "value"),
        (state, states, "state"),
        (decay, (*per_step, size), "decay"),
        (beta, (*per_step, 1), "beta"),
    ):
        if type_ is not None:
            for dim, other in zip(ranked_shape(type_, 4, what), expected, strict=True):
                if dim != 1 or what not in ("decay", "beta"):
                    require_same_dim(dim, other, f"extents of {what} and of the other operands")
    state_dtype = dtype if state is None else state.dtype
    require(state_dtype.is_float, f"the state is {state_dtype}, not floating-point")
    return TensorType(dtype, (batch, heads, length, value_size)), TensorType(state_dtype, states)


def _of_step(array: Array, step: int) -> Array:
    """A step's part of an operand that may have one for all steps."""
    return array[:, :, min(step, array.shape[2] - 1)]


def _linear_attention_work(
    _attrs: LinearAttentionAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    """Each step reads the state once per query head, and writes it once per key head."""
    query, key, value = ins[0], ins[1], ins[2]
    value_size = value.shape[3] if value.shape else UNKNOWN
    passes = 2 if len(ins) > 5 else 1  # with beta, the state is also read before it is written
    return Work((query.size + key.size * passes) * value_size, 0, traffic(ins, outs))


@operator(
    "nn.linear_attention",
    "query key value state? decay? beta?",
    _linear_attention_type,
    work=_linear_attention_work,
    outputs=2,
)
def _linear_attention(
    attrs: LinearAttentionAttrs,
    query: Array,
    key: Array,
    value: Array,
    state: Array | None,
    decay: Array | None,
    beta: Array | None,
) -> tuple[Array, Array]:
    """Attention without a softmax, by a state that each position updates.

    For each step: state *= exp(decay); state += key ⊗ written; result = query · state.

    What is written is the value or, where there is a beta, beta * (value - key · state).
    """
    dtype = _computing(query.dtype)
    batch, heads, length, size = query.shape
    kv_heads, value_size = key.shape[1], value.shape[3]
    scale = (1 / math.sqrt(size) if size else 1.0) if attrs.scale is None else attrs.scale
    shape = (batch, kv_heads, size, value_size)
    memory = np.zeros(shape, dtype) if state is None else state.astype(dtype)
    result = np.zeros((batch, heads, length, value_size), dtype)
    for step in range(length):
        question, column, new_value = (a[:, :, step].astype(dtype) for a in (query, key, value))
        if decay is not None:
            memory = memory * np.exp(_of_step(decay, step)[..., None].astype(dtype))
        if beta is not None:
            recalled = np.matmul(column[:, :, None], memory)[:, :, 0]
            new_value = _of_step(beta, step).astype(dtype) * (new_value - recalled)
        memory = memory + column[..., None] * new_value[:, :, None]
        result[:, :, step] = np.matmul(question[:, :, None], _grouped(memory, heads))[:, :, 0]
    state_dtype = query.dtype if state is None else state.dtype
    return (scale * result).astype(query.dtype), memory.astype(state_dtype)


# Tensor expressions, stage by stage: scores, what is added to them, their softmax, and weighted
# values. The hand-written kernel never has all scores in memory; this serves what that one does
# not: other floats, scores that are a result themselves, lengths and offsets that are operands.


@te.expresses("nn.attention")
def _express_attention(
    attrs: Any, out: te.Out, query: Tensor, key: Tensor, value: Tensor, *bias: Tensor | None
) -> te.Results:
    """The result, and the stage of the scores that `attrs.scores` names."""
    wide, dtype, shape = te.accumulated_in(query.dtype), out.dtype, out.shape
    weights = _stages(attrs, query, key, bias, out.name)["probabilities"]
    share = _sharing(query, value)

    def weighted(batch: Term, head: Term, row: Term, column: Term) -> Reduce:
        (key,) = te.reduce_axes([value.shape[2]])
        value_row = cast(wide, te.read(value, [batch, head // share, key, column]))
        return sum_(te.read(weights, [batch, head, row, key]) * value_row, [key])

    total = te.by_index(f"{out.name}_total", shape, weighted)
    result = out.of(lambda *at: cast(dtype, te.read(total, at)))
    if attrs.scores == "none":
        return result
    # Results share no stages, so that each has loops of its own: scores are computed again.
    stage = _stages(attrs, query, key, bias, f"{out.name}_1")[attrs.scores]
    scores = te.by_index(f"{out.name}_1", stage.shape, lambda *at: cast(dtype, te.read(stage, at)))
    return (*result, scores)


def _stages(
    attrs: Any, query: Tensor, key: Tensor, operands: te.Inputs, name: str
) -> dict[str, Tensor]:
    """What becomes of the scores, stage by stage."""
    raw = _raw(attrs, query, key, f"{name}_raw", te.accumulated_in(query.dtype))
    bias = _bias_tensor(attrs, operands, raw, f"{name}_bias")
    limit = float(attrs.softcap)

    def cap(*at: Term) -> Term:
        return call("tanh", te.read(raw, at) / limit) * limit

    capped = raw if attrs.softcap == 0 else te.by_index(f"{name}_capped", raw.shape, cap)
    biased = te.by_index(
        f"{name}_biased", raw.shape, lambda *at: te.read(capped, at) + te.read(bias, at)
    )
    weights = _weights(attrs, biased, bias, name)
    return dict(zip(SCORES[1:], (raw, capped, biased, weights), strict=True))


def _sharing(query: Tensor, key: Tensor) -> Term:
    """How many query heads share a key head; at least one, where there are none."""
    heads, own = te.sizes(query)[1], te.sizes(key)[1]
    return term(1) if heads == own else maximum(term(heads) // maximum(term(own), 1), 1)


def _raw(attrs: Any, query: Tensor, key: Tensor, name: str, wide: DType) -> Tensor:
    """Scaled products of queries and keys."""
    size = te.sizes(query)[3]
    scale = _default_scale(size, wide) if attrs.scale is None else te.number(attrs.scale, wide)
    share = _sharing(query, key)

    def element(batch: Term, head: Term, row: Term, column: Term) -> Reduce:
        (at,) = te.reduce_axes([size])
        question = cast(wide, te.read(query, [batch, head, row, at])) * scale
        return sum_(question * cast(wide, te.read(key, [batch, head // share, column, at])), [at])

    return te.by_index(name, [*query.shape[:3], key.shape[2]], element)


def _default_scale(size: AnyDim, dtype: DType) -> Term:
    """1 / sqrt(size); 1 where there is nothing to add up."""
    if isinstance(size, int):
        return te.number(1 / math.sqrt(size) if size else 1.0, dtype)
    return te.number(1, dtype) / call("sqrt", cast(dtype, maximum(term(size), 1)))


def _of_batch(tensor: Tensor, batch: Term, extent: AnyDim) -> Term:
    """The number of a batch, or the one that all batches share."""
    at = [] if not tensor.shape else [te.within(te.sizes(tensor)[0], batch, extent)]
    return cast(INDEX, te.read(tensor, at))


def _bias_tensor(attrs: Any, operands: te.Inputs, raw: Tensor, name: str) -> Tensor:
    """What is added to the scores: the mask, and minus infinity for keys out of sight."""
    mask, lengths, offset = operands
    shape, dtype = te.sizes(raw), raw.dtype
    hidden, nothing = te.number(-math.inf, dtype), te.number(0, dtype)

    def element(*at: Term) -> Term:
        batch, _, row, key = at
        start = term(attrs.offset) if offset is None else _of_batch(offset, batch, shape[0])
        ahead = key - (start + row)
        tests = [ahead <= 0] if attrs.causal else []
        if attrs.left_window >= 0:
            tests.append(ahead >= -attrs.left_window)
        if attrs.right_window >= 0:
            tests.append(ahead <= attrs.right_window)
        if lengths is not None:
            tests.append(key < _of_batch(lengths, batch, shape[0]))
        added = nothing
        if mask is not None:
            entry = te.spread(mask, at, shape)
            truth = mask.dtype is DType.BOOL
            added = select(entry, nothing, hidden) if truth else cast(dtype, entry)
        for test in tests:
            added = select(test, added, hidden)
        return added

    return te.by_index(name, raw.shape, element)


def _weights(attrs: Any, biased: Tensor, bias: Tensor, name: str) -> Tensor:
    """The softmax of each row; a row that sees no key is all zeros."""
    dtype = attrs.softmax_dtype or biased.dtype
    exact = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32

    def score(value: Term) -> Term:
        return cast(exact, cast(dtype, value))

    largest = te.total_over(f"{name}_max", biased, [3], max_, lambda value, _: score(value))
    seen = te.total_over(f"{name}_seen", bias, [3], max_, lambda value, _: _is_in_sight(value))

    def power(*at: Term) -> Term:
        most = te.of_row(largest, at, 3)
        finite = select(equal(most, -math.inf), te.number(0, exact), most)
        return call("exp", score(te.read(biased, at)) - finite)

    powers = te.by_index(f"{name}_powers", biased.shape, power)
    total = te.total_over(f"{name}_whole", powers, [3], sum_, lambda value, _: value)

    def weight(*at: Term) -> Term:
        whole = te.of_row(total, at, 3)
        part = te.read(powers, at) / select(equal(whole, 0.0), te.number(1, exact), whole)
        blind = te.of_row(seen, at, 3) < 1.0
        return cast(biased.dtype, cast(dtype, select(blind, te.number(0, exact), part)))

    return te.by_index(f"{name}_weights", biased.shape, weight)


def _is_in_sight(bias: Term) -> Term:
    """1 for a key that a query sees: numbers of which a maximum can be taken."""
    return select(equal(bias, -math.inf), te.number(0, bias.dtype), te.number(1, bias.dtype))
