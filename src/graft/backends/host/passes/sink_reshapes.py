"""Moves reshapes down past pointwise operators, which then join the kernel of their operand.

An activation that stands behind a reshape, as between a convolution and the rows of a transformer,
would else be computed by a kernel that moves elements. Operators with one operand that is no single
number qualify, behind a reshape without another reader.
"""

from __future__ import annotations

from graft.ir.graph import Graph, Value
from graft.ir.op import Kind
from graft.ops import OPS
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("sink_reshapes")

_KINDS = (Kind.ELEMENTWISE, Kind.BROADCAST)
_POINTWISE = tuple(name for name in OPS if OPS.get(name).kind in _KINDS)


def sink_reshapes(graph: Graph) -> Graph:
    """Apply the rule until it fits nowhere; each application moves a reshape to the outputs."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op(*_POINTWISE))
def reshape_before_pointwise(site: Site) -> Replacement:
    node = site.node
    large = [value for value in node.inputs if value is not None and value.tensor.size != 1]
    if len(large) != 1 or None in node.inputs or len(node.outputs) != 1:
        return Refusal("it has not one operand that is more than a number")
    if hasattr(node.attrs, "axis"):
        return Refusal("it works along an axis")
    reshape = site.producer(large[0])
    if reshape is None or reshape.op.name != "reshape" or not site.only_use(large[0]):
        return Refusal("its operand is no reshape of its own")
    source = reshape.args[0]
    maker = site.producer(source)
    if maker is None or maker.op.kind is Kind.INJECTIVE or not site.only_use(source):
        return Refusal("what is reshaped is moved, or read elsewhere")
    operands = [source if value is large[0] else value for value in node.args]
    if _rank(large[0]) < max(map(_rank, node.args)) or _rank(source) < max(map(_rank, operands)):
        return Refusal("another operand has a higher rank")
    return site.again(reshape, site.again(node, *operands))


def _rank(value: Value) -> int:
    return value.tensor.rank or 0
