"""Makes integer arithmetic of quantised layers.

A graph enters in which narrow integers are dequantised, multiplied and summed as floats, and
quantised again. Convolutions and dense layers with constant weights leave as exact sums of
integers; the scales of data, weights and result become one factor behind them. What lies between
such a layer and the next quantisation (bias, residual, activation) is computed in units of that
quantisation, so that nothing is left of it but rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.backends.host.kernels.integer_weights import QUAD
from graft.backends.host.passes.byte_attention import ATTENTIONS
from graft.backends.host.passes.byte_products import (
    Bytes,
    are_known,
    byte_product,
    centred_bytes,
    turned_back,
)
from graft.backends.host.passes.quantized_values import (
    DEQUANTIZE,
    QUANTIZE,
    quantized,
    scaled_sums,
    sums_of,
    zero_point_of,
)
from graft.backends.host.passes.rounding import ROUNDINGS
from graft.backends.host.storage import static_shape
from graft.base.dtypes import Array, DType
from graft.ir.attrs import as_keywords
from graft.ir.graph import Graph, Node, Value
from graft.passes.fold_constants import FoldOptions, fold_constants
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

_CONVOLUTIONS = ("qnn.conv1d", "qnn.conv2d", "qnn.conv3d")
INTEGER_LAYERS = (*_CONVOLUTIONS, "qnn.dense")
LAYERS = {name.replace("qnn.", "nn."): name for name in INTEGER_LAYERS}

_MOVES = RuleSet("moved_bytes")
_LAYERS = RuleSet("integer_layers")

# Products of this many bytes cannot add up to more than an int32 holds.
_MOST_TERMS = 1 << 16
# The same where both factors may be as much as 255.
_MOST_PRODUCTS = 1 << 15
_MOST_SUM = (1 << 31) - 1
# Operators that take elements as they are: what they do to numbers they do to their codes.
_MOVING = (
    "nn.max_pool1d",
    "nn.max_pool2d",
    "nn.max_pool3d",
    "resize",
    "reshape",
    "transpose",
    "squeeze",
    "expand_dims",
    "strided_slice",
)
_JOINING = "concatenate"
# How far the scale of a bias may be from the product of the other scales.
_SAME_SCALE = 1e-5


def use_integers(graph: Graph) -> Graph:
    """Whole attentions, then layers, then what is between them; dequantised constants that are left
    are folded."""
    for rules in (_MOVES, ATTENTIONS, _LAYERS, *ROUNDINGS):
        graph = apply_rules(graph, rules)
    return fold_constants(graph, FoldOptions(growth=8, kept=frozenset()))


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights without a zero point, [outputs, ...], and their scale: one, or one per output."""

    array: Array
    scale: Array


def _weights(site: Site, value: Value) -> _Weights | None:
    """Constant weights as the model stores them."""
    node = site.producer(value)
    transposed = node is not None and node.op.name == "transpose" and node.attrs.axes == (1, 0)
    stored = quantized(site, node.args[0] if transposed and node is not None else value)
    array = None if stored is None else site.array(stored.value)
    if stored is None or array is None:
        return None
    outputs = 1 if transposed else 0
    if stored.axis not in (None, outputs):
        return None
    along = [1] * array.ndim
    along[outputs] = -1
    centred = array.astype(np.int16) - stored.zero_point.astype(np.int16).reshape(along)
    if centred.size == 0 or centred.min() < -128 or centred.max() > 127:
        return None
    narrow = centred.astype(np.int8)
    scale = stored.scale.reshape(()) if stored.scale.size == 1 else stored.scale
    return _Weights(np.ascontiguousarray(narrow.T) if transposed else narrow, scale)


