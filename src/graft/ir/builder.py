"""Builds graphs node by node, inferring types on the way.

The builder follows small integer values (shapes, indices, sizes) through the graph, symbolically
where a dim is symbolic. An operand whose value it knows becomes the attribute of the same name, so
`reshape(x, shape_of(y))` is built as `reshape(x) {shape=[...]}`: shape arithmetic melts away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from graft.base.dims import UNKNOWN
from graft.base.errors import GraftError, InternalError, Location
from graft.ir.attrs import Attrs, coerce_operand, make_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.knowledge import Knowledge, symbols_of_array
from graft.ir.literal import Literal
from graft.ir.names import FreshNames, FreshSymbols
from graft.ir.op import Op, get_op
from graft.ir.types import OptionalType, TensorType, Type, bound_symbols, map_dims, symbols_in


class Builder:
    """Collects the nodes of one graph."""

    def __init__(self, name: str = "main", symbols: FreshSymbols | None = None) -> None:
        self.name = name
        self.symbols = symbols or FreshSymbols()
        self.location: Location | None = None
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self.names = FreshNames()
        self.knowledge = Knowledge()
        self._positions: dict[Value, int] = {}  # of the node that defines it
        self._bindable: set[str] = set()

    @classmethod
    def beside(cls, graph: Graph, prefix: str) -> Self:
        """A builder of nodes for a graph: has its inputs, and avoids its names and symbols."""
        symbols = (name for value in graph.values for name in symbols_in(value.type))
        builder = cls(graph.name, FreshSymbols(prefix, symbols))
        builder.adopt_inputs(graph.inputs)
        builder.names.reserve(*(value.name for value in graph.values))
        return builder

    def input(self, name: str, type_: Type) -> Value:
        """Declare a graph input."""
        value = Value(self.names(name), self.named(type_))
        self._inputs.append(value)
        self._bindable |= bound_symbols(value.type)
        self.symbols.reserve(symbols_in(value.type))
        return value

    def constant(self, array: Any, out: str = "") -> Value:
        """Add a constant tensor."""
        literal = array if isinstance(array, Literal) else Literal(np.asarray(array))
        return self("constant", out=out or "const", value=literal)

    def __call__(self, op: str | Op, *inputs: Value | None, out: str = "", **attrs: Any) -> Value:
        """Add a node with one result and return it; `out` suggests its name."""
        results = self.call(op, *inputs, out=(out,) if out else (), **attrs)
        if len(results) != 1:
            raise InternalError(f"{op} gives {len(results)} results; use Builder.call")
        return results[0]

    def call(
        self, op: str | Op, *inputs: Value | None, out: Sequence[str] = (), **attrs: Any
    ) -> tuple[Value, ...]:
        """Add a node and return all its results."""
        op = get_op(op) if isinstance(op, str) else op
        try:
            op.check_operands(inputs)
            return self.add(op, inputs, make_attrs(op.attrs, attrs), out)
        except GraftError as error:
            raise error.at(self.location) from error.__cause__

    def add(
        self, op: Op, inputs: Sequence[Value | None], attrs: Attrs, out: Sequence[str] = ()
    ) -> tuple[Value, ...]:
        """Add a node whose attributes are ready."""
        operands, attrs, results = self.infer(op, inputs, attrs)
        stem = op.name.rpartition(".")[2]
        names = [*out, *[""] * (len(results) - len(out))]
        outputs = tuple(
            Value(self.names(name or stem), self.named(type_))
            for name, type_ in zip(names, results, strict=False)
        )
        self._add_node(Node(op, operands, attrs, outputs, self.location))
        return outputs

    def infer(
        self, op: Op, inputs: Sequence[Value | None], attrs: Attrs
    ) -> tuple[tuple[Value | None, ...], Attrs, tuple[Type, ...]]:
        """What a call would be: operands and attributes after absorption, and result types."""
        operands, attrs, typing_attrs = self._absorb(op, list(inputs), attrs)
        types = tuple([None if v is None else v.type for v in operands])
        try:
            return operands, attrs, op.result_types(typing_attrs, types)
        except GraftError as error:
            raise error.at(self.location) from error.__cause__

    def append(self, node: Node) -> None:
        """Add a finished node as it is; its results keep their identity."""
        self.names.reserve(*(value.name for value in node.outputs))
        self._add_node(node)

    def take_last(self) -> Node:
        """Remove and return the last node, for callers that order nodes themselves."""
        return self._nodes.pop()

    def adopt_inputs(self, values: Iterable[Value]) -> None:
        """Take over another graph's inputs as they are."""
        for value in values:
            self.names.reserve(value.name)
            self._inputs.append(value)
            self._bindable |= bound_symbols(value.type)

    def build(self, *outputs: Value, names: Sequence[str] = ()) -> Graph:
        """The finished graph; `names` are the outputs' names where they are not the values'."""
        nodes = tuple(self._nodes)
        return Graph(self.name, tuple(self._inputs), nodes, outputs, tuple(names))

    def rename(self, names: Mapping[Value, str], since: int) -> dict[Value, Value]:
        """Give results of the nodes added from position `since` on these names; the new values.

        Values that stood before keep their names, and so do those whose new name is taken. All are
        renamed in one pass, since a node may have very many results.
        """
        renamed: dict[Value, Value] = {}
        for value, name in names.items():
            is_new = self._positions.get(value, -1) >= since
            if is_new and value.name != name and name not in self.names:
                renamed[value] = Value(self.names(name), value.type)
        first = min((self._positions[value] for value in renamed), default=len(self._nodes))
        for later in range(first, len(self._nodes)):
            node = self._nodes[later]
            outputs = tuple(renamed.get(v, v) for v in node.outputs)
            inputs = tuple(v if v is None else renamed.get(v, v) for v in node.inputs)
            self._nodes[later] = replace(node, inputs=inputs, outputs=outputs)
        for value, new in renamed.items():
            self._positions[new] = self._positions.pop(value)
            self.knowledge.move(value, new)
        return renamed

    def __len__(self) -> int:
        """How many nodes have been added."""
        return len(self._nodes)

    def producer(self, value: Value) -> Node | None:
        """The node that defines a value; inputs have none."""
        position = self._positions.get(value)
        return None if position is None else self._nodes[position]

    def binds(self, symbols: Iterable[str]) -> bool:
        """Whether the inputs' shapes decide all these symbols."""
        return self._bindable.issuperset(symbols)

    def named(self, type_: Type) -> Type:
        """The type with a fresh symbol for every unknown extent."""
        tensor = type_.element if isinstance(type_, OptionalType) else type_
        if not isinstance(tensor, TensorType):
            return type_  # a sequence's elements differ: no symbol could stand for an extent
        if tensor.shape is None or UNKNOWN not in tensor.shape:
            return type_
        return map_dims(type_, lambda dim: self.symbols() if dim is UNKNOWN else dim)

    def _absorb(
        self, op: Op, inputs: list[Value | None], attrs: Attrs
    ) -> tuple[tuple[Value | None, ...], Attrs, Attrs]:
        """Turn operands of known value into attributes: (operands, attributes, typing ones)."""
        typing_attrs = attrs
        for position, name in op.alternatives:
            value = inputs[position] if position < len(inputs) else None
            content = self.knowledge.known(value)
            if content is None or value is None:
                continue
            try:
                attribute = coerce_operand(op.attrs, name, content)
            except GraftError:
                continue
            if value.dtype.is_float and _holds_integers(attribute):
                continue  # the type rule says that floats are no such numbers
            typing_attrs = replace(typing_attrs, **{name: attribute})
            if self.binds(symbols_of_array(content)):
                inputs[position] = None
                attrs = replace(attrs, **{name: getattr(typing_attrs, name)})
        while inputs and inputs[-1] is None:
            inputs.pop()
        return tuple(inputs), attrs, typing_attrs

    def _add_node(self, node: Node) -> None:
        for value in node.outputs:
            self._positions[value] = len(self._nodes)
        self._nodes.append(node)
        self.knowledge.follow(node)


def _holds_integers(attribute: Any) -> bool:
    items = attribute if isinstance(attribute, tuple) else (attribute,)
    return any(type(item) is int for item in items)
