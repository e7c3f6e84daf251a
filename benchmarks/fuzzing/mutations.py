"""Damages files: bytes or a model and a source of decisions in, the damaged bytes or model out.

Bytes are damaged as disks and transfers do it, and as people do who are looking for a crash: bits
flipped, parts cut out, repeated, swapped or overwritten, the end cut off. Models are also damaged
by their structure, so that what reaches the type rules is a file that parses: other operators,
operands, attributes, shapes, dtypes, opsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import defs

from graft.byoc.kit.draw import Draw

Mutation = Callable[[Any, Draw], None]

_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
_INTEGERS = (0, 1, -1, 2, 3, 7, 64, -2, 255, 2**16, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"))
_DIMS = (0, 1, 2, 3, 5, 17, -1, 2**20, 2**31, 2**40, 2**62)
_MOST = 4  # mutations of one file
_LONGEST = 64  # bytes of a part that is cut out, repeated or overwritten


def damaged_bytes(data: bytes, draw: Draw) -> bytes:
    """A file with one to four parts of it changed."""
    changed = bytearray(data)
    for _ in range(draw.between(1, _MOST)):
        draw.among(_BYTE_MUTATIONS)(changed, draw)
    return bytes(changed)


def _flip(data: bytearray, draw: Draw) -> None:
    if data:
        data[draw.between(0, len(data) - 1)] ^= 1 << draw.between(0, 7)


def _set(data: bytearray, draw: Draw) -> None:
    if data:
        data[draw.between(0, len(data) - 1)] = draw.among(_BYTES)


def _span(data: bytearray, draw: Draw) -> slice:
    start = draw.between(0, len(data))
    return slice(start, min(len(data), start + draw.between(1, _LONGEST)))


def _cut(data: bytearray, draw: Draw) -> None:
    del data[_span(data, draw)]


def _repeat(data: bytearray, draw: Draw) -> None:
    part = data[_span(data, draw)]
    at = draw.between(0, len(data))
    data[at:at] = part


def _overwrite(data: bytearray, draw: Draw) -> None:
    part = data[_span(data, draw)]
    at = draw.between(0, len(data))
    data[at : at + len(part)] = part


def _insert(data: bytearray, draw: Draw) -> None:
    at = draw.between(0, len(data))
    data[at:at] = bytes(draw.between(0, 255) for _ in range(draw.between(1, 9)))


def _truncate(data: bytearray, draw: Draw) -> None:
    del data[draw.between(0, len(data)) :]


_BYTE_MUTATIONS: Sequence[Mutation] = (
    *(_flip, _flip, _flip, _set, _set, _cut, _repeat, _overwrite, _insert, _truncate),
)


def damaged_model(model: onnx.ModelProto, draw: Draw) -> onnx.ModelProto:
    """A copy of a model with one to four changes to what it says."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(draw.between(1, _MOST)):
        draw.among(_MODEL_MUTATIONS)(changed, draw)
    return changed


def _graph(model: onnx.ModelProto, draw: Draw) -> onnx.GraphProto:
    """The graph, or one nested in it."""
    graphs = [model.graph]
    for graph in graphs:
        graphs += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return draw.among(graphs)


def _names(graph: onnx.GraphProto) -> list[str]:
    values = (*graph.input, *graph.output, *graph.initializer)
    results = (name for node in graph.node for name in node.output)
    return ["", "nowhere", *(value.name for value in values), *results]


def _change_operator(model: onnx.ModelProto, draw: Draw) -> None:
    nodes = _graph(model, draw).node
    if nodes:
        node = draw.among(nodes)
        schemas = sorted({schema.name for schema in defs.get_all_schemas()})
        others = [other.op_type for other in nodes]
        node.op_type = draw.among(others if draw.chance(0.2) else schemas)


def _change_operand(model: onnx.ModelProto, draw: Draw) -> None:
    graph = _graph(model, draw)
    if not graph.node:
        return
    node = draw.among(graph.node)
    operands = node.input if draw.chance(0.7) else node.output
    names = _names(graph)
    if operands and draw.chance(0.7):
        operands[draw.between(0, len(operands) - 1)] = draw.among(names)
    elif operands and draw.chance(0.5):
        del operands[draw.between(0, len(operands) - 1)]
    else:
        operands.append(draw.among(names))


def _change_nodes(model: onnx.ModelProto, draw: Draw) -> None:
    """Drop a node, repeat it, or put it elsewhere."""
    nodes = _graph(model, draw).node
    if not nodes:
        return
    at = draw.between(0, len(nodes) - 1)
    node = onnx.NodeProto()
    node.CopyFrom(nodes[at])
    if draw.chance(0.6):
        del nodes[at]
    if draw.chance(0.6):
        nodes.insert(draw.between(0, len(nodes)), node)


