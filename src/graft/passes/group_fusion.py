"""Groups nodes that one kernel should compute: an anchor and what follows it element by element.

Consumers are looked at first. A node joins the group of its readers when all of them are in that
one group, so the group's root is the only way out and groups are convex by construction. A group
has at most one anchor (convolution, matrix product) or reduction; elementwise work before a
reduction joins it, work before an anchor does not. Nodes that movement would recompute for several
elements of the result stay outside, as do views that nothing in the group reads, unless they are of
data that it moves. Groups of two and more become `composite` nodes, unless the backend has no
kernel for such a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from graft.base.dims import bare_symbol
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph, Node, Value, closed_graph, make_node
from graft.ir.literal import Literal
from graft.ir.nested import change_nested
from graft.ir.op import Kind
from graft.ir.types import TensorType, dims_of
from graft.ops.pointwise import repetitions
from graft.passes.simplify_movement import is_view

_HEAVY = (Kind.ANCHOR, Kind.REDUCTION)
# How many elements of a node in a group one of the result may need, by a path of movements each.
_MOST_PATHS = 4
# How many movements may follow one another in a group. An index of its result goes through all of
# them, and what is asked of such an index grows with a power of their number.
_MOST_MOVES = 8
# How often a node's formula may be written out for one element. Formulas mention their operands
# several times, so in a chain of them this grows with a power of its length.
_MOST_COPIES = 256
# How many nodes a group may have. What lowering takes grows with the square of it, and so many
# operations per element hide the traffic of one more value between two kernels.
_MOST_NODES = 64
# A concatenation of more tensors is a kernel for itself, which copies one after the other: inside
# another kernel every element would be a choice among all of them.
_MOST_JOINED = 8
# Where layouts change, nothing else is done: that may be a matter of names alone.
_ALONE = "layout_transform"
# What makes images that are stored in blocks of channels.
_IMAGE_LAYERS = (
    *("nn.conv2d", "qnn.conv2d", "nn.conv2d_transpose"),
    *("nn.max_pool2d", "nn.avg_pool2d"),
)


# Whether there is a kernel for a composite, given the constants of the graph.
HasKernel = Callable[[Node, Mapping[Value, Literal]], bool]


@dataclass(eq=False)
class _Group:
    root: Node
    nodes: list[Node] = field(default_factory=list)  # last first
    size: int = 0  # nodes that are no constants
    heavy: bool = False
    moves: bool = False  # has data movement in it, so no anchor can join
    # Per node, the paths of movements through which an element of the result needs it.
    paths: dict[Node, frozenset[object]] = field(default_factory=dict)
    copies: dict[Node, int] = field(default_factory=dict)
    depth: dict[Node, int] = field(default_factory=dict)  # movements up to and with each node

    @property
    def is_view(self) -> bool:
        """Whether all that is done is to describe the operand's memory by another shape. That is
        free for its own, whereas loops over that shape would divide indices to find operands."""
        return all(is_view(node) or node.op.name == "constant" for node in self.nodes)

    def needed(self, node: Node, readers: list[Node]) -> frozenset[object]:
        """The paths of movements through which members that read a node need it."""
        needs: set[object] = set()
        for reader in readers:
            if reader.op.kind is not Kind.INJECTIVE:
                needs |= self.paths[reader]
                continue
            slots = [slot for slot, value in enumerate(reader.inputs) if value in node.outputs]
            needs |= {(reader, slot, path) for slot in slots for path in self.paths[reader]}
        return frozenset(needs)

    def add(self, node: Node, readers: list[Node]) -> bool:
        """Add a node that members read; False if it would be recomputed or moved too often."""
        paths = self.needed(node, readers) if readers else frozenset[object]({node})
        copies = sum(self.copies[reader] * repetitions(reader) for reader in readers) or 1
        moves = node.op.kind is Kind.INJECTIVE
        depth = max((self.depth[reader] for reader in readers), default=0) + moves
        limits = (len(paths), _MOST_PATHS), (copies, _MOST_COPIES), (depth, _MOST_MOVES)
        if any(count > most for count, most in limits):
            return False
        self.paths[node], self.copies[node], self.depth[node] = paths, copies, depth
        self.nodes.append(node)
        self.size += node.op.name != "constant"
        self.heavy |= node.op.kind in _HEAVY
        self.moves |= moves
        return True


def group_fusion(graph: Graph, has_kernel: HasKernel | None = None) -> Graph:
    """Outline the groups as composites; `has_kernel` says which composites a backend can compute.

    The nodes of a group that it cannot stay as they are."""
    graph = change_nested(graph, partial(group_fusion, has_kernel=has_kernel))
    group_of = _groups(graph)
    outlined: dict[_Group, Node] = {}
    for group in dict.fromkeys(group_of.values()):
        if group.size > 1 and _binds_symbols(group):
            composite = _outlined(group)
            if has_kernel is None or has_kernel(composite, graph.constants):
                outlined[group] = composite
    nodes: list[Node] = []
    for node in graph.nodes:
        group = group_of[node]
        if group not in outlined:
            nodes.append(node)
        elif node is group.root:
            nodes.append(outlined[group])
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes))


def fusion_groups(graph: Graph) -> list[tuple[Node, ...]]:
    """The groups as lists of nodes, without outlining anything; lone nodes are groups, too."""
    groups = dict.fromkeys(_groups(graph).values())
    return [tuple(reversed(group.nodes)) for group in groups]


def _groups(graph: Graph) -> dict[Node, _Group]:
    returned = set(graph.outputs)
    users = graph.users
    epilogues, joined_images = _epilogues(graph), _joined_images(graph)
    group_of: dict[Node, _Group] = {}
    for node in reversed(graph.nodes):
        readers = [user for value in node.outputs for user in users.get(value, ())]
        group = group_of[readers[0]] if readers else None
        escapes = any(value in returned for value in node.outputs)
        joins = (
            group is not None
            and not escapes
            and all(group_of[reader] is group for reader in readers)
            and _fits(node, readers, group)
            and not (node in epilogues and (group.moves or group.heavy))
            and not (node in joined_images and group.moves)
            and not any(one.op.name == _ALONE for one in (node, *readers))
            and not (group.is_view and not _moves(node))
            and (group.size < _MOST_NODES or node.op.name == "constant")
        )
        if not joins or group is None or not group.add(node, readers):
            group = _Group(node)
            group.add(node, [])
        group_of[node] = group
    return group_of


def _epilogues(graph: Graph) -> set[Node]:
    """Nodes that can run in the epilogue of a heavy node before them."""
    members: set[Node] = set()
    for node in graph.nodes:
        if not node.op.kind.is_pointwise:
            continue
        for value in node.args:
            source = graph.producers.get(value)
            if source is None or len(graph.users[value]) > 1 or _shape(source) != _shape(node):
                continue
            if _widens_codes(value, node):
                continue
            if source.op.kind in _HEAVY or source in members:
                members.add(node)
    return members


def _widens_codes(value: Value, node: Node) -> bool:
    """Whether bytes become floats: between two kernels they are better moved as bytes."""
    codes, result = value.type, node.output.type
    if not isinstance(codes, TensorType) or not isinstance(result, TensorType):
        return False
    return codes.dtype.is_integer and codes.dtype.bits <= 8 and result.dtype.is_float


def _moves(node: Node) -> bool:
    """Whether a node's elements lie elsewhere than its operand's."""
    return node.op.kind is Kind.INJECTIVE and not is_view(node)


def _fits(node: Node, readers: list[Node], group: _Group) -> bool:
    if node.op.name == "constant":
        return group.root.op.kind is not Kind.OPAQUE
    if node.op.kind is Kind.OPAQUE or group.root.op.kind is Kind.OPAQUE:
        return False
    if any(reader.op.kind is Kind.ANCHOR for reader in readers):
        return False
    if any(_adds_bias(reader, node) for reader in readers):
        return False
    if any(map(_joins_many, (node, *readers))):
        return False
    if node.op.kind in _HEAVY:
        return not group.heavy and all(_follows(node, other) for other in group.nodes)
    return node.op.kind.is_pointwise or not group.heavy


def _adds_bias(reader: Node, node: Node) -> bool:
    """Whether a node computes a bias: for each pixel once more, in the group of its reader."""
    return reader.op.name == "nn.bias_add" and node.output == reader.args[1]


def _joins_many(node: Node) -> bool:
    return node.op.name == "concatenate" and len(node.inputs) > _MOST_JOINED


def _joined_images(graph: Graph) -> set[Node]:
    """Concatenations of what layers on images make along its channels. These and moving images are
    kernels for blocks of channels each; both in one would be for rows alone."""
    images: set[Node] = set()
    joined: set[Node] = set()
    for node in graph.nodes:
        sources = (graph.producers.get(value) for value in node.args)
        if node.op.name in _IMAGE_LAYERS:
            images.add(node)
        elif not any(source in images for source in sources):
            continue
        elif node.op.kind.is_pointwise:
            images.add(node)
        elif node.op.name == "concatenate" and node.attrs.axis in (1, -3):
            images.add(node)
            joined.add(node)
    return joined


def _follows(heavy: Node, other: Node) -> bool:
    """Whether a group member can run in the heavy node's epilogue."""
    if other.op.name == "constant":
        return True
    return other.op.kind.is_pointwise and _shape(other) == _shape(heavy)


def _shape(node: Node) -> object:
    type_ = node.output.type
    return type_.shape if isinstance(type_, TensorType) else None


def _binds_symbols(group: _Group) -> bool:
    """Whether the shapes of what the group reads bind every symbol in its attributes."""
    named = frozenset[str]().union(*(symbols_in_attrs(node.attrs) for node in group.nodes))
    if not named:
        return True
    dims = (dim for value in _outer(group) for dim in dims_of(value.type))
    return named <= {bare_symbol(dim) for dim in dims}


def _outer(group: _Group) -> tuple[Value, ...]:
    """What the group reads, in order of first use."""
    read = dict.fromkeys(value for node in reversed(group.nodes) for value in node.args)
    for node in group.nodes:
        for value in node.outputs:
            read.pop(value, None)
    return tuple(read)


def _outlined(group: _Group) -> Node:
    nodes = tuple(reversed(group.nodes))
    outer = _outer(group)
    body = closed_graph(group.root.output.name, outer, nodes, group.root.outputs)
    label = "+".join(node.op.name for node in nodes if node.op.name != "constant")
    outputs, location = group.root.outputs, group.root.location
    return make_node("composite", outer, outputs, location, body=body, label=label)
