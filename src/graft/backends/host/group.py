"""A fusion group as kernel templates see it: an anchor, what follows it, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.op import Kind

_POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)


@dataclass(frozen=True, eq=False)
class Group:
    """One kernel's worth of nodes. `formal` maps the body's inputs to the graph's values."""

    node: Node  # the composite, or the lone node itself
    nodes: tuple[Node, ...]  # without constants, in order
    constants: Mapping[Value, Literal]
    formal: Mapping[Value, Value]

    @property
    def output(self) -> Value:
        """The result as the graph knows it."""
        return self.node.output

    @cached_property
    def anchor(self) -> Node | None:
        """The one node that is not pointwise, if there is exactly one."""
        heavy = [node for node in self.nodes if node.op.kind not in _POINTWISE]
        return heavy[0] if len(heavy) == 1 else None

    @cached_property
    def epilogue(self) -> tuple[Node, ...]:
        """The pointwise nodes, all of them where there is no anchor."""
        return tuple(node for node in self.nodes if node is not self.anchor)

    @property
    def label(self) -> str:
        return "+".join(node.op.name for node in self.nodes)

    def outer(self, value: Value) -> Value:
        """The graph's value that a value read by the group stands for."""
        return self.formal.get(value, value)

    def reads(self) -> tuple[Value, ...]:
        """What the group reads: values of the graph and constants of its own, each once."""
        inside = {value for node in self.nodes for value in node.outputs}
        found = dict.fromkeys(v for node in self.nodes for v in node.args if v not in inside)
        return tuple(found)


def group_of(node: Node, constants: Mapping[Value, Literal]) -> Group:
    """The group that a node of a fused graph is; `constants` are those of the graph."""
    if node.op.name != "composite":
        own = {value: constants[value] for value in node.args if value in constants}
        return Group(node, (node,), own, {})
    body: Graph = node.attrs.body
    inner = {n.output: n.attrs.value for n in body.nodes if n.op.name == "constant"}
    formal = dict(zip(body.inputs, node.args, strict=True))
    passed = {f: constants[actual] for f, actual in formal.items() if actual in constants}
    nodes = tuple(n for n in body.nodes if n.op.name != "constant")
    return Group(node, nodes, {**inner, **passed}, formal)
