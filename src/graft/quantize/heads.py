"""Where errors are measured: at the outputs, or before them where outputs cannot be compared.

Detectors sort and choose boxes, so that the least change may give another number of them in another
order. What is compared there are the heads: what the last units make before data decide on extents.
"""

from __future__ import annotations

from collections.abc import Sequence

from graft.base.dims import UNKNOWN
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, symbols_in
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.units import Unit


def head_values(graph: Graph, units: Sequence[Unit]) -> tuple[Value, ...]:
    """The values to be compared: none where the outputs themselves can be."""
    if all(_is_sized(graph, value) for value in graph.outputs):
        return ()
    sized = [unit for unit in units if _is_sized(graph, unit.output)]
    made = {unit.output for unit in sized}
    heads = [unit.output for unit in sized if not _reaches(graph, unit.output, made)]
    return tuple(heads)


def measured_units(graph: Graph, units: Sequence[Unit]) -> tuple[Unit, ...]:
    """The units whose errors can be measured: all of them, or those that heads depend on."""
    heads = head_values(graph, units)
    if not heads:
        return tuple(units)
    needed, waiting = set[Value](), [*heads]
    while waiting:
        value = waiting.pop()
        if value not in needed:
            needed.add(value)
            node = graph.producers.get(value)
            waiting += () if node is None else node.args
    return tuple(unit for unit in units if unit.output in needed)


def with_outputs(graph: Graph, values: Sequence[Value]) -> Graph:
    """The graph with other outputs; itself without any."""
    if not values:
        return graph
    builder = Builder(graph.name)
    builder.adopt_inputs(graph.inputs)
    for node in graph.nodes:
        builder.append(node)
    return eliminate_dead_code(builder.build(*values))


def _is_sized(graph: Graph, value: Value) -> bool:
    """Whether inputs alone decide on the extents of a value."""
    if not isinstance(value.type, TensorType) or value.tensor.shape is None:
        return False
    known = frozenset[str]().union(*(symbols_in(one.type) for one in graph.inputs))
    return UNKNOWN not in value.tensor.shape and symbols_in(value.type) <= known


def _reaches(graph: Graph, start: Value, goals: set[Value]) -> bool:
    """Whether another one of some values is computed from a value."""
    seen, waiting = {start}, [start]
    while waiting:
        for node in graph.users.get(waiting.pop(), ()):
            for value in node.outputs:
                if value in goals and value is not start:
                    return True
                if value not in seen:
                    seen.add(value)
                    waiting.append(value)
    return False
