"""Estimates of what kernels cost, in cycles of one core.

The choice of layouts and algorithms compares sums of them, so only their order matters. Symbolic
extents count as typical numbers: only choices depend on these, never results. The first extent of a
shape is taken for a batch, and batches are of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from graft.backends.host.group import Group
from graft.backends.host.storage import shape_of
from graft.base.dims import AnyDim, Unknown, evaluate_dim, symbols_of
from graft.base.errors import EvaluationError
from graft.ir.graph import Node, Value
from graft.target.machine import Machine
from graft.target.target import Target

# Pixels along a side of the images that networks are given, and elements of most other things.
EXTENT = 224
# Shares of the rate at which a core reads memory: a kernel also writes, and lines that are written
# are read before; copies from blocks to rows or back go in short runs.
STREAMED, COPIED = 1 / 2, 1 / 4
_FLOAT = 4  # bytes

# The cycles of a group's kernel that makes blocks of so many channels (0: row-major tensors).
Cost = Callable[[Group, int, Target], float]


def streamed_cost(group: Group, _block: int, target: Target) -> float:
    """One pass over everything that a group reads and writes."""
    machine = target.machine
    return machine.meeting_cycles + group_bytes(group) / (STREAMED * machine.memory_bytes_per_cycle)


def copied_cost(group: Group, _block: int, target: Target) -> float:
    """A copy of everything that a group reads and writes, in short runs."""
    return copy_cycles(group_bytes(group), target.machine)


def element_cost(group: Group, _block: int, target: Target) -> float:
    """Each element by itself: it is loaded, and then waited for."""
    machine = target.machine
    return machine.meeting_cycles + group_bytes(group) / _FLOAT * 2 * machine.fma_latency


def copy_cycles(size: float, machine: Machine) -> float:
    """Cycles of a copy from one layout to another that touches so many bytes."""
    return machine.meeting_cycles + size / (COPIED * machine.memory_bytes_per_cycle)


def group_bytes(group: Group) -> float:
    """The bytes that a group reads and writes, each once."""
    return float(sum(map(typical_bytes, (*group.node.args, *group.node.outputs))))


def group_flops(group: Group) -> float:
    """The additions and multiplications of a group's products."""
    return 2.0 * typical_macs(group.node)


def typical(dim: AnyDim, values: Iterable[Value]) -> int:
    """A number for a dim of tensors, or for work that depends on their dims."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Unknown):
        return 0
    first = {name for value in values for one in shape_of(value)[:1] for name in symbols_of(one)}
    numbers = {name: 1 if name in first else EXTENT for name in symbols_of(dim)}
    try:
        return max(1, evaluate_dim(dim, numbers))
    except EvaluationError:  # two sizes that are equal, to which the numbers give two values
        return EXTENT


def typical_shape(value: Value) -> tuple[int, ...]:
    """Numbers for the extents of a tensor."""
    return tuple(typical(dim, (value,)) for dim in shape_of(value))


def typical_bytes(value: Value) -> int:
    """The memory that a tensor would take."""
    return math.prod(typical_shape(value)) * value.dtype.numpy.itemsize


def typical_macs(node: Node) -> int:
    """The multiplications that a node would do."""
    values = (*node.args, *node.outputs)
    work = node.op.work(node.attrs, [v.type for v in node.args], [v.type for v in node.outputs])
    return typical(work.macs, values)
