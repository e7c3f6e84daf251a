"""What expressions share: extents, indices, reads that broadcast, and copies with a border."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.ir.types import TensorType
from graft.loop.build import Operand, Term, cast, constant, select, term
from graft.loop.ir import Const, Expr
from graft.loop.simplify import simplify
from graft.loop.tensor import Axis, Tensor, compute, reduce_axis

Index = Term | int
Indices = Sequence[Index]
Element = Callable[..., Term]


def extents_of(type_: TensorType) -> tuple[int, ...]:
    """The extents of a static type."""
    return tuple(dim for dim in type_.shape or () if isinstance(dim, int))


def present(tensor: Tensor | None) -> Tensor:
    """An operand that the operator's definition says is there."""
    if tensor is None:
        raise InternalError("an operand that has to be there is missing")
    return tensor


def size(extent: Expr) -> int:
    """An extent as a number."""
    if not isinstance(extent, Const):
        raise InternalError("an extent that has to be known is not")
    return int(extent.value)


def sizes(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's extents as numbers."""
    return tuple(size(extent) for extent in tensor.shape)


def axis_names(rank: int, prefix: str = "i") -> list[str]:
    """Names for that many axes."""
    return [f"{prefix}{axis}" for axis in range(rank)]


def by_index(name: str, shape: Sequence[Operand], element: Callable[..., object]) -> Tensor:
    """The tensor whose element at a list of indices is `element(*indices)`."""
    return compute(name, shape, element, axis_names(len(shape)))  # type: ignore[arg-type]


def reduce_axes(shape: Sequence[Operand], prefix: str = "r") -> list[Axis]:
    """An axis to reduce over for each extent."""
    return [reduce_axis(f"{prefix}{axis}", extent) for axis, extent in enumerate(shape)]


def read(tensor: Tensor, indices: Indices) -> Term:
    """An element."""
    return tensor[tuple(indices)]


def spread(tensor: Tensor, indices: Indices) -> Term:
    """An element of a tensor that broadcasts to the axes that the indices belong to."""
    rank = len(tensor.shape)
    aligned = indices[len(indices) - rank :] if rank else ()
    pairs = zip(tensor.shape, aligned, strict=True)
    return tensor[tuple(0 if extent == Const(1) else index for extent, index in pairs)]


def along(tensor: Tensor, indices: Indices, axis: int) -> Term:
    """An element of a list with one number per index of an axis."""
    return tensor[0] if tensor.shape[0] == Const(1) else tensor[indices[axis]]


def single(tensor: Tensor) -> Term:
    """The element of a tensor that has just one."""
    return tensor[(0,) * len(tensor.shape)]


def linear(indices: Indices, shape: Sequence[Expr]) -> Term:
    """The number of an element in row-major order."""
    total = term(0)
    for index, extent in zip(indices, shape, strict=True):
        total = total * Term(extent) + index
    return _plain(total)


def unravelled(number: Term, shape: Sequence[Expr]) -> list[Term]:
    """The indices of the element that has a number in row-major order."""
    indices: list[Term] = []
    for position, extent in enumerate(reversed(shape)):
        last = position == len(shape) - 1
        indices.insert(0, number if last else _plain(number % Term(extent)))
        number = _plain(number // Term(extent))
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
    begins: Sequence[int],
    wanted: Sequence[int],
    fill: Term,
    steps: Sequence[int] = (),
) -> Tensor:
    """The data with its last axes moved `begins` into tensors of the `wanted` extents.

    Around the data, and between its elements where they are `steps` apart, is `fill`. Data that
    fill what is wanted are given back as they are.
    """
    lead = len(data.shape) - len(wanted)
    steps = steps or (1,) * len(wanted)
    have = sizes(data)[lead:]
    pairs = zip(wanted, have, strict=True)
    if not any(begins) and set(steps) <= {1} and all(want <= extent for want, extent in pairs):
        return data

    def element(*indices: Term) -> Term:
        at: list[Term] = list(indices[:lead])
        inside: Term | None = None
        for axis, index in enumerate(indices[lead:]):
            place = index - begins[axis]
            tests = [] if begins[axis] <= 0 else [place >= 0]
            if steps[axis] > 1:
                tests.append(_is_zero(place % steps[axis]))
                place = place // steps[axis]
            if wanted[axis] - begins[axis] > (have[axis] - 1) * steps[axis] + 1:
                tests.append(place < have[axis])
            at.append(_plain(place))
            for test in tests:
                inside = test if inside is None else inside & test
        value = data[tuple(at)]
        value = cast(fill.dtype, value)
        return value if inside is None else select(inside, value, fill)

    return by_index(name, [*data.shape[:lead], *wanted], element)


def _is_zero(value: Term) -> Term:
    return value < 1
