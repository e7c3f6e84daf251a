"""Operators that compute an element from one element of each operand."""

from __future__ import annotations

from typing import Any

from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, select
from graft.loop.tensor import Tensor
from graft.ops.expression.registry import (
    EXPRESSIONS,
    Inputs,
    Results,
    Types,
    Unexpressed,
    expresses,
)
from graft.ops.expression.shapes import (
    along,
    by_index,
    extents_of,
    number,
    present,
    read,
    single,
    spread,
)
from graft.ops.scalar import SCALARS, formula


def _pointwise(name: str) -> None:
    def expression(attrs: Any, inputs: Inputs, types: Types, result: str) -> Results:
        shape = extents_of(types[0])
        if types[0].dtype is DType.FLOAT8E8M0FNU and not (name == "cast" and attrs.saturate):
            return Unexpressed("exponents that are not held become NaN")

        def element(*indices: Term) -> Term:
            operands = [None if one is None else spread(one, indices, shape) for one in inputs]
            return formula(name, attrs, operands, types[0].dtype)

        return (by_index(result, shape, element),)

    EXPRESSIONS.add(name, expression)


for _name in sorted(SCALARS.keys() - {"nn.bias_add", "clip"}):
    _pointwise(_name)


@expresses("clip")
def clip(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Bounds are attributes or tensors of one element and any rank."""
    data, *bounds = inputs

    def element(*indices: Term) -> Term:
        limits = [None if bound is None else single(bound) for bound in bounds]
        operands = [read(present(data), indices), *limits]
        return formula("clip", attrs, operands, types[0].dtype)

    return (by_index(name, extents_of(types[0]), element),)


@expresses("nn.bias_add")
def bias_add(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The bias runs along one axis."""
    data, bias = map(present, inputs)
    shape = extents_of(types[0])

    def element(*indices: Term) -> Term:
        operands = [read(data, indices), along(bias, indices, attrs.axis, shape)]
        return formula("nn.bias_add", attrs, operands, types[0].dtype)

    return (by_index(name, shape, element),)


@expresses("nn.batch_norm")
def batch_norm(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """By given statistics, each a list along one axis."""
    data, *parameters = map(present, inputs)
    wide, shape = _computed_in([data, *parameters]), extents_of(types[0])

    def element(*indices: Term) -> Term:
        spread_out = (cast(wide, along(one, indices, attrs.axis, shape)) for one in parameters)
        gamma, beta, mean, variance = spread_out
        factor = gamma / call("sqrt", variance + attrs.epsilon)
        normal = (cast(wide, read(data, indices)) - mean) * factor + beta
        return cast(types[0].dtype, normal)

    return (by_index(name, shape, element),)


def _computed_in(tensors: list[Tensor]) -> DType:
    double = any(tensor.dtype is DType.FLOAT64 for tensor in tensors)
    return DType.FLOAT64 if double else DType.FLOAT32


@expresses("trilu")
def trilu(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """What is on one side of a diagonal; zero elsewhere."""
    data, diagonal = present(inputs[0]), inputs[1]

    def element(*indices: Term) -> Term:
        first = attrs.k or 0 if diagonal is None else cast(DType.INT64, single(diagonal))
        offset = indices[-1] - indices[-2]
        kept = offset >= first if attrs.upper else offset <= first
        return select(kept, read(data, indices), number(0, types[0].dtype))

    return (by_index(name, extents_of(types[0]), element),)
