"""Replaces strings by positions in a vocabulary, as early as possible.

Category encoders slice columns out of a tensor of strings and look each up among its own keys.
There are no native kernels for strings, so the source is looked up once in the union of all keys;
movement and lookups behind it work on the positions. A string that is no key gets the position
behind the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from graft.base.dtypes import DType
from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.names import FreshNames
from graft.ir.nested import change_nested
from graft.ir.types import TensorType
from graft.ops import get_op
from graft.ops.ml_features import LabelMapAttrs

_LOOKUP = "ml.label_map"
# Operators that move the elements of their first operand, whatever these are.
_MOVES = frozenset(
    (
        "broadcast_to",
        "expand_dims",
        "gather",
        "reshape",
        "squeeze",
        "strided_slice",
        "take",
        "transpose",
    )
)


def encode_strings(graph: Graph) -> Graph:
    """Apply to every tensor of strings that is moved before it is looked up, or looked up twice."""
    graph = change_nested(graph, encode_strings)
    sources: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        if _looks_strings_up(node):
            sources.setdefault(_source(graph, node.args[0]), []).append(node)
    vocabularies = {
        source: list(dict.fromkeys(key for node in readers for key in _keys(node)))
        for source, readers in sources.items()
        if len(readers) > 1 or readers[0].args[0] is not source
    }
    return _Encoder(graph, vocabularies).run() if vocabularies else graph


def _looks_strings_up(node: Node) -> bool:
    return node.op.name == _LOOKUP and node.args[0].dtype is DType.STRING


def _keys(node: Node) -> list[str]:
    keys: list[str] = node.attrs.keys.array.tolist()
    return keys


def _source(graph: Graph, value: Value) -> Value:
    """The value that has the elements before anything moves them."""
    maker = graph.producers.get(value)
    while maker is not None and maker.op.name in _MOVES:
        value = maker.args[0]
        maker = graph.producers.get(value)
    return value


@dataclass
class _Encoder:
    """Rebuilds a graph with positions beside strings; what is not read any more is dead code."""

    graph: Graph
    vocabularies: dict[Value, list[str]]
    _first: list[Node] = field(
        default_factory=list
    )  # lookups of inputs: one native segment follows
    _nodes: list[Node] = field(default_factory=list)
    _encoded: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = FreshNames(value.name for value in self.graph.values)
        self._names.reserve(*self.graph.output_names)

    def run(self) -> Graph:
        for node in self.graph.nodes:
            source = _source(self.graph, node.args[0]) if _looks_strings_up(node) else None
            if source is None or source not in self.vocabularies:
                self._nodes.append(node)
                continue
            positions = {key: position for position, key in enumerate(self.vocabularies[source])}
            keys = np.array([positions[key] for key in _keys(node)], np.int64)
            attrs = replace(node.attrs, keys=Literal(keys))
            inputs = (self._positions(node.args[0]),)
            self._nodes.append(replace(node, inputs=inputs, attrs=attrs))
        return replace(self.graph, nodes=(*self._first, *self._nodes))

    def _positions(self, strings: Value) -> Value:
        """The value with strings replaced by their positions in the vocabulary."""
        if strings not in self._encoded:
            maker = self.graph.producers.get(strings)
            if strings in self.vocabularies:
                self._encoded[strings] = self._looked_up(strings)
            else:
                assert maker is not None
                inputs = (self._positions(maker.args[0]), *maker.inputs[1:])
                self._encoded[strings] = self._emit(maker.op.name, inputs, maker.attrs, maker)
        return self._encoded[strings]

    def _looked_up(self, strings: Value) -> Value:
        keys = self.vocabularies[strings]
        positions, beyond = np.arange(len(keys)), np.array(len(keys))
        attrs = LabelMapAttrs(Literal(np.array(keys, object)), Literal(positions), Literal(beyond))
        result = self._emit(_LOOKUP, (strings,), attrs, None)
        if strings in self.graph.inputs:
            self._first.append(self._nodes.pop())
        return result

    def _emit(
        self, name: str, inputs: tuple[Value | None, ...], attrs: Attrs, like: Node | None
    ) -> Value:
        op = get_op(name)
        types = tuple(None if value is None else value.type for value in inputs)
        (type_,) = op.result_types(attrs, types)
        if like is not None:  # what is known of extents stays known
            assert isinstance(like.output.type, TensorType)
            type_ = TensorType(DType.INT64, like.output.type.shape)
        result = Value(self._names("positions"), type_)
        location = None if like is None else like.location
        self._nodes.append(Node(op, inputs, attrs, (result,), location))
        return result
