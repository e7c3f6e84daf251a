"""Symbols of nested graphs in one program: a graph and dims for some of its symbols in, the same
graph in terms of these out.

A nested graph has symbols of its own. In a program all blocks share one set of names, so symbols
that stand for dims of the surrounding graph become these, and others get fresh names where theirs
are used.
"""

from __future__ import annotations

from collections.abc import Mapping

from graft.base.dims import AnyDim, symbol
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph, Node
from graft.ir.names import FreshNames
from graft.ir.substitution import Substitution
from graft.ir.types import symbols_in


def substitute_symbols(graph: Graph, dims: Mapping[str, AnyDim]) -> Graph:
    """The graph with dims for some of its symbols."""
    return _Substitution(dims).graph(graph) if dims else graph


def inherited_symbols(graph: Graph) -> frozenset[str]:
    """The symbols that are bound in the graph around this one."""
    mentioned = frozenset().union(*(symbols_in(value.type) for value in graph.inputs))
    return mentioned - graph.input_symbols


def adopt(graph: Graph, dims: Mapping[str, AnyDim], known: frozenset[str], used: set[str]) -> Graph:
    """A graph in terms of the surrounding one, which has `dims` for some symbols and binds those
    `known`. Other symbols get fresh names where theirs are `used`; all names are used from then
    on."""
    shared = inherited_symbols(graph) & known
    return _renamed(graph, dims, shared, used)


def rename_new(graph: Graph, before: Graph, used: set[str]) -> Graph:
    """The graph with fresh names for symbols that an earlier form of it did not have, where theirs
    are used."""
    return _renamed(graph, {}, frozenset(_symbols_of(before)), used)


def _renamed(
    graph: Graph, dims: Mapping[str, AnyDim], shared: frozenset[str], used: set[str]
) -> Graph:
    mentioned = dict.fromkeys(_symbols_of(graph))
    own = [name for name in mentioned if name not in shared and name not in dims]
    names = FreshNames((*used, *own))
    fresh = {name: symbol(names(name)) for name in own if name in used}
    used |= {*own, *(str(dim) for dim in fresh.values())}
    return substitute_symbols(graph, {**dims, **fresh})


def _symbols_of(graph: Graph) -> list[str]:
    names: list[str] = []
    for value in graph.inputs:
        names += sorted(symbols_in(value.type))
    for node in graph.nodes:
        names += sorted(symbols_in_attrs(node.attrs))
        for value in node.outputs:
            names += sorted(symbols_in(value.type))
    return names


class _Substitution(Substitution):
    def nested(self, _node: Node, inner: Graph) -> Graph:
        """Substitute in a nested graph what it inherits from this one."""
        own = inherited_symbols(inner)
        return substitute_symbols(inner, {n: d for n, d in self.dims.items() if n in own})