@_LAYERS.rule(is_op(*LAYERS))
def integer_layer(site: Site) -> Replacement:
    node = site.node
    data, weights = quantized(site, node.args[0]), _weights(site, node.args[1])
    if data is None or data.axis is not None or weights is None:
        return Refusal("data or weights are not dequantised from constant scales")
    if np.prod(weights.array.shape[1:]) > _MOST_TERMS:
        return Refusal("the sums may not fit into int32")
    value, array = data.value, weights.array
    is_dense = node.op.name == "nn.dense"
    is_flat = not is_dense and array.ndim < 5  # channels of volumes are filled up by `fold_depth`
    if is_flat and node.attrs.groups == 1 and array.shape[1] % QUAD:
        value, array = _more_channels(site, value, array)
    zero = site.constant(data.zero_point.astype(value.dtype.numpy))
    layer, attrs = LAYERS[node.op.name], as_keywords(node.attrs)
    sums = site.emit(layer, value, site.constant(array), zero, **attrs)
    behind = 0 if is_dense else array.ndim - 2
    return scaled_sums(site, sums, data.scale * weights.scale, behind)


def _more_channels(site: Site, data: Value, weight: Array) -> tuple[Value, Array]:
    """Channels that count for nothing, so that there are fours of them."""
    missing = -weight.shape[1] % QUAD
    widths = [(0, missing if axis == 1 else 0) for axis in range(weight.ndim)]
    before, behind = zip(*widths, strict=True)
    padded = site.emit("nn.pad", data, pad_width=(*before, *behind))
    return padded, np.pad(weight, widths)


@_LAYERS.rule(is_op("nn.bias_add", "add"))
def integer_bias(site: Site) -> Replacement:
    """A bias that was quantised by the scale of the sums is added to them."""
    node = site.node
    scaled = sums_of(site, node.args[0])
    source = site.producer(node.args[1])
    if scaled is None or source is None or source.op.name != DEQUANTIZE:
        return Refusal("no quantised bias is added to integer sums")
    whole, scale = site.array(source.args[0]), site.array(source.args[1])
    zero = zero_point_of(site, source)
    if whole is None or whole.dtype != np.int32 or scale is None or zero is None or np.any(zero):
        return Refusal("the bias is not of constant int32 without a zero point")
    expected = scaled.scale.reshape(-1)
    if whole.ndim != 1 or not np.allclose(scale.reshape(-1), expected, rtol=_SAME_SCALE, atol=0):
        return Refusal("the scale of the bias is not that of the sums")
    rank, producer = node.output.tensor.rank, site.producer(scaled.sums)
    if rank is None or producer is None:
        return Refusal("the axis of the outputs is not known")
    axis = 1 if producer.op.name in _CONVOLUTIONS else rank - 1
    if (node.attrs.axis % rank if node.op.name == "nn.bias_add" else rank - 1) != axis:
        return Refusal("the bias runs along another axis")
    weights = site.array(producer.args[1]) if producer.op.name in INTEGER_LAYERS else None
    if np.max(np.abs(whole.astype(np.int64)) + _largest_products(weights)) > _MOST_SUM:
        return Refusal("the sums with their bias may not fit into int32")
    sums = site.emit("nn.bias_add", scaled.sums, site.constant(whole), axis=axis)
    return scaled_sums(
        site, sums, expected if expected.size > 1 else expected.reshape(()), rank - 1 - axis
    )


def _largest_products(weights: Array | None) -> Array:
    """What the sums of a layer's products can come to, of each output where weights are known."""
    if weights is None:
        return np.asarray(_MOST_PRODUCTS * 255 * 255)
    sums = np.abs(weights.astype(np.int16)).reshape(len(weights), -1).sum(1, dtype=np.int64)
    return np.asarray(255 * sums)


@_LAYERS.rule(is_op("nn.batch_matmul"))
def byte_matmul(site: Site) -> Replacement:
    """A product of matrices that are both data."""
    node = site.node
    if node.attrs.transpose_a or node.attrs.transpose_b or not are_known(*node.args):
        return Refusal("matrices are transposed, or of sizes that only the run tells")
    if node.output.dtype is DType.INT32:
        whole = [centred_bytes(site, value) for value in node.args]
        if whole[0] is None or whole[1] is None:
            return Refusal("what is multiplied are not bytes less a single zero point")
        return byte_product(site, whole[0], whole[1])
    left, right = (quantized(site, value) for value in node.args)
    if left is None or right is None or left.axis is not None or right.axis is not None:
        return Refusal("matrices are not dequantised from one constant scale each")
    if any(site.array(one.value) is not None for one in (left, right)):
        return Refusal("a matrix is constant")
    if static_shape(left.value)[-1] > _MOST_PRODUCTS:
        return Refusal("the sums may not fit into int32")
    operands = [Bytes(one.value, int(one.zero_point)) for one in (left, right)]
    operands[1] = turned_back(site, operands[1])
    return scaled_sums(site, byte_product(site, *operands), left.scale * right.scale, 0)


