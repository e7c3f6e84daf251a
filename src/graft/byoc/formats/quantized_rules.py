"""Splits quantised units into units of one operator, which NPUs support.

An activation inside a unit becomes a unit of its own; an operator that only moves elements moves
integers, which are requantised before: results are bit-identical. A tensor added to a layer's
result is added in 16 bits, within a step of the result.
"""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import Array, DType
from graft.byoc.formats.quantized import ACTIVATIONS, LAYERS, dequantized
from graft.ir.graph import Graph, Node, Value
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, wildcard
from graft.rewrite.rule import Refusal, Replacement, RuleSet

MOVEMENT = ("nn.max_pool2d", "reshape", "transpose", "squeeze", "expand_dims", "strided_slice")

RULES = RuleSet("split units")


def split_units(region: Graph) -> Graph:
    """The region with at most one operator between a dequantisation and a quantisation."""
    return apply_rules(region, RULES)


@RULES.rule(is_op("qnn.quantize")(is_op(*ACTIVATIONS)(wildcard()), wildcard(), wildcard()))
def _activation(site: Site) -> Replacement:
    """Quantisation is monotone and commutes with clipping. An activation that clips no more than
    the quantisation is removed."""
    activation = _producer(site, site.node)
    data, parameters = activation.args[0], site.node.inputs[1:]
    scale, zero = map(site.array, parameters)
    if scale is None or zero is None:
        return Refusal("scale and zero point are not constant")
    if not any(binding(activation, scale, zero)):
        return site.again(site.node, data, *parameters)
    before = site.producer(data)
    if before is None or before.op.name == "qnn.dequantize":
        return Refusal("it is a unit of its own")
    narrow = site.again(site.node, data, *parameters)
    wide = site.emit("qnn.dequantize", narrow, *parameters, axis=site.node.attrs.axis)
    return site.again(site.node, site.again(activation, wide, *activation.inputs[1:]), *parameters)


@RULES.rule(is_op("qnn.quantize")(is_op(*MOVEMENT)(wildcard()), wildcard(), wildcard()))
def _movement(site: Site) -> Replacement:
    moved = _producer(site, site.node)
    source = site.producer(moved.args[0])
    if source is None or source.op.name != "qnn.dequantize":
        return Refusal("it is not the first of its unit")
    own, other = source.inputs[1:], site.node.inputs[1:]
    arrays, others = [site.array(value) for value in own], [site.array(value) for value in other]
    if any(array is None or array.size != 1 for array in (*arrays, *others)):
        return Refusal("scale and zero point are not constant, or not the same for all elements")
    if len(own) == len(other) and all(map(_same, arrays, others)):
        return Refusal("it is on integers already")
    narrow = site.again(site.node, source.output, *other)
    wide = site.emit("qnn.dequantize", narrow, *other, axis=site.node.attrs.axis)
    return site.again(site.node, site.again(moved, wide, *moved.inputs[1:]), *other)


@RULES.rule(
    is_op("qnn.quantize")(
        is_op("add")(
            is_op(*LAYERS, "nn.bias_add")(wildcard(), wildcard()), dequantized(wildcard())
        ),
        wildcard(),
        wildcard(),
    )
)
def _sum_behind_layer(site: Site) -> Replacement:
    """Layer and sum on 16-bit codes, which represent the operands exactly, then a conversion. The
    layer's result saturates only where the sum would."""
    add = _producer(site, site.node)
    makers = [site.producer(value) for value in add.args]
    layer = next(one for one in makers if one is not None and one.op.name != "qnn.dequantize")
    bias, other = None, add.args[1 - makers.index(layer)]
    if layer.op.name == "nn.bias_add":
        bias, layer = layer, _producer(site, layer)
    result, added = _range(site, site.node), _range(site, site.producer(other))
    data, shortcut = (_widened(site, one) for one in (layer.args[0], other))
    if data is None or shortcut is None or result is None or added is None:
        return Refusal("scales and zero points are not constant, or not the same for all elements")
    (scale, low, high), (_, least, most) = result, added
    sums = site.again(layer, data, *layer.inputs[1:])
    sums = site.again(bias, sums, *bias.inputs[1:]) if bias else sums
    own = _through_16_bits(site, sums, (high - least - low + most) / _MOST, low - most)
    total = site.again(add, *(own if one is not other else shortcut for one in add.args))
    total = _through_16_bits(site, total, scale / 256, low)
    return site.again(site.node, total, *site.node.inputs[1:])


_MOST = 65535  # codes of 16 bits above the lowest


def _range(site: Site, node: Node | None) -> tuple[float, float, float] | None:
    """Scale, and the lowest and highest float that a (de)quantisation of bytes represents."""
    arrays = [site.array(value) for value in node.inputs[1:]] if node else []
    if len(arrays) != 2 or any(array is None or array.size != 1 for array in arrays):
        return None
    scale, zero = (array for array in arrays if array is not None)
    info, step, origin = np.iinfo(zero.dtype), float(scale.item()), int(zero.item())
    return step, (int(info.min) - origin) * step, (int(info.max) - origin) * step


def _widened(site: Site, value: Value) -> Value | None:
    """Dequantised bytes, exactly, as 16-bit codes with finer steps."""
    bounds = _range(site, site.producer(value))
    return _through_16_bits(site, value, bounds[0] / 256, bounds[1]) if bounds else None


def _through_16_bits(site: Site, value: Value, scale: float, low: float) -> Value:
    """A value quantised to 16 bits from a lowest float up, and dequantised."""
    zero = np.uint16(np.clip(np.rint(-low / scale), 0, _MOST))
    parameters = site.constant(np.float32(scale)), site.constant(zero)
    codes = site.emit("qnn.quantize", value, *parameters, dtype=DType.UINT16)
    return site.emit("qnn.dequantize", codes, *parameters)


def binding(activation: Node, scale: Array, zero: Array) -> tuple[bool, bool]:
    """Whether the lower and the upper bound of an activation lie within the range of this scale and
    zero point; a bound that is an operand may."""
    limits, attrs = np.iinfo(zero.dtype), activation.attrs
    if len(activation.args) > 1:
        return True, True
    low, high = (0.0, None) if activation.op.name == "nn.relu" else (attrs.a_min, attrs.a_max)
    return (
        low is not None and bool((np.rint(low / scale) + zero > limits.min).any()),
        high is not None and bool((np.rint(high / scale) + zero < limits.max).any()),
    )


def _producer(site: Site, node: Node) -> Node:
    producer = site.producer(node.args[0])
    assert producer is not None  # the pattern names it
    return producer


def _same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return False
    return one.dtype == other.dtype and np.array_equal(one, other)
