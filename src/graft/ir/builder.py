"""Builds graphs node by node, inferring types on the way.

The builder follows small integer values (shapes, indices, sizes) through the graph, symbolically
where a dim is symbolic. An operand whose value it knows becomes the attribute of the same name, so
`reshape(x, shape_of(y))` is built as `reshape(x) {shape=[...]}`: shape arithmetic melts away.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, Expr, symbol, symbols_of
from graft.base.dtypes import Array
from graft.base.errors import GraftError, InternalError, Place
from graft.ir.attrs import Attrs, coerce_field, make_attrs, symbols_in_attrs
from graft.ir.evaluate import run_op
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.op import Op, get_op
from graft.ir.types import SequenceType, TensorType, Type, bare_symbol, dims_of, map_dims

# Values with more elements are not followed.
KNOWN_LIMIT = 1024

_SYMBOLIC_FAILURES = (GraftError, ArithmeticError, TypeError, ValueError, IndexError)


class FreshSymbols:
    """Names for extents that only the data decide; shared by a graph and its nested graphs."""

    def __init__(self, prefix: str = "d") -> None:
        self._prefix = prefix
        self._numbers = itertools.count()
        self._taken: set[str] = set()

    def reserve(self, names: Iterable[str]) -> None:
        self._taken.update(names)

    def __call__(self) -> Expr:
        while (name := f"{self._prefix}{next(self._numbers)}") in self._taken:
            pass
        return symbol(name)


class Builder:
    """Collects the nodes of one graph."""

    def __init__(self, name: str = "main", symbols: FreshSymbols | None = None) -> None:
        self.name = name
        self.symbols = symbols or FreshSymbols()
        self.place: Place | None = None
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._counters: dict[str, int] = {}
        self._known: dict[Value, Array] = {}
        self._literals: dict[Value, Literal] = {}
        self._positions: dict[Value, int] = {}  # of the node that defines it
        self._bindable: set[str] = set()

    def input(self, name: str, type_: Type) -> Value:
        """Declare a graph input."""
        for dim in dims_of(type_):
            bare = bare_symbol(dim)
            if bare is not None:
                self._bindable.add(bare)
                self.symbols.reserve((bare,))
        value = Value(self.fresh_name(name), self.named(type_))
        self._inputs.append(value)
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
            op.check_arity(len(inputs))
            return self.add(op, inputs, make_attrs(op.attrs, attrs), out)
        except GraftError as error:
            raise error.at(self.place) from error.__cause__

    def add(
        self, op: Op, inputs: Sequence[Value | None], attrs: Attrs, out: Sequence[str] = ()
    ) -> tuple[Value, ...]:
        """Add a node whose attributes are ready."""
        operands, attrs, results = self.infer(op, inputs, attrs)
        stem = op.name.rpartition(".")[2]
        names = [*out, *[""] * (len(results) - len(out))]
        outputs = tuple(
            Value(self.fresh_name(name or stem), self.named(type_))
            for name, type_ in zip(names, results, strict=False)
        )
        self._place_node(Node(op, operands, attrs, outputs, self.place))
        return outputs

    def infer(
        self, op: Op, inputs: Sequence[Value | None], attrs: Attrs
    ) -> tuple[tuple[Value | None, ...], Attrs, tuple[Type, ...]]:
        """What a call would be: operands and attributes after absorption, and result types."""
        operands, attrs, typing_attrs = self._absorb(op, list(inputs), attrs)
        types = tuple([None if v is None else v.type for v in operands])
        return operands, attrs, op.result_types(typing_attrs, types)

    def append(self, node: Node) -> None:
        """Add a finished node as it is; its results keep their identity."""
        self._names.update(value.name for value in node.outputs)
        self._place_node(node)

    def take_last(self) -> Node:
        """Take back the node added last, for whoever keeps the order of nodes elsewhere."""
        return self._nodes.pop()

    def reserve(self, name: str) -> None:
        """Keep a name from being given to a new value."""
        self._names.add(name)

    def acquaint(self, node: Node) -> None:
        """Learn what a node's result is without adding the node."""
        self._follow(node)

    def forget(self, old: Value, new: Value) -> None:
        """Another value now stands for what an earlier one did."""
        if old in self._known:
            self._known[new] = self._known.pop(old)
        if old in self._literals:
            self._literals[new] = self._literals.pop(old)

    def adopt_inputs(self, values: Iterable[Value]) -> None:
        """Take over another graph's inputs as they are."""
        for value in values:
            self._names.add(value.name)
            self._inputs.append(value)
            names = {bare_symbol(dim) for dim in dims_of(value.type)} - {None}
            self._bindable.update(name for name in names if name is not None)

    def build(self, *outputs: Value, names: Sequence[str] = ()) -> Graph:
        """The finished graph; `names` are the outputs' names where they are not the values'."""
        nodes = tuple(self._nodes)
        return Graph(self.name, tuple(self._inputs), nodes, outputs, tuple(names))

    def rename(self, value: Value, name: str, since: int) -> Value:
        """Give a result of the nodes added from position `since` on the name; the new value.

        A value that stood before keeps its name, and so does any where the name is taken.
        """
        position = self._positions.get(value, -1)
        if position < since or value.name == name or name in self._names:
            return value
        renamed = Value(self.fresh_name(name), value.type)
        for later in range(position, len(self._nodes)):
            node = self._nodes[later]
            outputs = tuple(renamed if v is value else v for v in node.outputs)
            inputs = tuple(renamed if v is value else v for v in node.inputs)
            self._nodes[later] = replace(node, inputs=inputs, outputs=outputs)
        self._positions[renamed] = self._positions.pop(value)
        self.forget(value, renamed)
        return renamed

    def __len__(self) -> int:
        """How many nodes have been added."""
        return len(self._nodes)

    def literal(self, value: Value | None) -> Literal | None:
        """The constant that a value is, whatever its size; None where it is not one."""
        return None if value is None else self._literals.get(value)

    def known(self, value: Value | None) -> Array | None:
        """The value of a small tensor where it is known: integers, or an object array of dims."""
        return None if value is None else self._known.get(value)

    def concrete(self, value: Value | None) -> Array | None:
        """The value of a small tensor where it is known and has no symbols in it."""
        found = self.known(value)
        return None if found is None or _is_symbolic(found) else found

    def learn(self, value: Value, known: Array) -> None:
        """Tell the builder a value that it cannot see, such as a captured constant's."""
        if known.size <= KNOWN_LIMIT:
            self._known[value] = known

    def fresh_name(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where that is taken."""
        name = wanted
        while name in self._names:
            number = self._counters.get(wanted, 0) + 1
            self._counters[wanted] = number
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def named(self, type_: Type) -> Type:
        """The type with a fresh symbol for every unknown extent."""
        if isinstance(type_, TensorType) and (type_.shape is None or UNKNOWN not in type_.shape):
            return type_
        if isinstance(type_, SequenceType):
            return type_  # elements differ in shape, so no symbol could stand for an extent
        return map_dims(type_, lambda dim: self.symbols() if dim is UNKNOWN else dim)

    def _absorb(
        self, op: Op, inputs: list[Value | None], attrs: Attrs
    ) -> tuple[tuple[Value | None, ...], Attrs, Attrs]:
        """Turn operands of known value into attributes: (operands, attributes, typing ones)."""
        typing_attrs = attrs
        for position, name in op.alternatives:
            value = inputs[position] if position < len(inputs) else None
            known = self.known(value)
            if known is None:
                continue
            given = known if known.ndim else known.reshape(1)[0]
            try:
                typing_attrs = replace(typing_attrs, **{name: coerce_field(op.attrs, name, given)})
            except GraftError:
                continue
            if _symbols_of_array(known) <= self._bindable:
                inputs[position] = None
                attrs = replace(attrs, **{name: getattr(typing_attrs, name)})
        while inputs and inputs[-1] is None:
            inputs.pop()
        return tuple(inputs), attrs, typing_attrs

    def _place_node(self, node: Node) -> None:
        for value in node.outputs:
            self._positions[value] = len(self._nodes)
        self._nodes.append(node)
        self._follow(node)

    def _follow(self, node: Node) -> None:
        """Learn the value of the node's result where it is small and determined."""
        if node.op.name == "constant":
            self._literals[node.output] = node.attrs.value  # type: ignore[attr-defined]
        if not self._worth_following(node):
            return
        sizes = [v.type.size if isinstance(v.type, TensorType) else UNKNOWN for v in node.outputs]
        if any(not isinstance(size, int) or size > KNOWN_LIMIT for size in sizes):
            return
        known = known_results(node, [self.known(value) for value in node.inputs])
        self._known.update(zip(node.outputs, known, strict=False))

    def _worth_following(self, node: Node) -> bool:
        """A quick no for the many nodes whose operands are data."""
        known = self._known
        if node.op.symbolic is None:
            return all(value is None or value in known for value in node.inputs)
        of_types = node.op.name == "shape_of" or not node.inputs
        return of_types or any(value in known for value in node.inputs)


def known_results(node: Node, known: Sequence[Array | None]) -> list[Array]:
    """What the node gives on known operands, symbolically where need be; empty if unsure."""
    op, attrs = node.op, node.attrs
    if not op.pure:
        return []
    results: Any = None
    try:
        if _may_evaluate(node, known):
            with np.errstate(all="ignore"):
                results = run_op(op, attrs, known)
        elif op.symbolic is not None:
            absent = op.absent(len(known))
            types = [v.type if v else None for v in node.inputs]
            results = op.symbolic(attrs, [*known, *absent], [*types, *absent])
    except _SYMBOLIC_FAILURES:
        return []
    found = results if isinstance(results, tuple) else (results,)
    if any(not isinstance(result, (np.ndarray, np.generic)) for result in found):
        return []
    return [_settled(np.asarray(result)) for result in found]


def _may_evaluate(node: Node, known: Sequence[Array | None]) -> bool:
    """Whether the plain meaning applies: all operands concrete, no symbols, no nested graphs."""
    for value, array in zip(node.inputs, known, strict=True):
        if value is not None and (array is None or _is_symbolic(array)):
            return False
    return not symbols_in_attrs(node.attrs) and not any(True for _ in node.graphs())


def _settled(array: Array) -> Array:
    """An array of dims without a symbol in it, as plain integers."""
    if array.dtype != object or _is_symbolic(array):
        return array
    if any(isinstance(item, (str, bytes)) for item in array.flat):
        return array
    return array.astype(np.int64)


def _is_symbolic(array: Array) -> bool:
    return array.dtype == object and any(isinstance(item, Expr) for item in array.flat)


def _symbols_of_array(array: Array) -> set[str]:
    if array.dtype != object:
        return set()
    return {n for item in array.flat if isinstance(item, Expr) for n in symbols_of(item)}
