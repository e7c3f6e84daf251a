"""Sequences and optional values.

Where the elements of a sequence are known at import, operators on it are resolved to them, so that
sequences and optionals that only pass tensors along disappear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graft.base.dim_questions import provably_equal
from graft.base.dims import UNKNOWN
from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.frontends.onnx.types import dtype_from_onnx, type_from_onnx
from graft.ir.graph import Node, Value
from graft.ir.types import OptionalType, SequenceType, TensorType, map_dims

# A tensor is cut into a sequence of known values if it has at most so many parts.
_MOST_PARTS = 256


def _producer(call: Call, value: Value) -> Node | None:
    """The node that made the value, unless it came from outside."""
    return call.scope.builder.producer(value)


def elements_of(call: Call, sequence: Value) -> list[Value] | None:
    """The values that a sequence is made of, where they are known."""
    node = _producer(call, sequence)
    if node is None or node.op.name not in ("sequence.construct", "sequence.empty"):
        return None
    return list(node.args)


def _position(call: Call, operand: Value | None, length: int, end: int, default: int) -> int | None:
    """A position counted from the front, where it is known and lies below `end`."""
    if operand is None:
        return default if 0 <= default < end else None
    constant = call.concrete(operand)
    if constant is None or constant.size != 1:
        return None
    index = int(constant.reshape(-1)[0])
    element_index = index + length if index < 0 else index
    return element_index if 0 <= element_index < end else None


def _sequence(call: Call, elements: Sequence[Value], dtype: DType) -> Value:
    if elements:
        return call.op("sequence.construct", *elements)
    return call.op("sequence.empty", element=TensorType(dtype, None))


def _dtype(call: Call, sequence: Value) -> DType:
    type_ = sequence.type
    if not isinstance(type_, SequenceType) or not isinstance(type_.element, TensorType):
        call.fail(f"{call.node.op_type} wants a sequence of tensors, not {type_}")
    return type_.element.dtype


@lowers("SequenceConstruct")
def _construct(call: Call) -> Value:
    return call.op("sequence.construct", *(call.input(i) for i in range(len(call.inputs))))


@lowers("SequenceEmpty")
def _empty(call: Call) -> Value:
    return _sequence(call, (), dtype_from_onnx(call.int("dtype", 1)))


@lowers("SequenceInsert")
def _insert(call: Call) -> Value:
    sequence, element, position = call.input(0), call.input(1), call.optional(2)
    dtype, items = _dtype(call, sequence), elements_of(call, sequence)
    if items is not None and element.dtype is dtype:
        element_index = _position(call, position, len(items), len(items) + 1, len(items))
        if element_index is not None:
            return _sequence(call, [*items[:element_index], element, *items[element_index:]], dtype)
    return call.op("sequence.insert", sequence, element, position)


@lowers("SequenceErase")
def _erase(call: Call) -> Value:
    sequence, position = call.input(0), call.optional(1)
    dtype, items = _dtype(call, sequence), elements_of(call, sequence)
    if items is not None:
        element_index = _position(call, position, len(items), len(items), len(items) - 1)
        if element_index is not None:
            return _sequence(call, [*items[:element_index], *items[element_index + 1 :]], dtype)
    return call.op("sequence.erase", sequence, position)


@lowers("SequenceAt")
def _at(call: Call) -> Value:
    sequence, position = call.input(0), call.input(1)
    items = elements_of(call, sequence)
    if items is not None:
        element_index = _position(call, position, len(items), len(items), -1)
        if element_index is not None:
            return items[element_index]
    return call.op("sequence.at", sequence, position)


@lowers("SequenceLength")
def _length(call: Call) -> Value:
    items = elements_of(call, call.input(0))
    if items is not None:
        return call.constant(np.array(len(items), dtype=np.int64))
    return call.op("sequence.length", call.input(0))


@lowers("SplitToSequence")
def _split(call: Call) -> Value:
    data, sizes = call.input(0), call.optional(1)
    axis = call.int("axis", 0)
    parts = _known_parts(call, data, sizes, axis)
    squeezed = sizes is None and not call.int("keepdims", 1)
    if parts and len(parts) <= _MOST_PARTS:
        values = call.ops("split", data, axis=axis, sizes=parts)
        if squeezed:
            values = tuple(call.op("squeeze", value, axes=(axis,)) for value in values)
        return call.op("sequence.construct", *values)
    if sizes is None or _are_ones(call, data, sizes, axis):
        return call.op("sequence.split", data, axis=axis, chunk=1, keepdims=not squeezed)
    if sizes.shape == ():
        return call.op("sequence.split", data, sizes, axis=axis)
    return call.op("sequence.split", data, None, sizes, axis=axis)


def _are_ones(call: Call, data: Value, sizes: Value, axis: int) -> bool:
    """Whether there are as many parts as elements, each of them one, however many these are."""
    node = _producer(call, sizes)
    if node is None or node.op.name != "full" or data.shape is None or sizes.shape is None:
        return False
    fill = call.concrete(node.args[0])
    extents = data.shape[axis : axis + 1 or None]
    one = fill is not None and fill.size == 1 and fill.item() == 1
    counts = (*extents, *sizes.shape)
    return one and len(counts) == 2 and provably_equal(*counts)


def _known_parts(call: Call, data: Value, sizes: Value | None, axis: int) -> list[int] | None:
    """The extents of the parts, where they are known and fit."""
    if data.shape is None or not -len(data.shape) <= axis < len(data.shape):
        return None
    extent = data.shape[axis]
    counts = np.array(1) if sizes is None else call.concrete(sizes)
    if counts is None or counts.dtype.kind not in "iu" or not isinstance(extent, int):
        return None
    if counts.ndim == 0:
        step = int(counts)
        if step <= 0 or extent > step * _MOST_PARTS:
            return None
        return [min(step, extent - at) for at in range(0, extent, step)]
    parts = [int(size) for size in counts.reshape(-1)]
    return parts if all(size >= 0 for size in parts) and sum(parts) == extent else None


@lowers("ConcatFromSequence")
def _concatenate(call: Call) -> Value:
    sequence, axis = call.input(0), call.int("axis")
    new_axis = bool(call.int("new_axis", 0))
    items = elements_of(call, sequence)
    if not items:
        return call.op("sequence.concatenate", sequence, axis=axis, new_axis=new_axis)
    if new_axis:
        items = [call.op("expand_dims", value, axes=(axis,)) for value in items]
    return call.op("concatenate", *items, axis=axis)


@lowers("Optional")
def _optional(call: Call) -> Value:
    value = call.optional(0)
    if value is not None:
        return call.op("optional.construct", value)
    declared = type_from_onnx(call.attribute("type"))
    # A symbol in the declaration has nothing to do with the extents of this graph.
    element = map_dims(declared, lambda dim: dim if isinstance(dim, int) else UNKNOWN)
    return call.op("optional.construct", element=element)


def _content(call: Call, value: Value) -> tuple[bool, Value | None]:
    """Whether it is known what an optional value holds, and what that is."""
    if not isinstance(value.type, OptionalType):
        return True, value
    node = _producer(call, value)
    if node is None or node.op.name != "optional.construct":
        return False, None
    return True, node.args[0] if node.args else None


@lowers("OptionalHasElement")
def _has_element(call: Call) -> Value:
    value = call.optional(0)
    if value is None:
        return call.constant(np.array(False))
    is_known, content = _content(call, value)
    if is_known:
        return call.constant(np.array(content is not None))
    return call.op("optional.has_element", value)


@lowers("OptionalGetElement")
def _get_element(call: Call) -> Value:
    value = call.input(0)
    content = _content(call, value)[1]
    return call.op("optional.get_element", value) if content is None else content
