"""Where errors are measured: at the outputs, or before them if outputs cannot be compared.

Detectors sort and select boxes, so a small change may give another number of boxes in another
order. There the heads are compared: results of units from which outputs or decisions (integers or
booleans computed from floats) are computed without further units. Values computed from heads alone,
such as selected boxes, are the float program's in all programs, so that units that read them can be
compared as well.

Outputs of known extents that are decisions, such as the class of a classifier that ends in ArgMax,
have no error: the floats that they are decided from are compared beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from graft.base.dims import UNKNOWN
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value, make_node
from graft.ir.types import TensorType, bound_symbols, symbols_in
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.units import Unit

_OF_EXTENTS = ("shape_of", "full")  # their results do not depend on elements of their operands


@dataclass(frozen=True)
class Heads:
    """The values whose errors are measured, in `values`; empty: the graph's outputs. The first
    `outputs` of them are outputs of the graph. `chosen` are values computed from heads alone, such
    as selected boxes, that other heads depend on."""

    values: tuple[Value, ...] = ()
    chosen: tuple[Value, ...] = ()
    outputs: int = 0

    def compared(self, graph: Graph) -> Graph:
        """The graph to measure: its outputs are the heads, and `chosen` values are inputs, fed with
        those of the float program."""
        return with_outputs(_with_inputs(graph, self.chosen), self.values)

    def observed(self, graph: Graph) -> Graph:
        """The graph with heads and chosen values as its outputs."""
        return with_outputs(graph, (*self.values, *self.chosen))


def find_heads(graph: Graph, units: Sequence[Unit]) -> Heads:
    """The heads of a graph."""
    if all(_is_sized(graph, value) for value in graph.outputs):
        deciding = _deciding(graph, units)
        return (
            Heads((*graph.outputs, *deciding), outputs=len(graph.outputs)) if deciding else Heads()
        )
    measured = measured_units(graph, units)
    inside = {node for unit in measured for node in unit.nodes}
    heads = [unit.output for unit in measured if _is_head(graph, unit.output, inside)]
    result = Heads(tuple(heads), _chosen_between(graph, heads, inside))
    return replace(result, chosen=(*_size_givers(graph, result), *result.chosen))


def measured_units(graph: Graph, units: Sequence[Unit]) -> tuple[Unit, ...]:
    """The units whose errors can be measured: all but those that depend on floats whose number
    depends on data."""
    if all(_is_sized(graph, value) for value in graph.outputs):
        return tuple(units)
    behind: set[Value] = set()
    for node in graph.nodes:
        if any(value in behind for value in node.args) or _chooses_floats(node):
            behind.update(node.outputs)
    return tuple(unit for unit in units if unit.output not in behind)


def with_outputs(graph: Graph, values: Sequence[Value]) -> Graph:
    """The graph with these outputs instead of its own; unchanged if `values` is empty."""
    if not values:
        return graph
    return eliminate_dead_code(replace(graph, outputs=tuple(values), output_names=()))


def _with_inputs(graph: Graph, values: Sequence[Value]) -> Graph:
    """The graph with some of its values as further inputs instead of results."""
    if not values:
        return graph
    builder = Builder(graph.name)
    builder.names.reserve(*(value.name for value in graph.values))
    builder.adopt_inputs((*graph.inputs, *values))
    given = set(values)
    for node in graph.nodes:
        left = [value for value in node.outputs if value not in given]
        if len(left) == len(node.outputs):
            builder.append(node)
        elif left and node.op.name == "topk":  # its values can be gathered by the given indices
            operands = node.args[0], node.outputs[1]
            builder.append(make_node("gather", operands, left, axis=node.attrs.axis))
        elif left:
            unread = {v: Value(builder.names(v.name), v.type) for v in given & {*node.outputs}}
            outputs = tuple(unread.get(value, value) for value in node.outputs)
            builder.append(replace(node, outputs=outputs))
    return builder.build(*graph.outputs, names=graph.output_names)


def _is_sized(graph: Graph, value: Value) -> bool:
    """Whether the inputs' shapes determine the extents of a value."""
    if not isinstance(value.type, TensorType) or value.tensor.shape is None:
        return False
    known = frozenset[str]().union(*(symbols_in(one.type) for one in graph.inputs))
    return UNKNOWN not in value.tensor.shape and symbols_in(value.type) <= known


