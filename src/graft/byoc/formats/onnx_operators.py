"""ONNX writers for operators that do not correspond to one ONNX node with equal attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_writer import (
    WRITERS,
    Writer,
    extents,
    names,
    onnx_dtype,
    write_form,
    writes,
)
from graft.frontends.onnx.registry import OnnxForm
from graft.ir.graph import Node
from graft.ops.elementwise import clip_bound
from graft.ops.layout import rearrangement
from graft.ops.padding import pad_widths

# Operators that correspond to one ONNX node, but are imported in another way.
_SAME = {
    "concatenate": OnnxForm("Concat", ("axis",)),
    "nn.log_softmax": OnnxForm("LogSoftmax", ("axis",)),
    "nn.lrn": OnnxForm("LRN", ("size", "alpha", "beta", "bias")),
    "nn.softmax": OnnxForm("Softmax", ("axis",)),
    "take": OnnxForm("Gather", ("axis",)),
}
WRITERS.update({name: write_form(form) for name, form in _SAME.items()})


def _window(attrs: Any) -> dict[str, Any]:
    """Strides, padding and dilation as ONNX has them."""
    return {
        "strides": list(attrs.strides),
        "pads": list(attrs.padding),
        "dilations": list(attrs.dilation),
    }


@writes("nn.conv1d", "nn.conv2d", "nn.conv3d")
def _conv(writer: Writer, node: Node) -> None:
    attrs = {**_window(node.attrs), "group": node.attrs.groups}
    writer.emit("Conv", names(node.inputs), names(node.outputs), **attrs)


@writes("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def _conv_transpose(writer: Writer, node: Node) -> None:
    attrs = {**_window(node.attrs), "group": node.attrs.groups}
    attrs["output_padding"] = list(node.attrs.output_padding)
    writer.emit("ConvTranspose", names(node.inputs), names(node.outputs), **attrs)


def _pads(node: Node) -> list[int]:
    """Padding up to the end of the last window, so that all are whole: peers disagree on the number
    of partial windows, and on the result of a window of padding alone."""
    attrs, rank = node.attrs, len(node.attrs.strides)
    before, after = list(attrs.padding[:rank]), list(attrs.padding[rank:])
    if not (attrs.ceil_mode or any(attrs.padding)):
        return [*before, *after]
    for axis, extent in enumerate((node.args[0].tensor.shape or ())[2:]):
        span = (attrs.pool_size[axis] - 1) * attrs.dilation[axis] + 1
        if not isinstance(extent, int):
            _check_symbolic_windows(node, axis)
            continue
        count = (node.output.tensor.shape or ())[2 + axis]
        assert isinstance(count, int)  # as it follows from numbers
        _check_windows(node, axis, extent, count)
        last = (count - 1) * attrs.strides[axis] - before[axis]
        after[axis] = max(0, last + span - extent)
    return [*before, *after]


def _check_symbolic_windows(node: Node, axis: int) -> None:
    """Refuse windows that reach beyond an axis of any extent, or that may be padding alone."""
    attrs, rank = node.attrs, len(node.attrs.strides)
    padding = attrs.padding[axis], attrs.padding[rank + axis]
    if attrs.ceil_mode or attrs.dilation[axis] > 1 or max(padding) >= attrs.pool_size[axis]:
        reason = "what windows reach beyond an axis depends on its extent"
        raise UnsupportedError(reason, node.location)


def _check_windows(node: Node, axis: int, extent: int, count: int) -> None:
    """Refuse a window none of whose elements is data."""
    attrs = node.attrs
    reach = np.arange(attrs.pool_size[axis]) * attrs.dilation[axis]
    starts = np.arange(count) * attrs.strides[axis] - attrs.padding[axis]
    positions = starts[:, None] + reach
    if not ((positions >= 0) & (positions < extent)).any(axis=1).all():
        raise UnsupportedError(
            "ONNX does not say what a window of padding alone gives", node.location
        )


@writes("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
def _max_pool(writer: Writer, node: Node) -> None:
    attrs = {**_window(node.attrs), "pads": _pads(node)}
    attrs["kernel_shape"] = list(node.attrs.pool_size)
    writer.emit("MaxPool", names(node.inputs), names(node.outputs), **attrs)


@writes("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
def _avg_pool(writer: Writer, node: Node) -> None:
    attrs = {**_window(node.attrs), "kernel_shape": list(node.attrs.pool_size), "pads": _pads(node)}
    attrs["count_include_pad"] = int(node.attrs.count_include_pad)
    if all(step == 1 for step in attrs["dilations"]):
        del attrs["dilations"]  # ONNX Runtime's quantised pooling has no such attribute
    data = node.args[0].name
    counted = [min(pair) for pair in zip(attrs["pads"], node.attrs.padding, strict=True)]
    if node.attrs.count_include_pad and counted != attrs["pads"]:
        # Padding counts, but not what lies beyond it: the former becomes data, the latter padding.
        rank = len(attrs["strides"])
        ends = [0, 0, *counted[:rank], 0, 0, *counted[rank:]]
        data = writer.add(node, "padded", "Pad", data, writer.integers(node, "pads", ends))
        beyond = [pad - own for pad, own in zip(attrs["pads"], counted, strict=True)]
        attrs["pads"], attrs["count_include_pad"] = beyond, 0
    writer.emit("AveragePool", [data], names(node.outputs), **attrs)


@writes("nn.prelu")
def _prelu(writer: Writer, node: Node) -> None:
    """Not every peer broadcasts a slope of fewer axes from the last one on."""
    data, slope = node.args
    shape, rank = extents(slope), len(data.tensor.shape or ())
    name = slope.name
    if len(shape) < rank:
        target_shape = writer.integers(node, "shape", [1] * (rank - len(shape)) + shape)
        name = writer.add(node, "slope", "Reshape", slope.name, target_shape)
    writer.emit("PRelu", [data.name, name], names(node.outputs))


@writes("nn.bias_add")
def _bias_add(writer: Writer, node: Node) -> None:
    """ONNX broadcasts from the last axis on, so the bias gets axes of extent 1 behind it."""
    data, bias = node.args
    rank = len(data.tensor.shape or ())
    shape = [1] * rank
    shape[node.attrs.axis] = -1
    target_shape = writer.integers(node, "shape", shape)
    spread = writer.add(node, "bias", "Reshape", bias.name, target_shape)
    writer.emit("Add", [data.name, spread], names(node.outputs))


@writes("nn.dense")
def _dense(writer: Writer, node: Node) -> None:
    if node.output.tensor.rank == 2:  # maybe with a bias, see `onnx_model`
        writer.emit("Gemm", names(node.inputs), names(node.outputs), transB=1)
        return
    data, weight = node.args
    transposed = writer.add(node, "weight", "Transpose", weight.name, perm=[1, 0])
    writer.emit("MatMul", [data.name, transposed], names(node.outputs))


@writes("nn.batch_matmul")
def _batch_matmul(writer: Writer, node: Node) -> None:
    operands = []
    flags = (node.attrs.transpose_a, node.attrs.transpose_b)
    for value, is_transposed in zip(node.args, flags, strict=True):
        rank = len(value.tensor.shape or ())
        name = value.name
        if is_transposed and rank > 1:
            order = [*range(rank - 2), rank - 1, rank - 2]
            name = writer.add(node, "transposed", "Transpose", value.name, perm=order)
        operands.append(name)
    writer.emit("MatMul", operands, names(node.outputs))


@writes("clip")
def _clip(writer: Writer, node: Node) -> None:
    operands = [*names(node.inputs), "", ""][:3]
    for position, bound in ((1, node.attrs.a_min), (2, node.attrs.a_max)):
        if bound is not None and not operands[position]:
            array = clip_bound(bound, node.output.dtype)
            operands[position] = writer.constant(writer.name(node, "bound"), array)
    writer.emit("Clip", operands, names(node.outputs))


@writes("nn.gelu")
def _gelu(writer: Writer, node: Node) -> None:
    form = "tanh" if node.attrs.approximate else "none"
    writer.emit("Gelu", names(node.inputs), names(node.outputs), approximate=form)


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
    is_noop = node.attrs.axes is not None and node.attrs.noop_with_empty_axes
    flags = {"keepdims": int(node.attrs.keepdims), "noop_with_empty_axes": int(is_noop)}
    writer.emit(_REDUCTIONS[node.op.name], inputs, names(node.outputs), **flags)


@writes("reshape", "squeeze", "expand_dims")
def reshape_to_type(writer: Writer, node: Node) -> None:
    target_shape = writer.integers(node, "shape", _target_shape(node))
    literal = int(node.output.tensor.is_static)  # else 0 stands for the operand's extent
    writer.emit(
        "Reshape", [node.args[0].name, target_shape], names(node.outputs), allowzero=literal
    )


def _target_shape(node: Node) -> list[int]:
    """The operand of Reshape for a result's shape: a symbolic extent is 0 if it is the operand's of
    the same axis, else -1."""
    before, after = node.args[0].tensor.shape or (), node.output.tensor.shape or ()
    result = []
    for axis, dim in enumerate(after):
        is_same = axis < len(before) and before[axis] == dim
        result.append(dim if isinstance(dim, int) else 0 if is_same else -1)
    if result.count(-1) > 1 or (0 in after and not node.output.tensor.is_static):
        raise UnsupportedError(f"ONNX has no shape for {node.output.type}", node.location)
    return result


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
    change = rearrangement(node.attrs.src_layout, node.attrs.dst_layout, shape)
    split, _, result = change.extents
    before = writer.integers(node, "split_shape", split)
    apart = writer.add(node, "split", "Reshape", node.args[0].name, before, allowzero=1)
    transposed = writer.add(node, "transposed", "Transpose", apart, perm=list(change.axes))
    after = writer.integers(node, "shape", result)
    writer.emit("Reshape", [transposed, after], names(node.outputs), allowzero=1)


@writes("split")
def _split(writer: Writer, node: Node) -> None:
    axis = node.attrs.axis
    sizes = [(value.tensor.shape or ())[axis] for value in node.outputs]
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedError("sizes of parts are known at run time only", node.location)
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
    if not attrs.pad_width:  # of a scalar, which ONNX Runtime refuses
        writer.emit("Identity", [node.args[0].name], names(node.outputs))
        return
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
            raise UnsupportedError(reason, node.location)


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


@writes("nn.batch_norm", "nn.instance_norm")
def _channel_norm(writer: Writer, node: Node) -> None:
    is_batch = node.op.name == "nn.batch_norm"
    if node.attrs.axis != 1:
        what = "batches along" if is_batch else "instances of"
        raise UnsupportedError(f"ONNX normalises {what} axis 1", node.location)
    if not is_batch and (node.args[0].tensor.rank or 0) < 3:
        raise UnsupportedError("ONNX normalises instances that have pixels", node.location)
    kind = "BatchNormalization" if is_batch else "InstanceNormalization"
    writer.emit(kind, names(node.inputs), names(node.outputs), epsilon=node.attrs.epsilon)


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


@writes("qnn.quantize")
def _quantize(writer: Writer, node: Node) -> None:
    """The zero point says the type of the result, so there has to be one."""
    attrs = node.attrs
    if attrs.block_size or attrs.precision is not None or not attrs.saturate:
        raise UnsupportedError("opset 20 quantises by tensor and by axis alone", node.location)
    operands = _with_zero_point(writer, node, attrs.dtype)
    writer.emit("QuantizeLinear", operands, names(node.outputs), axis=attrs.axis)


def _with_zero_point(writer: Writer, node: Node, dtype: DType) -> list[str]:
    operands = names(node.inputs)
    if len(operands) < 3 or not operands[2]:
        zeros = np.zeros(extents(node.args[1]), dtype.numpy)
        operands = [*operands[:2], writer.constant(writer.name(node, "zero_point"), zeros)]
    elif node.args[1].tensor.size != node.args[2].tensor.size:
        raise UnsupportedError("ONNX has a zero point for each scale", node.location)
    return operands


@writes("qnn.dequantize")
def _dequantize(writer: Writer, node: Node) -> None:
    """With its zero point: some peers know units by equal operands on both sides of them."""
    attrs = node.attrs
    if attrs.block_size or attrs.dtype not in (None, node.args[1].dtype):
        raise UnsupportedError("opset 20 dequantises by tensor and by axis alone", node.location)
    operands = _with_zero_point(writer, node, node.args[0].dtype)
    writer.emit("DequantizeLinear", operands, names(node.outputs), axis=attrs.axis)
