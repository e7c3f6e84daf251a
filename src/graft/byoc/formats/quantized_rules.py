"""Quantised units as NPUs know them: a region in, one whose units hold one operator each out.

An activation inside a unit becomes a unit of its own; an operator that only moves elements is done
on integers, which are requantised before. All results are the same to the bit.
"""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import Array
from graft.byoc.formats.quantized import ACTIVATIONS
from graft.ir.graph import Graph, Node
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, wildcard
from graft.rewrite.rule import Refusal, Replacement, RuleSet

MOVEMENT = ("nn.max_pool2d", "reshape", "transpose", "squeeze", "expand_dims", "strided_slice")

RULES = RuleSet("split units")


def split_units(region: Graph) -> Graph:
    """The region with one operator between any dequantisation and the quantisation behind it."""
    return apply_rules(region, RULES)


@RULES.rule(is_op("qnn.quantize")(is_op(*ACTIVATIONS)(wildcard()), wildcard(), wildcard()))
def _activation(site: Site) -> Replacement:
    """Quantisation is monotone, so that it commutes with clipping. What clips no more than the
    quantisation does goes."""
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


def binding(activation: Node, scale: Array, zero: Array) -> tuple[bool, bool]:
    """Whether the lower and the upper bound of an activation lie inside of what quantisation by
    this scale and zero point can represent; a bound that is an operand always may."""
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
