"""ONNX types <-> Graft types."""

from __future__ import annotations

import onnx

from graft.base.dims import UNKNOWN, AnyDim, symbol
from graft.base.dtypes import DType, dtype_of
from graft.base.errors import ModelError, UnsupportedError
from graft.ir.types import MapType, OptionalType, SequenceType, TensorType, Type, map_dims

_PROTO = onnx.TensorProto
_DTYPES: dict[int, DType] = {
    code: dtype_of(onnx.helper.tensor_dtype_to_np_dtype(code))
    for code in _PROTO.DataType.values()
    if code != _PROTO.UNDEFINED
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def dtype_from_onnx(code: int) -> DType:
    """The dtype of a `TensorProto.DataType` number."""
    if code == _PROTO.UNDEFINED:
        raise ModelError("an element type is missing")
    if code not in _DTYPES:
        raise UnsupportedError(f"element type number {code} is unknown")
    return _DTYPES[code]


def dtype_to_onnx(dtype: DType) -> int:
    """The `TensorProto.DataType` number of a dtype."""
    return _CODES[dtype]


def type_from_onnx(proto: onnx.TypeProto) -> Type:
    """A Graft type; missing extents are `UNKNOWN`."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return _tensor(proto.tensor_type)
    if kind == "sparse_tensor_type":
        return _tensor(proto.sparse_tensor_type)
    if kind == "sequence_type":
        element = type_from_onnx(proto.sequence_type.elem_type)
        return SequenceType(map_dims(element, _per_element))
    if kind == "optional_type":
        return OptionalType(type_from_onnx(proto.optional_type.elem_type))
    if kind == "map_type":
        key = dtype_from_onnx(proto.map_type.key_type)
        return MapType(key, type_from_onnx(proto.map_type.value_type))
    raise ModelError("a type is missing" if kind is None else f"type '{kind}' is unknown")


def contradiction(proto: onnx.TypeProto, type_: Type) -> str:
    """How a declaration contradicts the type; empty if it does not.

    Only the kind, the dtype and the rank count: extents in files are often out of date. A rank
    counts where an extent is a number; exporters that lose track of a shape in a branch declare one
    axis and make its name up.
    """
    kind = proto.WhichOneof("value")
    if kind != "tensor_type" or not isinstance(type_, TensorType):
        others = {"tensor_type": TensorType, "sequence_type": SequenceType, "map_type": MapType}
        apart = kind in others and not isinstance(type_, (others[kind], OptionalType))
        return f"as {kind.removesuffix('_type')}" if apart else ""
    declared = proto.tensor_type
    if declared.elem_type and _DTYPES.get(declared.elem_type) is not type_.dtype:
        return f"as {_DTYPES.get(declared.elem_type, declared.elem_type)}"
    rank = len(declared.shape.dim) if declared.HasField("shape") else type_.rank
    if rank and not any(dim.HasField("dim_value") for dim in declared.shape.dim):
        return ""
    return "" if type_.rank in (None, rank) else f"with rank {rank}"


def _per_element(dim: AnyDim) -> AnyDim:
    """The extent of every element of a sequence: elements differ, so no symbol can be one."""
    return dim if isinstance(dim, int) else UNKNOWN


def _tensor(proto: onnx.TypeProto.Tensor) -> TensorType:
    dtype = dtype_from_onnx(proto.elem_type)
    if not proto.HasField("shape"):
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(_dim(dim) for dim in proto.shape.dim))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> AnyDim:
    if dim.HasField("dim_value"):
        if dim.dim_value < 0:
            return UNKNOWN  # some exporters write -1 for an extent known at run time
        return dim.dim_value
    # Some exporters write "?" for each extent known at run time, and do not mean the same one.
    if dim.dim_param and dim.dim_param != "?":
        return symbol(dim.dim_param)
    return UNKNOWN


def type_to_onnx(type_: Type) -> onnx.TypeProto:
    """An ONNX type; symbolic extents are written as parameters."""
    helper = onnx.helper
    if isinstance(type_, TensorType):
        shape = None
        if type_.shape is not None:
            shape = [dim if isinstance(dim, int) else str(dim) for dim in type_.shape]
        return helper.make_tensor_type_proto(dtype_to_onnx(type_.dtype), shape)
    if isinstance(type_, SequenceType):
        return helper.make_sequence_type_proto(type_to_onnx(type_.element))
    if isinstance(type_, OptionalType):
        return helper.make_optional_type_proto(type_to_onnx(type_.element))
    return helper.make_map_type_proto(dtype_to_onnx(type_.key), type_to_onnx(type_.value))