def _deciding(graph: Graph, units: Sequence[Unit]) -> tuple[Value, ...]:
    """The results of units from which outputs other than floats are computed, without another unit
    or a compared output in between."""
    made = {unit.output for unit in units}
    found = set[Value]()
    seen = {value for value in graph.outputs if _is_float(value)}
    waiting = [value for value in graph.outputs if value not in seen]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        producer = graph.producers.get(value)
        if value in made:
            found.add(value)
        elif producer is not None and producer.op.name not in _OF_EXTENTS:
            waiting += producer.args
    return tuple(unit.output for unit in units if unit.output in found)


def _is_head(graph: Graph, start: Value, inside: set[Node]) -> bool:
    """Whether an output or a decision is computed from a value without another unit."""
    outputs = set(graph.outputs)
    seen, waiting = {start}, [start]
    while waiting:
        value = waiting.pop()
        if value in outputs:
            return True
        for node in graph.users.get(value, ()):
            if node in inside:
                continue
            if _chooses_floats(node) or any(_decisions(node)):
                return True
            fresh = [one for one in node.outputs if one not in seen]
            seen.update(fresh)
            waiting += fresh
    return False


def _chosen_between(graph: Graph, heads: Sequence[Value], inside: set[Node]) -> tuple[Value, ...]:
    """Values computed from heads alone, without units, that other heads depend on; first to last.
    What is computed from them by integers alone is computed again instead."""
    of_units, of_heads = set[Value](), set(heads)
    for node in graph.nodes:
        read = [value for value in node.args if value in of_units]
        if node in inside or read:
            of_units.update(node.outputs)
            if node not in inside and all(value in of_heads for value in read):
                of_heads.update(node.outputs)
    between = of_heads.difference(heads)
    found, seen, waiting = set[Value](), set[Value](), [*heads]
    while waiting:
        producer = graph.producers.get(waiting.pop())
        for value in () if producer is None else producer.args:
            if value in between and _reads_floats(graph.producers[value]):
                found.add(value)
            elif value not in seen:
                seen.add(value)
                waiting.append(value)
    return tuple(v for node in graph.nodes for v in node.outputs if v in found)


def _size_givers(graph: Graph, heads: Heads) -> tuple[Value, ...]:
    """Values that bind symbols in the extents of compared values that no input binds."""
    left = heads.compared(graph).values
    used = frozenset[str]().union(*(symbols_in(value.type) for value in left))
    missing = used.difference(*(bound_symbols(value.type) for value in left))
    givers: dict[str, Value] = {}
    for value in graph.values:
        for name in bound_symbols(value.type) & missing:
            givers.setdefault(name, value)
    return tuple(dict.fromkeys(givers.values()))


def _decisions(node: Node) -> Iterator[Value]:
    """The integers and booleans that a node computes from floats, quantised codes apart."""
    if node.op.name.startswith("qnn.") or not _reads_floats(node):
        return
    for value in node.outputs:
        if isinstance(value.type, TensorType) and not value.dtype.is_float:
            yield value


def _reads_floats(node: Node) -> bool:
    """Whether a node's results depend on the elements of floats."""
    return node.op.name not in _OF_EXTENTS and any(map(_is_float, node.args))


def _chooses_floats(node: Node) -> bool:
    """Whether the number of floats that a node computes depends on floats."""
    may_choose = node.op.name == "unique" or any(True for _ in node.graphs())
    if not may_choose or not any(map(_is_float, node.args)):
        return False
    known = frozenset[str]().union(*(symbols_in(value.type) for value in node.args))
    return any(
        _is_float(value)
        and (UNKNOWN in (value.shape or (UNKNOWN,)) or not symbols_in(value.type) <= known)
        for value in node.outputs
    )


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.dtype.is_float
