"""Matrix products and Einstein sums."""

from __future__ import annotations

from typing import Any

from graft.loop.build import Term
from graft.loop.ir import Const
from graft.loop.tensor import Axis, Reduce, Tensor, reduce_axis, sum_
from graft.ops.expression.convolution import rounded, sum_name
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import by_index, extents_of, present, read, sizes, spread
from graft.ops.linear import Equation, parse_equation
from graft.ops.scalar import widened


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


@expresses("nn.batch_matmul")
def batch_matmul(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Products over the last two axes; the others broadcast."""
    left, right = map(present, inputs)
    dtype = types[0].dtype
    extent = left.shape[-2] if attrs.transpose_a else left.shape[-1]

    def element(*indices: Term) -> Reduce:
        depth = reduce_axis("depth", extent)
        *batch, row, column = indices
        one = (depth, row) if attrs.transpose_a else (row, depth)
        other = (column, depth) if attrs.transpose_b else (depth, column)
        product = widened(_matrix(left, batch, one)) * widened(_matrix(right, batch, other))
        return sum_(product, [depth])

    total = by_index(sum_name(name, dtype), extents_of(types[0]), element)
    return (rounded(total, dtype, name),)


def _matrix(tensor: Tensor, batch: list[Term], place: tuple[Term, Term]) -> Term:
    """An element of a matrix whose leading axes broadcast; its own two never do."""
    lead = len(tensor.shape) - 2
    aligned = batch[len(batch) - lead :]
    pairs = zip(tensor.shape[:lead], aligned, strict=True)
    return tensor[(*(0 if extent == Const(1) else index for extent, index in pairs), *place)]


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

    def element(*indices: Term) -> Reduce | Term:
        known: dict[str, list[Term]] = {}
        position = 0
        for letter in equation.result:
            count = ranks if letter == "." else 1
            known[letter] = list(indices[position : position + count])
            position += count
        axes: list[Axis] = [reduce_axis(f"sum_{letter}", extents[letter]) for letter in summed]
        known |= {letter: [axis] for letter, axis in zip(summed, axes, strict=True)}
        factors = [
            widened(_factor(tensor, term, known))
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


def _letters(equation: Equation, tensors: list[Tensor]) -> dict[str, int]:
    """How far each index goes that is one axis; a 1 gives way to what it broadcasts to."""
    found: dict[str, int] = {}
    for term, tensor in zip(equation.terms, tensors, strict=True):
        shape = sizes(tensor)
        letters = term.replace(".", "")
        front = term.find(".") if "." in term else len(letters)
        back = len(shape) - (len(letters) - front)
        for letter, extent in zip(letters, (*shape[:front], *shape[back:]), strict=True):
            found[letter] = extent if found.get(letter, 1) == 1 else found[letter]
    return found


def _factor(tensor: Tensor, term: str, known: dict[str, list[Term]]) -> Term:
    """An operand's element at the indices that its letters have."""
    indices: list[Term] = []
    letters = len(term.replace(".", ""))
    for letter in term:
        own = known[letter]
        if letter == ".":  # its last axes are the ones that the operand has
            count = len(tensor.shape) - letters
            own = own[len(own) - count :]
        indices += own
    return spread(tensor, indices)
