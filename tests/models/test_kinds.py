"""A small network of each kind, natively: no node on the evaluator, and ONNX Runtime's numbers.

Classifiers, encoders, recurrent layers and trees have tests of their own (`test_networks.py` of the
host, `test_encoder.py`, `test_small_models.py`); the full-size detectors are marked `full`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from tests.models.test_networks import unmatched

import graft
from graft.base.dtypes import Array

HEAD = '<ir_version: 9, opset_import: ["": 17]>'

# Two levels of features, boxes around a grid of anchors, and the best boxes that do not overlap.
ONE_STAGE = """
    detector (float[1, 3, 32, 32] x) => (float[m, 4] boxes, float[m] scores, int64[m] labels) {
        a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w1, b1)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (b, w2, b2)
        d = Clip (c, zero, six)
        offsets = Conv <pads = [1, 1, 1, 1]> (d, wo)
        classes = Conv <pads = [1, 1, 1, 1]> (d, wc)
        to_boxes = Constant <value_ints = [1, 64, 4]> ()
        to_classes = Constant <value_ints = [1, 64, 3]> ()
        o = Transpose <perm = [0, 2, 3, 1]> (offsets)
        flat = Reshape (o, to_boxes)
        moved = Mul (flat, tenth)
        around = Add (moved, anchors)
        k = Transpose <perm = [0, 2, 3, 1]> (classes)
        logits = Reshape (k, to_classes)
        probabilities = Softmax (logits)
        by_class = Transpose <perm = [0, 2, 1]> (probabilities)
        kept = NonMaxSuppression (around, by_class, most, overlap, least)
        label = Constant <value_int = 1> ()
        box = Constant <value_int = 2> ()
        labels = Gather <axis = 1> (kept, label)
        number = Gather <axis = 1> (kept, box)
        all_boxes = Squeeze (around, first)
        boxes = Gather (all_boxes, number)
        all_scores = Squeeze (by_class, first)
        tail = Constant <value_ints = [1]> ()
        end = Constant <value_ints = [3]> ()
        where = Slice (kept, tail, end, tail)
        scores = GatherND (all_scores, where)
    }
"""

# Proposals by score, pooled from the features and classified again.
TWO_STAGE = """
    stages (float[1, 3, 24, 24] x) => (float[5, 4] boxes, float[5, 3] scores) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        features = Relu (a)
        objectness = Conv (features, ws)
        row = Constant <value_ints = [-1]> ()
        flat = Reshape (objectness, row)
        five = Constant <value_ints = [5]> ()
        best, which = TopK (flat, five)
        boxes = Gather (anchors, which)
        images = Constant <value_ints = [0, 0, 0, 0, 0]> ()
        pooled = RoiAlign <output_height = 3, output_width = 3, sampling_ratio = 2> (
            features, boxes, images)
        rows = Flatten (pooled)
        logits = Gemm (rows, wd, bd)
        scores = Softmax (logits)
    }
"""

SEGMENTATION = """
    unet (float[b, 3, h, w] x) => (float[b, 2, h2, w2] z) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        skip = Relu (a)
        down = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (skip)
        c = Conv <pads = [1, 1, 1, 1]> (down, w2, b2)
        deep = Relu (c)
        up = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (deep, wt)
        joined = Concat <axis = 1> (skip, up)
        d = Conv (joined, w3)
        z = Resize <mode = "linear"> (d, none, double)
    }
"""

QUANTIZED = """
    integers (float[2, 4, 9, 9] x) => (float[2, 5] z) {
        q = QuantizeLinear (x, sx, zx)
        dx = DequantizeLinear (q, sx, zx)
        dw = DequantizeLinear (wq, sw, zw)
        c = Conv <pads = [1, 1, 1, 1]> (dx, dw)
        r = Relu (c)
        qr = QuantizeLinear (r, sx, zx)
        dr = DequantizeLinear (qr, sx, zx)
        pooled = GlobalAveragePool (dr)
        rows = Flatten (pooled)
        z = Gemm (rows, wd, bd)
    }
