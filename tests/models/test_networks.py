"""The ten networks: import, passes, text round trip, and ONNX Runtime's numbers.

`make test` evaluates the quick ones; the others are marked `full`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import graft
from graft.base.dtypes import Array
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.reader import filled_model, read_model
from graft.ir.equal import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import optimize

MODELS = Path(__file__).resolve().parents[2] / "models"
CLASSIFIERS = (
    "resnet18",
    "resnet50",
    "inception_v3",
    "darknet53",
    "mobilenet_v2",
    "vgg19",
    "vit_b_16",
)
DETECTORS = ("ssd512_mobilenet1.0", "ssd300_resnet34", "faster_rcnn_resnet50")
QUICK = ("resnet18", "mobilenet_v2", "ssd512_mobilenet1.0")


def _marked(names: tuple[str, ...]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in names]


@functools.lru_cache(maxsize=1)
def _imported(name: str) -> Graph:
    return import_model(MODELS / f"{name}.onnx")


def _image(name: str) -> Array:
    """Noise between 0 and 1, which is what the detectors take for an image."""
    shape = [dim for dim in _imported(name).inputs[0].shape or () if isinstance(dim, int)]
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def _onnx_runtime(name: str, image: Array) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    model = filled_model(read_model(MODELS / f"{name}.onnx")).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": image})


@pytest.mark.parametrize("name", _marked((*CLASSIFIERS, *DETECTORS)))
def test_text_parses_back_to_an_equal_graph(name: str) -> None:
    for graph in (_imported(name), group_fusion(optimize(_imported(name)))):
        text = to_text(verify(graph))
        parsed = from_text(text.text, text.constants)
        assert difference(graph, parsed) is None
        assert to_text(parsed).text == text.text


@pytest.mark.parametrize("name", _marked(CLASSIFIERS))
def test_classifier_gives_the_numbers_of_onnx_runtime(name: str) -> None:
    image = _image(name)
    outputs = graft.compile(MODELS / f"{name}.onnx", target=["reference"]).run(
        None, {"input": image}
    )
    expected = _onnx_runtime(name, image)
    np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", _marked(DETECTORS))
def test_detector_gives_the_detections_of_onnx_runtime(name: str) -> None:
    image = _image(name)
    outputs = graft.compile(MODELS / f"{name}.onnx", target=["reference"]).run(
        None, {"input": image}
    )
    expected = _onnx_runtime(name, image)
    assert len(expected[0]) == 100
    assert unmatched(outputs, expected) == []


def unmatched(found: list[Array], expected: list[Array]) -> list[tuple[Array, float, int]]:
    """The expected detections that have no counterpart, in whatever order near ties came out."""
    free = set(range(len(found[0])))
    missing = []
    for box, score, label in zip(*expected, strict=True):
        fits = [
            i
            for i in free
            if found[2][i] == label
            and np.allclose(found[1][i], score, rtol=1e-3, atol=1e-4)
            and np.allclose(found[0][i], box, rtol=1e-3, atol=0.1)
        ]
        if fits:
            free.discard(fits[0])
        else:
            missing.append((box, score, label))
    return missing


@pytest.mark.parametrize("name", _marked(("resnet18", "vit_b_16", "ssd512_mobilenet1.0")))
def test_fusion_groups_compute_what_the_graph_does(name: str) -> None:
    graph = optimize(_imported(name))
    image = _image(name)
    for one, other in zip(
        evaluate(graph, [image]), evaluate(group_fusion(graph), [image]), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def _operators(name: str) -> set[str]:
    return {node.op.name for node in optimize(_imported(name)).walk()}


@pytest.mark.parametrize("name", _marked(CLASSIFIERS))
def test_static_networks_have_no_shape_arithmetic_left(name: str) -> None:
    assert not _operators(name) & {"shape_of", "cast", "nn.batch_norm", "arange", "full"}


@pytest.mark.parametrize("name", DETECTORS)
def test_what_depends_on_static_shapes_only_disappears(name: str) -> None:
    """A shape that is still asked for is one that the data decide."""
    graph = optimize(_imported(name))
    asked = [node for node in graph.walk() if node.op.name == "shape_of"]
    assert all(not node.args[0].tensor.is_static for node in asked)
