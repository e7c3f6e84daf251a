"""Moves transposes down past elementwise operators, to where they meet others and cancel."""

from __future__ import annotations

from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Kind
from graft.ops import OPS
from graft.passes.simplify_movement import transpose_of_transpose
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("sink_transposes")
# Transposes that meet become one before they sink on: if each sank past all operators between, the
# steps would be as many as the square of their number.
RULES.rule(is_op("transpose"))(transpose_of_transpose)


def sink_transposes(graph: Graph) -> Graph:
    """Apply the rules until none fits; each application moves a transpose towards the outputs."""
    return apply_rules(graph, RULES)


_KINDS = (Kind.ELEMENTWISE, Kind.BROADCAST)
_POINTWISE = tuple(name for name in OPS if OPS.get(name).kind in _KINDS)


@RULES.rule(is_op(*_POINTWISE))
def transpose_before_elementwise(site: Site) -> Replacement:
    sources = [_transpose(site, value) for value in site.node.args]
    axes = {node.attrs.axes for node in sources if node is not None}
    if len(axes) != 1 or None in axes or None in site.node.inputs:
        return Refusal("the operands are not transposed one way")
    if any(node is not None and _transpose(site, node.args[0]) for node in sources):
        return Refusal("transposes become one before they sink")
    order = next(iter(axes))
    operands: list[Value] = []
    for value, source in zip(site.node.args, sources, strict=True):
        if source is not None:
            operands.append(source.args[0])
        elif value.tensor.size == 1 and (value.tensor.rank or 0) <= len(order):
            operands.append(value)
        else:
            return Refusal("an operand is not transposed")
    if hasattr(site.node.attrs, "axis") or len(site.node.outputs) != 1:
        return Refusal("it works along an axis")
    return site.emit("transpose", site.again(site.node, *operands), axes=order)


def _transpose(site: Site, value: Value) -> Node | None:
    """The transpose that only this node reads, if the value is one."""
    node = site.producer(value)
    if node is None or node.op.name != "transpose" or not site.only_use(value):
        return None
    return node
