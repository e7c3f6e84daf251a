"""Makes one operator of an attention whose operands and probabilities are quantised.

Products of dequantised queries, keys and values enter, with a softmax between them whose results
are quantised; `qnn.attention` leaves, which one kernel computes. Where probabilities stay in float,
nothing changes: their products are floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.backends.host.kernels.attention_bytes import LARGEST_SIZE
from graft.backends.host.kernels.integer_weights import QUAD
from graft.backends.host.passes.byte_products import Bytes, are_known, turned_back
from graft.backends.host.passes.quantized_values import (
    QUANTIZE,
    Quantized,
    quantized,
    scaled_sums,
)
from graft.backends.host.storage import static_shape
from graft.base.dtypes import DType
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
    shares, value = _bytes(site, node.args[0]), _bytes(site, node.args[1])
    if shares is None or value is None or node.output.dtype is not DType.FLOAT32:
        return Refusal("what is multiplied are not bytes, each by one constant scale")
    softmax = _rounded_softmax(site, shares)
    scores = None if softmax is None else _scores(site, softmax.args[0])
    if scores is None:
        return Refusal("the left matrix is no softmax of the product of two matrices of bytes")
    query, key = (_bytes(site, operand) for operand in scores.product.args)
    if query is None or key is None:
        return Refusal("queries or keys are not bytes, each by one constant scale")
    turned = turned_back(site, Bytes(key.value))
    refused = _unfit(node, scores, query, key, value)
    if refused is not None:
        return refused
    keys = turned.value
    if not turned.is_turned:
        keys = site.emit("transpose", keys, axes=(0, 1, 3, 2))
    most = int(np.iinfo(shares.value.dtype.numpy).max) - int(shares.zero_point)
    sums = site.emit(
        "qnn.attention",
        *(_in_fours(site, query.value, int(query.zero_point)), _in_fours(site, keys, 0)),
        *(value.value, scores.mask),
        scale=float(np.float32(query.scale * key.scale) * np.float32(scores.factor)),
        step=float(shares.scale),
        zero_points=tuple(int(one.zero_point) for one in (query, key, value)),
        most=most,
    )
    return scaled_sums(site, sums, shares.scale * value.scale, 0)


def _bytes(site: Site, value: Value) -> Quantized | None:
    """Bytes that are not constant, by one scale."""
    data = quantized(site, value)
    if data is None or data.axis is not None or site.array(data.value) is not None:
        return None
    return data


def _rounded_softmax(site: Site, shares: Quantized) -> Node | None:
    """The softmax over keys that bytes are the codes of, if nobody else reads any of it."""
    rounding = site.producer(shares.value)
    if rounding is None or rounding.op.name != QUANTIZE or not site.only_use(shares.value):
        return None
    scale, zero = site.array(rounding.args[1]), rounding.inputs[2:3]
    offset = site.array(zero[0]) if zero and zero[0] is not None else np.zeros(1, np.int32)
    if scale is None or offset is None or (scale.size, offset.size) != (1, 1):
        return None
    is_same = scale.reshape(()) == shares.scale and offset.reshape(()) == shares.zero_point
    softmax = site.producer(rounding.args[0])
    if softmax is None or softmax.op.name != "nn.softmax" or not is_same:
        return None
    if rounding.attrs.precision not in (None, DType.FLOAT32):
        return None
    is_last = softmax.attrs.axis in (-1, 3)
    return softmax if is_last and site.only_use(softmax.output) else None


@dataclass(frozen=True, slots=True)
class _Scores:
    """A product of queries and keys, the number that it is multiplied by, and what is added."""

    product: Node
    factor: float
    mask: Value | None


def _scores(site: Site, value: Value) -> _Scores | None:
    """What a softmax is of: product, times a number, plus a mask, where these are there at all."""
    factor, mask = 1.0, None
    shape = value.shape
    while True:
        node = site.producer(value)
        if node is None or not site.only_use(value) or node.output.shape != shape:
            return None
        if node.op.name == "nn.batch_matmul":
            return _Scores(node, factor, mask)
        if node.op.name == "add" and mask is None and factor == 1.0:
            value, mask = node.args
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
    """Whether a value may be scores: a product, or one times a number."""
    node = site.producer(value)
    while node is not None and node.op.name in ("multiply", "divide"):
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


def _in_fours(site: Site, value: Value, fill: int) -> Value:
    """Bytes that count for nothing behind each row, so that there are fours of them: where queries
    are their zero point, keys are multiplied by zero."""
    missing = -static_shape(value)[-1] % QUAD
    if not missing:
        return value
    padding = site.constant(np.array(fill, value.dtype.numpy))
    return site.emit("nn.pad", value, padding, pad_width=(0, 0, 0, 0, 0, 0, 0, missing))