def _change_attribute(model: onnx.ModelProto, draw: Draw) -> None:
    attributes = [a for node in _graph(model, draw).node for a in node.attribute]
    if not attributes:
        return
    attribute = draw.among(attributes)
    if draw.chance(0.1):
        attribute.name = draw.among([other.name for other in attributes])
    if draw.chance(0.1):
        attribute.type = draw.between(0, 14)
    if attribute.HasField("i"):
        attribute.i = draw.among(_INTEGERS)
    elif attribute.HasField("f"):
        attribute.f = draw.among(_FLOATS)
    elif attribute.HasField("s"):
        attribute.s = damaged_bytes(attribute.s, draw)
    elif attribute.HasField("t"):
        _change_tensor(attribute.t, draw)
    elif attribute.ints:
        _change_list(attribute.ints, _INTEGERS, draw)
    elif attribute.floats:
        _change_list(attribute.floats, _FLOATS, draw)


def _change_list(numbers: Any, others: Sequence[Any], draw: Draw) -> None:
    at = draw.between(0, len(numbers))
    if at < len(numbers) and draw.chance(0.6):
        numbers[at] = draw.among(others)
    elif at < len(numbers) and draw.chance(0.5):
        del numbers[at]
    else:
        numbers.insert(at, draw.among(others))


def _drop_attribute(model: onnx.ModelProto, draw: Draw) -> None:
    nodes = [node for node in _graph(model, draw).node if node.attribute]
    if nodes:
        attributes = draw.among(nodes).attribute
        at = draw.between(0, len(attributes) - 1)
        if draw.chance(0.3):
            attributes.append(attributes[at])
        else:
            del attributes[at]


def _change_initializer(model: onnx.ModelProto, draw: Draw) -> None:
    tensors = _graph(model, draw).initializer
    if tensors:
        _change_tensor(draw.among(tensors), draw)


def _change_tensor(tensor: onnx.TensorProto, draw: Draw) -> None:
    kind = draw.between(0, 4)
    if kind == 0:
        tensor.data_type = draw.between(0, 30)
    elif kind == 1:
        _change_list(tensor.dims, _DIMS, draw)
    elif kind == 2:
        tensor.name = draw.among(("", "x", "nowhere", tensor.name + "_"))
    elif kind == 3 and draw.chance(0.3):
        tensor.data_location = onnx.TensorProto.EXTERNAL
        place = tensor.external_data.add()
        place.key, place.value = "location", draw.among(("../weights", "/dev/zero", "", "a\0b"))
    elif tensor.raw_data:
        tensor.raw_data = damaged_bytes(tensor.raw_data, draw)
    elif tensor.int64_data:
        _change_list(tensor.int64_data, _INTEGERS, draw)
    elif tensor.float_data:
        _change_list(tensor.float_data, _FLOATS, draw)


def _change_declaration(model: onnx.ModelProto, draw: Draw) -> None:
    """The dtype, shape or name of an input, output or value within."""
    graph = _graph(model, draw)
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    value = draw.among(values)
    kind = draw.between(0, 3)
    tensor = value.type.tensor_type
    if kind == 0:
        tensor.elem_type = draw.between(0, 30)
    elif kind == 1:
        value.name = draw.among(_names(graph))
    elif kind == 2 or not tensor.shape.dim:
        dim = tensor.shape.dim.add()
        dim.dim_value = draw.among(_DIMS)
    else:
        dim = draw.among(tensor.shape.dim)
        if draw.chance(0.4):
            dim.dim_param = draw.among(("n", "m", "n + m", "n - 1", "2 * n", "", "?"))
        else:
            dim.dim_value = draw.among(_DIMS)


def _change_list_of_values(model: onnx.ModelProto, draw: Draw) -> None:
    """Drop an input or output, repeat it, or ask for a value within as an output."""
    graph = _graph(model, draw)
    values = graph.input if draw.chance(0.5) else graph.output
    if values and draw.chance(0.5):
        del values[draw.between(0, len(values) - 1)]
    elif values:
        values.append(values[draw.between(0, len(values) - 1)])
    else:
        graph.output.add().name = draw.among(_names(graph))


def _change_opset(model: onnx.ModelProto, draw: Draw) -> None:
    if model.opset_import and draw.chance(0.8):
        draw.among(model.opset_import).version = draw.between(-1, 30)
    else:
        added = model.opset_import.add()
        added.domain = draw.among(("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "elsewhere"))
        added.version = draw.between(0, 30)
    if draw.chance(0.2):
        model.ir_version = draw.among((0, 1, 3, 7, 13, 2**31))


_MODEL_MUTATIONS: Sequence[Mutation] = (
    *(_change_operator, _change_operator, _change_operand, _change_operand, _change_nodes),
    *(_change_attribute, _change_attribute, _change_attribute, _drop_attribute),
    *(_change_initializer, _change_declaration, _change_declaration, _change_list_of_values),
    _change_opset,
)
