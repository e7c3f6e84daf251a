"""What a model gives in float64: a model in, one with its float32 numbers widened out.

Two sides that add in different orders differ, and neither is the measure of the other. Numbers that
are rounded 2^29 times as finely are: whoever is nearer to these is right, whatever the other says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import graft

_FLOATS = {"value_float", "value_floats"}  # of a Constant


def exact(path: Path, given: Mapping[str, Any]) -> Sequence[Any] | None:
    """The outputs in float64, by the reference evaluator; none if that does not take the model."""
    inputs = {name: _wide(data) for name, data in given.items()}
    try:
        return graft.compile(widened(onnx.load(path)), target="reference").run(None, inputs)
    except Exception:  # noqa: BLE001  (operators without float64, or types that no longer fit)
        return None


def distance(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """How far results are from those in float64: the root of the mean square, over the largest."""
    worst = 0.0
    for one, other in zip(map(np.asarray, expected), map(np.asarray, actual), strict=True):
        if one.shape != other.shape or (one.dtype.kind == "f") != (other.dtype.kind == "f"):
            return np.inf
        if one.dtype.kind != "f":
            worst = worst if np.array_equal(one, other) else np.inf
        elif not np.array_equal(np.isfinite(one), np.isfinite(other)):
            return np.inf
        else:
            numbers, others = (side[np.isfinite(one)].astype(np.float64) for side in (one, other))
            largest = np.max(np.abs(numbers), initial=np.finfo(np.float32).tiny)
            away = (numbers - others) / largest
            worst = max(worst, np.sqrt(np.sum(away**2) / max(away.size, 1)))
    return float(worst)


def _wide(data: Any) -> Any:
    is_single = isinstance(data, np.ndarray) and data.dtype == np.float32
    return data.astype(np.float64) if is_single else data


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 wherever it says float32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    return wide


def _widen_graph(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            _widen_attribute(node, attribute)


def _widen_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    if attribute.HasField("g"):
        _widen_graph(attribute.g)
    elif attribute.HasField("t"):
        _widen_tensor(attribute.t)
    elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
        attribute.i = TensorProto.DOUBLE
    elif node.op_type == "Constant" and attribute.name in _FLOATS:
        numbers = attribute.f if attribute.HasField("f") else list(attribute.floats)
        tensor = numpy_helper.from_array(np.asarray(numbers, np.float64))
        attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
