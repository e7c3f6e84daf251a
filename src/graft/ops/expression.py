"""Operators as tensor expressions: what they are, and the vocabulary that they are written in.

An operator's expression is a function of its attributes, of what it is to make (a name and the
types of the results) and of its operands as tensors (None where one is left out). It gives one
tensor per result, named after it and computed from the operands, by way of further tensors where it
needs some (all of them named after it too, and none of them a result); or it says why it has none
for these attributes. Tensors are row-major with the extents of the types. An extent is a dim: a
number, or an index expression over the kernel's scalars. An expression that needs numbers asks for
them with `numbers`, and is refused where extents are symbolic.

    @expresses("transpose")
    def _transpose(attrs, out, data): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, at_least
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import InternalError
from graft.ir.graph import Node
from graft.ir.op import Op, get_op
from graft.ir.types import TensorType
from graft.loop.build import Operand, Term, cast, constant, maximum, minimum, select, term
from graft.loop.index import UnknownExtentError, dim_of
from graft.loop.ir import Buffer, Const
from graft.loop.simplify import simplify
from graft.loop.tensor import Axis, Reduce, Tensor, compute, reduce_axis
from graft.ops.index_bounds import unclamped_read


@dataclass(frozen=True, slots=True)
class Unexpressed:
    """Why an operator has no tensor expression here."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Table(Tensor):
    """A constant lookup table of an expression, passed as an additional input of its kernel."""

    array: Array = field(default_factory=lambda: np.zeros(0))


Inputs = Sequence[Tensor | None]
Types = Sequence[TensorType]
Results = tuple[Tensor, ...] | Unexpressed
# (attributes, what to make, operands as tensors) -> results. Absent operands are None.
Expression = Callable[..., Results]


@dataclass(frozen=True, slots=True)
class Out:
    """What an expression is to make: the name that its tensors begin with, and the result types."""

    name: str
    types: Types

    @property
    def dtype(self) -> DType:
        return self.types[0].dtype

    @property
    def shape(self) -> tuple[AnyDim, ...]:
        return extents_of(self.types[0])

    def of(self, element: Callable[..., object]) -> tuple[Tensor, ...]:
        """The only result, by its elements."""
        return (by_index(self.name, self.shape, element),)

    def rounded(self, total: Tensor) -> tuple[Tensor, ...]:
        """The only result, which is this tensor in its own dtype."""
        return (rounded(total, self.dtype, self.name),)


Index = Term | int
Indices = Sequence[Index]
Extents = Sequence[AnyDim]


def expresses(*names: str) -> Callable[[Expression], Expression]:
    """Make the decorated function the expression of operators that have just been defined."""

    def register(function: Expression) -> Expression:
        for name in names:
            op = get_op(name)
            if op.expression is not None:
                raise InternalError(f"{name} has two expressions")
            object.__setattr__(op, "expression", function)  # else nobody changes an operator
        return function

    return register


def express(
    node: Node,
    inputs: Inputs,
    name: str,
    results: Types | None = None,
    attrs: Any = None,
) -> Results:
    """A node's results as tensors called `name`, or `name` with their number behind it.

    `results` and `attrs` are the types of the results and the attributes where they are seen under
    another shape or with other symbols.
    """
    types = [value.type for value in (*node.args, *node.outputs)]
    all_known = all(isinstance(type_, TensorType) and _is_known(type_) for type_ in types)
    if node.op.expression is not None and not all_known:
        return Unexpressed(f"{node.op.name} on shapes that are not known")
    if results is None:
        results = [value.type for value in node.outputs if isinstance(value.type, TensorType)]
    return express_op(node.op, attrs or node.attrs, inputs, results, name)


