"""Models of one ai.onnx.ml (or string) node, run by Graft's evaluator and by ONNX Runtime.

In go arrays or, with their ONNX types, maps; out come lists of results. Graft's run also checks the
graph and that its text parses back to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from graft.base.dtypes import dtype_of
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.types import dtype_to_onnx
from graft.ir.equal import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify

Data = Any


def texts(*words: str) -> Data:
    return np.array(words, object)


def tensor_type(array: Data) -> onnx.TypeProto:
    """The ONNX type of an array."""
    return helper.make_tensor_type_proto(dtype_to_onnx(dtype_of(array.dtype)), array.shape)


def model(
    op_type: str,
    operands: Sequence[Data],
    outputs: int = 1,
    types: Sequence[onnx.TypeProto] | None = None,
    domain: str = "ai.onnx.ml",
    opset: int = 3,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node named `it` on inputs x0, x1, ...; `types` are theirs where arrays do not say it."""
    types = [tensor_type(array) for array in operands] if types is None else types
    inputs = [helper.make_value_info(f"x{i}", type_) for i, type_ in enumerate(types)]
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    node = helper.make_node(
        op_type,
        [info.name for info in inputs],
        [info.name for info in results],
        name="it",
        domain=domain,
        **attributes,
    )
    graph = helper.make_graph([node], "one_node", inputs, results)
    versions = {"": 20, "ai.onnx.ml": 3, domain: opset}
    opsets = [helper.make_opsetid(name, version) for name, version in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def graph_of(op_type: str, operands: Sequence[Data], **options: Any) -> Graph:
    """The imported and verified graph."""
    graph = import_model(model(op_type, operands, **options))
    verify(graph)
    text = to_text(graph)
    assert difference(graph, from_text(text.text, text.constants)) is None
    return graph


def by_graft(op_type: str, operands: Sequence[Data], **options: Any) -> list[Data]:
    """What Graft gives."""
    return evaluate(graph_of(op_type, operands, **options), operands)


def by_runtime(op_type: str, operands: Sequence[Data], **options: Any) -> list[Data]:
    """What ONNX Runtime gives."""
    proto = model(op_type, operands, **options).SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    return list(session.run(None, {f"x{i}": data for i, data in enumerate(operands)}))


def assert_same(actual: Sequence[Data], expected: Sequence[Data], tolerance: float = 1e-5) -> None:
    """Equal dtypes and shapes; numbers within the tolerance, NaN and infinity in their places."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (dtype_of(one.dtype), one.shape) == (dtype_of(other.dtype), other.shape)
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        else:
            assert one.tolist() == other.tolist()


def agree(op_type: str, operands: Sequence[Data], tolerance: float = 1e-5, **options: Any) -> None:
    """Graft gives what ONNX Runtime gives."""
    expected = by_runtime(op_type, operands, **options)
    assert_same(by_graft(op_type, operands, **options), expected, tolerance)
