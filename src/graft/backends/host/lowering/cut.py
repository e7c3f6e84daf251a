"""Cuts a graph where sizes have to be known before it can go on.

A graph enters; out come parts in the order in which they run. A native part is a set of nodes whose
sizes are all known when it starts: it becomes a segment. Between native parts are single nodes:
those with data-dependent sizes, control flow, and nodes without native code.

Tensors computed from constants alone, such as zeros to be updated, are left to the segment of their
first reader: there they need memory for as long as they are read, and can be changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graft.base.dims import AnyDim, symbols_of
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType, bound_symbols

# Operators that bind symbols and do nothing else.
BINDERS = ("sized", "sizes")


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Nodes that become a segment, or a single node."""

    nodes: tuple[Node, ...]
    native: bool
    known: frozenset[str]  # symbols that are bound before it runs


def cut(
    graph: Graph, is_native: Callable[[Node], bool], inherited: frozenset[str] = frozenset()
) -> list[GraphPart]:
    """The parts of a graph; `is_native` says which nodes have code once sizes are known.

    `inherited` symbols are bound in the graph around this one."""
    return _Cutter(graph, is_native, inherited).parts()


class _Cutter:
    def __init__(
        self, graph: Graph, is_native: Callable[[Node], bool], inherited: frozenset[str]
    ) -> None:
        self._waiting = [node for node in graph.nodes if node.op.name != "constant"]
        self._available = set(graph.inputs)
        self._available |= {n.output for n in graph.nodes if n.op.name == "constant"}
        self._bound: set[str] = {*graph.input_symbols, *inherited}
        self._to_come: set[str] = set()
        self._is_native = is_native
        self._graph = graph
        self._returned = set(graph.outputs)

    def parts(self) -> list[GraphPart]:
        """All single nodes that can run, then as large a native part as can be, and so on.

        Singles come first, so that those that read inputs alone do not separate native parts."""
        parts: list[GraphPart] = []
        while self._waiting:
            self._to_come = self._sizes_to_come()
            known = frozenset(self._bound)
            singles = self._take_ready(self._stands_alone, at_once=False)
            parts += [GraphPart((node,), False, known) for node in singles]
            known = frozenset(self._bound)
            nodes = self._take_ready(self._fits)
            if nodes:
                early = self._early(nodes)
                if singles or len(early) < len(nodes):
                    nodes = self._put_back(nodes, early)
            if nodes:
                parts.append(GraphPart(tuple(nodes), True, known))
        return parts

    def _early(self, nodes: Sequence[Node]) -> set[Node]:
        """Those nodes of a native part that only later parts read, and that read constants alone
        beside sizes and the like."""
        sources = set(self._graph.constants)
        candidates: list[Node] = []
        for node in nodes:
            parameters = {position for position, _ in node.op.alternatives}  # as a shape is
            operands = (v for n, v in enumerate(node.inputs) if v and n not in parameters)
            if sources.issuperset(operands):
                sources.update(node.outputs)
                candidates.append(node)
        present, early = set(nodes), set[Node]()
        for node in reversed(candidates):
            users = [user for value in node.outputs for user in self._graph.users.get(value, ())]
            is_late = all(
                user in early or (user not in present and self._is_native(user)) for user in users
            )
            if is_late and not self._returned.intersection(node.outputs):
                early.add(node)
        return early

    def _put_back(self, nodes: Sequence[Node], early: set[Node]) -> list[Node]:
        """Let some of the nodes wait again; returns the other ones."""
        self._waiting = [*(node for node in nodes if node in early), *self._waiting]
        self._available.difference_update(value for node in early for value in node.outputs)
        return [node for node in nodes if node not in early]

    def _fits(self, node: Node) -> bool:
        """Whether a node's sizes are all known."""
        return self._is_native(node) and needed_symbols(node) <= self._bound

    def _sizes_to_come(self) -> set[str]:
        """The symbols that nodes still to come bind."""
        binders = (node for node in self._waiting if node.op.name in BINDERS)
        return {name for node in binders for v in node.outputs for name in bound_symbols(v.type)}

    def _stands_alone(self, node: Node) -> bool:
        """Whether a node is a part by itself, and not native as soon as such a symbol is bound."""
        awaits = not self._to_come.isdisjoint(needed_symbols(node))
        return not self._fits(node) and not (awaits and self._is_native(node))

    def _take_ready(self, is_accepted: Callable[[Node], bool], at_once: bool = True) -> list[Node]:
        """Remove the accepted nodes whose operands are available from those that wait; `at_once`,
        what they compute is available to the next ones.

        Single nodes bind sizes, after which others may fit, so only those that can run now."""
        ready_nodes: list[Node] = []
        others: list[Node] = []
        available = set(self._available)
        for node in self._waiting:
            ready = all(value in available for value in node.args)
            if ready and is_accepted(node):
                ready_nodes.append(node)
                self._available.update(node.outputs)
                if at_once:
                    available.update(node.outputs)
            else:
                others.append(node)
        self._waiting = others
        for node in ready_nodes:
            for value in node.outputs:
                self._bound |= bound_symbols(value.type)
        return ready_nodes


def needed_symbols(node: Node) -> frozenset[str]:
    """The symbols that have to be bound for a node's code."""
    names = set(symbols_in_attrs(node.attrs))
    for value in (*node.args, *node.outputs):
        names |= _symbols_in(value)
    return frozenset(names)


def _symbols_in(value: Value) -> set[str]:
    shape: Sequence[AnyDim] = ()
    if isinstance(value.type, TensorType) and value.type.shape is not None:
        shape = value.type.shape
    return {name for dim in shape for name in symbols_of(dim)}
