"""Convolutions, dense layers, products and attention of narrow integers, summed in int32 exactly.

Data of 8 bits less their zero point, which is also the value of padding, times weights of 8 or 16
bits without a zero point; or bytes times bytes. Sums wrap around as int32 does. Scales are applied
by other operators, but for those within an attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Floats
from graft.ir.op import Kind, define, get_op
from graft.ir.types import TensorType
from graft.loop.build import Term, call, cast, maximum, minimum
from graft.loop.tensor import Reduce, Tensor, max_, sum_
from graft.ops import expression as te
from graft.ops.activation import SoftmaxAttrs
from graft.ops.attention import AttentionAttrs
from graft.ops.conv import ConvAttrs, convolve
from graft.ops.linear import BatchMatmulAttrs, matrix_product
from graft.ops.resize import ResizeAttrs, interpolates
from graft.ops.rules import operator, require
from graft.ops.window import RANKS, for_rank

BYTES = (DType.INT8, DType.UINT8)
WEIGHTS = (DType.INT8, DType.INT16)
# By how much signed and unsigned bytes of the same bits but the highest differ.
HALF = 128


def _wide(type_: TensorType) -> TensorType:
    return TensorType(DType.INT32, type_.shape)


def _type_like(plain: str) -> Callable[..., TensorType]:
    """The type of the operator of that name on the same operands in int32."""
    op = get_op(plain)

    def rule(
        attrs: Any, data: TensorType, weight: TensorType, zero_point: TensorType | None
    ) -> TensorType:
        require(data.dtype in BYTES, f"the data is {data.dtype}, not int8 or uint8")
        require(weight.dtype in WEIGHTS, f"the weight is {weight.dtype}, not int8 or int16")
        if zero_point is not None:
            same = zero_point.dtype is data.dtype
            require(same, f"the zero point is {zero_point.dtype}, the data {data.dtype}")
            single = zero_point.shape is None or all(dim == 1 for dim in zero_point.shape)
            require(single, f"the zero point is {zero_point}, not one number")
        result = op.infer(attrs, _wide(data), _wide(weight))
        assert isinstance(result, TensorType)
        return result

    return rule


def centred(data: Array, zero_point: Array | None) -> Array:
    """The data less the zero point, in int32."""
    wide = data.astype(np.int32)
    return wide if zero_point is None else wide - zero_point.astype(np.int32).reshape(())


def _convolve(attrs: ConvAttrs, data: Array, weight: Array, zero_point: Array | None) -> Array:
    return convolve(attrs, centred(data, zero_point), weight.astype(np.int32))


for _rank in RANKS:
    define(
        f"qnn.conv{_rank}d",
        "data weight zero_point?",
        _type_like(f"nn.conv{_rank}d"),
        _convolve,
        attrs=for_rank(ConvAttrs, _rank),
        kind=Kind.ANCHOR,
        work=get_op(f"nn.conv{_rank}d").work,
        summary=f"nn.conv{_rank}d of 8-bit data less their zero point, in int32",
    )


@operator(
    "qnn.dense",
    "data weight zero_point?",
    _type_like("nn.dense"),
    kind=Kind.ANCHOR,
    work=get_op("nn.dense").work,
)
def _dense(_attrs: Attrs, data: Array, weight: Array, zero_point: Array | None) -> Array:
    """nn.dense of 8-bit data less their zero point, in int32."""
    return matrix_product(centred(data, zero_point), weight.astype(np.int32).T)


def _byte_product_type(attrs: BatchMatmulAttrs, left: TensorType, right: TensorType) -> TensorType:
    for operand in (left, right):
        require(operand.dtype in BYTES, f"an operand is {operand.dtype}, not int8 or uint8")
    result = get_op("nn.batch_matmul").infer(attrs, _wide(left), _wide(right))
    assert isinstance(result, TensorType)
    return result


@operator(
    "qnn.batch_matmul",
    "left right",
    _byte_product_type,
    kind=Kind.ANCHOR,
    work=get_op("nn.batch_matmul").work,
)
def _byte_product(attrs: BatchMatmulAttrs, left: Array, right: Array) -> Array:
    """`nn.batch_matmul` of bytes as processors multiply them, unsigned ones by signed ones: on the
    left signed bytes count 128 more, on the right unsigned ones 128 less.
    """
    more = HALF if left.dtype == np.int8 else 0
    less = HALF if right.dtype == np.uint8 else 0
    wide = left.astype(np.int32) + more, right.astype(np.int32) - less
    product: Array = get_op("nn.batch_matmul").evaluate(attrs, *wide)
    return product


@dataclass(frozen=True, slots=True)
class ByteAttentionAttrs(Attrs):
    """What the bytes stand for, and how probabilities become bytes."""

    scale: float  # of the sums (or codes) that are scores
    step: float  # of a probability's code
    zero_points: tuple[int, int, int] = (0, 0, 0)  # of queries, keys and values
    most: int = 255  # the highest code of a probability; 0 is the lowest
    # How scores are rounded on the way from sums to floats, four numbers each time: a factor, the
    # step of a code, the lowest and the highest code less the zero point. Then `scale` is of codes.
    roundings: Floats = ()
    masked: int = 0  # in which of the roundings the mask is added, or behind how many
    # Whether codes are of exponentials, the largest of each query 1, instead of probabilities;
    # results are then divided by the sums of these codes, in float32.
    divided: bool = False

    @property
    def score_roundings(self) -> list[tuple[float, float, float, float]]:
        return list(zip(*(self.roundings[part::4] for part in range(4)), strict=True))


def _byte_attention_type(
    attrs: ByteAttentionAttrs,
    query: TensorType,
    key: TensorType,
    value: TensorType,
    mask: TensorType | None,
) -> TensorType:
    for operand in (query, key, value):
        require(operand.dtype in BYTES, f"an operand is {operand.dtype}, not int8 or uint8")
    require(mask is None or mask.dtype is DType.FLOAT32, "the mask is not float32")
    require(attrs.step > 0, f"the step of probabilities is {attrs.step}, not positive")
    require(0 < attrs.most < 256, f"the highest code is {attrs.most}, not one of a byte")
    require(len(attrs.roundings) % 4 == 0, "roundings of scores are not of four numbers each")
    require(all(step > 0 for step in attrs.roundings[1::4]), "a step of scores is not positive")
    inside = 0 <= attrs.masked <= len(attrs.roundings) // 4
    require(inside, f"there is no rounding {attrs.masked} to add the mask in")
    floats = (TensorType(DType.FLOAT32, one.shape) for one in (query, key, value))
    result = get_op("nn.attention").infer(AttentionAttrs(), *floats, mask, None, None)
    single = result[0] if isinstance(result, tuple) else result
    assert isinstance(single, TensorType)
    return single if attrs.divided else _wide(single)


@operator(
    "qnn.attention",
    "query key value mask?",
    _byte_attention_type,
    kind=Kind.ANCHOR,
    work=get_op("nn.attention").work,
)
def _byte_attention(
    attrs: ByteAttentionAttrs, query: Array, key: Array, value: Array, mask: Array | None
) -> Array:
    """Attention on bytes less their zero points, [batch, heads, length, size]: scores and results
    are summed in int32. Between them, softmax is in float32 and its results are rounded to codes,
    or its exponentials are (`divided`); scores may be rounded to codes before it.
    """
    wide = [
        array.astype(np.int32) - zero
        for array, zero in zip((query, key, value), attrs.zero_points, strict=True)
    ]
    shared = query.shape[1] // key.shape[1] if key.shape[1] else 1
    keys, values = (np.repeat(one, shared, axis=1) for one in wide[1:])
    sums = np.matmul(wide[0], keys.swapaxes(-1, -2))
    scores = sums.astype(np.float32)
    for number, (factor, step, low, high) in enumerate(attrs.score_roundings):
        scores = scores * np.float32(factor)
        if mask is not None and number == attrs.masked:
            scores = scores + mask * np.float32(1 / step)
        scores = np.clip(np.rint(scores), np.float32(low), np.float32(high))
    scores = scores * np.float32(attrs.scale)
    if mask is not None and attrs.masked == len(attrs.score_roundings):
        scores = scores + mask
    if attrs.divided:
        most = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        shares = np.exp(scores - most)
    else:
        shares = get_op("nn.softmax").evaluate(SoftmaxAttrs(axis=-1), scores)
    ratio = np.nan_to_num(shares / np.float32(attrs.step), nan=0.0)
    codes = np.clip(np.rint(ratio), 0, attrs.most).astype(np.int32)
    product: Array = np.matmul(codes, values)
    if attrs.divided:
        product = product / codes.sum(axis=-1, keepdims=True)
    return product.astype(np.float32 if attrs.divided else np.int32)


def _codes_resized_type(
    attrs: ResizeAttrs, data: TensorType, *operands: TensorType | None
) -> TensorType:
    require(data.dtype in BYTES, f"data is {data.dtype}, not int8 or uint8")
    require(interpolates(attrs), "codes that are moved alone need no operator of their own")
    real = TensorType(DType.FLOAT32, data.shape)
    result = get_op("resize").infer(attrs, real, *operands)
    assert isinstance(result, TensorType)
    return result


@operator(
    "qnn.resize",
    "data roi? scales? sizes?",
    _codes_resized_type,
    kind=Kind.ANCHOR,
    work=get_op("resize").work,
)
def _codes_resized(attrs: ResizeAttrs, data: Array, *operands: Array | None) -> Array:
    """Interpolated bytes as float32, not rounded: where weights are binary fractions, as those of
    an image twice as large, results are exact."""
    result: Array = get_op("resize").evaluate(attrs, data.astype(np.float32), *operands)
    return result


# Tensor expressions: those of int32 on widened operands.


def _widened(
    name: str, data: Tensor, weight: Tensor, zero_point: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The data less their zero point and the weights, in int32."""

    def centred(*indices: Term) -> Term:
        value = cast(DType.INT32, te.read(data, indices))
        return value if zero_point is None else value - cast(DType.INT32, te.single(zero_point))

    def factor(*indices: Term) -> Term:
        return cast(DType.INT32, te.read(weight, indices))

    return (
        te.by_index(f"{name}_data", data.shape, centred),
        te.by_index(f"{name}_weight", weight.shape, factor),
    )


