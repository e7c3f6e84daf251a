"""Keeps weights of 4 bits as they are where reading them is what a layer takes its time for.

A graph enters in which dense layers have constant weights that are dequantised from 4 bits by a
scale for each block of inputs. Layers of few rows, or of rows that nobody has counted, leave as
`mixed.block_dense`. Layers of many rows are bound by their products: for those weights are
dequantised once, when the model is compiled.
"""

from __future__ import annotations

import math

import numpy as np

from graft.backends.host.kernels.block_dense import PER_WORD
from graft.base.dtypes import Array, DType
from graft.ir.graph import Graph, Node
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet
from graft.target.register_tile import stream_cycles
from graft.target.target import Target

_DEQUANTIZE = "qnn.dequantize"
_FLOAT = 4  # bytes
_MIDDLE = 8  # of the codes 0 to 15


def use_nibbles(graph: Graph, target: Target) -> Graph:
    """All such layers of a graph."""
    rules = RuleSet("nibble_layers")

    @rules.rule(is_op("nn.dense"))
    def nibble_layer(site: Site) -> Replacement:
        node = site.node
        source = site.producer(node.args[1])
        if source is None or source.op.name != _DEQUANTIZE or not source.attrs.block_size:
            return Refusal("the weights are not dequantised by blocks")
        block, axis = source.attrs.block_size, source.attrs.axis
        codes, scale = site.array(source.args[0]), site.array(source.args[1])
        zero = None if len(source.args) < 3 else site.array(source.args[2])
        if codes is None or scale is None or (zero is None and len(source.args) > 2):
            return Refusal("weights, scales or zero points are not constant")
        if axis % 2 != 1 or codes.shape[1] % block or block % PER_WORD:
            return Refusal("blocks are not of whole eights of inputs")
        floats = (node.args[0].dtype, source.output.dtype, node.output.dtype)
        if any(dtype is not DType.FLOAT32 for dtype in floats):
            return Refusal("the layer does not compute in float32")
        if not reads_longer(target, codes, node):
            return Refusal("the layer has rows enough to be bound by its products")
        weights = _packed(codes, None if zero is None else np.broadcast_to(zero, scale.shape))
        if weights is None:
            return Refusal("4 bits do not hold the weights")
        narrow, *zeros = (site.constant(weight) for weight in weights)
        operands = (node.args[0], narrow, site.constant(_exactly_half(scale)), *zeros)
        return site.emit("mixed.block_dense", *operands, block_size=block)

    return apply_rules(graph, rules)


def reads_longer(target: Target, codes: Array, node: Node) -> bool:
    """Whether a vector of the weights takes longer to arrive as floats than to be multiplied by all
    rows; rows that nobody has counted may be few."""
    shape = node.args[0].tensor.shape
    rows = [dim for dim in (shape or ())[:-1] if isinstance(dim, int)]
    if shape is None or len(rows) < len(shape) - 1:
        return True
    machine = target.machine
    sizes = [cache.size / 2 for cache in machine.caches[1:]]
    level = sum(size < codes.size * _FLOAT for size in sizes)
    arrives = stream_cycles(machine, machine.vector_bits / 8, level)
    return arrives > math.prod(rows) / machine.vector_fmas


def _packed(codes: Array, zero: Array | None) -> tuple[Array, ...] | None:
    """Signed codes, where all zero points are alike and can be taken off; or codes without a sign
    and the zero points. None where these are no 4 bits."""
    whole = codes.astype(np.int16)
    offset = 0 if zero is None or not zero.size else int(zero.reshape(-1)[0])
    if zero is None or np.all(zero == offset):
        centred = whole - offset
        if centred.min(initial=0) >= -_MIDDLE and centred.max(initial=0) < _MIDDLE:
            return (centred.astype(DType.INT4.numpy),)
    if zero is None or whole.min(initial=0) < 0 or whole.max(initial=0) >= 2 * _MIDDLE:
        return None
    if zero.min(initial=0) < 0:
        return None
    return whole.astype(DType.UINT4.numpy), zero.astype(np.uint8)


def _exactly_half(scale: Array) -> Array:
    """The scales in 16 bits, where these hold them exactly."""
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    return half if np.array_equal(half.astype(scale.dtype), scale) else scale.astype(np.float32)
