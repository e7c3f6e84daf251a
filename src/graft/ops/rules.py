"""How operators are defined, and what type rules share: checks, broadcasting, axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from graft.base.dim_questions import provably_different, provably_not_broadcastable
from graft.base.dims import UNKNOWN, AnyDim, broadcast_dim, uncut
from graft.base.dtypes import Array, DType
from graft.base.errors import TypeRuleError
from graft.ir.attrs import Attrs
from graft.ir.op import (
    DTypes,
    Kind,
    Meaning,
    SymbolicRule,
    TypeRule,
    define,
    movement_work,
    with_attributes,
)
from graft.ir.types import Shape, TensorType, Type


def _dtypes(adjective: str, is_member: Callable[[DType], bool]) -> DTypes:
    return DTypes(adjective, frozenset(filter(is_member, DType)))


NUMBERS = _dtypes("numeric", lambda dtype: dtype.is_number)
REALS = _dtypes("real", lambda dtype: dtype.is_float or dtype.is_integer)
FLOATS = _dtypes("floating-point", lambda dtype: dtype.is_float)
FLOATS_OR_COMPLEX = _dtypes("floating-point", lambda dtype: dtype.is_float or dtype.is_complex)
INTEGERS = _dtypes("integer", lambda dtype: dtype.is_integer)
TRUTH_VALUES = _dtypes("bool", lambda dtype: dtype is DType.BOOL)
STRINGS = _dtypes("string", lambda dtype: dtype is DType.STRING)

M = TypeVar("M", bound=Meaning)

# More than NumPy can have: who makes a shape of a million axes has made a mistake.
_MOST_AXES = 1 << 10


def require(condition: bool, message: str) -> None:
    """Refuse operands with a reason."""
    if not condition:
        raise TypeRuleError(message)


def shape_of(type_: TensorType, what: str = "an operand") -> Shape:
    """The shape, where the rank has to be known."""
    if type_.shape is None:
        raise TypeRuleError(f"{what} has unknown rank")
    return type_.shape


def same_dtype(*types: TensorType | None) -> DType:
    """The one dtype of all operands that are present."""
    dtypes = {type_.dtype for type_ in types if type_ is not None}
    require(len(dtypes) == 1, f"dtypes differ: {', '.join(sorted(dtypes))}")
    return next(iter(dtypes))


def broadcast_shapes(*shapes: Shape | None) -> Shape | None:
    """NumPy's broadcasting; None as soon as one rank is unknown."""
    result: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        result = _broadcast_pair(result, shape)
    return result


def _broadcast_pair(first: Shape, second: Shape) -> Shape:
    if first == second:
        return first
    rank = max(len(first), len(second))
    one = (1,) * (rank - len(first)) + first
    other = (1,) * (rank - len(second)) + second
    pairs = list(zip(one, other, strict=True))
    dims: list[AnyDim] = []
    for a, b in pairs:
        clash = 1 not in (a, b) and provably_not_broadcastable(a, b)
        require(not clash, f"extents {a} and {b} do not broadcast")
        dims.append(broadcast_dim(a, b))
    return uncut(dims, pairs)


def require_same_dim(first: AnyDim, second: AnyDim, what: str) -> None:
    """Refuse extents that cannot be equal."""
    require(not provably_different(first, second), f"{what} differ: {first} and {second}")


def spreads(dim: AnyDim, expected: AnyDim) -> bool:
    """Whether an extent may broadcast to another: be 1 or equal."""
    return dim == 1 or not provably_different((dim - 1) * (dim - expected), 0)


def with_extent(data: TensorType, axis: int, extent: AnyDim, what: str) -> TensorType:
    """The type refined by the extent of an axis; a contradiction is refused."""
    if data.shape is None:
        return data
    axis = normalize_axis(axis, len(data.shape))
    require_same_dim(data.shape[axis], extent, what)
    if isinstance(data.shape[axis], int) or not isinstance(extent, int):
        return data
    return TensorType(data.dtype, (*data.shape[:axis], extent, *data.shape[axis + 1 :]))


