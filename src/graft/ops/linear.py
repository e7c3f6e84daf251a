"""Matrix products, Einstein sums and determinants.

Operands of one dtype enter, a tensor of that dtype leaves. Floats narrower than float32 are
computed in float32 and rounded once; integers are exact modulo two to the power of their bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, broadcast_dim, product
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs
from graft.ir.op import Kind, Work, traffic
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term
from graft.loop.tensor import Axis, Reduce, Tensor, reduce_axis, sum_
from graft.ops import expression as te
from graft.ops.rules import broadcast_shapes, operator, require, require_same_dim, same_dtype
from graft.ops.window import magnitude

# Every whole number up to this is a float64.
_LARGEST_EXACT = 1 << 53


def matrix_product(a: Array, b: Array) -> Array:
    """`a @ b` in the operands' dtype."""
    dtype = dtype_of(a.dtype)
    if dtype.is_integer:
        return _integer_product(a, b)
    wide = _computed_in(dtype)
    product_of_wide = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
    return np.asarray(product_of_wide).astype(a.dtype, copy=False)


def _computed_in(dtype: DType) -> np.dtype[Any]:
    if dtype.is_float and dtype.bits < 32:
        return np.dtype(np.float32)
    return np.dtype(np.int64) if dtype.bits < 8 else dtype.numpy


def _integer_product(a: Array, b: Array) -> Array:
    """Through float64, which BLAS multiplies fast, wherever no sum can be too large for it."""
    if a.shape[-1] * magnitude(a) * magnitude(b) <= _LARGEST_EXACT:
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return np.asarray(exact).astype(np.int64).astype(a.dtype)
    return np.asarray(np.matmul(a, b))


def _matrix_types(a: TensorType, b: TensorType) -> DType:
    dtype = same_dtype(a, b)
    require(dtype.is_number, f"wants numeric operands, not {dtype}")
    return dtype


def _dense_type(_attrs: Attrs, data: TensorType, weight: TensorType) -> TensorType:
    dtype = _matrix_types(data, weight)
    require(data.rank != 0, "the data has no axis to sum over")
    units: AnyDim = UNKNOWN
    if weight.shape is not None:
        require(len(weight.shape) == 2, f"the weight has rank {len(weight.shape)}, not 2")
        units = weight.shape[0]
        if data.shape is not None:
            require_same_dim(data.shape[-1], weight.shape[1], "extents to sum over")
    return TensorType(dtype, None if data.shape is None else (*data.shape[:-1], units))


