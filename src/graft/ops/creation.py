"""Tensors from nothing, and what is known of a tensor without looking into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Dims
from graft.ir.literal import Literal
from graft.ir.op import Kind, Work, define, movement_work
from graft.ir.types import TensorType, Type
from graft.ops.rules import require


@dataclass(frozen=True, slots=True)
class ConstantAttrs(Attrs):
    value: Literal


def _no_work(_attrs: Any, _ins: Sequence[Type | None], _outs: Sequence[Type]) -> Work:
    return Work()


define(
    "constant",
    "",
    lambda attrs: attrs.value.type,
    lambda attrs: attrs.value.array,
    attrs=ConstantAttrs,
    work=_no_work,
)


def _shape_of_type(_attrs: Attrs, data: TensorType) -> TensorType:
    return TensorType(DType.INT64, (UNKNOWN if data.rank is None else data.rank,))


def _known_shape(
    _attrs: Attrs, _known: Sequence[Array | None], types: Sequence[Type | None]
) -> Array | None:
    data = types[0]
    if not isinstance(data, TensorType) or data.shape is None:
        return None
    found = np.empty(len(data.shape), dtype=object)
    found[:] = data.shape
    return found


define(
    "shape_of",
    "data",
    _shape_of_type,
    lambda _attrs, data: np.array(data.shape, dtype=np.int64),
    work=_no_work,
    symbolic=_known_shape,
)


@dataclass(frozen=True, slots=True)
class FullAttrs(Attrs):
    shape: Dims | None = None


def shape_operand(shape: Dims | None, operand: TensorType | None) -> tuple[AnyDim, ...] | None:
    """A shape given as an attribute, or as an operand of which only the length may be known."""
    if shape is not None:
        return shape
    require(operand is not None, "the shape is given neither as operand nor as attribute")
    assert operand is not None
    require(operand.dtype is DType.INT64, f"the shape is {operand.dtype}, not int64")
    length = operand.shape[0] if operand.shape else UNKNOWN
    return (UNKNOWN,) * length if isinstance(length, int) else None


def _full_type(attrs: FullAttrs, fill: TensorType, shape: TensorType | None) -> TensorType:
    require(fill.size == 1 or not isinstance(fill.size, int), "the fill value is not one element")
    return TensorType(fill.dtype, shape_operand(attrs.shape, shape))


def _full(attrs: FullAttrs, fill: Array, shape: Array | None) -> Array:
    extents = attrs.shape if shape is None else shape.tolist()
    return np.full(extents, fill.reshape(-1)[0], dtype=fill.dtype)


define(
    "full",
    "fill shape?",
    _full_type,
    _full,
    attrs=FullAttrs,
    kind=Kind.INJECTIVE,
    work=movement_work,
)
