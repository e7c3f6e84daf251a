"""Models of one ONNX node, run by Graft's evaluator and by ONNX Runtime.

In go operands by name (None where left out), out come lists of arrays. Graft's run also checks the
graph and that its text parses back to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from graft.base.dtypes import Array
from graft.frontends.onnx.importer import import_model
from graft.ir.equal import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify

Feeds = Mapping[str, "Array | None"]
Shapes = Mapping[str, Sequence[int | str | None] | None]  # None: not even the rank is known


def model(
    op_type: str,
    feeds: Feeds,
    opset: int,
    outputs: int = 1,
    shapes: Shapes | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node on the feeds; `shapes` replaces the declared shapes of some of them."""
    names = [name if array is not None else "" for name, array in feeds.items()]
    results = [f"out{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, name="it", **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            shapes[name] if shapes and name in shapes else array.shape,
        )
        for name, array in feeds.items()
        if array is not None
    ]
    undeclared = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph([node], "one_node", inputs, undeclared)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def graph_of(op_type: str, feeds: Feeds, opset: int, **options: Any) -> Graph:
    """The imported, verified graph."""
    graph = import_model(model(op_type, feeds, opset, **options))
    verify(graph)
    text = to_text(graph)
    assert difference(graph, from_text(text.text, text.constants)) is None
    return graph


def by_graft(op_type: str, feeds: Feeds, opset: int, **options: Any) -> list[Array]:
    """What Graft gives."""
    graph = graph_of(op_type, feeds, opset, **options)
    return evaluate(graph, [array for array in feeds.values() if array is not None])


def by_runtime(op_type: str, feeds: Feeds, opset: int, **options: Any) -> list[Array]:
    """What ONNX Runtime gives."""
    proto = model(op_type, feeds, opset, **options)
    session = onnxruntime.InferenceSession(
        onnx.shape_inference.infer_shapes(proto).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    given = {name: array for name, array in feeds.items() if array is not None}
    return list(session.run(None, given))


def assert_same(actual: Sequence[Array], expected: Sequence[Array], tolerance: float) -> None:
    """Equal dtypes and shapes; elements within the tolerance, NaN and infinity in place."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        wide = [array.astype(np.float64) for array in (one, other)]
        np.testing.assert_allclose(wide[0], wide[1], rtol=tolerance, atol=tolerance)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Reproducible numbers, other ones for other shapes."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)
