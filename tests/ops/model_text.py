"""Models written in ONNX's own text form, run through Graft and through ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from graft.frontends.onnx.importer import import_model
from graft.ir.equal import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify

onnxruntime.set_default_logger_severity(4)


def model_of(text: str, opset: int = 18) -> onnx.ModelProto:
    """A model from `name (inputs) => (outputs) { nodes }`; a text that has a head keeps it."""
    head = "" if text.lstrip().startswith("<") else f'<ir_version: 8, opset_import: ["": {opset}]>'
    return onnx.parser.parse_model(head + text)


def imported(text: str, opset: int = 18) -> Graph:
    """The model as a graph that keeps the rules and that its text gives back."""
    graph = verify(import_model(model_of(text, opset)))
    printed = to_text(graph)
    assert difference(graph, from_text(printed.text, printed.constants)) is None
    return graph


def result_types(graph: Graph) -> list[str]:
    return [str(value.type) for value in graph.outputs]


def names_of(graph: Graph) -> list[str]:
    """The operators in the graph, those in nested graphs included, but for constants."""
    return [node.op.name for node in graph.walk() if node.op.name != "constant"]


def by_graft(text: str, inputs: Sequence[Any], opset: int = 18) -> list[Any]:
    return evaluate(imported(text, opset), inputs)


def by_onnxruntime(text: str, inputs: Sequence[Any], opset: int = 18) -> list[Any]:
    model = model_of(text, opset)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [info.name for info in model.graph.input]
    found: list[Any] = session.run(None, dict(zip(names, inputs, strict=True)))
    return found


def agree(text: str, inputs: Sequence[Any], opset: int = 18) -> list[Any]:
    """Graft and ONNX Runtime give the same; returns what."""
    found = by_graft(text, inputs, opset)
    same(found, by_onnxruntime(text, inputs, opset))
    return found


def same(found: Any, expected: Any) -> None:
    """Equal structure, dtypes, shapes and, but for rounding, elements."""
    if isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif expected is None:
        assert found is None
    else:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)