def express_op(op: Op, attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """An operator's results on these tensors, of these types."""
    if op.expression is None:
        return Unexpressed(f"{op.name} has no tensor expression")
    try:
        missing = op.absent(len(inputs))
        results: Results = op.expression(attrs, Out(name, types), *inputs, *missing)
    except (NumbersNeededError, UnknownExtentError) as error:
        return Unexpressed(f"{op.name}: {error}")
    if not isinstance(results, Unexpressed):
        tensor = unclamped_read(results, [one for one in inputs if one is not None])
        if tensor is not None:
            operands = dict(zip(inputs, op.operands, strict=False))
            what = f"its operand '{operands[tensor].name}'" if tensor in operands else "a tensor"
            return Unexpressed(
                f"{op.name} reads {what} at an index that is data and not clamped to the extent"
            )
    return results


def _is_known(type_: TensorType) -> bool:
    return type_.shape is not None and not any(dim is UNKNOWN for dim in type_.shape)


def table(name: str, array: Array) -> Table:
    """A constant lookup table as a tensor."""
    extents = tuple(Const(extent) for extent in array.shape)
    return Table(Buffer(name, dtype_of(array.dtype), extents), array=np.ascontiguousarray(array))


class NumbersNeededError(Exception):
    """Why an operator has no expression over extents that are known only at run time."""


def extents_of(type_: TensorType) -> tuple[AnyDim, ...]:
    """The extents of a type."""
    return tuple(type_.shape or ())


def sizes(tensor: Tensor) -> tuple[AnyDim, ...]:
    """A tensor's extents."""
    return tuple(dim_of(extent) for extent in tensor.shape)


def numbers(extents: Extents, what: str) -> tuple[int, ...]:
    """The extents as integers; raises `NumbersNeededError` where one is symbolic."""
    result = tuple(extent for extent in extents if isinstance(extent, int))
    if len(result) < len(extents):
        raise NumbersNeededError(f"{what} are known only at run time")
    return result


def is_known(dim: AnyDim) -> bool:
    """Whether the dim is a number."""
    return isinstance(dim, int)


def axis_names(rank: int) -> list[str]:
    """Names of so many axes: i0, i1, ..."""
    return [f"i{axis}" for axis in range(rank)]


def by_index(name: str, shape: Sequence[Operand], element: Callable[..., object]) -> Tensor:
    """The tensor whose element at a list of indices is `element(*indices)`."""
    return compute(name, shape, element, axis_names(len(shape)))  # type: ignore[arg-type]


def reduce_axes(shape: Sequence[Operand]) -> list[Axis]:
    """An axis to reduce over for each extent."""
    return [reduce_axis(f"r{axis}", extent) for axis, extent in enumerate(shape)]


def read(tensor: Tensor, indices: Indices) -> Term:
    """The element at these indices."""
    return tensor[tuple(indices)]


def spread(tensor: Tensor, indices: Indices, shape: Extents) -> Term:
    """An element of a tensor that broadcasts to the axes of `shape` that the indices belong to.

    An extent that is not known may turn out to be 1. Along the last axis there is a read for either
    case, so that neighbours stay neighbours; along others the index is kept within the extent.
    """
    rank = len(tensor.shape)
    first = len(indices) - rank
    at: list[Index] = []
    for extent, index, expected in zip(sizes(tensor), indices[first:], shape[first:], strict=True):
        if len(at) == rank - 1 and not (is_known(extent) or extent == expected):
            return select(term(extent) < 2, tensor[(*at, 0)], tensor[(*at, index)])
        at.append(within(extent, index, expected))
    return tensor[tuple(at)]


def within(extent: AnyDim, index: Index, target: AnyDim) -> Index:
    """The index along an axis of this extent that broadcasts to extent `target`."""
    if extent == 1:
        return 0
    if is_known(extent) or extent == target:
        return index
    return minimum(index, term(extent) - 1)


def clamped(index: Term, extent: AnyDim) -> Term:
    """The nearest index that lies inside of an axis; of one without elements, 0."""
    return maximum(minimum(index, term(extent) - 1), 0)


def of_row(tensor: Tensor, indices: Indices, axis: int) -> Term:
    """The element of a tensor that has one for each row along an axis, where its extent is 1."""
    return read(tensor, [*indices[:axis], 0, *indices[axis + 1 :]])


def along(tensor: Tensor, indices: Indices, axis: int, shape: Extents) -> Term:
    """An element of a list with one number, or one per index of an axis of `shape`."""
    return spread(tensor, [indices[axis]], [shape[axis]])


def single(tensor: Tensor) -> Term:
    """The element of a tensor that has just one."""
    return tensor[(0,) * len(tensor.shape)]


def linear(indices: Indices, shape: Extents) -> Term:
    """The number of an element in row-major order."""
    total = term(0)
    for index, extent in zip(indices, shape, strict=True):
        total = total * extent + index
    return _plain(total)


def unravelled(number: Term, shape: Extents) -> list[Term]:
    """The indices of the element that has a number in row-major order."""
    indices: list[Term] = []
    for position, extent in enumerate(reversed(shape)):
        last = position == len(shape) - 1
        indices.insert(0, number if last else _plain(number % extent))
        number = _plain(number // extent)
    return indices


def _plain(value: Term) -> Term:
    return Term(simplify(value.expr), value.sources)


def number(value: float | bool, dtype: DType) -> Term:
    """A constant of the dtype."""
    return Term(constant(value, dtype))


def floats(index: Operand, dtype: DType) -> Term:
    """An index or a count as a number to compute with."""
    return cast(dtype, index)


def bordered(
    data: Tensor,
    name: str,
    begins: Extents,
    extents: Extents,
    fill: Term,
    steps: Sequence[int] = (),
    ends: Extents | None = None,
) -> Tensor:
    """The data padded: its last axes begin at index `begins` of a tensor of these `extents`.

    Around the data, and between its elements where they are `steps` apart, is `fill`. Data that
    need no padding are returned as they are. `ends` bounds the padding behind the data where the
    extents are symbolic.
    """
    lead = len(data.shape) - len(extents)
    steps = steps or (1,) * len(extents)
    have = sizes(data)[lead:]
    reach = [(extent - 1) * step + 1 for extent, step in zip(have, steps, strict=True)]
    limits = [None] * len(extents) if ends is None else ends
    spare = list(map(_is_spared, begins, extents, reach, limits))
    if all(begin == 0 for begin in begins) and set(steps) <= {1} and all(spare):
        return data

    def element(*indices: Term) -> Term:
        at: list[Term] = list(indices[:lead])
        inside: Term | None = None
        for axis, index in enumerate(indices[lead:]):
            position = index - begins[axis]
            tests = [] if at_least(-begins[axis], 0) else [position >= 0]
            if steps[axis] > 1:
                tests.append(position % steps[axis] < 1)
                position = position // steps[axis]
            if not spare[axis]:
                tests.append(position < have[axis])
            at.append(_plain(position))
            for test in tests:
                inside = test if inside is None else inside & test
        value = data[tuple(at)]
        value = cast(fill.dtype, value)
        return value if inside is None else select(inside, value, fill)

    return by_index(name, [*data.shape[:lead], *extents], element)


def _is_spared(begin: AnyDim, extent: AnyDim, reach: AnyDim, end: AnyDim | None) -> bool:
    """Whether an axis needs no padding behind the data."""
    if at_least(reach + begin, extent):
        return True
    return end is not None and not (is_known(reach) and is_known(extent)) and at_least(0, end)


def is_narrow(dtype: DType) -> bool:
    """Whether numbers of the dtype are computed with in float32."""
    return dtype.is_float and dtype.bits < 32


def widened(value: Term) -> Term:
    """The value in the dtype that it is computed with in."""
    return cast(DType.FLOAT32, value) if is_narrow(value.dtype) else value


def accumulated_in(dtype: DType) -> DType:
    """The dtype in which products are summed."""
    return DType.FLOAT32 if is_narrow(dtype) else dtype


def sum_name(name: str, dtype: DType) -> str:
    """What the sum before rounding is called: as the result, if it is the result."""
    return f"{name}_wide" if is_narrow(dtype) else name


def rounded(total: Tensor, dtype: DType, name: str) -> Tensor:
    """A sum in the result's dtype."""
    if total.dtype is dtype:
        return total
    return by_index(name, total.shape, lambda *indices: cast(dtype, read(total, indices)))


def total_over(
    name: str,
    data: Tensor,
    axes: Sequence[int],
    kind: Callable[..., Reduce],
    value: Callable[[Term, Sequence[Term]], Term],
    keepdims: bool = True,
) -> Tensor:
    """The values of all elements along axes combined; those axes are 1, or gone.

    A value gets the element and its indices.
    """
    outer_axes = [axis for axis in range(len(data.shape)) if axis not in axes]
    extents = [data.shape[axis] for axis in axes]
    shape: list[Any] = [1 if axis in axes else extent for axis, extent in enumerate(data.shape)]

    def element(*indices: Term) -> Reduce | Term:
        reduced = reduce_axes(extents)
        outer = indices if not keepdims else [indices[axis] for axis in outer_axes]
        at: dict[int, Term] = {**dict(zip(outer_axes, outer, strict=True))}
        at |= dict(zip(axes, reduced, strict=True))
        position = [at[axis] for axis in range(len(data.shape))]
        result = value(read(data, position), position)
        return kind(result, reduced) if reduced else result

    return by_index(name, shape if keepdims else [shape[axis] for axis in outer_axes], element)


def unless_empty(data: Tensor, value: Term) -> Term:
    """Zero instead of the element where the data turn out to be empty at run time."""
    unsure = [extent for extent in sizes(data) if not is_known(extent)]
    for extent in unsure:
        value = select(term(extent) > 0, value, number(0, data.dtype))
    return value
