"""Times of kernels → times of units: what each unit takes, and which units one kernel computes.

A kernel may compute several units (an inverted residual is one): its time is known by the last of
them alone, and says nothing about what another precision of one of them would gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graft.byoc.contract import Cost
from graft.byoc.sizes import node_work
from graft.ir.graph import Graph
from graft.quantize.units import Unit

# Behind the name of a node's value, names of values that take its place in other precisions.
_ENDINGS = ("", "_quantized", "_rounded", "_scores", "_scaled", "_shares", "_shares_quantized")


def unit_seconds(
    graph: Graph, units: Sequence[Unit], costs: Mapping[str, Cost]
) -> tuple[list[float], list[tuple[int, int]]]:
    """The time of each unit of a graph, and the pairs of units whose first is computed in the
    kernel of the second. Units of one kernel share its time by their operations; what is not timed
    and has no such kernel takes 0."""
    seconds = [_own_seconds(unit, costs) for unit in units]
    fused = _fused_pairs(graph, units, seconds)
    kernels: dict[int, list[int]] = {}
    for position in range(len(units)):
        kernels.setdefault(_end(fused, position), []).append(position)
    for last, members in kernels.items():
        works = {member: _operations(units[member]) for member in members}
        whole, total = seconds[last], max(sum(works.values()), 1)
        if len(members) > 1:
            for member in members:
                seconds[member] = whole * works[member] / total
    return seconds, sorted(fused.items())


def _own_seconds(unit: Unit, costs: Mapping[str, Cost]) -> float:
    """The time of the kernels that make a unit's values."""
    names = {f"{node.output.name}{ending}" for node in unit.nodes for ending in _ENDINGS}
    return sum(costs[name].seconds for name in names if name in costs)


def _fused_pairs(graph: Graph, units: Sequence[Unit], seconds: Sequence[float]) -> dict[int, int]:
    """By unit without a time, the unit that alone reads its result."""
    readers = {unit.anchor: position for position, unit in enumerate(units)}
    pairs = {}
    for position, unit in enumerate(units):
        users = graph.users.get(unit.output, [])
        if not seconds[position] and len(users) == 1 and users[0] in readers:
            pairs[position] = readers[users[0]]
    ends = {position for position in pairs.values() if position not in pairs}
    timed = {position for position in ends if seconds[position]}
    return {one: after for one, after in pairs.items() if _end(pairs, one) in timed}


def _end(pairs: Mapping[int, int], position: int) -> int:
    while position in pairs:
        position = pairs[position]
    return position


def _operations(unit: Unit) -> int:
    work = node_work(unit.anchor)
    return work.macs + work.flops
