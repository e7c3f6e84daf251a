"""Runs one ONNX node through Graft, with everything that import may know or not know about it.

`agree` is what tests call: the node is imported with static, symbolic and unknown shapes, with its
later operands as inputs and as constants, and each time has to give what ONNX Runtime gives, or
what the caller expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from graft.base.dtypes import Array
from graft.frontends.onnx.importer import import_model
from graft.ir.equal import difference
from graft.ir.evaluate import evaluate
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify

Arrays = Sequence[Array | None]
SHAPES = ("static", "symbolic", "unranked")


def one_node(
    op_type: str,
    arrays: Arrays,
    opset: int,
    shapes: str = "static",
    constants: bool = False,
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; with `constants`, all operands but the first are initialisers."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(arrays)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    present = {f"x{i}": array for i, array in enumerate(arrays) if array is not None}
    fixed = {name for name in present if constants and name != "x0"}
    graph = helper.make_graph(
        [node],
        "one",
        [_declared(name, array, shapes) for name, array in present.items() if name not in fixed],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(present[name], name) for name in sorted(fixed)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _declared(name: str, array: Array, shapes: str) -> onnx.ValueInfoProto:
    element = onnx.TensorProto.STRING
    if array.dtype != object:
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
    dims: dict[str, Any] = {
        "static": array.shape,
        "symbolic": [f"{name}_{i}" for i in range(array.ndim)],
        "unranked": None,
    }
    return helper.make_tensor_value_info(name, element, dims[shapes])


def by_graft(model: onnx.ModelProto, arrays: Arrays) -> list[Array]:
    """Import, verify, write as text and read back, evaluate."""
    graph = import_model(model)
    verify(graph)
    text = to_text(graph)
    assert difference(graph, from_text(text.text, text.constants)) is None
    given = [arrays[int(value.name.removeprefix("x"))] for value in graph.inputs]
    return evaluate(graph, given)


def by_onnxruntime(model: onnx.ModelProto, arrays: Arrays) -> list[Array]:
    """What ONNX Runtime gives."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays) if a is not None}
    return list(session.run(None, feeds))


def agree(
    op_type: str,
    arrays: Arrays,
    opset: int,
    expected: Sequence[Any] | None = None,
    shapes: Sequence[str] = SHAPES,
    **attributes: Any,
) -> None:
    """Check the node, however much import knows, against ONNX Runtime or the expected results."""
    if expected is None:
        model = one_node(op_type, arrays, opset, **attributes)
        expected = by_onnxruntime(model, arrays)
    for shape in shapes:
        for constants in (False, True) if len(arrays) > 1 else (False,):
            model = one_node(op_type, arrays, opset, shape, constants, **attributes)
            found = by_graft(model, arrays)
            for result, wanted in zip(found, expected, strict=True):
                _assert_same(result, np.asarray(wanted), f"{shape}, constants: {constants}")


def _assert_same(result: Array, wanted: Array, form: str) -> None:
    assert result.shape == wanted.shape, form
    assert result.dtype == wanted.dtype, form
    if result.dtype == object:
        assert result.tolist() == wanted.tolist(), form
        return
    exact = result.dtype.kind in "biu"
    tolerance = 0.0 if exact else 1e-5 if result.dtype.itemsize > 2 else 1e-2
    wide = np.float64 if result.dtype.kind == "V" else result.dtype
    np.testing.assert_allclose(
        result.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance, err_msg=form
    )
