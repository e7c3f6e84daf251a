"""Folds per-channel scales, shifts and batch normalisation into the weights before them.

`conv(x, W) + b`, scaled by `s` and shifted by `t` per channel, is `conv(x, W*s) + (b*s + t)`.
The new weights are computed in float64 and rounded once. What cannot be folded (a batch norm behind
something else than a convolution or dense layer) becomes one multiplication and one addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.ir.graph import Graph, Node, Value
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("fold_affine")

_CONVS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_TRANSPOSED = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
LAYERS = (*_CONVS, *_TRANSPOSED, "nn.dense")


def fold_affine(graph: Graph) -> Graph:
    """Apply the rules until none fits."""
    with np.errstate(all="ignore"):  # what overflows is not folded
        return apply_rules(graph, RULES)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A linear layer with constant weights and, maybe, bias, whose result has one reader."""

    node: Node
    weight: Array
    bias: Array | None
    axis: int  # of the output channels in the result


def _layer(site: Site, value: Value) -> _Layer | Refusal:
    node = site.producer(value)
    bias: Array | None = None
    bias_axis: int | None = None
    if node is not None and node.op.name == "nn.bias_add" and site.only_use(value):
        bias, bias_axis = site.array(node.args[1]), node.attrs.axis
        if bias is None:
            return Refusal("the bias is not constant")
        value = node.args[0]
        node = site.producer(value)
    if node is None or node.op.name not in LAYERS:
        return Refusal("there is no linear layer before it")
    if not site.only_use(value):
        return Refusal("others read the layer's result")
    weight = site.array(node.args[1])
    if weight is None or not value.dtype.is_float:
        return Refusal("the weights are not floating-point constants")
    rank = value.tensor.rank
    if rank is None:
        return Refusal("the rank is unknown")
    axis = rank - 1 if node.op.name == "nn.dense" else 1
    if bias_axis is not None and bias_axis % rank != axis:
        return Refusal("the bias is not one number per channel")
    return _Layer(node, weight, bias, axis)


def _scaled(layer: _Layer, scale: Array) -> Array:
    """The weights with each output channel scaled."""
    weight = layer.weight.astype(np.float64)
    if layer.node.op.name in _TRANSPOSED:
        groups: int = layer.node.attrs.groups
        inputs, outputs = weight.shape[0], weight.shape[1]
        grouped = weight.reshape(groups, inputs // groups, outputs, -1)
        scaled = grouped * scale.reshape(groups, 1, outputs, 1)
        return scaled.reshape(weight.shape)
    return np.asarray(weight * scale.reshape(-1, *[1] * (weight.ndim - 1)))


def _rebuild(site: Site, layer: _Layer, scale: Array | None, shift: Array | None) -> Replacement:
    """The layer with its results scaled and shifted per channel."""
    dtype = layer.weight.dtype
    weight = layer.weight if scale is None else _scaled(layer, scale).astype(dtype)
    bias = np.zeros(1) if layer.bias is None else layer.bias.astype(np.float64)
    bias = (bias if scale is None else bias * scale) + (0 if shift is None else shift)
    bias = bias.astype(dtype)
    if not _finite(bias) or (scale is not None and not _finite(weight)):
        return Refusal("the new weights are not finite, and 0 times infinity is not 0")
    weights = layer.node.args[1] if scale is None else site.constant(weight)
    result = site.again(layer.node, layer.node.args[0], weights)
    if layer.bias is None and shift is None:
        return result
    return site.emit("nn.bias_add", result, site.constant(bias), axis=layer.axis)


def _finite(*arrays: Array) -> bool:
    return all(bool(np.isfinite(array.astype(np.float64)).all()) for array in arrays)


@RULES.rule(is_op("nn.batch_norm"))
def batch_norm_after_layer(site: Site) -> Replacement:
    layer = _layer(site, site.node.args[0])
    if isinstance(layer, Refusal):
        return layer
    affine = _batch_norm_affine(site)
    rank = len(site.root.shape or ())
    if affine is None or site.node.attrs.axis % rank != layer.axis:
        return Refusal("the statistics are not constants of the layer's channels")
    return _rebuild(site, layer, *affine)


@RULES.rule(is_op("nn.batch_norm"))
def batch_norm_alone(site: Site) -> Replacement:
    affine = _batch_norm_affine(site)
    data = site.node.args[0]
    rank = data.tensor.rank
    if affine is None or rank is None or not data.dtype.is_float:
        return Refusal("the statistics are not constant")
    axis: int = site.node.attrs.axis
    shape = [1] * rank
    shape[axis] = -1
    scale, shift = (a.reshape(shape).astype(data.dtype.numpy) for a in affine)
    if not _finite(scale, shift):
        return Refusal("scale or shift is not finite")
    return site.emit("add", site.emit("multiply", data, site.constant(scale)), site.constant(shift))


def _batch_norm_affine(site: Site) -> tuple[Array, Array] | None:
    """Batch normalisation as scale and shift, where its statistics are constant."""
    arrays = [site.array(value) for value in site.node.args[1:]]
    if len(arrays) != 4 or any(array is None for array in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(a).astype(np.float64) for a in arrays)
    epsilon: float = site.node.attrs.epsilon
    scale = gamma / np.sqrt(variance + epsilon)
    return scale, beta - mean * scale


def _per_channel(site: Site, layer: _Layer, value: Value, result: Value) -> Array | None:
    """A constant operand as one number per output channel, where it is one."""
    array = site.array(value)
    shape = result.shape
    if array is None or shape is None or array.ndim > len(shape):
        return None
    channels = layer.weight.shape[0]
    if layer.node.op.name in _TRANSPOSED:
        channels = layer.weight.shape[1] * layer.node.attrs.groups
    full = array.reshape([1] * (len(shape) - array.ndim) + list(array.shape))
    others = [extent for axis, extent in enumerate(full.shape) if axis != layer.axis]
    if any(extent != 1 for extent in others) or full.shape[layer.axis] not in (1, channels):
        return None
    return np.broadcast_to(full.reshape(-1), (channels,)).astype(np.float64)


@RULES.rule(is_op("multiply", "add"))
def constant_after_layer(site: Site) -> Replacement:
    for data, constant in (site.node.args, site.node.args[::-1]):
        layer = _layer(site, data)
        if isinstance(layer, Refusal):
            continue
        numbers = _per_channel(site, layer, constant, data)
        if numbers is not None and site.root.type == data.type:
            is_scale = site.node.op.name == "multiply"
            return _rebuild(
                site, layer, numbers if is_scale else None, None if is_scale else numbers
            )
    return Refusal("no operand is a linear layer and the other one number per channel")