@te.expresses(*(f"qnn.conv{rank}d" for rank in RANKS))
def _express_integer_convolution(attrs: Any, out: te.Out, *inputs: Tensor) -> te.Results:
    conv = get_op(f"nn.conv{len(attrs.strides)}d")
    return te.express_op(conv, attrs, _widened(out.name, *inputs), out.types, out.name)


@te.expresses("qnn.dense")
def _express_integer_dense(attrs: Any, out: te.Out, *inputs: Tensor) -> te.Results:
    return te.express_op(
        get_op("nn.dense"), attrs, _widened(out.name, *inputs), out.types, out.name
    )


@te.expresses("qnn.batch_matmul")
def _express_byte_product(attrs: Any, out: te.Out, left: Tensor, right: Tensor) -> te.Results:

    def wide(of: Tensor, called: str, shift: int) -> Tensor:
        def element(*indices: Term) -> Term:
            return cast(DType.INT32, te.read(of, indices)) + shift

        return te.by_index(f"{out.name}_{called}", of.shape, element)

    operands = (
        wide(left, "left", HALF if left.dtype is DType.INT8 else 0),
        wide(right, "right", -HALF if right.dtype is DType.UINT8 else 0),
    )
    return te.express_op(get_op("nn.batch_matmul"), attrs, operands, out.types, out.name)


