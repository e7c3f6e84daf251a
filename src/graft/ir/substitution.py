"""Substitution of dims for symbols throughout a graph, in types and attributes.

Nested graphs have symbols of their own: subclasses decide what becomes of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from graft.base.dims import AnyDim, substitute
from graft.base.errors import GraftError
from graft.ir.attrs import map_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.nested import change_node
from graft.ir.types import Type, map_dims


class Substitution(ABC):
    """Dims for some symbols, and the values with types changed by them."""

    def __init__(self, dims: Mapping[str, AnyDim]) -> None:
        self.dims = dims
        self._values: dict[Value, Value] = {}

    @abstractmethod
    def nested(self, node: Node, inner: Graph) -> Graph:
        """What becomes of a graph nested in a node."""

    def type_of(self, value: Value) -> Type:
        """The type that a value gets."""
        return map_dims(value.type, self._dim)

    def graph(self, graph: Graph) -> Graph:
        """The graph with these dims."""
        return replace(
            graph,
            inputs=tuple(self._value(value) for value in graph.inputs),
            nodes=tuple(self._node(node) for node in graph.nodes),
            outputs=tuple(self._value(value) for value in graph.outputs),
        )

    def _node(self, node: Node) -> Node:
        try:
            changed = change_node(node, lambda inner: self.nested(node, inner))
            return replace(
                changed,
                inputs=tuple(None if v is None else self._value(v) for v in node.inputs),
                attrs=map_attrs(changed.attrs, self._dim),
                outputs=tuple(self._value(value) for value in node.outputs),
            )
        except GraftError as error:
            raise error.at(node.location) from error.__cause__

    def _value(self, value: Value) -> Value:
        if value not in self._values:
            type_ = self.type_of(value)
            self._values[value] = value if type_ == value.type else Value(value.name, type_)
        return self._values[value]

    def _dim(self, dim: AnyDim) -> AnyDim:
        return dim if isinstance(dim, int) else substitute(dim, self.dims)
