"""Regions as functions: nodes of a graph in, a closed graph, its hash and its borders out."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from graft.base.dims import symbol
from graft.base.errors import Location
from graft.base.names import comment, identifier
from graft.ir.graph import Graph, Node, Value, closed_graph
from graft.ir.names import FreshNames
from graft.ir.nested import change_node
from graft.ir.printer import to_text
from graft.ir.types import symbols_in
from graft.passes.bind_sizes import bind_sizes


def borders(nodes: Sequence[Node], graph: Graph) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """What the nodes read from outside, constants apart, and what others read of theirs."""
    inside = set(nodes)
    produced = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.args if value not in produced)
    inputs = tuple(value for value in read if value not in graph.constants)
    returned = set(graph.outputs)
    outputs = tuple(
        value
        for node in nodes
        for value in node.outputs
        if value in returned or any(user not in inside for user in graph.users.get(value, ()))
    )
    return inputs, outputs


def region_graph(nodes: Sequence[Node], graph: Graph, name: str = "region") -> Graph:
    """The closed graph of nodes in the order of the graph, with the constants that they read."""
    inputs, outputs = borders(nodes, graph)
    read = dict.fromkeys(value for node in nodes for value in node.args)
    constants = [graph.producers[value] for value in read if value in graph.constants]
    return closed_graph(name, inputs, (*constants, *nodes), outputs)


def region_hash(graph: Graph, contents: bool = True) -> str:
    """A hash that ignores names and source locations; without `contents`, constants count by type
    only, as they do for the price of a region."""
    text = to_text(_anonymous(graph))
    digest = hashlib.sha256(text.text.encode())
    for name, array in sorted(text.constants.items()):
        digest.update(name.encode())
        shape = repr((array.dtype, array.shape)).encode()
        digest.update(np.ascontiguousarray(array).tobytes() if contents else shape)
    return digest.hexdigest()


def _anonymous(graph: Graph) -> Graph:
    """The same graph with values named by position and without source locations."""
    numbers = itertools.count()
    return _renamed(graph, lambda _: f"v{next(numbers)}", lambda _: None, "region")


def for_backend(region: Graph) -> Graph:
    """The region as backends compile it: names are safe to write into generated code.

    Names of a model may be any text. Here those of values and dims are distinct identifiers, and
    those in source locations can stand in a comment."""
    value_names = FreshNames()
    symbols = sorted({name for value in region.values for name in symbols_in(value.type)})
    plain = FreshNames(name for name in symbols if name == identifier(name))
    odd = {name: symbol(plain(identifier(name))) for name in symbols if name not in plain}
    return _renamed(
        bind_sizes(region, odd),
        lambda name: value_names(identifier(name)),
        _plain_location,
        identifier(region.name),
    )


def _plain_location(location: Location | None) -> Location | None:
    if location is None:
        return None
    return Location(comment(location.source), comment(location.node), comment(location.kind))


def _renamed(
    graph: Graph,
    new_name: Callable[[str], str],
    new_location: Callable[[Location | None], Location | None],
    title: str,
) -> Graph:
    """The same graph, and those nested in it, with other names."""
    renamed: dict[Value, Value] = {}

    def fresh(value: Value) -> Value:
        renamed[value] = Value(new_name(value.name), value.type)
        return renamed[value]

    def nested(inner: Graph) -> Graph:
        return _renamed(inner, new_name, new_location, identifier(inner.name))

    inputs = tuple(fresh(value) for value in graph.inputs)
    nodes = tuple(
        replace(
            change_node(node, nested).on(renamed),
            outputs=tuple(fresh(value) for value in node.outputs),
            location=new_location(node.location),
        )
        for node in graph.nodes
    )
    return Graph(title, inputs, nodes, tuple(renamed[value] for value in graph.outputs))
