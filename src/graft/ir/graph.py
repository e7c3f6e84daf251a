"""Immutable typed SSA graphs.

A `Graph` is a closed function: nested graphs (branches, loop bodies, regions) get everything they
use through their own inputs. Values compare by identity; `graft.ir.equal` compares structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from graft.base.dtypes import DType
from graft.base.errors import Location, TypeRuleError
from graft.base.names import printable
from graft.ir.attrs import make_attrs
from graft.ir.literal import Literal
from graft.ir.op import Op, get_op
from graft.ir.types import Shape, TensorType, Type, bound_symbols


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What a node or an input defines: a name and a type."""

    name: str
    type: Type

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def shape(self) -> Shape | None:
        return self.tensor.shape

    @property
    def tensor(self) -> TensorType:
        """The type, which has to be a tensor's."""
        if not isinstance(self.type, TensorType):
            raise TypeRuleError(f"%{self.name} is a {self.type}, not a tensor")
        return self.type

    def __repr__(self) -> str:
        return printable(f"%{self.name}: {self.type}")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation. An absent optional operand is None; trailing ones are left out.

    `attrs` is an instance of the operator's attribute class.
    """

    op: Op
    inputs: tuple[Value | None, ...]
    attrs: Any
    outputs: tuple[Value, ...]
    location: Location | None = None

    @property
    def args(self) -> tuple[Value, ...]:
        """The operands that are present, as backend predicates know them."""
        return tuple(value for value in self.inputs if value is not None)

    @property
    def output(self) -> Value:
        """The only (or first) result."""
        return self.outputs[0]

    def on(self, replacements: Mapping[Value, Value]) -> Node:
        """The node with operands replaced by those that `replacements` has for them."""
        if replacements.keys().isdisjoint(self.inputs):
            return self
        inputs = tuple([None if v is None else replacements.get(v, v) for v in self.inputs])
        return replace(self, inputs=inputs)

    def graphs(self) -> Iterator[tuple[str, Graph]]:
        """Nested graphs with the attribute that holds each."""
        for field in fields(self.attrs):
            attribute = getattr(self.attrs, field.name)
            for item in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(item, Graph):
                    yield field.name, item

    def __repr__(self) -> str:
        results = ", ".join(f"%{value.name}" for value in self.outputs)
        return printable(f"<{results} = {self.op.name}>")


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs, nodes in an order in which they can run, and outputs."""

    name: str
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...] = ()  # what callers know the outputs by

    def __post_init__(self) -> None:
        if not self.output_names:
            object.__setattr__(self, "output_names", tuple(v.name for v in self.outputs))

    @property
    def values(self) -> tuple[Value, ...]:
        """All values: inputs, then results of nodes."""
        return (*self.inputs, *(value for node in self.nodes for value in node.outputs))

    @cached_property
    def constants(self) -> dict[Value, Literal]:
        """The values that are constants."""
        return {n.output: n.attrs.value for n in self.nodes if n.op.name == "constant"}

    @cached_property
    def producers(self) -> dict[Value, Node]:
        """The node that defines each value (graph inputs have none)."""
        return {value: node for node in self.nodes for value in node.outputs}

    @cached_property
    def users(self) -> dict[Value, list[Node]]:
        """The nodes that read each value, in order; one entry per reading node."""
        readers: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.args):
                readers.setdefault(value, []).append(node)
        return readers

    @cached_property
    def last_reads(self) -> tuple[tuple[Value, ...], ...]:
        """Per node, the values whose last read it is."""
        returned = set(self.outputs)
        later: set[Value] = set()
        reversed_reads: list[tuple[Value, ...]] = []
        for node in reversed(self.nodes):
            touched = dict.fromkeys((*node.args, *node.outputs))
            fresh = tuple(v for v in touched if v not in later and v not in returned)
            later.update(fresh)
            reversed_reads.append(fresh)
        return tuple(reversed(reversed_reads))

    @cached_property
    def input_symbols(self) -> frozenset[str]:
        """Symbols that the inputs' shapes bind when the graph is called."""
        return frozenset().union(*(bound_symbols(value.type) for value in self.inputs))

    def walk(self) -> Iterator[Node]:
        """All nodes, those of nested graphs included, each after its nested graphs."""
        for node in self.nodes:
            for _, nested in node.graphs():
                yield from nested.walk()
            yield node

    def __str__(self) -> str:
        return printable(f"<graph {self.name}: {len(self.nodes)} nodes>")


def make_node(
    name: str,
    inputs: Sequence[Value | None],
    outputs: Sequence[Value],
    location: Location | None = None,
    **attrs: Any,
) -> Node:
    """A node of the operator of that name, for results whose types are known."""
    op = get_op(name)
    return Node(op, tuple(inputs), make_attrs(op.attrs, attrs), tuple(outputs), location)


def closed_graph(
    name: str, captures: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value]
) -> Graph:
    """A graph of nodes of another one, whose inputs stand for the values that they capture."""
    formal = {value: Value(value.name, value.type) for value in captures}
    inner = tuple([node.on(formal) for node in nodes])
    results = tuple([formal.get(value, value) for value in outputs])
    return Graph(name, tuple(formal.values()), inner, results)
