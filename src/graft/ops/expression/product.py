"""Matrix products and Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from graft.base.dims import AnyDim, broadcast_dim
from graft.loop.build import Term
from graft.loop.tensor import Axis, Reduce, Tensor, reduce_axis, sum_
from graft.ops.expression.convolution import rounded, sum_name
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import (
    Extents,
    by_index,
    extents_of,
    present,
    read,
    sizes,
    spread,
    within,
)
from graft.ops.linear import Equation, parse_equation
from graft.ops.scalar import widened

Item = TypeVar("Item")


@expresses("nn.dense")
def dense(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Data [..., inputs] times weights [units, inputs]."""
    data, weight = map(present, inputs)
    dtype = types[0].dtype

    def element(*indices: Term) -> Reduce:
        depth = reduce_axis("depth", weight.shape[1])
        value = read(data, [*indices[:-1], depth])
        return sum_(widened(value) * widened(weight[indices[-1], depth]), [depth])

    total = by_index(sum_name(name, dtype), extents_of(types[0]), element)
    return (rounded(total, dtype, name),)


@expresses("ml.squared_distance")
def squared_distance(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Of each sample [rows, features] and each vector [count, features]."""
    data, vectors = map(present, inputs)
    dtype = types[0].dtype

    def element(row: Term, vector: Term) -> Reduce:
        feature = reduce_axis("feature", vectors.shape[1])
        apart = widened(data[row, feature]) - widened(vectors[vector, feature])
        return sum_(apart * apart, [feature])

    total = by_index(sum_name(name, dtype), extents_of(types[0]), element)
    return (rounded(total, dtype, name),)


@expresses("nn.batch_matmul")
def batch_matmul(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Products over the last two axes; the others broadcast."""
    left, right = map(present, inputs)
    dtype, shape = types[0].dtype, extents_of(types[0])
    extent = left.shape[-2] if attrs.transpose_a else left.shape[-1]

    def element(*indices: Term) -> Reduce:
        depth = reduce_axis("depth", extent)
        *batch, row, column = indices
        one = (depth, row) if attrs.transpose_a else (row, depth)
        other = (column, depth) if attrs.transpose_b else (depth, column)
        first, second = (_matrix(left, batch, one, shape), _matrix(right, batch, other, shape))
        return sum_(widened(first) * widened(second), [depth])

    total = by_index(sum_name(name, dtype), shape, element)
    return (rounded(total, dtype, name),)


def _matrix(tensor: Tensor, batch: list[Term], place: tuple[Term, Term], shape: Extents) -> Term:
    """An element of a matrix whose leading axes broadcast; its own two never do."""
    lead = sizes(tensor)[:-2]
    first = len(batch) - len(lead)
    outer = zip(lead, batch[first:], shape[first:-2], strict=True)
    return tensor[(*(within(*one) for one in outer), *place)]


@expresses("einsum")
def einsum(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """A sum over all indices that the result does not have."""
    tensors = [present(one) for one in inputs if one is not None]
    dtype, shape = types[0].dtype, extents_of(types[0])
    equation = parse_equation(attrs.equation)
    extents = _letters(equation, tensors)
    ranks = len(shape) - (len(equation.result) - 1) if "." in equation.result else 0
    summed = [letter for letter in extents if letter not in equation.result]
    has_sum = bool(summed)
    wanted = _by_letter(equation.result, shape, ranks)

    def element(*indices: Term) -> Reduce | Term:
        known = _by_letter(equation.result, indices, ranks)
        axes: list[Axis] = [reduce_axis(f"sum_{letter}", extents[letter]) for letter in summed]
        known |= {letter: [axis] for letter, axis in zip(summed, axes, strict=True)}
        reach = {letter: [extent] for letter, extent in extents.items()} | wanted
        factors = [
            widened(_factor(tensor, term, known, reach))
            for tensor, term in zip(tensors, equation.terms, strict=True)
        ]
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        return sum_(product, axes) if axes else product

    total_name = sum_name(name, dtype) if has_sum else f"{name}_product"
    total = by_index(total_name, shape, element)
    if total.name == name:
        return (total,)
    if total.dtype is dtype:
        return (by_index(name, shape, lambda *at: read(total, at)),)
    return (rounded(total, dtype, name),)


def _by_letter(letters: str, items: Sequence[Item], ranks: int) -> dict[str, list[Item]]:
    """What belongs to each letter; an ellipsis stands for `ranks` axes."""
    found: dict[str, list[Item]] = {}
    position = 0
    for letter in letters:
        count = ranks if letter == "." else 1
        found[letter] = list(items[position : position + count])
        position += count
    return found


def _letters(equation: Equation, tensors: list[Tensor]) -> dict[str, AnyDim]:
    """How far each index goes that is one axis; a 1 gives way to what it broadcasts to."""
    found: dict[str, AnyDim] = {}
    for term, tensor in zip(equation.terms, tensors, strict=True):
        shape = sizes(tensor)
        letters = term.replace(".", "")
        front = term.find(".") if "." in term else len(letters)
        back = len(shape) - (len(letters) - front)
        for letter, extent in zip(letters, (*shape[:front], *shape[back:]), strict=True):
            found[letter] = broadcast_dim(found.get(letter, 1), extent)
    return found


def _factor(
    tensor: Tensor, term: str, known: dict[str, list[Term]], reach: dict[str, list[AnyDim]]
) -> Term:
    """An operand's element at the indices that its letters have, which go as far as `reach`."""
    indices: list[Term] = []
    shape: list[AnyDim] = []
    letters = len(term.replace(".", ""))
    for letter in term:
        own, extents = known[letter], reach[letter]
        if letter == ".":  # its last axes are the ones that the operand has
            count = len(tensor.shape) - letters
            own, extents = own[len(own) - count :], extents[len(extents) - count :]
        indices += own
        shape += extents
    return spread(tensor, indices, shape)
