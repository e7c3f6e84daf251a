"""Sizes and work as plain numbers, for prices; extents known only at run time are assumed."""

from __future__ import annotations

from typing import NamedTuple

from graft.base.dims import AnyDim, Unknown, evaluate_dim, symbols_of
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import bytes_of

# The value of extents that are known at run time only: neither 1 nor huge.
ASSUMED_EXTENT = 100


class Amounts(NamedTuple):
    """Amounts of work as numbers."""

    macs: int
    flops: int
    bytes: int


def number(amount: AnyDim) -> int:
    """A dim or amount of work as a number."""
    if isinstance(amount, int):
        return amount
    if isinstance(amount, Unknown):
        return ASSUMED_EXTENT
    return evaluate_dim(amount, dict.fromkeys(symbols_of(amount), ASSUMED_EXTENT))


def value_bytes(value: Value) -> int:
    """Bytes of a value."""
    return number(bytes_of(value.type))


def node_work(node: Node) -> Amounts:
    """Multiply-accumulates, other operations, and bytes read and written by a node; a symbol counts
    as `ASSUMED_EXTENT`."""
    types = [None if value is None else value.type for value in node.inputs]
    work = node.op.work(node.attrs, types, [value.type for value in node.outputs])
    return Amounts(number(work.macs), number(work.flops), number(work.bytes))


def constant_bytes(node: Node, graph: Graph) -> int:
    """Bytes of the constants that a node reads, which stay in the memory of its device."""
    return sum(value_bytes(v) for v in dict.fromkeys(node.args) if v in graph.constants)
