"""Writes ONNX graphs node by node; the table says which operator is written how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.frontends.onnx import lower  # noqa: F401  (fills the table of forms)
from graft.frontends.onnx.registry import FORMS, OnnxForm
from graft.ir.graph import Node, Value

OPSET = 20


@dataclass
class Writer:
    """The ONNX graph being written; `taken` are names that values of the region have."""

    used_names: set[str] = field(default_factory=set)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def name(self, node: Node, what: str) -> str:
        """A name for something that the region's graph has not, and that no value has."""
        name = f"{node.output.name}.{what}"
        while name in self.used_names:
            name += "_"
        self.used_names.add(name)
        return name

    def emit(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> None:
        """Add a node."""
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), **attrs))

    def constant(self, name: str, array: Array) -> str:
        """Add a constant; gives its name."""
        # Unlike `ascontiguousarray`, this leaves a scalar a scalar.
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def integers(self, node: Node, name: str, values: Iterable[int]) -> str:
        return self.constant(self.name(node, name), np.array(list(values), np.int64))


Write = Callable[[Writer, Node], None]


def _write_form(form: OnnxForm) -> Write:
    """Write an operator that ONNX has as it is."""

    def write(writer: Writer, node: Node) -> None:
        attrs = {name: getattr(node.attrs, name) for name in form.attributes}
        writer.emit(form.op_type, names(node.inputs), names(node.outputs), **attrs)

    return write


# What the frontend lowers one to one is written the same way; decorators add the others.
WRITERS: dict[str, Write] = {name: _write_form(FORMS.get(name)) for name in FORMS}


def writes(*names: str) -> Callable[[Write], Write]:
    def register(write: Write) -> Write:
        WRITERS.update(dict.fromkeys(names, write))
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
