"""Running totals along an axis: each element from all before it.

Every total is a sum of its own, so that all of them can be computed side by side. That is more work
than one pass with a carried total, and too much where the axis is long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graft.loop.build import Term, cast, select
from graft.loop.tensor import Reduce, product_, reduce_axis, sum_
from graft.ops.expression.convolution import accumulated_in, rounded, sum_name
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses
from graft.ops.expression.shapes import by_index, number, present, read, sizes
from graft.ops.rules import normalize_axis

LONGEST = 1024


@expresses("cumsum")
def cumsum(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Sums."""
    return _running(attrs, inputs, types, name, sum_, 0)


@expresses("cumprod")
def cumprod(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Products."""
    return _running(attrs, inputs, types, name, product_, 1)


def _running(
    attrs: Any,
    inputs: Inputs,
    types: Types,
    name: str,
    kind: Callable[..., Reduce],
    neutral: int,
) -> Results:
    data, dtype = present(inputs[0]), types[0].dtype
    if attrs.axis is None or inputs[1] is not None:
        return Unexpressed("the axis is known only at run time")
    axis = normalize_axis(attrs.axis, len(data.shape))
    extent = sizes(data)[axis]
    if isinstance(extent, int) and extent > LONGEST:
        return Unexpressed(f"running totals along more than {LONGEST} elements")
    wide = accumulated_in(dtype)

    def element(*indices: Term) -> Reduce:
        place = reduce_axis("place", data.shape[axis])
        value = cast(wide, read(data, [*indices[:axis], place, *indices[axis + 1 :]]))
        first, last = (indices[axis], place) if attrs.reverse else (place, indices[axis])
        counts = first < last if attrs.exclusive else first <= last
        return kind(select(counts, value, number(neutral, wide)), [place])

    total = by_index(sum_name(name, dtype), data.shape, element)
    return (rounded(total, dtype, name),)
