"""Arithmetic as ONNX nodes: pointwise operators, convolutions, pooling, matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_writer import OPSET, WRITERS, Write, Writer, names, writes
from graft.ir.graph import Node


def _plain(kind: str, **attrs: Any) -> Write:
    """A writer of an operator that ONNX has as it is."""

    def write(writer: Writer, node: Node) -> None:
        writer.emit(kind, names(node.inputs), names(node.outputs), **attrs)

    return write


WRITERS |= {
    ours: _plain(theirs)
    for ours, theirs in {
        "abs": "Abs",
        "acos": "Acos",
        "add": "Add",
        "asin": "Asin",
        "atan": "Atan",
        "ceil": "Ceil",
        "cos": "Cos",
        "divide": "Div",
        "equal": "Equal",
        "erf": "Erf",
        "exp": "Exp",
        "floor": "Floor",
        "greater": "Greater",
        "greater_equal": "GreaterOrEqual",
        "less": "Less",
        "less_equal": "LessOrEqual",
        "log": "Log",
        "logical_and": "And",
        "logical_not": "Not",
        "logical_or": "Or",
        "logical_xor": "Xor",
        "maximum": "Max",
        "minimum": "Min",
        "multiply": "Mul",
        "negative": "Neg",
        "nn.prelu": "PRelu",
        "nn.relu": "Relu",
        "power": "Pow",
        "round": "Round",
        "sigmoid": "Sigmoid",
        "sign": "Sign",
        "sin": "Sin",
        "sqrt": "Sqrt",
        "subtract": "Sub",
        "tanh": "Tanh",
        "where": "Where",
    }.items()
}


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


@writes("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
def _max_pool(writer: Writer, node: Node) -> None:
    attrs = {**_window(node.attrs), "ceil_mode": int(node.attrs.ceil_mode)}
    attrs["kernel_shape"] = list(node.attrs.pool_size)
    writer.emit("MaxPool", names(node.inputs), names(node.outputs), **attrs)


@writes("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
def _avg_pool(writer: Writer, node: Node) -> None:
    if any(step != 1 for step in node.attrs.dilation):
        raise UnsupportedError(f"AveragePool of opset {OPSET} has no dilation", node.place)
    attrs = {
        "strides": list(node.attrs.strides),
        "pads": list(node.attrs.padding),
        "kernel_shape": list(node.attrs.pool_size),
        "ceil_mode": int(node.attrs.ceil_mode),
        "count_include_pad": int(node.attrs.count_include_pad),
    }
    writer.emit("AveragePool", names(node.inputs), names(node.outputs), **attrs)


@writes("nn.bias_add")
def _bias_add(writer: Writer, node: Node) -> None:
    """ONNX broadcasts from the last axis on, so the bias gets axes of extent 1 behind it."""
    data, bias = node.args
    rank = len(data.tensor.shape or ())
    shape = [1] * rank
    shape[node.attrs.axis] = -1
    wanted = writer.integers(node, "shape", shape)
    writer.emit("Reshape", [bias.name, wanted], [f"{node.output.name}.bias"])
    writer.emit("Add", [data.name, f"{node.output.name}.bias"], names(node.outputs))


@writes("nn.dense")
def _dense(writer: Writer, node: Node) -> None:
    data, weight = node.args
    turned = f"{node.output.name}.weight"
    writer.emit("Transpose", [weight.name], [turned], perm=[1, 0])
    writer.emit("MatMul", [data.name, turned], names(node.outputs))


@writes("nn.batch_matmul")
def _batch_matmul(writer: Writer, node: Node) -> None:
    operands = []
    flags = (node.attrs.transpose_a, node.attrs.transpose_b)
    for value, turned in zip(node.args, flags, strict=True):
        rank = len(value.tensor.shape or ())
        name = value.name
        if turned and rank > 1:
            name = f"{node.output.name}.{value.name}.turned"
            order = [*range(rank - 2), rank - 1, rank - 2]
            writer.emit("Transpose", [value.name], [name], perm=order)
        operands.append(name)
    writer.emit("MatMul", operands, names(node.outputs))


@writes("clip")
def _clip(writer: Writer, node: Node) -> None:
    given = [*names(node.inputs), "", ""][:3]
    for position, bound in ((1, node.attrs.a_min), (2, node.attrs.a_max)):
        if bound is not None and not given[position]:
            array = np.array(bound, node.output.dtype.numpy)
            given[position] = writer.constant(f"{node.output.name}.bound{position}", array)
    writer.emit("Clip", given, names(node.outputs))


@writes("nn.leaky_relu")
def _leaky_relu(writer: Writer, node: Node) -> None:
    writer.emit("LeakyRelu", names(node.inputs), names(node.outputs), alpha=node.attrs.alpha)


@writes("nn.gelu")
def _gelu(writer: Writer, node: Node) -> None:
    """Gelu came with opset 20; this is its formula."""
    if node.attrs.approximate:
        raise UnsupportedError("the tanh form of gelu has no ONNX form here", node.place)
    (data,), out = node.args, node.output.name
    dtype = node.output.dtype.numpy
    root = writer.constant(f"{out}.root", np.array(np.sqrt(2.0), dtype))
    one = writer.constant(f"{out}.one", np.array(1.0, dtype))
    half = writer.constant(f"{out}.half", np.array(0.5, dtype))
    writer.emit("Div", [data.name, root], [f"{out}.scaled"])
    writer.emit("Erf", [f"{out}.scaled"], [f"{out}.erf"])
    writer.emit("Add", [f"{out}.erf", one], [f"{out}.shifted"])
    writer.emit("Mul", [data.name, f"{out}.shifted"], [f"{out}.product"])
    writer.emit("Mul", [f"{out}.product", half], [out])


@writes("nn.softmax", "nn.log_softmax")
def _softmax(writer: Writer, node: Node) -> None:
    kind = "Softmax" if node.op.name == "nn.softmax" else "LogSoftmax"
    writer.emit(kind, names(node.inputs), names(node.outputs), axis=node.attrs.axis)
