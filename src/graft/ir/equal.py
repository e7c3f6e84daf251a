"""Structural equality of graphs: the same operations in the same order, whatever values are named.

Places are ignored; names of inputs and outputs count, since callers use them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value

Renaming = dict[Value, Value]


def equal(first: Graph, second: Graph) -> bool:
    """Whether two graphs are the same function, written the same way."""
    return difference(first, second) is None


def difference(first: Graph, second: Graph) -> str | None:
    """The first difference in words, or None."""
    if [(v.name, v.type) for v in first.inputs] != [(v.name, v.type) for v in second.inputs]:
        return f"inputs differ: {list(first.inputs)} and {list(second.inputs)}"
    if first.output_names != second.output_names:
        return f"outputs differ: {first.output_names} and {second.output_names}"
    if len(first.nodes) != len(second.nodes):
        return f"{len(first.nodes)} nodes and {len(second.nodes)} nodes"
    renaming: Renaming = dict(zip(first.inputs, second.inputs, strict=True))
    for one, other in zip(first.nodes, second.nodes, strict=True):
        reason = _node_difference(one, other, renaming)
        if reason is not None:
            return f"{one!r} and {other!r}: {reason}"
        renaming.update(zip(one.outputs, other.outputs, strict=True))
    same_outputs = all(
        renaming.get(a) is b for a, b in zip(first.outputs, second.outputs, strict=True)
    )
    return None if same_outputs else "outputs are defined by different nodes"


def _node_difference(one: Node, other: Node, renaming: Renaming) -> str | None:
    if one.op is not other.op:
        return "operators differ"
    if len(one.inputs) != len(other.inputs):
        return "operand counts differ"
    for a, b in zip(one.inputs, other.inputs, strict=True):
        if (renaming.get(a) if a is not None else None) is not b:
            return f"operands %{a and a.name} and %{b and b.name} differ"
    if [v.type for v in one.outputs] != [v.type for v in other.outputs]:
        return "result types differ"
    return attrs_difference(one.attrs, other.attrs)


def attrs_difference(one: Attrs, other: Attrs) -> str | None:
    """The first difference between attributes of one class in words, or None."""
    for field in fields(one):
        reason = _attr_difference(getattr(one, field.name), getattr(other, field.name))
        if reason is not None:
            return f"attribute '{field.name}': {reason}"
    return None


def _attr_difference(one: Any, other: Any) -> str | None:
    if isinstance(one, Graph) and isinstance(other, Graph):
        return difference(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        reasons = (_attr_difference(a, b) for a, b in zip(one, other, strict=True))
        return next((reason for reason in reasons if reason is not None), None)
    if isinstance(one, float) and isinstance(other, float):
        same = repr(one) == repr(other)  # NaN equals itself, and -0.0 differs from 0.0
    else:
        same = one == other and type(one) is type(other)
    return None if same else f"{one!r} and {other!r}"