@_MOVES.rule(is_op("transpose", "reshape"))
def dequantised_later(site: Site) -> Replacement:
    """Bytes are moved rather than the floats that they stand for, and layers see the bytes."""
    node = site.node
    data = quantized(site, node.args[0])
    if data is None or data.axis is not None or site.array(data.value) is not None:
        return Refusal("what is moved are not bytes dequantised by one constant scale")
    source = site.producer(node.args[0])
    assert source is not None
    moved = site.again(node, data.value, *node.inputs[1:])
    return site.again(source, moved, *source.inputs[1:])


@_LAYERS.rule(is_op(*INTEGER_LAYERS))
def narrow_weights(site: Site) -> Replacement:
    """Weights that 8 bits hold; their zero point may have been all that made them wider."""
    node = site.node
    weight = site.array(node.args[1])
    if weight is None or weight.dtype == np.int8 or not weight.size:
        return Refusal("the weights are not constant, or of 8 bits")
    if weight.min() < -128 or weight.max() > 127:
        return Refusal("8 bits do not hold the weights")
    inputs = (node.inputs[0], site.constant(weight.astype(np.int8)), *node.inputs[2:])
    return site.again(node, *inputs)


@_LAYERS.rule(is_op("qnn.dense"))
def zero_point_at_run_time(site: Site) -> Replacement:
    """A zero point that is not constant is subtracted times the sums of the weights."""
    node = site.node
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    weight = site.array(node.args[1])
    if zero is None or site.array(zero) is not None or weight is None:
        return Refusal("the zero point is constant, or the weights are not")
    totals = site.constant(weight.astype(np.int32).sum(axis=1, dtype=np.int32))
    wide = site.emit("cast", zero, dtype=DType.INT32)
    rank = zero.tensor.rank
    if rank:
        wide = site.emit("squeeze", wide, axes=tuple(range(rank)))
    sums = site.again(node, node.inputs[0], node.inputs[1])
    return site.emit("subtract", sums, site.emit("multiply", totals, wide))


@_LAYERS.rule(is_op(QUANTIZE))
def moved_codes(site: Site) -> Replacement:
    """What only moves numbers, quantised as before, moves their codes."""
    node = site.node
    scale, zero = site.array(node.args[1]), zero_point_of(site, node)
    inner = site.producer(node.args[0])
    moves = inner is not None and inner.op.name in (*_MOVING, _JOINING) and _picks(inner)
    if inner is None or not moves or not site.only_use(inner.output):
        inner = None
    joins = inner is not None and inner.op.name == _JOINING
    moved = node.args[:1] if inner is None else inner.args[: None if joins else 1]
    codes: list[Value | None] = []
    for data in (quantized(site, value) for value in moved):
        if (
            data is None
            or data.axis is not None
            or scale is None
            or zero is None
            or scale.size != 1
        ):
            return Refusal("it does not quantise what was dequantised")
        same = data.value.dtype is node.output.dtype and int(zero.reshape(-1)[0]) == data.zero_point
        if not same or float(scale.reshape(-1)[0]) != float(data.scale):
            return Refusal("it quantises in another way than before")
        codes.append(data.value)
    if inner is None:
        assert codes[0] is not None
        return codes[0]
    return site.again(inner, *codes, *inner.inputs[len(codes) :])


def _picks(node: Node) -> bool:
    """Whether every element of the result is one of the data's."""
    if node.op.name != "resize":
        return True
    attrs = node.attrs
    is_inside = attrs.coordinate_transformation_mode != "tf_crop_and_resize"
    return bool(attrs.method == "nearest_neighbor" and is_inside)
