"""Movement, reductions and normalisations as ONNX nodes."""

from __future__ import annotations

import numpy as np

from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_writer import Writer, extents, names, onnx_dtype, writes
from graft.ir.graph import Node
from graft.ops.layout import rearrangement
from graft.ops.padding import pad_widths

_REDUCTIONS = {
    "max": "ReduceMax",
    "mean": "ReduceMean",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "sum": "ReduceSum",
}


@writes(*_REDUCTIONS)
def _reduce(writer: Writer, node: Node) -> None:
    inputs = names(node.inputs)
    if node.attrs.axes is not None:
        inputs.append(writer.integers(node, "axes", node.attrs.axes))
    flags = {
        "keepdims": int(node.attrs.keepdims),
        "noop_with_empty_axes": int(
            node.attrs.axes is not None and node.attrs.noop_with_empty_axes
        ),
    }
    writer.emit(_REDUCTIONS[node.op.name], inputs, names(node.outputs), **flags)


@writes("reshape", "squeeze", "expand_dims")
def _reshape(writer: Writer, node: Node) -> None:
    wanted = writer.integers(node, "shape", extents(node.output))
    writer.emit("Reshape", [node.args[0].name, wanted], names(node.outputs), allowzero=1)


@writes("transpose")
def _transpose(writer: Writer, node: Node) -> None:
    rank = len(node.args[0].tensor.shape or ())
    if rank < 2:  # ONNX has no empty permutation
        writer.emit("Identity", names(node.inputs), names(node.outputs))
        return
    axes = node.attrs.axes
    order = list(reversed(range(rank))) if axes is None else [axis % rank for axis in axes]
    writer.emit("Transpose", names(node.inputs), names(node.outputs), perm=order)


@writes("layout_transform")
def _layout_transform(writer: Writer, node: Node) -> None:
    shape = tuple(extents(node.args[0]))
    way = rearrangement(node.attrs.src_layout, node.attrs.dst_layout, shape)
    split, _, result = way.extents
    apart, turned = f"{node.output.name}.apart", f"{node.output.name}.turned"
    before = writer.integers(node, "apart_shape", split)
    writer.emit("Reshape", [node.args[0].name, before], [apart], allowzero=1)
    writer.emit("Transpose", [apart], [turned], perm=list(way.axes))
    after = writer.integers(node, "shape", result)
    writer.emit("Reshape", [turned, after], names(node.outputs), allowzero=1)


@writes("concatenate")
def _concatenate(writer: Writer, node: Node) -> None:
    writer.emit("Concat", names(node.inputs), names(node.outputs), axis=node.attrs.axis)


@writes("split")
def _split(writer: Writer, node: Node) -> None:
    axis = node.attrs.axis
    sizes = [extents(value)[axis] for value in node.outputs]
    inputs = [node.args[0].name, writer.integers(node, "sizes", sizes)]
    writer.emit("Split", inputs, names(node.outputs), axis=axis)


@writes("strided_slice")
def _strided_slice(writer: Writer, node: Node) -> None:
    attrs = node.attrs
    begin = [int(item) for item in attrs.begin]
    if not begin:
        writer.emit("Identity", names(node.inputs), names(node.outputs))
        return
    inputs = [node.args[0].name, writer.integers(node, "begin", begin)]
    inputs.append(writer.integers(node, "end", [int(item) for item in attrs.end]))
    axes = attrs.axes if attrs.axes is not None else range(len(begin))
    inputs.append(writer.integers(node, "axes", axes))
    if attrs.strides is not None:
        inputs.append(writer.integers(node, "strides", attrs.strides))
    writer.emit("Slice", inputs, names(node.outputs))


@writes("nn.pad")
def _pad(writer: Writer, node: Node) -> None:
    attrs = node.attrs
    if attrs.mode == "reflect":
        _check_reflection(node)
    inputs = [node.args[0].name, writer.integers(node, "pads", attrs.pad_width)]
    fill = np.array(attrs.fill, node.output.dtype.numpy)
    inputs.append(writer.constant(writer.name(node, "fill"), fill))
    if attrs.axes is not None:
        inputs.append(writer.integers(node, "axes", attrs.axes))
    writer.emit("Pad", inputs, names(node.outputs), mode=attrs.mode)


def _check_reflection(node: Node) -> None:
    """Refuse to reflect more of an axis than it has."""
    data = extents(node.args[0])
    for axis, widths in pad_widths(node.attrs, len(data)).items():
        if max(widths) >= data[axis]:
            reason = f"ONNX does not say how {data[axis]} elements are reflected on and on"
            raise UnsupportedError(reason, node.place)


@writes("cast")
def _cast(writer: Writer, node: Node) -> None:
    kind = onnx_dtype(node.attrs.dtype)
    writer.emit("Cast", names(node.inputs), names(node.outputs), to=kind)


@writes("nn.layer_norm")
def _layer_norm(writer: Writer, node: Node) -> None:
    data = node.args[0]
    inputs = [*names(node.inputs), ""][:3]
    if len(node.inputs) < 2 or node.inputs[1] is None:
        axis = node.attrs.axis
        ones = np.ones(extents(data)[axis:], node.output.dtype.numpy)
        inputs[1:2] = [writer.constant(writer.name(node, "gamma"), ones)]
    kept = [name for index, name in enumerate(inputs) if name or index < 2]
    attrs = {"axis": node.attrs.axis, "epsilon": node.attrs.epsilon}
    writer.emit("LayerNormalization", kept, names(node.outputs), **attrs)


@writes("nn.instance_norm")
def _instance_norm(writer: Writer, node: Node) -> None:
    if node.attrs.axis != 1:
        raise UnsupportedError("ONNX normalises instances of axis 1", node.place)
    if (node.args[0].tensor.rank or 0) < 3:
        raise UnsupportedError("ONNX normalises instances that have pixels", node.place)
    epsilon = node.attrs.epsilon
    writer.emit("InstanceNormalization", names(node.inputs), names(node.outputs), epsilon=epsilon)


@writes("nn.batch_norm")
def _batch_norm(writer: Writer, node: Node) -> None:
    if node.attrs.axis != 1:
        raise UnsupportedError("ONNX normalises batches along axis 1", node.place)
    epsilon = node.attrs.epsilon
    writer.emit("BatchNormalization", names(node.inputs), names(node.outputs), epsilon=epsilon)


@writes("nn.lrn")
def _lrn(writer: Writer, node: Node) -> None:
    attrs = node.attrs
    values = {"size": attrs.size, "alpha": attrs.alpha, "beta": attrs.beta, "bias": attrs.bias}
    writer.emit("LRN", names(node.inputs), names(node.outputs), **values)


@writes("take")
def _take(writer: Writer, node: Node) -> None:
    writer.emit("Gather", names(node.inputs), names(node.outputs), axis=node.attrs.axis)


@writes("tile")
def _tile(writer: Writer, node: Node) -> None:
    if not node.attrs.reps:
        writer.emit("Identity", names(node.inputs), names(node.outputs))
        return
    inputs = [node.args[0].name, writer.integers(node, "reps", node.attrs.reps)]
    writer.emit("Tile", inputs, names(node.outputs))


@writes("broadcast_to")
def _broadcast_to(writer: Writer, node: Node) -> None:
    inputs = [node.args[0].name, writer.integers(node, "shape", extents(node.output))]
    writer.emit("Expand", inputs, names(node.outputs))
