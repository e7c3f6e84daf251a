"""Makes one operator of an attention whose operands and probabilities are quantised.

Products of dequantised queries, keys and values enter, with a softmax between them whose results
are quantised, or whose exponentials are, so that the division comes last; `qnn.attention` leaves,
which one kernel computes. Scores may be quantised too: as they are summed, behind their factor,
behind their mask. Where probabilities stay in float, nothing changes: their products are floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.backends.host.kernels.attention_bytes import LARGEST_SIZE
from graft.backends.host.passes.byte_products import Bytes, are_known, in_fours, turned_back
from graft.backends.host.passes.quantized_values import (
    DEQUANTIZE,
    QUANTIZE,
    Quantized,
    quantized,
    scaled_sums,
)
from graft.backends.host.storage import static_shape
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.rewrite.driver import Site
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

ATTENTIONS = RuleSet("integer_attentions")
# Products of a code and a byte less its zero point that an int32 holds the sum of.
_MOST_KEYS = 1 << 15


@ATTENTIONS.rule(is_op("nn.batch_matmul"))
def byte_attention(site: Site) -> Replacement:
    """The product with the values is where an attention ends."""
    node = site.node
    shares = _bytes(site, node.args[0])
    softmax = None if shares is None else _rounded_softmax(site, shares)
    if shares is None or softmax is None:
        return Refusal("what is multiplied are not the bytes that a softmax is rounded to")
    scores = _scores(site, softmax.args[0])
    attention = _attention(site, node, scores, shares, is_divided=False)
    if isinstance(attention, Refusal):
        return attention
    return scaled_sums(site, attention.sums, shares.scale * attention.scale, 0)


@ATTENTIONS.rule(is_op("divide"))
def divided_byte_attention(site: Site) -> Replacement:
    """Exponentials are what is rounded; the product with the values is divided by their sums."""
    product, totals = (site.producer(operand) for operand in site.node.args)
    is_product = product is not None and product.op.name == "nn.batch_matmul"
    if product is None or totals is None or not is_product or not site.only_use(product.output):
        return Refusal("what is divided is no product")
    if not _is_over_keys(totals, "sum", product.args[0]) or not site.only_use(totals.output):
        return Refusal("what it is divided by are no sums of its left matrix")
    powers = _bytes(site, product.args[0])
    scores = None if powers is None else _rounded_exponentials(site, powers)
    if powers is None or scores is None:
        return Refusal("what is multiplied are no bytes that exponentials are rounded to")
    attention = _attention(site, product, _scores(site, scores, 2), powers, is_divided=True)
    if isinstance(attention, Refusal):
        return attention
    scale = site.constant(attention.scale.astype(np.float32))
    return site.emit("multiply", attention.sums, scale)


@dataclass(frozen=True, slots=True)
class _Attention:
    """What replaces an attention, but for the scale of its values."""

    sums: Value
    scale: Array


def _attention(
    site: Site, product: Node, scores: _Scores | None, shares: Quantized, *, is_divided: bool
) -> _Attention | Refusal:
    """One operator for scores, softmax and the `product` of its codes with the values."""
    if scores is None:
        return Refusal("the left matrix is no softmax of the product of two matrices of bytes")
    value = _bytes(site, product.args[1])
    if value is None or product.output.dtype is not DType.FLOAT32:
        return Refusal("what is multiplied are not bytes, each by one constant scale")
    query, key = (_bytes(site, operand) for operand in scores.product.args)
    if query is None or key is None:
        return Refusal("queries or keys are not bytes, each by one constant scale")
    turned = turned_back(site, Bytes(key.value))
    refused = _unfit(product, scores, query, key, value)
    if refused is not None:
        return refused
    keys = turned.value
    if not turned.is_turned:
        keys = site.emit("transpose", keys, axes=(0, 1, 3, 2))
    scale, roundings = scores.in_codes(query.scale * key.scale)
    sums = site.emit(
        "qnn.attention",
        # where queries are filled up with their zero point, keys are multiplied by zero
        *(in_fours(site, query.value, -1, int(query.zero_point)), in_fours(site, keys, -1, 0)),
        *(value.value, scores.mask),
        scale=scale,
        step=float(shares.scale),
        zero_points=tuple(int(one.zero_point) for one in (query, key, value)),
        most=_code_limits(shares)[1],
        roundings=roundings,
        masked=scores.masked,
        divided=is_divided,
    )
    return _Attention(sums, value.scale)


def _bytes(site: Site, value: Value) -> Quantized | None:
    """Bytes that are not constant, by one scale."""
    data = quantized(site, value)
    if data is None or data.axis is not None or site.array(data.value) is not None:
        return None
    return data


def _code_limits(data: Quantized) -> tuple[int, int]:
    """The lowest and the highest code less the zero point."""
    limits, zero = np.iinfo(data.value.dtype.numpy), int(data.zero_point)
    return int(limits.min) - zero, int(limits.max) - zero


def _rounded(site: Site, data: Quantized) -> Value | None:
    """What bytes are the codes of, by the scale that they have behind it, if nobody else reads
    them."""
    rounding = site.producer(data.value)
    if rounding is None or rounding.op.name != QUANTIZE or not site.only_use(data.value):
        return None
    scale, zero = site.array(rounding.args[1]), rounding.inputs[2:3]
    offset = site.array(zero[0]) if zero and zero[0] is not None else np.zeros(1, np.int32)
    if scale is None or offset is None or (scale.size, offset.size) != (1, 1):
        return None
    is_same = scale.reshape(()) == data.scale and offset.reshape(()) == data.zero_point
    if not is_same or rounding.attrs.precision not in (None, DType.FLOAT32):
        return None
    return rounding.args[0] if rounding.args[0].dtype is DType.FLOAT32 else None


def _rounded_softmax(site: Site, shares: Quantized) -> Node | None:
    """The softmax over keys that bytes are the codes of, if no part of it has another reader."""
    real = _rounded(site, shares)
    softmax = None if real is None else site.producer(real)
    if softmax is None or softmax.op.name != "nn.softmax":
        return None
    is_last = softmax.attrs.axis in (-1, 3)
    return softmax if is_last and site.only_use(softmax.output) else None


def _rounded_exponentials(site: Site, powers: Quantized) -> Value | None:
    """The scores that bytes are the codes of exponentials of, less the largest of each query, if
    nobody else reads any of it."""
    real = _rounded(site, powers)
    power = None if real is None else site.producer(real)
    if power is None or power.op.name != "exp" or not site.only_use(power.output):
        return None
    less = site.producer(power.args[0])
    if less is None or less.op.name != "subtract" or not site.only_use(less.output):
        return None
    scores, most = less.args[0], site.producer(less.args[1])
    is_most = most is not None and _is_over_keys(most, "max", scores)
    return scores if is_most and most is not None and site.only_use(most.output) else None


def _is_over_keys(node: Node, name: str, data: Value) -> bool:
    """Whether a node reduces that value along its last axis, which stays."""
    if node.op.name != name or node.args[0] is not data or len(node.args) > 1:
        return False
    return node.attrs.keepdims and node.attrs.axes in ((-1,), (3,))


@dataclass(frozen=True, slots=True)
class _Scores:
    """A product of queries and keys, and what becomes of it."""

    product: Node
    factor: float  # that the product is multiplied by before anything else
    roundings: tuple[tuple[Quantized, float], ...]  # each with a factor behind it
    mask: Value | None
    masked: int  # how many roundings are in front of the mask

    def in_codes(self, scale: Array) -> tuple[float, tuple[float, ...]]:
        """Scale and roundings as `qnn.attention` has them, of sums by some scale."""
        unit = float(np.float32(scale) * np.float32(self.factor))
        numbers: list[float] = []
        for data, factor in self.roundings:
            step = float(data.scale)
            numbers += [unit / step, step, *map(float, _code_limits(data))]
            unit = step * factor
        return unit, tuple(numbers)


def _scores(site: Site, value: Value, readers: int = 1) -> _Scores | None:
    """What a softmax is of: a product, times a number, plus a mask, rounded, where these are there
    at all. They are met last to first; as many nodes as `readers` read what is met first."""
    factor, mask, behind_mask = 1.0, None, 0
    roundings: list[tuple[Quantized, float]] = []
    shape = value.shape
    while True:
        node = site.producer(value)
        if node is None or site.uses(value) != readers or node.output.shape != shape:
            return None
        readers = 1
        if node.op.name == "nn.batch_matmul":
            masked = len(roundings) - behind_mask
            return _Scores(node, factor, tuple(reversed(roundings)), mask, masked)
        if node.op.name == DEQUANTIZE:
            data = _bytes(site, value)
            real = None if data is None else _rounded(site, data)
            if data is None or real is None:
                return None
            roundings.append((data, factor))
            value, factor = real, 1.0
        elif node.op.name == "add" and mask is None and factor == 1.0:
            value, mask = node.args
            behind_mask = len(roundings)
            if not _is_product(site, value):
                value, mask = mask, value
        elif node.op.name in ("multiply", "divide"):
            number = site.array(node.args[1])
            if number is None or number.size != 1:
                return None
            single = float(number.reshape(-1)[0])
            if node.op.name == "divide" and not single:
                return None
            factor = factor * single if node.op.name == "multiply" else factor / single
            value = node.args[0]
        else:
            return None


def _is_product(site: Site, value: Value) -> bool:
    """Whether a value may be scores: a product, or one times a number, rounded or not."""
    node = site.producer(value)
    while node is not None and node.op.name in ("multiply", "divide", QUANTIZE, DEQUANTIZE):
        node = site.producer(node.args[0])
    return node is not None and node.op.name == "nn.batch_matmul"


def _unfit(
    node: Node, scores: _Scores, query: Quantized, key: Quantized, value: Quantized
) -> Refusal | None:
    """Why there is no kernel for such an attention, if there is none."""
    if any(p.attrs.transpose_a or p.attrs.transpose_b for p in (node, scores.product)):
        return Refusal("a product transposes its operands")
    if not are_known(query.value, key.value, value.value):
        return Refusal("sizes become known only at run time")
    shapes = [static_shape(one.value) for one in (query, key, value)]
    if any(len(shape) != 4 or shape[:2] != shapes[0][:2] for shape in shapes):
        return Refusal("operands are not [batch, heads, length, size] alike")
    if shapes[0][3] > LARGEST_SIZE or shapes[2][2] > _MOST_KEYS:
        return Refusal("the sums may not fit into float32 or int32")
    mask = scores.mask
    if mask is not None and (mask.dtype is not DType.FLOAT32 or not are_known(mask)):
        return Refusal("the mask is not of float32 in a known size")
    return None
