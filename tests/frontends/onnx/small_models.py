"""Small ONNX models, good and bad, written down in a line or two.

The node that a test is about is called `it`, the model's input `x` and its output `y`, unless the
test says otherwise. Outputs are declared without a type, so that only the model's own
contradictions count. `refused` checks what becomes of a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graft.base.errors import GraftError, UserError
from graft.frontends.onnx.importer import import_model

FLOAT, INT64, BOOL, STRING = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
)


def value(name: str, dtype: int = FLOAT, shape: Sequence[Any] | None = (2, 3)) -> Any:
    """A declared input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def untyped(name: str) -> onnx.ValueInfoProto:
    """An output of which only the name is declared."""
    return onnx.ValueInfoProto(name=name)


def tensor(name: str, values: Any, dtype: Any = None) -> onnx.TensorProto:
    """An initialiser."""
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def it(op_type: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",),
       **attributes: Any) -> onnx.NodeProto:  # fmt: skip
    """The node that the test is about."""
    return helper.make_node(op_type, list(inputs), list(outputs), name="it", **attributes)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Another node, without a name; operands are given as words."""
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def graph(nodes: Sequence[onnx.NodeProto], outputs: str, inputs: Sequence[Any] = ()) -> Any:
    """A nested graph."""
    declared = [untyped(name) for name in outputs.split()]
    return helper.make_graph(list(nodes), "body", list(inputs), declared)


def model(
    nodes: onnx.NodeProto | Sequence[onnx.NodeProto],
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    weights: Sequence[onnx.TensorProto] = (),
    opsets: dict[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of a few nodes on the input `x`: float32[2, 3]."""
    nodes = [nodes] if isinstance(nodes, onnx.NodeProto) else list(nodes)
    inputs = [value("x")] if inputs is None else inputs
    outputs = [untyped("y")] if outputs is None else outputs
    versions = {"": 18} if opsets is None else opsets
    return helper.make_model(
        helper.make_graph(nodes, "bad", list(inputs), list(outputs), list(weights)),
        opset_imports=[helper.make_opsetid(name, version) for name, version in versions.items()],
        functions=list(functions),
        ir_version=10,
    )


def function(name: str, nodes: Sequence[onnx.NodeProto], attributes: Sequence[str] = ()) -> Any:
    """A local function of domain `my` from `a` to `b`."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    return helper.make_function("my", name, ["a"], ["b"], list(nodes), opsets, list(attributes))


MINE = {"": 18, "my": 1}

# What makes the bad model, the error, a piece of its message, and the node where it happens.
Mistake = tuple[Callable[[], Any], type[GraftError], str, str]


def refused(make: Callable[[], Any], error: type[GraftError], message: str, place: str) -> None:
    """The model is refused on import, by this error, with this in its message, at this place."""
    source = make()
    with pytest.raises(GraftError) as caught:
        import_model(source, strict=True)
    assert type(caught.value) is error
    assert isinstance(caught.value, UserError)
    assert message in caught.value.message
    assert caught.value.location is not None
    assert caught.value.location.source in ("<ModelProto>", "<bytes>")
    assert caught.value.location.node == place
