"""Strings around native code: looked up in Python where they come in and where they go out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import graft
from graft.base.errors import EvaluationError
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate

HEADER = '<ir_version: 10, opset_import: ["": 18, "ai.onnx.ml": 3]>'
ENCODERS = """
    encoders (string[rows, 3] x, float[rows, 2] scale) => (float[a, b] y, int64[rows, c] z) {
      first = Constant <value = int64[1] {0}> ()
      others = Constant <value = int64[2] {2, 1}> ()
      one = Gather <axis = 1> (x, first)
      two = ai.onnx.ml.ArrayFeatureExtractor (x, others)
      hot = ai.onnx.ml.OneHotEncoder <cats_strings = ["red", "green"], zeros = 1> (one)
      flat = Flatten (hot)
      y = Mul (flat, scale)
      z = ai.onnx.ml.LabelEncoder <keys_strings = ["blue", "red", "black"],
          values_int64s = [4, 5, 6], default_int64 = -7> (two)
    }
"""
CLASSIFIER = """
    classifier (float[rows, 2] x) => (string[rows] label, seq(map(string, float)) scores) {
      label, raw = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 2.0, -3.0, 0.5, 0.0, 1.0],
          intercepts = [0.0, 0.5, 0.1], classlabels_strings = ["low", "mid", "high"],
          post_transform = "SOFTMAX"> (x)
      scores = ai.onnx.ml.ZipMap <classlabels_strings = ["low", "mid", "high"]> (raw)
    }
"""
STRICT = """
    strict (string[rows, 2] x) => (float[rows, 2, 3] y) {
      y = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "b", "c"], zeros = 0> (x)
    }
"""


def model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


def words(rows: int, columns: int) -> Any:
    random = np.random.default_rng(rows)
    return np.array(["red", "green", "blue", "other", ""], object)[
        random.integers(0, 5, (rows, columns))
    ]


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert [set(one) for one in found] == [set(one) for one in expected]
        found = np.array([[one[key] for key in sorted(one)] for one in found])
        expected = np.array([[one[key] for key in sorted(one)] for one in expected])
    elif expected.dtype == object:
        assert found.tolist() == expected.tolist()
        return
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 0, 37])
@pytest.mark.parametrize("text", [ENCODERS, CLASSIFIER])
def test_strings_are_looked_up_around_native_code(text: str, rows: int, tmp_path: Path) -> None:
    model = model_of(text)
    numbers = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    feeds = {"x": words(rows, 3), "scale": numbers} if text is ENCODERS else {"x": numbers}
    module = graft.compile(model, strict=True)
    module.save(tmp_path / "strings.graft")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    oracles = [evaluate(import_model(model), list(feeds.values()))]
    oracles += [session.run(None, feeds)] if rows else []
    for found in (module.run(None, feeds), graft.load(tmp_path / "strings.graft").run(None, feeds)):
        for expected in oracles:
            for one, other in zip(found, expected, strict=True):
                same(one, other)


def test_an_unknown_string_is_refused() -> None:
    module = graft.compile(model_of(STRICT), strict=True)
    assert module.run(None, {"x": np.array([["a", "c"]], object)})[0].shape == (1, 2, 3)
    with pytest.raises(EvaluationError, match="'d' is not one of the categories"):
        module.run(None, {"x": np.array([["a", "d"]], object)})


def test_arrays_of_characters_are_strings_too() -> None:
    module = graft.compile(model_of(STRICT), strict=True)
    (found,) = module.run(None, {"x": np.array([["a", "c"]])})
    assert found.argmax(-1).tolist() == [[0, 2]]
