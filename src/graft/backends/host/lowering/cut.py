"""Cuts a graph where numbers have to be known before anything can go on.

A graph enters; out come parts in the order in which they run. A native part is a set of nodes whose
sizes are all known when it starts: it becomes a segment. Between native parts stand single nodes:
those whose results have sizes that only their data tell, control flow, and what has no native code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graft.base.dims import AnyDim, symbols_of
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType, bound_symbols

# What gives numbers to symbols and does nothing else.
TELLING = ("sized", "sizes")


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Nodes that become a segment, or a node for itself."""

    nodes: tuple[Node, ...]
    native: bool
    known: frozenset[str]  # symbols that have a number by then


def cut(
    graph: Graph, is_native: Callable[[Node], bool], inherited: frozenset[str] = frozenset()
) -> list[GraphPart]:
    """The pieces of a graph; `is_native` tells which nodes have code once sizes are known.

    The numbers of `inherited` symbols come from the graph around this one."""
    return _Cutter(graph, is_native, inherited).pieces()


class _Cutter:
    def __init__(
        self, graph: Graph, is_native: Callable[[Node], bool], inherited: frozenset[str]
    ) -> None:
        self._waiting = [node for node in graph.nodes if node.op.name != "constant"]
        self._made = set(graph.inputs)
        self._made |= {n.output for n in graph.nodes if n.op.name == "constant"}
        self._known: set[str] = {*graph.input_symbols, *inherited}
        self._promised: set[str] = set()
        self._is_native = is_native

    def pieces(self) -> list[GraphPart]:
        """All single nodes that can run, then as large a native part as can be, and so on.

        Singles come first, so that those that read inputs alone do not separate native parts."""
        found: list[GraphPart] = []
        while self._waiting:
            self._promised = self._sizes_to_come()
            known = frozenset(self._known)
            singles = self._taken(self._stands_alone, at_once=False)
            found += [GraphPart((node,), False, known) for node in singles]
            known = frozenset(self._known)
            nodes = self._taken(self._fits)
            if nodes:
                found.append(GraphPart(tuple(nodes), True, known))
        return found

    def _fits(self, node: Node) -> bool:
        """Whether a node's sizes are all known."""
        return self._is_native(node) and needed_symbols(node) <= self._known

    def _sizes_to_come(self) -> set[str]:
        """Symbols that numbers are still going to be found for."""
        tell = (node for node in self._waiting if node.op.name in TELLING)
        return {name for node in tell for v in node.outputs for name in bound_symbols(v.type)}

    def _stands_alone(self, node: Node) -> bool:
        """Whether a node is for itself, and not native as soon as some such symbol is known."""
        awaits = not self._promised.isdisjoint(needed_symbols(node))
        return not self._fits(node) and not (awaits and self._is_native(node))

    def _taken(self, wanted: Callable[[Node], bool], at_once: bool = True) -> list[Node]:
        """Waiting nodes that are wanted and have their operands; native ones also from within.

        Single nodes tell sizes, after which others may fit: only those that can run now."""
        found: list[Node] = []
        left: list[Node] = []
        made = set(self._made)
        for node in self._waiting:
            ready = all(value in made for value in node.args)
            if ready and wanted(node):
                found.append(node)
                self._made.update(node.outputs)
                if at_once:
                    made.update(node.outputs)
            else:
                left.append(node)
        self._waiting = left
        for node in found:
            for value in node.outputs:
                self._known |= bound_symbols(value.type)
        return found


def needed_symbols(node: Node) -> frozenset[str]:
    """The symbols that a node's code needs numbers for."""
    needed = set(symbols_in_attrs(node.attrs))
    for value in (*node.args, *node.outputs):
        needed |= _symbols_in(value)
    return frozenset(needed)


def _symbols_in(value: Value) -> set[str]:
    shape: Sequence[AnyDim] = ()
    if isinstance(value.type, TensorType) and value.type.shape is not None:
        shape = value.type.shape
    return {name for dim in shape for name in symbols_of(dim)}
