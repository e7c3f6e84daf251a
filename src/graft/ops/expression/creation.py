"""Tensors from nothing."""

from __future__ import annotations

from typing import Any

from graft.base.dtypes import DType
from graft.loop.build import Term, cast, equal
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses
from graft.ops.expression.shapes import by_index, extents_of, is_known, number, present, single
from graft.ops.scalar import widened


@expresses("full")
def full(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """One number everywhere."""
    fill = present(inputs[0])
    return (by_index(name, extents_of(types[0]), lambda *_indices: single(fill)),)


@expresses("arange")
def arange(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Numbers at even distances."""
    dtype = types[0].dtype
    start, _, delta = inputs

    def given(attribute: Any, operand: Any) -> Term:
        if operand is not None:
            return single(operand)
        return number(attribute, dtype) if is_known(attribute) else cast(dtype, attribute)

    def element(index: Term) -> Term:
        first, step = given(attrs.start, start), given(attrs.delta, delta)
        if dtype.is_integer:
            return first + cast(dtype, index) * step
        # each operation is rounded to the dtype
        product = cast(dtype, widened(cast(dtype, index)) * widened(step))
        return cast(dtype, widened(first) + widened(product))

    return (by_index(name, extents_of(types[0]), element),)


@expresses("eye")
def eye(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Ones on a diagonal."""
    dtype = types[0].dtype
    if dtype is not DType.BOOL and not dtype.is_number:
        return Unexpressed(f"ones of {dtype}")

    def element(row: Term, column: Term) -> Term:
        return cast(dtype, equal(column - row, attrs.k))

    return (by_index(name, extents_of(types[0]), element),)
