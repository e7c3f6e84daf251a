"""A region as a function: some nodes of a graph in, a closed graph of their own out."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
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
    inputs = tuple(value for value in read if not is_constant(value, graph))
    returned = set(graph.outputs)
    outputs = tuple(
        value
        for node in nodes
        for value in node.outputs
        if value in returned or any(user not in inside for user in graph.users.get(value, ()))
    )
    return inputs, outputs


def is_constant(value: Value, graph: Graph) -> bool:
    """Whether a node `constant` makes the value."""
    node = graph.producers.get(value)
    return node is not None and node.op.name == "constant"


def region_graph(nodes: Sequence[Node], graph: Graph, name: str = "region") -> Graph:
    """The closed graph of nodes in the order of the graph, with the constants that they read."""
    inputs, outputs = borders(nodes, graph)
    read = dict.fromkeys(value for node in nodes for value in node.args)
    constants = [graph.producers[value] for value in read if is_constant(value, graph)]
    return closed_graph(name, inputs, (*constants, *nodes), outputs)


def region_hash(graph: Graph, contents: bool = True) -> str:
    """The same for regions that mean the same: names and places do not count.

    Without `contents` constants count by type only, as they do for what a region costs.
    """
    text = to_text(_anonymous(graph))
    digest = hashlib.sha256(text.text.encode())
    for name, array in sorted(text.constants.items()):
        digest.update(name.encode())
        shape = repr((array.dtype, array.shape)).encode()
        digest.update(np.ascontiguousarray(array).tobytes() if contents else shape)
    return digest.hexdigest()


def _anonymous(graph: Graph) -> Graph:
    """The same graph with values named by position and without places."""
    numbers = itertools.count()
    return _renamed(graph, lambda _: f"v{next(numbers)}", lambda _: None, "region")


def for_backend(region: Graph) -> Graph:
    """The region as backends get it to compile: no name of the model's is left in it as it was.

    Whoever writes code is tempted to write names into it, and a model's may be anything. Names of
    values are distinct identifiers here, those of dims likewise, and those of nodes can stand in a
    comment."""
    value_names = FreshNames()
    symbols = sorted({name for value in _values(region) for name in symbols_in(value.type)})
    plain = FreshNames(name for name in symbols if name == identifier(name))
    odd = {name: symbol(plain(identifier(name))) for name in symbols if name not in plain}
    return _renamed(
        bind_sizes(region, odd),
        lambda name: value_names(identifier(name)),
        _plain_location,
        identifier(region.name),
    )


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for node in graph.nodes:
        yield from node.outputs


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
            change_node(node, nested),
            inputs=tuple(None if v is None else renamed[v] for v in node.inputs),
            outputs=tuple(fresh(value) for value in node.outputs),
            location=new_location(node.location),
        )
        for node in graph.nodes
    )
    return Graph(title, inputs, nodes, tuple(renamed[value] for value in graph.outputs))
