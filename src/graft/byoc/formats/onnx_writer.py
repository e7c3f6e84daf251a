"""Writes ONNX graphs node by node, with a writer per operator: `WRITERS` for regions and models,
`MODEL_WRITERS` for models alone, which may have data-dependent operators and control flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graft.base.dims import UNKNOWN
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.frontends.onnx import lower  # noqa: F401  (fills the table of forms)
from graft.frontends.onnx.registry import FORMS, OnnxForm
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType

OPSET = 20


@dataclass
class Writer:
    """An ONNX graph being written, and the writers of its operators; `used_names` are the names of
    values so far."""

    table: Mapping[str, Write] = field(default_factory=lambda: WRITERS)
    used_names: set[str] = field(default_factory=set)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def name(self, node: Node, what: str) -> str:
        """An unused name for an ONNX value that has no counterpart in the graph."""
        return self.fresh(f"{node.outputs[0].name}.{what}")

    def fresh(self, name: str) -> str:
        """An unused name that begins with this one."""
        while name in self.used_names:
            name += "_"
        self.used_names.add(name)
        return name

    def emit(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> None:
        """Add a node."""
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), **attrs))

    def add(self, node: Node, what: str, kind: str, *inputs: str, **attrs: Any) -> str:
        """Add an ONNX node with one result of a new name, on the way to a node's results; gives
        that name."""
        result = self.name(node, what)
        self.emit(kind, inputs, [result], **attrs)
        return result

    def constant(self, name: str, array: Array) -> str:
        """Add a constant; gives its name."""
        # Unlike `ascontiguousarray`, this leaves a scalar a scalar.
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def integers(self, node: Node, name: str, values: Iterable[int]) -> str:
        return self.constant(self.name(node, name), np.array(list(values), np.int64))

    def write(self, graph: Graph) -> None:
        """Add the nodes of a graph."""
        layers = _biased_layers(graph)
        delayed = set(layers.values())
        for node in graph.nodes:
            if node.op.name == "constant":
                self.constant(node.output.name, node.attrs.value.array)
            elif node not in delayed:
                whole = _with_bias(layers[node], node) if node in layers else node
                if whole.op.name not in self.table:
                    raise UnsupportedError(f"{whole.op.name} has no ONNX form here", node.location)
                self.table[whole.op.name](self, whole)


Write = Callable[[Writer, Node], None]


def write_form(form: OnnxForm) -> Write:
    """Write an operator that ONNX has as it is."""

    def write(writer: Writer, node: Node) -> None:
        attrs = {name: getattr(node.attrs, name) for name in form.attributes}
        writer.emit(form.op_type, names(node.inputs), names(node.outputs), **attrs)

    return write


# Operators that the frontend imports one to one are written likewise; decorators add the others.
WRITERS: dict[str, Write] = {name: write_form(FORMS.get(name)) for name in FORMS}


MODEL_WRITERS: dict[str, Write] = {}  # beside those, or instead of them


def writes(*names: str, table: dict[str, Write] = WRITERS) -> Callable[[Write], Write]:
    def register(write: Write) -> Write:
        table.update(dict.fromkeys(names, write))
        return write

    return register


def onnx_dtype(dtype: DType) -> int:
    """ONNX's number for an element type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype.numpy)))


def names(values: Iterable[Value | None]) -> list[str]:
    """Names of operands; an absent one has the empty name."""
    return ["" if value is None else value.name for value in values]


def extents(value: Value) -> list[int]:
    """A static shape."""
    shape = value.tensor.shape
    if shape is None or not all(isinstance(extent, int) for extent in shape):
        raise UnsupportedError(f"%{value.name} has no static shape")
    return [extent for extent in shape if isinstance(extent, int)]


def described(value: Value) -> onnx.ValueInfoProto:
    """A value's name and type."""
    type_ = value.type
    if not isinstance(type_, TensorType):
        raise UnsupportedError(f"%{value.name} is {type_}, and regions exchange tensors")
    kind = onnx_dtype(type_.dtype)
    shape = None
    if type_.shape is not None:
        texts = (None if dim is UNKNOWN else str(dim) for dim in type_.shape)
        shape = [d if isinstance(d, int) else t for d, t in zip(type_.shape, texts, strict=True)]
    return helper.make_tensor_value_info(value.name, kind, shape)


def _biased_layers(region: Graph) -> dict[Node, Node]:
    """Layers by the bias behind them that becomes an operand of the same ONNX node: peers run
    quantised layers on integers in that form only."""
    result: dict[Node, Node] = {}
    for node in region.nodes:
        layer = region.producers.get(node.args[0]) if node.op.name == "nn.bias_add" else None
        if layer is None or layer.op.name not in _BIASED:
            continue
        rank = node.output.tensor.rank or 0
        has_form = layer.op.name != "nn.dense" or rank == 2
        alone = len(region.users[layer.output]) == 1 and layer.output not in region.outputs
        if has_form and alone and node.attrs.axis % max(rank, 1) == 1:
            result[node] = layer
    return result


_BIASED = ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.dense")


def _with_bias(layer: Node, bias: Node) -> Node:
    """A layer with its bias as a third operand, which only writers understand."""
    return replace(layer, inputs=(*layer.inputs, bias.args[1]), outputs=bias.outputs)