"""

# One token after the other, by a loop whose body attends to all that came before.
DECODER = """
    decoder (float[1, 8] start, int64 steps) => (float[n, 8] tokens) {
        go = Constant <value = bool {1}> ()
        none = Constant <value = float[1, 8] {0, 0, 0, 0, 0, 0, 0, 0}> ()
        last, cache, all = Loop (steps, go, start, none) <
            body = step (int64 i, bool c, float[1, 8] token, float[m, 8] past)
                => (bool o, float[1, 8] next, float[k, 8] cached, float[1, 8] said) {
                o = Identity (c)
                key = MatMul (token, wk)
                cached = Concat <axis = 0> (past, key)
                turned = Transpose (cached)
                scores = MatMul (token, turned)
                weights = Softmax (scores)
                seen = MatMul (weights, cached)
                next = Tanh (seen)
                said = Identity (next)
            }
        >
        tokens = Squeeze (all, one)
    }
"""


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape, dtype=np.float32)


def anchors(count: int, edge: float) -> Array:
    """Boxes of some pixels around the points of a grid."""
    corner = np.random.default_rng(1).random((count, 2), dtype=np.float32) * edge / 2
    return np.concatenate([corner, corner + np.float32(edge / 3)], axis=1)


def scalar(value: float) -> Array:
    return np.array([value], np.float32)


CONV = {"w1": numbers(8, 3, 3, 3) / 3, "b1": numbers(8)}
ROW = {"one": np.array([1], np.int64), "first": np.array([0], np.int64)}
WEIGHTS: dict[str, dict[str, Array]] = {
    ONE_STAGE: {
        **CONV,
        **ROW,
        "w2": numbers(16, 8, 3, 3) / 5,
        "b2": numbers(16),
        "wo": numbers(4, 16, 3, 3) / 9,
        "wc": numbers(3, 16, 3, 3) / 9,
        "zero": np.float32(0),
        "six": np.float32(6),
        "tenth": scalar(0.1),
        "anchors": anchors(64, 8.0)[None],
        "most": np.array([10], np.int64),
        "overlap": scalar(0.5),
        "least": scalar(0.3),
    },
    TWO_STAGE: {
        **CONV,
        "ws": numbers(1, 8, 1, 1),
        "anchors": anchors(24 * 24, 20.0),
        "wd": numbers(72, 3) / 8,
        "bd": numbers(3),
    },
    SEGMENTATION: {
        **CONV,
        "w2": numbers(16, 8, 3, 3) / 8,
        "b2": numbers(16),
        "wt": numbers(16, 8, 2, 2) / 4,
        "w3": numbers(2, 16, 1, 1) / 4,
        "none": np.zeros(0, np.float32),
        "double": np.array([1, 1, 2, 2], np.float32),
    },
    QUANTIZED: {
        "sx": np.float32(0.02),
        "zx": np.int8(3),
        "wq": np.random.default_rng(0).integers(-100, 100, (6, 4, 3, 3)).astype(np.int8),
        "sw": np.float32(0.01),
        "zw": np.int8(0),
        "wd": numbers(6, 5),
        "bd": numbers(5),
    },
    DECODER: {**ROW, "wk": numbers(8, 8) / 3},
}
FEEDS: dict[str, list[Mapping[str, Array]]] = {
    TWO_STAGE: [{"x": numbers(1, 3, 24, 24)}],
    SEGMENTATION: [{"x": numbers(1, 3, 8, 8)}, {"x": numbers(2, 3, 12, 6)}],
    QUANTIZED: [{"x": numbers(2, 4, 9, 9)}],
    DECODER: [{"start": numbers(1, 8), "steps": np.array(n)} for n in (1, 5)],
}


def made(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(HEAD + text)
    for name, array in WEIGHTS[text].items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def natively(model: onnx.ModelProto) -> graft.Module:
    module = graft.compile(model, target="host", strict=True, threads=1)
    assert set(module.placement.nodes) == {"host"}
    assert not module.placement.python
    return module


def peer(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def test_detector_of_one_stage() -> None:
    model = made(ONE_STAGE)
    feeds = {"x": numbers(1, 3, 32, 32)}
    found, expected = natively(model).run(None, feeds), peer(model).run(None, feeds)
    assert len(expected[0]) > 3
    assert len(found[0]) == len(expected[0])
    assert unmatched(found, expected) == []


@pytest.mark.parametrize(
    "text",
    [TWO_STAGE, SEGMENTATION, QUANTIZED, DECODER],
    ids=["two stages", "segmentation", "quantized", "decoder"],
)
def test_network(text: str) -> None:
    model = made(text)
    module, other = natively(model), peer(model)
    for feeds in FEEDS[text]:
        pairs = zip(module.run(None, feeds), other.run(None, feeds), strict=True)
        for own, right in pairs:
            np.testing.assert_allclose(own, right, rtol=1e-3, atol=1e-4)
