"""Replaces an `if` whose condition is constant by the branch that is taken.

What the branch calls its inputs' extents becomes what they are outside. Where attributes would then
name an extent that no input of the outer graph binds, the `if` stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, substitute, symbols_of
from graft.ir.attrs import bind_attrs, symbols_in_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.names import FreshNames, FreshSymbols
from graft.ir.nested import change_nested
from graft.ir.types import Type, bound_symbols, map_dims, symbols_in
from graft.ops.bodies import Bindings, bind_symbols

# What stands for a node's results on given operands, once it is added; None: the node itself.
Put = Callable[[Node, tuple[Value | None, ...]], Sequence[Value] | None]


def inline_branches(graph: Graph) -> Graph:
    """Splice in the branches that are certain, innermost first."""
    graph = change_nested(graph, inline_branches)
    branches = {node: branch for node in graph.nodes if (branch := _certain(node, graph.constants))}
    return _with_branches(Splicer(graph), branches) if branches else graph


def with_branch(graph: Graph, node: Node, branch: Graph) -> tuple[Graph, dict[Value, Value]] | None:
    """The graph with a branch in the place of its `if`, whatever the condition, and what stands for
    its results; None where attributes would name extents that nothing in the graph has. Whether
    its inputs bind those that attributes name is left to the caller (`names_bound`)."""
    splicer = Splicer(graph, graph.input_symbols | _made_symbols(graph))
    result = _with_branches(splicer, {node: branch})
    return None if node in result.nodes else (result, splicer.same)


def names_bound(graph: Graph) -> bool:
    """Whether the inputs bind all extents that attributes name."""
    names = (symbols_in_attrs(node.attrs) for node in graph.nodes)
    return frozenset[str]().union(*names) <= graph.input_symbols


def _made_symbols(graph: Graph) -> frozenset[str]:
    """The symbols in the types of node results."""
    types = (value.type for node in graph.nodes for value in node.outputs)
    return frozenset[str]().union(*map(bound_symbols, types))


def _with_branches(splicer: Splicer, by_node: Mapping[Node, Graph]) -> Graph:
    return splicer.run(
        lambda node, inputs: splicer.splice(by_node[node], inputs[1:]) if node in by_node else None
    )


def _certain(node: Node, constants: dict[Value, Literal]) -> Graph | None:
    condition = node.inputs[0] if node.inputs else None
    if node.op.name != "if" or condition not in constants:
        return None
    holds = bool(np.all(constants[condition].array))
    branch: Graph = node.attrs.then_branch if holds else node.attrs.else_branch
    return branch


class Splicer:
    """Rebuilds a graph, replacing nodes by others or by the nodes of a branch."""

    def __init__(self, graph: Graph, nameable: frozenset[str] | None = None) -> None:
        self.graph = graph
        # Extents that attributes may name; by default those that the inputs bind.
        self.nameable = graph.input_symbols if nameable is None else nameable
        self.same: dict[Value, Value] = {}
        self.nodes: list[Node] = []
        self.names = FreshNames(value.name for value in graph.values)
        symbols = (name for value in graph.values for name in symbols_in(value.type))
        self.symbols = FreshSymbols("i", symbols)

    def run(self, put: Put) -> Graph:
        """The graph with each node replaced as `put` says."""
        for node in self.graph.nodes:
            current = node.on(self.same)
            results = put(node, current.inputs)
            if results is not None:
                self.same.update(zip(node.outputs, results, strict=True))
            else:
                self.nodes.append(current)
        nodes = tuple(self.nodes)
        if nodes == self.graph.nodes:
            return self.graph
        outputs = tuple(self.same.get(value, value) for value in self.graph.outputs)
        return replace(self.graph, nodes=nodes, outputs=outputs)

    def splice(self, branch: Graph, operands: Sequence[Value | None]) -> list[Value] | None:
        """Add the branch's nodes with fresh values and symbols; None if that is not possible."""
        local: dict[Value, Value] = {
            formal: actual
            for formal, actual in zip(branch.inputs, operands, strict=True)
            if actual is not None
        }
        bindings = bind_symbols((formal.type, actual.type) for formal, actual in local.items())
        if not self.may_name(branch, bindings):
            return None
        renamed = dict(bindings)
        for node in branch.nodes:
            for value in node.outputs:
                type_ = self.localized(value.type, renamed)
                local[value] = Value(self.names(value.name), type_)
            inputs = tuple(None if v is None else local[v] for v in node.inputs)
            outputs = tuple(local[value] for value in node.outputs)
            attrs = bind_attrs(node.attrs, bindings)
            self.nodes.append(replace(node, inputs=inputs, attrs=attrs, outputs=outputs))
        return [local[value] for value in branch.outputs]

    def may_name(self, branch: Graph, bindings: Bindings) -> bool:
        """Whether attributes of the branch can name its extents in the graph around it."""
        names = {name for node in branch.nodes for name in symbols_in_attrs(node.attrs)}
        outside = [bindings.get(name, UNKNOWN) for name in names]
        return not any(dim is UNKNOWN or symbols_of(dim) - self.nameable for dim in outside)

    def localized(self, type_: Type, renamed: Bindings) -> Type:
        def change(dim: AnyDim) -> AnyDim:
            if isinstance(dim, int) or dim is UNKNOWN:
                return dim
            for name in symbols_of(dim) - renamed.keys():
                renamed[name] = self.symbols()
            return substitute(dim, renamed)

        return map_dims(type_, change)
