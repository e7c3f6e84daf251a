"""Softmax and its logarithm along any axis."""

from __future__ import annotations

from typing import Any

from graft.loop.build import Term, call, cast
from graft.loop.tensor import Tensor, max_, sum_
from graft.ops.expression.convolution import accumulated_in
from graft.ops.expression.reduction import total_over
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import by_index, present, read
from graft.ops.rules import normalize_axis


def _less_largest(data: Tensor, axis: int, name: str) -> Tensor:
    """Elements less the largest of their row."""
    wide = accumulated_in(data.dtype)
    largest = total_over(f"{name}_max", data, [axis], max_, lambda value, _: cast(wide, value))

    def element(*indices: Term) -> Term:
        return cast(wide, read(data, indices)) - _of_row(largest, indices, axis)

    return by_index(f"{name}_less", data.shape, element)


def _of_row(tensor: Tensor, indices: tuple[Term, ...], axis: int) -> Term:
    return read(tensor, [*indices[:axis], 0, *indices[axis + 1 :]])


@expresses("nn.softmax")
def softmax(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Exponentials over their sum."""
    data = present(inputs[0])
    axis = normalize_axis(attrs.axis, len(data.shape))
    less = _less_largest(data, axis, name)
    powers = by_index(f"{name}_exp", data.shape, lambda *at: call("exp", read(less, at)))
    total = total_over(f"{name}_sum", powers, [axis], sum_, lambda value, _: value)

    def element(*indices: Term) -> Term:
        power, whole = read(powers, indices), _of_row(total, indices, axis)
        # The factor is the same for a row, so that all but one of its divisions are saved.
        return cast(types[0].dtype, power * (1.0 / whole))

    return (by_index(name, data.shape, element),)


@expresses("nn.log_softmax")
def log_softmax(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Elements less the logarithm of the sum of their exponentials."""
    data = present(inputs[0])
    axis = normalize_axis(attrs.axis, len(data.shape))
    less = _less_largest(data, axis, name)
    total = total_over(f"{name}_sum", less, [axis], sum_, lambda value, _: call("exp", value))

    def element(*indices: Term) -> Term:
        shift = call("log", _of_row(total, indices, axis))
        return cast(types[0].dtype, read(less, indices) - shift)

    return (by_index(name, data.shape, element),)
