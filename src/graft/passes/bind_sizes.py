"""Gives symbols of a graph their numbers: a graph and sizes in, the graph for these sizes out.

What was computed from the sizes is constant then, which the passes after this one fold. Nested
graphs speak in symbols of their own; those that mean the same in every turn get their numbers, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graft.base.dims import AnyDim, substitute
from graft.base.errors import GraftError, UserError
from graft.ir.attrs import bind_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.nested import change_node
from graft.ir.types import Type, dims_of, map_dims
from graft.ir.verify import verify
from graft.ops.control import nested_bindings

Sizes = Mapping[str, AnyDim]


def bind_sizes(graph: Graph, sizes: Sizes) -> Graph:
    """The graph with numbers or other dims for these symbols; refuses sizes that it cannot have."""
    try:
        return verify(_Binder(sizes).graph(graph)) if sizes else graph
    except GraftError as error:
        names = ", ".join(f"{name}={size}" for name, size in sizes.items())
        message = f"the model cannot have {names}: {error.message}"
        raise UserError(message, error.place, error.hint) from error


class _Binder:
    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._values: dict[Value, Value] = {}

    def graph(self, graph: Graph) -> Graph:
        return replace(
            graph,
            inputs=tuple(self._value(value) for value in graph.inputs),
            nodes=tuple(self._node(node) for node in graph.nodes),
            outputs=tuple(self._value(value) for value in graph.outputs),
        )

    def _node(self, node: Node) -> Node:
        try:
            changed = change_node(node, lambda inner: self._nested(node, inner))
            return replace(
                changed,
                inputs=tuple(None if v is None else self._value(v) for v in node.inputs),
                attrs=bind_attrs(changed.attrs, self._sizes),
                outputs=tuple(self._value(value) for value in node.outputs),
            )
        except GraftError as error:
            raise error.at(node.place) from error.__cause__

    def _nested(self, node: Node, inner: Graph) -> Graph:
        outside = nested_bindings(node, inner)
        numbers = {name: substitute(dim, self._sizes) for name, dim in outside.items()}
        known = {name: size for name, size in numbers.items() if isinstance(size, int)}
        return _Binder(known).graph(inner) if known else inner

    def _value(self, value: Value) -> Value:
        if value not in self._values:
            type_ = self._type(value)
            self._values[value] = value if type_ == value.type else Value(value.name, type_)
        return self._values[value]

    def _type(self, value: Value) -> Type:
        type_ = map_dims(value.type, self._dim)
        if any(isinstance(dim, int) and dim < 0 for dim in dims_of(type_)):
            raise UserError(f"%{value.name} would be {type_}")
        return type_

    def _dim(self, dim: AnyDim) -> AnyDim:
        return dim if isinstance(dim, int) else substitute(dim, self._sizes)