def normalize_axis(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    require(-rank <= axis < rank, f"axis {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, each at most once."""
    result = tuple(normalize_axis(axis, rank) for axis in axes)
    require(len(set(result)) == len(result), f"an axis is named twice in {list(axes)}")
    return result


def unknown_shape(rank: int) -> Shape:
    """A shape of which only the rank is known."""
    require(0 <= rank <= _MOST_AXES, f"a tensor cannot have {rank} axes")
    return (UNKNOWN,) * rank


def ranked_shape(type_: TensorType | None, rank: int, what: str, has: str = "has") -> Shape:
    """The shape of an operand whose rank the operator fixes, even where the type lacks it."""
    if type_ is None or type_.shape is None:
        return unknown_shape(rank)
    require(len(type_.shape) == rank, f"{what} {has} rank {len(type_.shape)}, not {rank}")
    return type_.shape


def require_shape(type_: TensorType | None, expected: Shape, what: str) -> None:
    """Refuse an operand of another shape than the other operands ask for."""
    for dim, other in zip(ranked_shape(type_, len(expected), what), expected, strict=True):
        require_same_dim(dim, other, f"extents of {what} and of the other operands")


def same_type(_attrs: Any, data: Type, *_rest: Type | None) -> Type:
    """Type rule: the result is like the first operand."""
    return data


def axis_type(attrs: Any, data: TensorType, *_rest: Type | None) -> TensorType:
    """Type rule: the result is like the first operand, which has the axis `axis`."""
    if data.rank is not None:
        normalize_axis(attrs.axis, data.rank)
    return data


def broadcast_type(_attrs: Any, *types: TensorType) -> Type:
    """Type rule: NumPy broadcasting of operands of one dtype."""
    return TensorType(same_dtype(*types), broadcast_shapes(*(type_.shape for type_ in types)))


def predicate_type(_attrs: Any, *types: TensorType) -> Type:
    """Type rule: bool, of operands of one dtype that broadcast."""
    same_dtype(*types)
    return TensorType(DType.BOOL, broadcast_shapes(*(type_.shape for type_ in types)))


def symbolic_by(function: Callable[..., Any]) -> SymbolicRule:
    """Follow known values by the operator's own NumPy meaning, which also works on dims."""

    def follow(attrs: Any, known: Sequence[Array | None], types: Sequence[Type | None]) -> Any:
        for value, type_ in zip(known, types, strict=True):
            if type_ is not None and value is None:
                return None
        result = function(attrs, *known)
        return result if isinstance(result, tuple) else np.asarray(result)

    return follow


def described(function: Callable[..., Any]) -> dict[str, Any]:
    """The fields of `Op` that follow from the function that defines an operator.

    The class of the attributes is the annotation of its first parameter; the first paragraph of its
    docstring is the summary."""
    definition = cast(FunctionType, function)
    attrs = next(iter(definition.__annotations__.values()), None)
    if isinstance(attrs, str):  # in a module that postpones the evaluation of annotations
        attrs = definition.__globals__.get(attrs)
    return {
        "attrs": attrs if isinstance(attrs, type) and issubclass(attrs, Attrs) else Attrs,
        "summary": " ".join((function.__doc__ or "").partition("\n\n")[0].split()).rstrip("."),
    }


def operator(
    name: str, operands: str, infer: TypeRule, on_dims: bool = False, **options: Any
) -> Callable[[M], M]:
    """Define an operator by its meaning in NumPy, which is the decorated function.

    `on_dims`: the function also holds for arrays of symbolic dims. `options` are the remaining
    fields of `Op`. Injective operators move data.
    """

    def register(meaning: M) -> M:
        defaults = described(meaning)
        if on_dims:
            attrs = options.get("attrs", defaults["attrs"])
            defaults["symbolic"] = symbolic_by(with_attributes(meaning, operands, attrs))
        if options.get("kind") is Kind.INJECTIVE:
            defaults["work"] = movement_work
        define(name, operands, infer, meaning, **{**defaults, **options})
        return meaning

    return register


def require_broadcasts_to(type_: TensorType, target: TensorType, what: str) -> None:
    """Refuse a type that does not broadcast to another one without changing it."""
    if type_.shape is None or target.shape is None:
        return
    ends = zip(reversed(type_.shape), reversed(target.shape), strict=False)
    fits = all(spreads(dim, expected) for dim, expected in ends)
    require(
        fits and len(type_.shape) <= len(target.shape),
        f"{what} is {type_}, which does not broadcast to {target}",
    )
