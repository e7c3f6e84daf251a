"""Refuses graphs with a tensor that has too many axes or exceeds this machine's memory.

A few bytes of a model can ask for any amount of memory. Sizes that depend on inputs or data are
checked when they are known (`base/capacity.py`).
"""

from __future__ import annotations

from graft.base import capacity
from graft.base.errors import Place, UnsupportedError
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType

MOST_AXES = 64  # NumPy's limit


def check_sizes(graph: Graph) -> Graph:
    """Return the graph, or raise an error that names the tensor; nested graphs included."""
    for value in graph.inputs:
        _check(value, Place(kind="input", node=value.name))
    for node in graph.walk():
        for value in node.outputs:
            _check(value, node.place)
    return graph


def _check(value: Value, place: Place | None) -> None:
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return
    if len(type_.shape) > MOST_AXES:
        raise UnsupportedError(
            f"%{value.name} has {len(type_.shape)} axes, and arrays have at most {MOST_AXES}",
            place,
            hint="merge axes by a Reshape",
        )
    count = type_.size
    if isinstance(count, int) and count * type_.dtype.numpy.itemsize > capacity.MOST_BYTES:
        gigabytes = count * type_.dtype.numpy.itemsize >> 30
        raise UnsupportedError(
            f"%{value.name} would take {gigabytes} GiB, more than this machine's memory",
            place,
            hint="check the sizes, pads and repetitions that make it; they may be damaged",
        )
