"""Numbers for sizes that nobody knows yet, where a choice depends on them.

Dims and the tensors around them enter, numbers leave. Only choices of algorithms and storages rest
on them, never results. What stands first in a shape is taken for a batch, and batches are of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graft.backends.host.storage import shape_of
from graft.base.dims import AnyDim, Unknown, evaluate_dim, symbols_of
from graft.base.errors import EvaluationError
from graft.ir.graph import Node, Value

# Pixels along a side of the images that networks are given, and elements of most other things.
EXTENT = 224


def typical(dim: AnyDim, values: Iterable[Value]) -> int:
    """A number for a dim that tensors have, or that work on them depends on."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Unknown):
        return 0
    first = {name for value in values for one in shape_of(value)[:1] for name in symbols_of(one)}
    numbers = {name: 1 if name in first else EXTENT for name in symbols_of(dim)}
    try:
        return max(1, evaluate_dim(dim, numbers))
    except EvaluationError:  # two sizes that are one, and for which the numbers make two
        return EXTENT


def typical_shape(value: Value) -> tuple[int, ...]:
    """Numbers for the extents of a tensor."""
    return tuple(typical(dim, (value,)) for dim in shape_of(value))


def typical_bytes(value: Value) -> int:
    """How much memory a tensor would take."""
    return math.prod(typical_shape(value)) * value.dtype.numpy.itemsize


def typical_macs(node: Node) -> int:
    """The multiplications that a node would do."""
    values = (*node.args, *node.outputs)
    work = node.op.work(node.attrs, [v.type for v in node.args], [v.type for v in node.outputs])
    return typical(work.macs, values)
