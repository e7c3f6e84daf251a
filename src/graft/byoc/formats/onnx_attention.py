"""`nn.attention` as ONNX nodes: two products and a softmax, which every opset and every peer has.

ONNX's Attention exists since opset 23, and has neither windows nor rows that attend to no key.
"""

from __future__ import annotations

import math

import numpy as np

from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_writer import Writer, extents, names, onnx_dtype, writes
from graft.ir.graph import Node, Value
from graft.ops.attention import visible_keys


@writes("nn.attention")
def _attention(writer: Writer, node: Node) -> None:
    _check(node)
    query, key, value = node.args[:3]
    scores = _scores(writer, node, query, key)
    bias = _bias(writer, node)
    if bias is not None:
        scores = writer.add(node, "biased", "Add", scores, bias)
    weights = _softmax(writer, node, scores, bias)
    heads = _groups(node)
    if heads is None:
        writer.emit("MatMul", [weights, value.name], names(node.outputs))
        return
    grouped = _reshape(writer, node, "weights_by_group", weights, [*heads, extents(key)[2]])
    product = writer.add(node, "result_by_group", "MatMul", grouped, value.name)
    shape = writer.integers(node, "result_shape", extents(node.outputs[0]))
    writer.emit("Reshape", [product, shape], names(node.outputs))


def _check(node: Node) -> None:
    attrs = node.attrs
    _, lengths, offset = [*node.inputs[3:], None, None, None][:3]
    if lengths is not None or offset is not None or not isinstance(attrs.offset, int):
        reason = "positions that are known at run time only have no ONNX form here"
        raise UnsupportedError(f"nn.attention: {reason}", node.location)
    if attrs.scores != "none":
        reason = f"scores as a second result ('{attrs.scores}') have no ONNX form here"
        raise UnsupportedError(f"nn.attention: {reason}", node.location)
    if any(dim == 0 for value in node.args[:3] for dim in value.tensor.shape or ()):
        raise UnsupportedError("nn.attention: nothing to attend to", node.location)


def _groups(node: Node) -> list[int] | None:
    """Batch, key heads, and queries per key head; None if each head has keys of its own."""
    query, key = node.args[:2]
    if (query.tensor.shape or ())[1:2] == (key.tensor.shape or ())[1:2]:
        return None
    batch, heads, queries, _ = extents(query)
    key_heads = extents(key)[1]
    return [batch, key_heads, heads // key_heads * queries]


def _scores(writer: Writer, node: Node, query: Value, key: Value) -> str:
    """Scaled products of queries and keys, with the node's softcap."""
    attrs, dtype = node.attrs, node.args[0].dtype.numpy
    scale = attrs.scale
    if scale is None:
        size = (query.tensor.shape or (None,) * 4)[3]
        if not isinstance(size, int):
            raise UnsupportedError("nn.attention: the size of a head is not known", node.location)
        scale = 1 / math.sqrt(size)
    factor = writer.constant(writer.name(node, "scale"), np.array(scale, dtype))
    scaled = writer.add(node, "scaled", "Mul", query.name, factor)
    heads = _groups(node)
    if heads is not None:
        scaled = _reshape(writer, node, "query_by_group", scaled, [*heads, extents(query)[3]])
    transposed = writer.add(node, "key_transposed", "Transpose", key.name, perm=[0, 1, 3, 2])
    scores = writer.add(node, "scores", "MatMul", scaled, transposed)
    if heads is not None:
        shape = [*extents(query)[:3], extents(key)[2]]
        scores = _reshape(writer, node, "scores_by_head", scores, shape)
    if attrs.softcap == 0:
        return scores
    limit = writer.constant(writer.name(node, "softcap"), np.array(attrs.softcap, dtype))
    relative = writer.add(node, "relative", "Div", scores, limit)
    bent = writer.add(node, "bent", "Tanh", relative)
    return writer.add(node, "capped", "Mul", bent, limit)


def _bias(writer: Writer, node: Node) -> str | None:
    """The bias of scores: the mask, and minus infinity where a query does not attend to a key."""
    attrs, dtype = node.attrs, node.args[0].dtype.numpy
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    hidden = np.array(-np.inf, dtype)
    visible = None
    if attrs.causal or max(attrs.left_window, attrs.right_window) >= 0:
        queries, keys = extents(node.args[0])[2], extents(node.args[1])[2]
        visible = visible_keys(attrs, queries, keys, None, None)
    if mask is None:
        if visible is None:
            return None
        return writer.constant(writer.name(node, "bias"), np.where(visible, 0, hidden))
    bias = mask.name
    if mask.dtype is DType.BOOL:
        zero = writer.constant(writer.name(node, "zero"), np.array(0, dtype))
        out_of_sight = writer.constant(writer.name(node, "hidden"), hidden)
        bias = writer.add(node, "mask", "Where", bias, zero, out_of_sight)
    if visible is not None:
        seen = writer.constant(writer.name(node, "visible"), visible)
        out_of_sight = writer.constant(writer.name(node, "hidden"), hidden)
        bias = writer.add(node, "bias", "Where", seen, bias, out_of_sight)
    return bias


def _softmax(writer: Writer, node: Node, scores: str, bias: str | None) -> str:
    """Probabilities; a row that attends to no key is all zeros, where a softmax alone gives NaN."""
    dtype, narrow = node.args[0].dtype, node.attrs.softmax_dtype
    converted = narrow not in (None, dtype)
    if converted:
        scores = writer.add(node, "scores_cast", "Cast", scores, to=onnx_dtype(narrow))
    weights = writer.add(node, "weights", "Softmax", scores, axis=-1)
    if converted:
        weights = writer.add(node, "weights_cast", "Cast", weights, to=onnx_dtype(dtype))
    if bias is None:
        return weights
    axes = writer.integers(node, "axes", [-1])
    greatest = writer.add(node, "greatest", "ReduceMax", bias, axes)
    hidden = writer.constant(writer.name(node, "hidden"), np.array(-np.inf, dtype.numpy))
    blind = writer.add(node, "blind", "Equal", greatest, hidden)
    zero = writer.constant(writer.name(node, "zero"), np.array(0, dtype.numpy))
    return writer.add(node, "seen", "Where", blind, zero, weights)


def _reshape(writer: Writer, node: Node, what: str, operand: str, shape: list[int]) -> str:
    target = writer.integers(node, f"{what}_shape", shape)
    return writer.add(node, what, "Reshape", operand, target)
