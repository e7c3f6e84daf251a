"""Minimises failing examples: a graph and a test in, a smaller graph that still fails out.

Step by step, nodes are dropped, extents shrink, attributes return to their defaults and constants
become inputs, as long as the test holds. Graphs that type rules refuse are not tested.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from itertools import combinations, permutations
from types import MappingProxyType
from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import Array
from graft.base.errors import GraftError
from graft.byoc.candidates import placeable
from graft.byoc.kit.draw import Draw
from graft.byoc.region import region_graph
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.passes.eliminate_dead_code import eliminate_dead_code

Fails = Callable[[Graph], bool]

BUDGET = 15.0  # seconds
_STEPS = 400  # tests of one example
_UNCHANGED: Mapping[Any, Any] = MappingProxyType({})


def shrink(graph: Graph, fails: Fails) -> Graph:
    """The smallest graph, found within the time limit, for which the test holds."""
    deadline = time.monotonic() + BUDGET
    steps = 0
    going = True
    while going:
        going = False
        for smaller in _smaller(graph):
            steps += 1
            if steps > _STEPS or time.monotonic() > deadline:
                return graph
            if fails(smaller):
                graph, going = smaller, True
                break
    return graph


def _smaller(graph: Graph) -> Iterator[Graph]:
    """Everything one step smaller, the largest steps first."""
    yield from _without_symbols(graph)
    yield from _fewer_nodes(graph)
    yield from _without_one(graph)
    yield from _fewer_outputs(graph)
    yield from _smaller_shapes(graph)
    yield from _plainer_attrs(graph)
    yield from _fewer_constants(graph)


def _without_symbols(graph: Graph) -> Iterator[Graph]:
    """Numbers for symbolic extents."""
    shapes = {value: value.shape or () for value in _leaves(graph)}
    axes = [
        (v, a) for v, shape in shapes.items() for a, d in enumerate(shape) if type(d) is not int
    ]
    for target in (1, 2, 3, 5) if axes else ():
        yield from rebuilt(graph, dict.fromkeys(axes, target))


def _fewer_nodes(graph: Graph) -> Iterator[Graph]:
    nodes = placeable(graph)
    for count in range(1, len(nodes)):
        for start in range(len(nodes) - count + 1):
            part = nodes[start : start + count]
            yield eliminate_dead_code(region_graph(part, graph, graph.name))


def _without_one(graph: Graph) -> Iterator[Graph]:
    """The graph without a node: readers of its result read an operand of equal type."""
    for node in placeable(graph):
        for operand in dict.fromkeys(node.args):
            if len(node.outputs) == 1 and operand.type == node.output.type:
                yield from filter(placeable, rebuilt(graph, passed={node.output: operand}))


def _fewer_outputs(graph: Graph) -> Iterator[Graph]:
    if len(graph.outputs) > 1:
        for value in graph.outputs:
            rest = tuple(other for other in graph.outputs if other is not value)
            yield eliminate_dead_code(replace(graph, outputs=rest, output_names=()))


def _leaves(graph: Graph) -> list[Value]:
    """Inputs and constants, whose types determine all others."""
    return [*graph.inputs, *graph.constants]


def _sizes(graph: Graph) -> dict[tuple[Value, int], int]:
    """The extent of every axis of every leaf; symbolic ones stay as they are."""
    shapes = {value: value.shape or () for value in _leaves(graph)}
    return {
        (value, axis): dim
        for value, shape in shapes.items()
        for axis, dim in enumerate(shape)
        if isinstance(dim, int)
    }


def _smaller_shapes(graph: Graph) -> Iterator[Graph]:
    sizes = _sizes(graph)
    positions = list(sizes)
    by_size = [[key for key in positions if sizes[key] == n] for n in set(sizes.values())]
    singles = [[key] for key in positions]
    pairs = [
        list(pair) for pair in combinations(positions, 2) if sizes[pair[0]] == sizes[pair[1]] > 1
    ]
    # A group of channels has as many weights again, so different extents may shrink together, too.
    mixed = [
        list(pair) for pair in combinations(positions, 2) if sizes[pair[0]] > sizes[pair[1]] > 1
    ]
    for extents in (*by_size, *singles, *pairs, *mixed):
        least = min(sizes[key] for key in extents)
        for target in dict.fromkeys((1, 2, least // 2, least - 1)):
            if 0 < target < least:
                yield from rebuilt(graph, dict.fromkeys(extents, target))
    for large, small in permutations(positions, 2):  # channels, and those of a group
        times, rest = divmod(sizes[large], sizes[small] or 1)
        if times > 1 and not rest and sizes[small] > 1:
            for target in dict.fromkeys((1, 2, sizes[small] - 1)):
                if target < sizes[small]:
                    yield from rebuilt(graph, {large: times * target, small: target})
    for value in _leaves(graph):  # fewer axes
        if len(value.shape or ()) > 1:
            yield from rebuilt(graph, dropped=value)


def _plainer_attrs(graph: Graph) -> Iterator[Graph]:
    for node in placeable(graph):
        for field in fields(node.attrs):
            now = getattr(node.attrs, field.name)
            for plainer in _plainer(now, field.default):
                try:
                    attrs = replace(node.attrs, **{field.name: plainer})
                except (GraftError, TypeError, ValueError):
                    continue
                reset = plainer == field.default
                for sizes in ({}, *(_fitting(graph, now) if reset else ())):
                    yield from rebuilt(graph, sizes, {node: attrs})


def _fitting(graph: Graph, old: Any) -> Iterator[dict[tuple[Value, int], int]]:
    """Extents to try with an attribute's default: divided by the old value, as channels are by
    groups, or a little larger, in place of padding."""
    sizes = _sizes(graph)
    if type(old) is int and old > 1:
        divisible = [key for key, size in sizes.items() if size and size % old == 0]
        for count in (1, 2, 3):
            for axes in combinations(divisible, count):
                yield {key: sizes[key] // old for key in axes}
    elif isinstance(old, tuple):
        for key, size in sizes.items():
            yield from ({key: size + more} for more in (1, 2))


def _plainer(now: Any, default: Any) -> Iterator[Any]:
    if default is not MISSING and now != default:
        yield default
    if isinstance(now, tuple) and all(type(item) is int for item in now):
        usual = default if isinstance(default, tuple) and len(default) == len(now) else None
        for position, item in enumerate(now):
            for other in dict.fromkeys((usual[position] if usual else 1, 1, 2)):
                if abs(other) < abs(item):
                    yield (*now[:position], other, *now[position + 1 :])
    elif type(now) is int:
        yield from (other for other in (1, 2) if other < now)


def _fewer_constants(graph: Graph) -> Iterator[Graph]:
    for value in graph.constants:
        yield from rebuilt(graph, opened=value)


def rebuilt(
    graph: Graph,
    sizes: Mapping[tuple[Value, int], AnyDim] = _UNCHANGED,
    attrs: Mapping[Node, Any] = _UNCHANGED,
    dropped: Value | None = None,
    opened: Value | None = None,
    passed: Mapping[Value, Value] = _UNCHANGED,
) -> Iterator[Graph]:
    """The graph with other extents, attributes, one axis less of a leaf, a constant made an input,
    or a value replaced by another; nothing if a type rule refuses that."""
    builder = Builder(graph.name)
    shrunk: dict[Value, Value] = {}

    def shape_of(value: Value) -> tuple[AnyDim, ...]:
        extents = list(value.shape or ())
        for axis in range(len(extents)):
            extents[axis] = sizes.get((value, axis), extents[axis])
        return tuple(extents[1:] if value is dropped else extents)

    try:
        for value in graph.inputs:
            shrunk[value] = builder.input(value.name, TensorType(value.dtype, shape_of(value)))
        for node in graph.nodes:
            if node.op.name == "constant":
                shrunk[node.output] = _leaf(builder, node, shape_of(node.output), opened)
                continue
            if node.output in passed:
                shrunk[node.output] = shrunk[passed[node.output]]
                continue
            inputs = [None if value is None else shrunk[value] for value in node.inputs]
            names = [value.name for value in node.outputs]
            results = builder.add(node.op, inputs, attrs.get(node, node.attrs), names)
            shrunk.update(zip(node.outputs, results, strict=True))
        yield eliminate_dead_code(builder.build(*(shrunk[value] for value in graph.outputs)))
    except (GraftError, ValueError, IndexError, ArithmeticError):
        return


def _leaf(builder: Builder, node: Node, shape: tuple[AnyDim, ...], opened: Value | None) -> Value:
    value = node.output
    if value is opened:
        return builder.input(value.name, TensorType(value.dtype, shape))
    array: Array = node.attrs.value.array
    if array.shape != shape:
        extents = tuple(dim for dim in shape if isinstance(dim, int))
        array = Draw(f"{value.name} {extents}").array(value.dtype, extents)
    return builder.constant(array, value.name)
