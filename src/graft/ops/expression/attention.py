"""Attention, stage by stage: scores, what is added to them, their softmax, and weighted values.

The hand-written kernel never has all scores in memory; this serves what that one does not: other
floats, scores that are a result themselves, lengths and offsets that are operands.
"""

from __future__ import annotations

import math
from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, Tensor, max_, sum_
from graft.ops.attention import SCORES
from graft.ops.expression.convolution import accumulated_in
from graft.ops.expression.reduction import total_over
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import (
    by_index,
    extents_of,
    number,
    numbers,
    present,
    read,
    reduce_axes,
    sizes,
    spread,
    within,
)


@expresses("nn.attention")
def attention(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The result, and the stage of the scores that is wanted."""
    query, value = present(inputs[0]), present(inputs[2])
    wide, dtype, shape = accumulated_in(query.dtype), types[0].dtype, extents_of(types[0])
    weights = _stages(attrs, inputs, name)["probabilities"]
    share = _sharing(query, value)

    def weighted(batch: Term, head: Term, row: Term, column: Term) -> Reduce:
        (key,) = reduce_axes([value.shape[2]])
        seen = cast(wide, read(value, [batch, head // share, key, column]))
        return sum_(read(weights, [batch, head, row, key]) * seen, [key])

    total = by_index(f"{name}_total", shape, weighted)
    result = by_index(name, shape, lambda *at: cast(dtype, read(total, at)))
    if attrs.scores == "none":
        return (result,)
    # Results share no stages, so that each has loops of its own: scores are computed again.
    stage = _stages(attrs, inputs, f"{name}_1")[attrs.scores]
    return result, by_index(f"{name}_1", stage.shape, lambda *at: cast(dtype, read(stage, at)))


def _stages(attrs: Any, inputs: Inputs, name: str) -> dict[str, Tensor]:
    """What becomes of the scores, stage by stage."""
    query, key = present(inputs[0]), present(inputs[1])
    raw = _raw(attrs, query, key, f"{name}_raw", accumulated_in(query.dtype))
    bias = _bias(attrs, inputs, raw, f"{name}_bias")
    limit = float(attrs.softcap)

    def cap(*at: Term) -> Term:
        return call("tanh", read(raw, at) / limit) * limit

    capped = raw if attrs.softcap == 0 else by_index(f"{name}_capped", raw.shape, cap)
    biased = by_index(f"{name}_biased", raw.shape, lambda *at: read(capped, at) + read(bias, at))
    weights = _weights(attrs, biased, bias, name)
    return dict(zip(SCORES[1:], (raw, capped, biased, weights), strict=True))


def _sharing(query: Tensor, key: Tensor) -> int:
    """How many query heads share a key head."""
    heads, own = numbers((sizes(query)[1], sizes(key)[1]), "the numbers of heads")
    return heads // own if own else 1


def _raw(attrs: Any, query: Tensor, key: Tensor, name: str, wide: DType) -> Tensor:
    """Products of queries and keys."""
    (size,) = numbers(sizes(query)[3:], "sizes of queries")
    scale = (1 / math.sqrt(size) if size else 1.0) if attrs.scale is None else attrs.scale
    share = _sharing(query, key)

    def element(batch: Term, head: Term, row: Term, column: Term) -> Reduce:
        (at,) = reduce_axes([size])
        asked = cast(wide, read(query, [batch, head, row, at])) * scale
        return sum_(asked * cast(wide, read(key, [batch, head // share, column, at])), [at])

    return by_index(name, [*query.shape[:3], key.shape[2]], element)


def _of_batch(tensor: Tensor, batch: Term, extent: AnyDim) -> Term:
    """A number for all, or one per batch."""
    at = [] if not tensor.shape else [within(sizes(tensor)[0], batch, extent)]
    return cast(INDEX, read(tensor, at))


def _bias(attrs: Any, inputs: Inputs, raw: Tensor, name: str) -> Tensor:
    """What is added to the scores: the mask, and minus infinity for keys out of sight."""
    _, _, _, mask, lengths, offset = inputs
    shape, dtype = sizes(raw), raw.dtype
    hidden, nothing = number(-math.inf, dtype), number(0, dtype)

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
            entry = spread(mask, at, shape)
            truth = mask.dtype is DType.BOOL
            added = select(entry, nothing, hidden) if truth else cast(dtype, entry)
        for test in tests:
            added = select(test, added, hidden)
        return added

    return by_index(name, raw.shape, element)


def _weights(attrs: Any, biased: Tensor, bias: Tensor, name: str) -> Tensor:
    """The softmax of each row; a row that sees no key is all zeros."""
    wanted = attrs.softmax_dtype or biased.dtype
    exact = DType.FLOAT64 if wanted is DType.FLOAT64 else DType.FLOAT32

    def score(value: Term) -> Term:
        return cast(exact, cast(wanted, value))

    largest = total_over(f"{name}_max", biased, [3], max_, lambda value, _: score(value))
    seen = total_over(f"{name}_seen", bias, [3], max_, lambda value, _: _is_in_sight(value))

    def power(*at: Term) -> Term:
        most = read(largest, [*at[:3], 0])
        finite = select(equal(most, -math.inf), number(0, exact), most)
        return call("exp", score(read(biased, at)) - finite)

    powers = by_index(f"{name}_powers", biased.shape, power)
    total = total_over(f"{name}_whole", powers, [3], sum_, lambda value, _: value)

    def weight(*at: Term) -> Term:
        whole = read(total, [*at[:3], 0])
        part = read(powers, at) / select(equal(whole, 0.0), number(1, exact), whole)
        blind = read(seen, [*at[:3], 0]) < 1.0
        return cast(biased.dtype, cast(wanted, select(blind, number(0, exact), part)))

    return by_index(f"{name}_weights", biased.shape, weight)


def _is_in_sight(bias: Term) -> Term:
    """1 for a key that a query sees: numbers of which a maximum can be taken."""
    return select(equal(bias, -math.inf), number(0, bias.dtype), number(1, bias.dtype))
