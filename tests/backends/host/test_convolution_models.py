"""ONNX models of the convolution family, in native code alone, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graft
from graft.base.dtypes import Array

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is what is compared with")

GENERATOR = np.random.default_rng(23)


def _weights(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape, dtype=np.float32) / np.float32(
        np.prod(shape[1:]) ** 0.5
    )


def _model(shape: tuple[int, ...], layers: list[tuple[str, Array | None, dict[str, Any]]]) -> bytes:
    """Layers one after the other, each with a bias and an activation behind its weights."""
    nodes, constants, last = [], [], "x"
    for number, (kind, weight, attrs) in enumerate(layers):
        inputs, result = [last], f"y{number}"
        if weight is not None:
            outputs = weight.shape[0] if kind == "Conv" else weight.shape[1] * attrs.get("group", 1)
            for name, array in ((f"w{number}", weight), (f"b{number}", _weights(outputs, 1)[:, 0])):
                constants.append(numpy_helper.from_array(array, name))
                inputs.append(name)
        nodes.append(helper.make_node(kind, inputs, [result], **attrs))
        last = result
        if weight is not None:
            nodes.append(helper.make_node("LeakyRelu", [last], [f"{last}a"], alpha=0.1))
            last = f"{last}a"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    whole: bytes = onnx.shape_inference.infer_shapes(model).SerializeToString()
    return whole


def _check(model: bytes, shape: tuple[int, ...], accuracy: str = "default") -> None:
    x = GENERATOR.standard_normal(shape, dtype=np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    module = graft.compile(model, strict=True, threads=2, accuracy=accuracy)
    (found,) = module.run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * expected.std())


@pytest.mark.parametrize("batch", [1, 3])
def test_groups_of_four_channels_and_of_ten(batch: int) -> None:
    shape = (batch, 32, 11, 9)
    layers: list[tuple[str, Array | None, dict[str, Any]]] = [
        ("Conv", _weights(32, 4, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
        ("Conv", _weights(80, 16, 1, 1), {"group": 2}),
        ("Conv", _weights(40, 20, 3, 3), {"group": 4, "strides": [2, 1], "pads": [0, 2, 1, 0]}),
        ("Conv", _weights(40, 1, 3, 3), {"group": 40, "pads": [1, 1, 1, 1]}),
        ("Conv", _weights(12, 20, 3, 3), {"group": 2, "dilations": [2, 1]}),  # no whole blocks
    ]
    _check(_model(shape, layers), shape)


@pytest.mark.parametrize("batch", [1, 3])
def test_decoder(batch: int) -> None:
    shape = (batch, 64, 5, 7)
    upwards = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    layers: list[tuple[str, Array | None, dict[str, Any]]] = [
        ("ConvTranspose", _weights(64, 32, 4, 4), upwards),
        ("Conv", _weights(32, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("ConvTranspose", _weights(32, 8, 3, 3), {**upwards, "output_padding": [1, 1], "group": 2}),
        ("ConvTranspose", _weights(16, 3, 2, 2), {"strides": [2, 2]}),  # three channels: no blocks
    ]
    _check(_model(shape, layers), shape)


@pytest.mark.parametrize("batch", [1, 3])
def test_signals(batch: int) -> None:
    shape = (batch, 1, 201)
    layers: list[tuple[str, Array | None, dict[str, Any]]] = [
        ("Conv", _weights(16, 1, 9), {"strides": [2], "pads": [4, 4]}),
        ("MaxPool", None, {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
        ("Conv", _weights(32, 8, 3), {"group": 2, "dilations": [2], "pads": [2, 2]}),
        ("ConvTranspose", _weights(32, 16, 4), {"strides": [2], "pads": [1, 1]}),
        ("AveragePool", None, {"kernel_shape": [4], "strides": [3], "pads": [1, 2]}),
        ("Conv", _weights(7, 16, 3), {}),
    ]
    _check(_model(shape, layers), shape)


@pytest.mark.parametrize("accuracy", ["default", "strict"])
def test_both_accuracies(accuracy: str) -> None:
    shape = (2, 32, 17, 19)
    layers: list[tuple[str, Array | None, dict[str, Any]]] = [
        ("Conv", _weights(64, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("MaxPool", None, {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", _weights(64, 64, 3, 3), {"pads": [2, 1, 0, 1]}),
    ]
    _check(_model(shape, layers), shape, accuracy)
