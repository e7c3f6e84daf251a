"""A fusion group as kernel templates see it: an anchor, what follows it, and what it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from graft.backends.host.storage import is_image
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.op import Kind, Work
from graft.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Winograd:
    """Winograd's algorithm for convolutions, on tiles of `tile` pixels along each axis on which the
    kernel has several taps."""

    tile: int

    def __str__(self) -> str:
        return f"winograd:{self.tile}"


@dataclass(frozen=True, slots=True)
class Strassen:
    """Strassen's algorithm for dense layers, one level deep, on `chunk` inputs at a time."""

    chunk: int

    def __str__(self) -> str:
        return f"strassen:{self.chunk}"


Algorithm = Winograd | Strassen


@dataclass(frozen=True, eq=False)
class Group:
    """One kernel's worth of nodes. `formal` maps the body's inputs to the graph's values;
    `algorithm` is how the anchor is computed, if not as its definition says."""

    node: Node  # the composite, or the lone node itself
    nodes: tuple[Node, ...]  # without constants, in order
    constants: Mapping[Value, Literal]
    formal: Mapping[Value, Value]
    algorithm: Algorithm | None = None

    @property
    def output(self) -> Value:
        """The result as the graph knows it."""
        return self.node.output

    @cached_property
    def anchors(self) -> tuple[Node, ...]:
        """The nodes that are not pointwise."""
        return tuple(node for node in self.nodes if not node.op.kind.is_pointwise)

    @property
    def anchor(self) -> Node | None:
        """The one node that is not pointwise, if there is exactly one."""
        return self.anchors[0] if len(self.anchors) == 1 else None

    @property
    def first_anchor(self) -> Node | None:
        """The only anchor, or the first one of a chain."""
        is_chain = all(node.op.kind is Kind.ANCHOR for node in self.anchors)
        return self.anchors[0] if self.anchors and is_chain else self.anchor

    @property
    def sole_anchor(self) -> Node:
        """The anchor of a group that is known to have one."""
        assert self.anchor is not None
        return self.anchor

    @property
    def is_pointwise(self) -> bool:
        """Whether there is nothing but pointwise nodes."""
        return all(node.op.kind.is_pointwise for node in self.nodes)

    @property
    def is_static(self) -> bool:
        """Whether the extents of all tensors are numbers."""
        types = (value.type for node in self.nodes for value in (*node.args, *node.outputs))
        return all(isinstance(type_, TensorType) and type_.is_static for type_ in types)

    @cached_property
    def epilogue(self) -> tuple[Node, ...]:
        """The pointwise nodes, all of them where there is no anchor."""
        return tuple(node for node in self.nodes if node is not self.anchor)

    @property
    def label(self) -> str:
        """The operators in order, the anchor's with its algorithm: `nn.conv2d[winograd:4]`."""
        algorithm = f"[{self.algorithm}]" if self.algorithm else ""
        return "+".join(
            f"{node.op.name}{algorithm if node is self.anchor else ''}" for node in self.nodes
        )

    @property
    def note(self) -> str:
        """What the group is and where it comes from, for people who read its kernel."""
        place = self.node.location.node if self.node.location else ""
        return f"{self.label} {place or self.output.name}"

    @property
    def work(self) -> Work:
        """The operations and bytes of the group."""
        node = self.node
        types = [value.type for value in node.args], [value.type for value in node.outputs]
        return node.op.work(node.attrs, *types)

    def outer(self, value: Value) -> Value:
        """The graph's value that a value read by the group stands for."""
        return self.formal.get(value, value)

    @cached_property
    def parts(self) -> tuple[Group, ...] | None:
        """A group for each anchor with what follows it, the last one with the result; None unless
        each anchor reads the part before as its first operand, and nothing else reads that."""
        parts: list[Group] = []
        left = self.nodes
        for following in self.anchors[1:]:
            nodes = self.leading_to(following.args[0], {part.output for part in parts})
            left = tuple(node for node in left if node not in nodes)
            inside = {value for node in nodes for value in node.outputs}
            others = (node for node in left if node is not following)
            uses = [*following.args[1:], *(value for node in others for value in node.args)]
            if not nodes or not inside.isdisjoint(uses):
                return None
            parts.append(replace(self, node=nodes[-1], nodes=nodes))
        parts.append(replace(self, nodes=left))
        return tuple(parts) if all(part.anchor for part in parts) else None

    def leading_to(self, value: Value, known: Collection[Value] = ()) -> tuple[Node, ...]:
        """The nodes that compute a value of the group from known ones."""
        values, nodes = {value}, []
        for node in reversed(self.nodes):
            if node.output in values and node.output not in known:
                nodes.append(node)
                values.update(node.args)
        return tuple(reversed(nodes))

    def reads(self) -> tuple[Value, ...]:
        """What the group reads: values of the graph and constants of its own, each once."""
        inside = {value for node in self.nodes for value in node.outputs}
        return tuple(dict.fromkeys(v for node in self.nodes for v in node.args if v not in inside))

    def images(self) -> list[Value]:
        """The operands that may be images in blocks of channels."""
        reads = (value for value in self.reads() if value not in self.constants)
        return [value for value in reads if is_image(self.outer(value))]


def group_of(node: Node, constants: Mapping[Value, Literal]) -> Group:
    """The group that a node of a fused graph is; `constants` are those of the graph."""
    if node.op.name != "composite":
        own = {value: constants[value] for value in node.args if value in constants}
        return Group(node, (node,), own, {})
    body: Graph = node.attrs.body
    formal = dict(zip(body.inputs, node.args, strict=True))
    passed = {f: constants[actual] for f, actual in formal.items() if actual in constants}
    nodes = tuple(n for n in body.nodes if n.op.name != "constant")
    return Group(node, nodes, {**body.constants, **passed}, formal)
