"""Removes operators that give back their operand: same shape, same dtype, same order, no change."""

from __future__ import annotations

from graft.base.dim_questions import provably_equal
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("eliminate_noops")


def eliminate_noops(graph: Graph) -> Graph:
    """Let readers of a no-op read its operand."""
    return apply_rules(graph, RULES)


def same_shape(first: Value, second: Value) -> bool:
    """Whether two tensors certainly have the same shape."""
    one, other = first.type, second.type
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return False
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return False
    return all(provably_equal(a, b) for a, b in zip(one.shape, other.shape, strict=True))


# Operators that only move elements, in order: equal shapes mean that nothing happens.
@RULES.rule(
    is_op("reshape", "squeeze", "expand_dims", "broadcast_to", "strided_slice", "tile", "nn.pad")
)
def movement_to_the_same_shape(site: Site) -> Replacement:
    data = site.node.args[0]
    if not same_shape(data, site.root):
        return Refusal("the shape changes")
    if site.node.op.name == "strided_slice" and _reverses(site):
        return Refusal("it reverses an axis")
    if site.node.op.name == "nn.pad" and _crops(site):
        return Refusal("it pads on one side and crops on the other")
    return data


def _reverses(site: Site) -> bool:
    strides = getattr(site.node.attrs, "strides", None)
    is_operand = len(site.node.inputs) > 4 and site.node.inputs[4] is not None
    return is_operand or any(not isinstance(s, int) or s < 0 for s in strides or ())


def _crops(site: Site) -> bool:
    widths = getattr(site.node.attrs, "pad_width", None)
    return widths is None or any(width != 0 for width in widths)


@RULES.rule(is_op("transpose"))
def transpose_in_order(site: Site) -> Replacement:
    data = site.node.args[0]
    axes = site.node.attrs.axes
    if axes is None or tuple(axes) != tuple(range(len(axes))):
        return Refusal("axes change places")
    return data if data.shape is not None else Refusal("the rank may not fit")


@RULES.rule(is_op("cast"))
def cast_to_the_same_dtype(site: Site) -> Replacement:
    data = site.node.args[0]
    return data if data.dtype == site.root.dtype else Refusal("the dtype changes")


@RULES.rule(is_op("concatenate", "sum", "mean", "max", "min", "prod"))
def nothing_to_combine(site: Site) -> Replacement:
    if site.node.op.name == "concatenate":
        single = len(site.node.args) == 1
        return site.node.args[0] if single else Refusal("several operands")
    data = site.node.args[0]
    axes = site.node.attrs.axes
    if len(site.node.args) > 1 or axes is None or len(axes) > 0:
        return Refusal("it reduces axes")
    return data if same_shape(data, site.root) else Refusal("the shape changes")


@RULES.rule(is_op("split"))
def split_into_one(site: Site) -> Replacement:
    if len(site.node.outputs) != 1:
        return Refusal("several results")
    return site.node.args[0]


@RULES.rule(is_op("demand"))
def demand_that_is_met(site: Site) -> Replacement:
    data, condition = site.node.args
    value = site.array(condition)
    if value is None or bool(value.all()) != site.node.attrs.wanted:
        return Refusal("the condition is not known, or not the wanted one")
    return data
