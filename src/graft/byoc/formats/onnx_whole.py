"""ONNX writers for whole models: data-dependent operators and control flow, and the forms of other
operators whose parameters are known at run time only.

Regions have none of these: memory for their results is allocated before they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_operators import reshape_to_type
from graft.byoc.formats.onnx_writer import (
    MODEL_WRITERS,
    Writer,
    described,
    names,
    onnx_dtype,
    write_form,
    writes,
)
from graft.frontends.onnx.registry import OnnxForm
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType

# What is the same operator in ONNX, operand by operand.
_SAME = {
    "argmax": OnnxForm("ArgMax", ("axis", "keepdims", "select_last_index")),
    "argmin": OnnxForm("ArgMin", ("axis", "keepdims", "select_last_index")),
    "gather": OnnxForm("GatherElements", ("axis",)),
    "gather_nd": OnnxForm("GatherND", ("batch_dims",)),
    "nonzero": OnnxForm("NonZero"),
    "scatter_elements": OnnxForm("ScatterElements", ("axis", "reduction")),
    "scatter_nd": OnnxForm("ScatterND", ("reduction",)),
    "shape_of": OnnxForm("Shape"),
}
MODEL_WRITERS.update({name: write_form(form) for name, form in _SAME.items()})


def _parameter(writer: Writer, node: Node, name: str, dtype: DType = DType.INT64) -> str:
    """The name of a tensor with a parameter of the node: an operand, or the attribute; empty
    without either. ONNX requires int64 in most places, and accepts it in all."""
    for position, operand in node.op.alternatives:
        given = node.inputs[position] if position < len(node.inputs) else None
        if operand == name and given is not None:
            if given.dtype is dtype:
                return given.name
            return writer.add(node, "cast", "Cast", given.name, to=onnx_dtype(dtype))
    value = getattr(node.attrs, name)
    if value is None:
        return ""
    if not all(isinstance(one, int | float) for one in np.atleast_1d(np.array(value, object))):
        reason = f"'{name}' of {node.op.name} depends on extents that are known at run time only"
        raise UnsupportedError(reason, node.location)
    return writer.constant(writer.name(node, name), np.array(value, dtype.numpy))


def _trimmed(inputs: Sequence[str]) -> list[str]:
    """Operands without absent ones at the end."""
    count = max((number for number, name in enumerate(inputs, 1) if name), default=0)
    return list(inputs[:count])


@writes("reshape", table=MODEL_WRITERS)
def _reshape(writer: Writer, node: Node) -> None:
    if len(node.args) == 1:
        reshape_to_type(writer, node)
        return
    inputs = [node.args[0].name, _parameter(writer, node, "shape")]
    writer.emit("Reshape", inputs, names(node.outputs), allowzero=int(node.attrs.allowzero))


@writes("broadcast_to", table=MODEL_WRITERS)
def _broadcast_to(writer: Writer, node: Node) -> None:
    writer.emit(
        "Expand", [node.args[0].name, _parameter(writer, node, "shape")], names(node.outputs)
    )


@writes("full", table=MODEL_WRITERS)
def _full(writer: Writer, node: Node) -> None:
    scalar = writer.integers(node, "scalar", ())
    fill = writer.add(node, "fill", "Reshape", node.args[0].name, scalar)
    writer.emit("Expand", [fill, _parameter(writer, node, "shape")], names(node.outputs))


@writes("strided_slice", table=MODEL_WRITERS)
def _strided_slice(writer: Writer, node: Node) -> None:
    parts = [_parameter(writer, node, part) for part in ("begin", "end", "axes", "strides")]
    if node.attrs.begin == ():
        writer.emit("Identity", [node.args[0].name], names(node.outputs))
        return
    writer.emit("Slice", _trimmed([node.args[0].name, *parts]), names(node.outputs))


@writes("tile", table=MODEL_WRITERS)
def _tile(writer: Writer, node: Node) -> None:
    writer.emit("Tile", [node.args[0].name, _parameter(writer, node, "reps")], names(node.outputs))


@writes("topk", table=MODEL_WRITERS)
def _topk(writer: Writer, node: Node) -> None:
    attrs, shape = node.attrs, writer.integers(node, "shape", (1,))
    count = writer.add(node, "count", "Reshape", _parameter(writer, node, "k"), shape)
    flags = {"largest": int(attrs.largest), "sorted": int(attrs.sorted)}
    inputs = [node.args[0].name, count]
    writer.emit("TopK", inputs, names(node.outputs), axis=attrs.axis, **flags)


_METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}


@writes("resize", table=MODEL_WRITERS)
def _resize(writer: Writer, node: Node) -> None:
    attrs = node.attrs
    if attrs.rounding_method == "simple":
        raise UnsupportedError("opset 20 has no rounding as Upsample's", node.location)
    sizes = _parameter(writer, node, "sizes")
    inputs = [
        node.args[0].name,
        _parameter(writer, node, "roi", DType.FLOAT32),
        "" if sizes else _parameter(writer, node, "scales", DType.FLOAT32),
        sizes,
    ]
    flags: dict[str, Any] = {
        "mode": _METHODS[attrs.method],
        "coordinate_transformation_mode": attrs.coordinate_transformation_mode,
        "nearest_mode": attrs.rounding_method,
        "cubic_coeff_a": attrs.cubic_alpha,
        "exclude_outside": int(attrs.exclude_outside),
        "antialias": int(attrs.antialias),
        "extrapolation_value": attrs.extrapolation_value,
        "keep_aspect_ratio_policy": attrs.keep_aspect_ratio_policy,
    }
    if attrs.axes is not None:
        flags["axes"] = list(attrs.axes)
    writer.emit("Resize", _trimmed(inputs), names(node.outputs), **flags)


@writes("vision.roi_align", table=MODEL_WRITERS)
def _roi_align(writer: Writer, node: Node) -> None:
    attrs = node.attrs
    height, width = attrs.pooled_size
    writer.emit(
        "RoiAlign",
        names(node.inputs),
        names(node.outputs),
        mode=attrs.mode,
        output_height=height,
        output_width=width,
        spatial_scale=attrs.spatial_scale,
        sampling_ratio=attrs.sample_ratio,
        coordinate_transformation_mode="half_pixel" if attrs.aligned else "output_half_pixel",
    )


@writes("vision.non_max_suppression", table=MODEL_WRITERS)
def _non_max_suppression(writer: Writer, node: Node) -> None:
    limits = [
        _parameter(writer, node, "max_output_size"),
        _parameter(writer, node, "iou_threshold", DType.FLOAT32),
        _parameter(writer, node, "score_threshold", DType.FLOAT32),
    ]
    inputs = _trimmed([*names(node.args[:2]), *limits])
    centred = int(node.attrs.center_point_box)
    writer.emit("NonMaxSuppression", inputs, names(node.outputs), center_point_box=centred)


@writes("if", table=MODEL_WRITERS)
def _if(writer: Writer, node: Node) -> None:
    """Branches read values of the graph around them by name."""
    captures = node.args[1:]
    branches = {
        name: _nested(writer, graph, captures)
        for name in ("then_branch", "else_branch")
        for graph in (getattr(node.attrs, name),)
    }
    writer.emit("If", [node.args[0].name], names(node.outputs), **branches)


@writes("loop", table=MODEL_WRITERS)
def _loop(writer: Writer, node: Node) -> None:
    operands = 2 + node.attrs.carried
    captures = [value for value in node.inputs[operands:] if value is not None]
    body = _nested(writer, node.attrs.body, captures)
    writer.emit("Loop", names(node.inputs[:operands]), names(node.outputs), body=body)


@writes("scan", table=MODEL_WRITERS)
def _scan(writer: Writer, node: Node) -> None:
    attrs = node.attrs
    operands = attrs.carried + attrs.num_scan_inputs
    captures = [value for value in node.inputs[operands:] if value is not None]
    lists = ("input_axes", "input_directions", "output_axes", "output_directions")
    writer.emit(
        "Scan",
        names(node.inputs[:operands]),
        names(node.outputs),
        body=_nested(writer, attrs.body, captures),
        num_scan_inputs=attrs.num_scan_inputs,
        **{f"scan_{name}": list(getattr(attrs, name)) for name in lists if getattr(attrs, name)},
    )


def _nested(writer: Writer, graph: Graph, captures: Sequence[Value]) -> onnx.GraphProto:
    """A nested graph whose last inputs are the captures. Its own values get new names, as ONNX
    forbids shadowing."""
    own = graph.inputs[: len(graph.inputs) - len(captures)]
    formal = {value: Value(writer.fresh(value.name), value.type) for value in own}
    renamed = {**formal, **dict(zip(graph.inputs[len(own) :], captures, strict=True))}
    nodes = []
    for node in graph.nodes:
        renamed |= {v: Value(writer.fresh(v.name), v.type) for v in node.outputs}
        nodes.append(replace(node.on(renamed), outputs=tuple(renamed[v] for v in node.outputs)))
    results = tuple(renamed[value] for value in graph.outputs)
    inner = Writer(writer.table, writer.used_names)
    inner.write(Graph(graph.name, (*formal.values(), *captures), tuple(nodes), results))
    outputs = [Value(writer.fresh(f"{value.name}.result"), value.type) for value in results]
    for value, output in zip(results, outputs, strict=True):
        inner.emit("Identity", [value.name], [output.name])
    inputs_, outputs_ = map(_described_loosely, formal.values()), map(_described_loosely, outputs)
    return helper.make_graph(
        inner.nodes, graph.name or "body", list(inputs_), list(outputs_), inner.constants
    )


def _described_loosely(value: Value) -> onnx.ValueInfoProto:
    """A value's type without symbols, which are extents of one iteration or branch only."""
    if not isinstance(value.type, TensorType) or value.type.is_static:
        return described(value)
    shape = value.type.shape
    loose = None if shape is None else [d if isinstance(d, int) else None for d in shape]
    return helper.make_tensor_value_info(value.name, onnx_dtype(value.dtype), loose)