def _dense_work(_attrs: Attrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    data, weight = ins[0], ins[1]
    units = UNKNOWN if weight.shape is None else weight.shape[0]
    return Work(data.size * units, 0, traffic(ins, outs))


@operator("nn.dense", "data weight", _dense_type, kind=Kind.ANCHOR, work=_dense_work)
def _dense(_attrs: Attrs, data: Array, weight: Array) -> Array:
    """data @ weight.T over the data's last axis; the weight is [units, inputs]."""
    return matrix_product(data, weight.T)


@dataclass(frozen=True, slots=True)
class BatchMatmulAttrs(Attrs):
    transpose_a: bool = False
    transpose_b: bool = False


def _matrix_shape(type_: TensorType, transpose: bool) -> Shape | None:
    """The shape with its last two extents in the order in which the product takes them."""
    shape = type_.shape
    if shape is None:
        return None
    require(len(shape) >= 2, f"an operand has rank {len(shape)}, less than 2")
    return (*shape[:-2], shape[-1], shape[-2]) if transpose else shape


def _batch_matmul_type(attrs: BatchMatmulAttrs, a: TensorType, b: TensorType) -> TensorType:
    dtype = _matrix_types(a, b)
    left, right = _matrix_shape(a, attrs.transpose_a), _matrix_shape(b, attrs.transpose_b)
    if left is None or right is None:
        return TensorType(dtype, None)
    require_same_dim(left[-1], right[-2], "extents to sum over")
    batch = broadcast_shapes(left[:-2], right[:-2])
    assert batch is not None
    return TensorType(dtype, (*batch, left[-2], right[-1]))


def _batch_matmul_work(
    attrs: BatchMatmulAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    a, result = ins[0], outs[0]
    left = _matrix_shape(a, attrs.transpose_a)
    depth = UNKNOWN if left is None else left[-1]
    return Work(result.size * depth, 0, traffic(ins, outs))


@operator("nn.batch_matmul", "a b", _batch_matmul_type, kind=Kind.ANCHOR, work=_batch_matmul_work)
def _batch_matmul(attrs: BatchMatmulAttrs, a: Array, b: Array) -> Array:
    """Matrix products over the last two axes; the others broadcast."""
    left = a.swapaxes(-1, -2) if attrs.transpose_a else a
    right = b.swapaxes(-1, -2) if attrs.transpose_b else b
    return matrix_product(left, right)


@dataclass(frozen=True, slots=True)
class EinsumAttrs(Attrs):
    equation: str


@dataclass(frozen=True, slots=True)
class Equation:
    """A parsed Einstein sum: index letters per operand and of the result, "." for an ellipsis."""

    terms: tuple[str, ...]
    result: str


def parse_equation(equation: str) -> Equation:
    """The parts of an equation; the result of an implicit one is worked out."""
    text = equation.replace(" ", "").replace("...", ".")
    left, arrow, result = text.partition("->")
    terms = tuple(left.split(","))
    for term in (*terms, result):
        letters = term.replace(".", "", 1)
        plain = letters == "" or (letters.isascii() and letters.isalpha())
        require(plain, f"'{term}' in the equation '{equation}' is not a list of indices")
    if not arrow:
        once = sorted(letter for letter in set(left) - {",", "."} if left.count(letter) == 1)
        result = ("." if "." in left else "") + "".join(once)
    require(len(set(result)) == len(result), f"'{equation}' repeats an index of the result")
    unknown = set(result) - set(left)
    require(not unknown, f"'{equation}' has a result index that no operand has")
    lost = "." in left and "." not in result
    require(not lost, f"'{equation}' has an ellipsis in its operands but none in its result")
    return Equation(terms, result)


def _extents(equation: Equation, shapes: Sequence[Shape]) -> dict[str, Shape]:
    """The extents of each index after broadcasting; an ellipsis may have several."""
    result: dict[str, Shape] = {}
    for term, shape in zip(equation.terms, shapes, strict=True):
        letters = len(term.replace(".", ""))
        exact = "." in term or letters == len(shape)
        fits = exact and letters <= len(shape)
        require(fits, f"the term '{term.replace('.', '...')}' does not fit rank {len(shape)}")
        front = term.find(".") if "." in term else letters
        back = len(shape) - (letters - front)
        parts = [*((d,) for d in shape[:front]), *((d,) for d in shape[back:])]
        own: dict[str, AnyDim] = {}
        for letter, part in zip(term.replace(".", ""), parts, strict=True):
            # Operands may broadcast against each other, but not against themselves.
            require_same_dim(own.setdefault(letter, part[0]), part[0], f"extents of '{letter}'")
            result[letter] = _joined(result.get(letter, ()), part)
        if "." in term:
            result["."] = _joined(result.get(".", ()), shape[front:back])
    return result


def _joined(first: Shape, second: Shape) -> Shape:
    joined = broadcast_shapes(first, second)
    assert joined is not None
    return joined


def _einsum_type(attrs: EinsumAttrs, *data: TensorType) -> TensorType:
    equation = parse_equation(attrs.equation)
    count, expected = len(data), len(equation.terms)
    require(count == expected, f"'{attrs.equation}' wants {expected} operands, not {count}")
    dtype = same_dtype(*data)
    require(dtype.is_number, f"wants numeric operands, not {dtype}")
    shapes = [type_.shape for type_ in data if type_.shape is not None]
    if len(shapes) < count:
        known_rank = "." not in equation.result
        return TensorType(dtype, (UNKNOWN,) * len(equation.result) if known_rank else None)
    extents = _extents(equation, shapes)
    return TensorType(dtype, tuple(d for index in equation.result for d in extents[index]))


def _einsum_work(attrs: EinsumAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """One multiply-accumulate per operand after the first and combination of indices."""
    shapes = [type_.shape for type_ in ins if type_.shape is not None]
    total: AnyDim = UNKNOWN
    if len(shapes) == len(ins):
        extents = _extents(parse_equation(attrs.equation), shapes)
        total = product(dim for shape in extents.values() for dim in shape)
    if len(ins) == 1:
        return Work(0, total, traffic(ins, outs))
    return Work(total * (len(ins) - 1), 0, traffic(ins, outs))


@operator("einsum", "*data", _einsum_type, kind=Kind.ANCHOR, work=_einsum_work)
def _einsum(attrs: EinsumAttrs, *data: Array) -> Array:
    """Einstein summation by an equation such as 'bij,bjk->bik'."""
    dtype = data[0].dtype
    wide = _computed_in(dtype_of(dtype))
    result = np.einsum(
        attrs.equation, *(array.astype(wide, copy=False) for array in data), optimize=True
    )
    return np.asarray(result).astype(dtype, copy=False)


def _det_type(_attrs: Attrs, data: TensorType) -> TensorType:
    require(data.dtype.is_float, f"wants a floating-point operand, not {data.dtype}")
    if data.shape is None:
        return data
    require(len(data.shape) >= 2, f"the operand has rank {len(data.shape)}, less than 2")
    require_same_dim(data.shape[-2], data.shape[-1], "extents of the square matrices")
    return TensorType(data.dtype, data.shape[:-2])


def _det_work(_attrs: Attrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """Elimination of an n by n matrix takes two thirds of the cube of n operations."""
    data: Any = ins[0]
    edge = UNKNOWN if data.shape is None else data.shape[-1]
    return Work(0, data.size * edge * 2 // 3, traffic(ins, outs))


@operator("det", "data", _det_type, work=_det_work)
def _det(_attrs: Attrs, data: Array) -> Array:
    """Determinants of the matrices in the last two axes."""
    wide = data.astype(np.float32) if data.dtype.itemsize < 4 else data
    return np.asarray(np.linalg.det(wide)).astype(data.dtype, copy=False)


# Tensor expressions.


Item = TypeVar("Item")


@te.expresses("nn.dense")
def _express_dense(attrs: Any, out: te.Out, data: Tensor, weight: Tensor) -> te.Results:
    """Data [..., inputs] times weights [units, inputs]."""
    dtype = out.dtype

    def element(*indices: Term) -> Reduce:
        depth = reduce_axis("depth", weight.shape[1])
        value = te.read(data, [*indices[:-1], depth])
        return sum_(te.widened(value) * te.widened(weight[indices[-1], depth]), [depth])

    total = te.by_index(te.sum_name(out.name, dtype), out.shape, element)
    return out.rounded(total)


@te.expresses("nn.batch_matmul")
def _express_batch_matmul(attrs: Any, out: te.Out, left: Tensor, right: Tensor) -> te.Results:
    """Products over the last two axes; the others broadcast."""
    dtype, shape = out.dtype, out.shape
    extent = left.shape[-2] if attrs.transpose_a else left.shape[-1]

    def element(*indices: Term) -> Reduce:
        depth = reduce_axis("depth", extent)
        *batch, row, column = indices
        one = (depth, row) if attrs.transpose_a else (row, depth)
        other = (column, depth) if attrs.transpose_b else (depth, column)
        first, second = (_matrix(left, batch, one, shape), _matrix(right, batch, other, shape))
        return sum_(te.widened(first) * te.widened(second), [depth])

    total = te.by_index(te.sum_name(out.name, dtype), shape, element)
    return out.rounded(total)


def _matrix(
    tensor: Tensor, batch: list[Term], position: tuple[Term, Term], shape: te.Extents
) -> Term:
    """An element of a matrix whose leading axes broadcast; its own two never do."""
    lead = te.sizes(tensor)[:-2]
    first = len(batch) - len(lead)
    outer = zip(lead, batch[first:], shape[first:-2], strict=True)
    return tensor[(*(te.within(*one) for one in outer), *position)]


@te.expresses("einsum")
def _express_einsum(attrs: Any, out: te.Out, *tensors: Tensor) -> te.Results:
    """A sum over all indices that the result does not have."""
    dtype, shape = out.dtype, out.shape
    equation = parse_equation(attrs.equation)
    extents = _letters(equation, tensors)
    ranks = len(shape) - (len(equation.result) - 1) if "." in equation.result else 0
    summed = [letter for letter in extents if letter not in equation.result]
    has_sum = bool(summed)
    expected = _by_letter(equation.result, shape, ranks)

    def element(*indices: Term) -> Reduce | Term:
        by_letter = _by_letter(equation.result, indices, ranks)
        axes: list[Axis] = [reduce_axis(f"sum_{letter}", extents[letter]) for letter in summed]
        by_letter |= {letter: [axis] for letter, axis in zip(summed, axes, strict=True)}
        reach = {letter: [extent] for letter, extent in extents.items()} | expected
        factors = [
            te.widened(_factor(tensor, term, by_letter, reach))
            for tensor, term in zip(tensors, equation.terms, strict=True)
        ]
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        return sum_(product, axes) if axes else product

    total_name = te.sum_name(out.name, dtype) if has_sum else f"{out.name}_product"
    total = te.by_index(total_name, shape, element)
    if total.name == out.name:
        return (total,)
    if total.dtype is dtype:
        return out.of(lambda *at: te.read(total, at))
    return out.rounded(total)


def _by_letter(letters: str, items: Sequence[Item], ranks: int) -> dict[str, list[Item]]:
    """The items of each index letter; an ellipsis has `ranks` of them."""
    result: dict[str, list[Item]] = {}
    position = 0
    for letter in letters:
        count = ranks if letter == "." else 1
        result[letter] = list(items[position : position + count])
        position += count
    return result


def _letters(equation: Equation, tensors: Sequence[Tensor]) -> dict[str, AnyDim]:
    """The broadcast extent of each index letter."""
    result: dict[str, AnyDim] = {}
    for term, tensor in zip(equation.terms, tensors, strict=True):
        shape = te.sizes(tensor)
        letters = term.replace(".", "")
        front = term.find(".") if "." in term else len(letters)
        back = len(shape) - (len(letters) - front)
        for letter, extent in zip(letters, (*shape[:front], *shape[back:]), strict=True):
            result[letter] = broadcast_dim(result.get(letter, 1), extent)
    return result


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
    return te.spread(tensor, indices, shape)
