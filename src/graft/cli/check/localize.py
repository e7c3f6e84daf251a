"""Localises a difference: the first node, or the first pass.

The imported graph is evaluated node by node. Each value with the name of an ONNX value is compared
with the peer's, whose value is used from there on: so each node is judged on the peer's operands,
and is not blamed for accumulated rounding. The peer's values are fetched in portions and dropped
after their last use, so that memory is bounded for models of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx

from graft.base.compare import Difference
from graft.base.dims import UNKNOWN, bare_symbol, substitute
from graft.base.progress import Progress, Stage
from graft.cli.check.peer import Feeds, Peer
from graft.cli.compare import Tolerance, compare, in_expected_order
from graft.cli.model_parts import label
from graft.frontends.onnx.reader import Source
from graft.frontends.onnx.scope import in_order
from graft.ir.evaluate import Data, evaluate
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import bytes_of
from graft.ir.types import SequenceType, TensorType, Type, dims_of
from graft.passes.pipeline import optimize

PORTION_BYTES = 1 << 28
PORTION_VALUES = 512


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """The error of a node's result, on the peer's operands."""

    node: str
    operator: str
    result: Value
    operands: tuple[tuple[str, str], ...]  # names and types
    difference: Difference


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """The number of values compared, and the node with the largest error.

    The comparison ends at the first node that differs."""

    compared: int
    largest: NodeDifference | None

    @property
    def agrees(self) -> bool:
        return self.largest is None or self.largest.difference.agrees


# Blamed where the optimised graph evaluates right and still the outputs differ.
NATIVE = "native code"


@dataclass(frozen=True, slots=True)
class PassBlame:
    """The first pass after which the outputs differ."""

    name: str
    position: int
    total: int


def blame_pass(
    graph: Graph, feeds: Feeds, expected: Sequence[Data], tolerance: Tolerance
) -> PassBlame | None:
    """The pass that introduces a difference, or native code; None where the import has it."""
    inputs = [feeds[value.name] for value in graph.inputs]

    def differs(stage: Graph) -> bool:
        actual, _ = in_expected_order(stage, evaluate(stage, inputs), expected, tolerance)
        pairs = zip(actual, expected, strict=True)
        return any(not compare(mine, other, tolerance).agrees for mine, other in pairs)

    if differs(graph):
        return None
    stages: list[tuple[str, Graph]] = []
    optimize(graph, lambda report, stage: stages.append((report.name, stage)))
    if not differs(stages[-1][1]):
        return PassBlame(NATIVE, len(stages), len(stages))
    right, wrong = -1, len(stages) - 1
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if differs(stages[middle][1]):
            wrong = middle
        else:
            right = middle
    return PassBlame(stages[wrong][0], wrong + 1, len(stages))


def compare_nodes(
    graph: Graph, source: Source, peer: Peer, feeds: Feeds, tolerance: Tolerance, progress: Progress
) -> NodeComparison:
    """Compare the values inside the model, in order, up to the first that differs."""
    nodes = in_order(source.model.graph.node, source.name)
    named = dict(_named_values(graph, nodes))
    walk = _Walk(graph, nodes, named, peer, feeds)
    compared = 0
    largest: NodeDifference | None = None
    for value, mine, theirs in walk.pairs():
        compared += 1
        progress(Stage("value", compared, len(named), value.name))
        difference = compare(mine, theirs, tolerance.for_values_like(theirs))
        if not difference.agrees:
            return NodeComparison(compared, walk.described(value, difference))
        if largest is None or difference.max_relative > largest.difference.max_relative:
            largest = walk.described(value, difference)
    return NodeComparison(compared, largest)


@dataclass
class _Walk:
    graph: Graph
    nodes: Sequence[onnx.NodeProto]
    named: dict[Value, int]  # value -> position of the ONNX node that computes it
    peer: Peer
    feeds: Feeds
    fetched: dict[str, Data] = field(default_factory=dict)

    def pairs(self) -> Iterator[tuple[Value, Data, Data]]:
        """Each named value as Graft and as the peer compute it from the same operands."""
        portions = _portions(self.named, _bindings(self.graph, self.feeds))
        portion_of = {value: portion for portion in portions for value in portion}
        values: dict[Value, Data] = {value: self.feeds[value.name] for value in self.graph.inputs}
        for node, finished in zip(self.graph.nodes, self.graph.last_reads, strict=True):
            for value, mine in zip(node.outputs, self._step(node, values), strict=True):
                values[value] = mine
                if value in self.named:
                    values[value] = self._theirs(value, portion_of[value])
                    yield value, mine, values[value]
            for value in finished:
                if value not in self.graph.inputs:
                    values.pop(value, None)

    def _step(self, node: Node, values: dict[Value, Data]) -> list[Data]:
        """The results of one node; the graph's inputs are passed, too, since they bind its
        symbols."""
        inputs = tuple(dict.fromkeys((*self.graph.inputs, *node.args)))
        return evaluate(
            Graph("step", inputs, (node,), node.outputs), [values[value] for value in inputs]
        )

    def _theirs(self, value: Value, portion: tuple[Value, ...]) -> Data:
        if value.name not in self.fetched:
            self.fetched = {}  # before, not after, the next ones come
            last = max(self.named[one] for one in portion)
            names = [one.name for one in portion]
            self.fetched = self.peer.values(names, self.nodes[: last + 1], self.feeds)
        return self.fetched.pop(value.name)

    def described(self, value: Value, difference: Difference) -> NodeDifference:
        """The facts about the node of a value."""
        position = self.named[value]
        node = self.nodes[position]
        defined = [output for inner in self.graph.nodes for output in inner.outputs]
        types = {one.name: str(one.type) for one in (*self.graph.inputs, *defined)}
        operands = tuple((name, types.get(name, "?")) for name in node.input if name)
        return NodeDifference(label(node, position), node.op_type, value, operands, difference)


def _named_values(graph: Graph, nodes: Sequence[onnx.NodeProto]) -> Iterator[tuple[Value, int]]:
    """Values of the graph that are results of ONNX nodes, each with its node's position."""
    position_of = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    returned = set(graph.outputs)
    for node in graph.nodes:
        for value in node.outputs:
            position = position_of.get(value.name)
            if position is None or not _may_fetch(value.type):
                continue
            name = label(nodes[position], position)
            users = graph.users.get(value, [])
            # A value in the middle of what a node became may have got a name that an ONNX value
            # has too; nothing outside that node reads it.
            inner = users and value not in returned and all(_within(user, name) for user in users)
            if _within(node, name) and not inner:
                yield value, position