def score_of(attrs: ByteAttentionAttrs, sums: Term, mask: Term | None) -> Term:
    """What softmax is of, from sums as floats and what is added."""
    score, roundings = sums, attrs.score_roundings
    for number, (factor, step, low, high) in enumerate(roundings):
        score = score * factor
        if mask is not None and number == attrs.masked:
            score = score + mask * (1 / step)
        score = minimum(maximum(call("round", score), low), high)
    score = score * attrs.scale
    return score if mask is None or attrs.masked < len(roundings) else score + mask


@te.expresses("qnn.attention")
def _express_byte_attention(
    attrs: Any, out: te.Out, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> te.Results:
    heads, shared = te.numbers((te.sizes(query)[1], te.sizes(key)[1]), "the numbers of heads")
    (size,) = te.numbers(te.sizes(query)[3:], "sizes of queries")
    share = heads // shared if shared else 1

    def centred(of: Tensor, operand: int, at: Sequence[Term]) -> Term:
        zero_point: int = attrs.zero_points[operand]
        return cast(DType.INT32, te.read(of, at)) - zero_point

    def score(batch: Term, head: Term, row: Term, column: Term) -> Reduce:
        (at,) = te.reduce_axes([size])
        question = centred(query, 0, [batch, head, row, at])
        return sum_(question * centred(key, 1, [batch, head // share, column, at]), [at])

    sums = te.by_index(f"{out.name}_sums", [*query.shape[:3], key.shape[2]], score)

    def scaled(*at: Term) -> Term:
        added = None if mask is None else te.spread(mask, at, te.sizes(sums))
        return score_of(attrs, cast(DType.FLOAT32, te.read(sums, at)), added)

    scores = te.by_index(f"{out.name}_scores", sums.shape, scaled)
    shares = _exponentials(scores, out.name) if attrs.divided else _shares(scores, out.name)
    if isinstance(shares, te.Unexpressed):
        return shares

    def code(*at: Term) -> Term:
        ratio = minimum(te.read(shares, at) / attrs.step, float(attrs.most))
        return cast(DType.INT32, call("to_uint8", ratio, 0.0))

    codes = te.by_index(f"{out.name}_codes", sums.shape, code)

    def weighted(batch: Term, head: Term, row: Term, column: Term) -> Reduce:
        (at,) = te.reduce_axes([value.shape[2]])
        value_row = centred(value, 2, [batch, head // share, at, column])
        return sum_(te.read(codes, [batch, head, row, at]) * value_row, [at])

    if not attrs.divided:
        return out.of(weighted)
    products = te.by_index(f"{out.name}_products", (*sums.shape[:3], value.shape[3]), weighted)
    totals = te.total_over(f"{out.name}_totals", codes, [3], sum_, lambda one, _: one)

    def mean(*at: Term) -> Term:
        whole = cast(DType.FLOAT32, te.of_row(totals, at, 3))
        return cast(DType.FLOAT32, te.read(products, at)) * (1.0 / whole)

    return out.of(mean)


def _shares(scores: Tensor, name: str) -> Tensor | te.Unexpressed:
    """The softmax of scores along the keys."""
    type_ = TensorType(DType.FLOAT32, te.sizes(scores))
    softmax = te.express_op(
        get_op("nn.softmax"), SoftmaxAttrs(axis=-1), (scores,), (type_,), f"{name}_shares"
    )
    return softmax if isinstance(softmax, te.Unexpressed) else softmax[0]


def _exponentials(scores: Tensor, name: str) -> Tensor:
    """Exponentials of scores, of which the largest of each query is 1."""
    most = te.total_over(f"{name}_most", scores, [3], max_, lambda one, _: one)

    def power(*at: Term) -> Term:
        return call("exp", te.read(scores, at) - te.of_row(most, at, 3))

    return te.by_index(f"{name}_powers", scores.shape, power)


@te.expresses("qnn.resize")
def _express_codes_resized(
    attrs: Any, out: te.Out, data: Tensor, *operands: Tensor | None
) -> te.Results:
    def real(*at: Term) -> Term:
        return cast(DType.FLOAT32, te.read(data, at))

    codes = te.by_index(f"{out.name}_codes", data.shape, real)
    return te.express_op(get_op("resize"), attrs, (codes, *operands), out.types, out.name)
