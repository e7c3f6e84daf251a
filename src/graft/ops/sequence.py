"""Sequences and optional values.

A sequence is a list at run time, an optional value is the value itself or None. A sequence's type
has one type for all elements: extents and ranks in which they differ are unknown there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from graft.base.dims import UNKNOWN, AnyDim, Dim
from graft.base.dtypes import Array, DType
from graft.base.errors import TypeRuleError
from graft.ir.attrs import Attrs, Dims
from graft.ir.op import movement_work, no_work
from graft.ir.types import OptionalType, SequenceType, TensorType, Type, join
from graft.ops.rules import normalize_axis, operator, require
from graft.runtime import lists

# Elements are handed on, not copied.
_UNCOPIED: dict[str, Any] = {"work": no_work, "tensors_only": False}


def joined(first: Type, second: Type) -> Type:
    """The type of elements of both types."""
    result = join(first, second)
    if result is None:
        raise TypeRuleError(f"a sequence cannot hold both {first} and {second}")
    return result


def _element(sequence: Type) -> Type:
    if not isinstance(sequence, SequenceType):
        raise TypeRuleError(f"wants a sequence, not {sequence}")
    return sequence.element


def _tensor_element(sequence: Type) -> TensorType:
    element = _element(sequence)
    if not isinstance(element, TensorType):
        raise TypeRuleError(f"wants a sequence of tensors, not {sequence}")
    return element


def _check_position(position: Type | None) -> None:
    if position is not None:
        fits = isinstance(position, TensorType) and position.dtype in (DType.INT32, DType.INT64)
        require(fits, f"the position is {position}, not an integer")


def _construct_type(_attrs: Attrs, *elements: Type) -> Type:
    require(len(elements) > 0, "there are no elements to tell the type of")
    return SequenceType(reduce(joined, elements))


@operator("sequence.construct", "*elements", _construct_type, **_UNCOPIED)
def _construct(_attrs: Attrs, *elements: Any) -> list[Any]:
    """A sequence of the operands."""
    return list(elements)


@dataclass(frozen=True, slots=True)
class EmptyAttrs(Attrs):
    """`element` is the type of what the sequence may get."""

    element: Type


@operator("sequence.empty", "", lambda attrs: SequenceType(attrs.element), **_UNCOPIED)
def _empty(_attrs: EmptyAttrs) -> list[Any]:
    """A sequence without elements."""
    return []


def _insert_type(_attrs: Attrs, sequence: Type, element: Type, position: Type | None) -> Type:
    _check_position(position)
    return SequenceType(joined(_element(sequence), element))


@operator("sequence.insert", "sequence element position?", _insert_type, **_UNCOPIED)
def _insert(_attrs: Attrs, *operands: Any) -> list[Any]:
    """A sequence with one more element at a position."""
    return lists.insert(*operands)


def _erase_type(_attrs: Attrs, sequence: Type, position: Type | None) -> Type:
    _check_position(position)
    return SequenceType(_element(sequence))


@operator("sequence.erase", "sequence position?", _erase_type, **_UNCOPIED)
def _erase(_attrs: Attrs, *operands: Any) -> list[Any]:
    """A sequence without the element at a position."""
    return lists.erase(*operands)


def _at_type(_attrs: Attrs, sequence: Type, position: Type) -> Type:
    _check_position(position)
    return _element(sequence)


@operator("sequence.at", "sequence position", _at_type, **_UNCOPIED)
def _at(_attrs: Attrs, *operands: Any) -> Any:
    """The element at a position."""
    return lists.at(*operands)


def _length_type(_attrs: Attrs, sequence: Type) -> Type:
    _element(sequence)
    return TensorType(DType.INT64, ())


@operator("sequence.length", "sequence", _length_type, **_UNCOPIED)
def _length(_attrs: Attrs, sequence: list[Any]) -> Array:
    """How many elements there are."""
    return lists.length(sequence)


@dataclass(frozen=True, slots=True)
class SplitAttrs(Attrs):
    """Cut into parts of `chunk`, the last may be smaller, or of the sizes in a list.

    Without `keepdims` the axis goes, which has to have an extent of 1 in each part.
    """

    axis: int = 0
    chunk: Dim | None = None
    sizes: Dims | None = None
    keepdims: bool = True


def _part_extent(attrs: SplitAttrs, extent: AnyDim) -> AnyDim:
    """The extent that all parts have, as far as it is the same and known."""
    if attrs.sizes is not None:
        return attrs.sizes[0] if len(set(attrs.sizes)) == 1 else UNKNOWN
    if attrs.chunk == 1:
        return 1
    if isinstance(attrs.chunk, int) and isinstance(extent, int) and attrs.chunk > 0:
        return attrs.chunk if extent % attrs.chunk == 0 else UNKNOWN
    return UNKNOWN


def _split_type(
    attrs: SplitAttrs, data: TensorType, chunk: TensorType | None, sizes: TensorType | None
) -> Type:
    numbers = (attrs.chunk if chunk is None else chunk, attrs.sizes if sizes is None else sizes)
    require((numbers[0] is None) != (numbers[1] is None), "wants either a chunk or sizes")
    require(chunk is None or chunk.dtype.is_integer, "the length of a part is no integer")
    if data.shape is None:
        return SequenceType(data)
    axis = normalize_axis(attrs.axis, len(data.shape))
    part = _part_extent(attrs, data.shape[axis])
    middle = (part,) if attrs.keepdims else ()
    shape = (*data.shape[:axis], *middle, *data.shape[axis + 1 :])
    return SequenceType(TensorType(data.dtype, shape))


@operator("sequence.split", "data chunk? sizes?", _split_type, work=movement_work)
def _split(attrs: SplitAttrs, data: Array) -> list[Array]:
    """Slices of a tensor along an axis as a sequence."""
    chunk: Any = attrs.chunk
    sizes: Any = attrs.sizes
    parts = lists.chunks(data.shape[attrs.axis], chunk) if sizes is None else list(sizes)
    return lists.split(data, parts, attrs.axis, attrs.keepdims)


@dataclass(frozen=True, slots=True)
class JoinAttrs(Attrs):
    """`new_axis` stacks the elements along an axis that they do not have."""

    axis: int
    new_axis: bool = False


def _concatenate_type(attrs: JoinAttrs, sequence: Type) -> Type:
    element = _tensor_element(sequence)
    if element.shape is None:
        return element
    rank = len(element.shape) + attrs.new_axis
    axis = normalize_axis(attrs.axis, rank)
    rest = element.shape[axis if attrs.new_axis else axis + 1 :]
    return TensorType(element.dtype, (*element.shape[:axis], UNKNOWN, *rest))


@operator(
    "sequence.concatenate", "sequence", _concatenate_type, work=movement_work, tensors_only=False
)
def _concatenate(attrs: JoinAttrs, sequence: list[Any]) -> Array:
    """The elements joined along an axis, or along a new one."""
    return lists.concatenate(sequence, attrs.axis, not attrs.new_axis)


@dataclass(frozen=True, slots=True)
class OptionalAttrs(Attrs):
    """`element` is the type of the value that is missing."""

    element: Type | None = None


def _optional_type(attrs: OptionalAttrs, value: Type | None) -> Type:
    element = attrs.element if value is None else value
    if element is None:
        raise TypeRuleError("an empty optional wants to know the type of what is missing")
    require(not isinstance(element, OptionalType), f"an optional cannot hold an {element}")
    return OptionalType(element)


@operator("optional.construct", "value?", _optional_type, **_UNCOPIED)
def _optional_value(_attrs: OptionalAttrs, value: Any) -> Any:
    """A value that may be absent: the operand, or nothing."""
    return value


def _optional(value: Type) -> OptionalType:
    if not isinstance(value, OptionalType):
        raise TypeRuleError(f"wants an optional value, not {value}")
    return value


def _has_element_type(_attrs: Attrs, value: Type) -> Type:
    _optional(value)
    return TensorType(DType.BOOL, ())


@operator("optional.has_element", "value", _has_element_type, tensors_only=False)
def _has_element(_attrs: Attrs, value: Any) -> Array:
    """Whether the value is there."""
    return lists.has_element(value)


@operator(
    "optional.get_element", "value", lambda _attrs, value: _optional(value).element, **_UNCOPIED
)
def _get_element(_attrs: Attrs, value: Any) -> Any:
    """The value, which has to be there."""
    return lists.element_of(value)