def _within(node: Node, name: str) -> bool:
    """Whether a node of the graph comes from the ONNX node, or from a function that it calls."""
    own = "" if node.location is None else node.location.node
    return own == name or own.startswith(f"{name}/")


def _may_fetch(type_: Type) -> bool:
    """Whether ONNX Runtime can return the value to NumPy."""
    element = type_.element if isinstance(type_, SequenceType) else type_
    return isinstance(element, TensorType) and element.dtype.numpy.kind != "V"


def _portions(named: dict[Value, int], bindings: dict[str, int]) -> Iterator[tuple[Value, ...]]:
    """Groups of values to fetch together, of limited size."""
    portion: list[Value] = []
    nbytes = 0
    for value in sorted(named, key=lambda one: named[one]):
        size = _size(value.type, bindings)
        if portion and (nbytes + size > PORTION_BYTES or len(portion) >= PORTION_VALUES):
            yield tuple(portion)
            portion, nbytes = [], 0
        portion.append(value)
        nbytes += size
    if portion:
        yield tuple(portion)


def _size(type_: Type, bindings: dict[str, int]) -> int:
    """Bytes of a value; 0 if they depend on data."""
    size = bytes_of(type_)
    if not isinstance(size, int) and size is not UNKNOWN:
        size = substitute(size, bindings)
    return size if isinstance(size, int) else 0


def _bindings(graph: Graph, feeds: Feeds) -> dict[str, int]:
    result: dict[str, int] = {}
    for value in graph.inputs:
        shape = getattr(feeds[value.name], "shape", ())
        for dim, extent in zip(dims_of(value.type), shape, strict=False):
            name = bare_symbol(dim)
            if name is not None:
                result[name] = extent
    return result
