"""Numbers looked up by native code: the evaluator and ONNX Runtime say what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import graft
from graft.base.errors import EvaluationError
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate

INT, FLOAT = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
NAN, INF = float("nan"), float("inf")
ROWS = (101, 37, 1, 0)


def encoder(op_type: str, elements: int, results: int, **attributes: Any) -> onnx.ModelProto:
    """One node on any number of rows of two."""
    node = helper.make_node(op_type, ["x"], ["y"], name="it", domain="ai.onnx.ml", **attributes)
    inputs = [helper.make_tensor_value_info("x", elements, ["rows", 2])]
    outputs = [helper.make_tensor_value_info("y", results, None)]
    graph = helper.make_graph([node], "encoder", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(model: onnx.ModelProto, x: Any) -> None:
    """Strict compilation gives what the oracles give, whatever the number of rows."""
    module, graph = graft.compile(model, strict=True), import_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for rows in ROWS:
        (found,) = module.run(None, {"x": x[:rows]})
        (expected,) = evaluate(graph, [x[:rows]])
        np.testing.assert_array_equal(found, expected, strict=True)
        if rows:
            np.testing.assert_array_equal(found, session.run(None, {"x": x[:rows]})[0])


def mixed(random: np.random.Generator, keys: Any, others: Any) -> Any:
    """Half the elements are keys."""
    return np.where(random.random(others.shape) < 0.5, random.choice(keys, others.shape), others)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 100, 1000])
def test_integers_that_lie_close_together_index_a_table(count: int) -> None:
    random = np.random.default_rng(count)
    keys = random.permutation(5 * count)[:count] - count
    x = random.integers(-2 * count, 5 * count, (101, 2))
    x[0] = [-(2**63), 2**63 - 1]
    values = random.integers(0, 99, count)
    check(encoder("LabelEncoder", INT, INT, keys_int64s=keys, values_int64s=values), x)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 100, 1000])
def test_integers_far_apart_are_searched(count: int) -> None:
    random = np.random.default_rng(count)
    keys = random.integers(-(2**62), 2**62, count)
    x = mixed(random, keys, random.integers(-(2**63), 2**63 - 1, (101, 2)))
    x[0] = [-(2**63), 2**63 - 1]
    values = random.normal(size=count).astype(np.float32)
    check(
        encoder(
            "LabelEncoder", INT, FLOAT, keys_int64s=keys, values_floats=values, default_float=NAN
        ),
        x,
    )


@pytest.mark.parametrize("count", [1, 2, 3, 17, 100, 1000])
@pytest.mark.parametrize("has_nan", [False, True])
def test_floats_are_searched(count: int, has_nan: bool) -> None:
    random = np.random.default_rng(count)
    keys = random.normal(size=count).astype(np.float32)
    keys[0] = NAN if has_nan else 0.0
    x = mixed(random, keys, random.normal(size=(101, 2)).astype(np.float32))
    x[:2] = [[INF, -INF], [NAN, -0.0]]
    values = random.integers(0, 99, count)
    check(encoder("LabelEncoder", FLOAT, INT, keys_floats=keys, values_int64s=values), x)


def test_of_equal_keys_the_last_counts() -> None:
    keys, values = [7, 3, 7, 7, 3], [1, 2, 3, 4, 5]
    model = encoder("LabelEncoder", INT, INT, keys_int64s=keys, values_int64s=values)
    (found,) = graft.compile(model, strict=True).run(None, {"x": np.array([[7, 3], [4, 0]])})
    assert found.tolist() == [[4, 5], [-1, -1]]


@pytest.mark.parametrize("categories", [[4], [3, 1, 7], [10**12, -5, 0]])
def test_one_hot_vectors(categories: list[int]) -> None:
    random = np.random.default_rng(0)
    x = mixed(random, categories, random.integers(-9, 9, (101, 2)))
    check(encoder("OneHotEncoder", INT, FLOAT, cats_int64s=categories, zeros=1), x)
    known = random.choice(categories, (101, 2))
    check(encoder("OneHotEncoder", INT, FLOAT, cats_int64s=categories, zeros=0), known)


def test_an_unknown_category_is_refused(tmp_path: Path) -> None:
    model = encoder("OneHotEncoder", INT, FLOAT, cats_int64s=[3, 1, 7], zeros=0)
    module = graft.compile(model, strict=True)
    module.save(tmp_path / "encoder.graft")
    for one in (module, graft.load(tmp_path / "encoder.graft")):
        assert one.run(None, {"x": np.array([[3, 7]])})[0].shape == (1, 2, 3)
        with pytest.raises(EvaluationError, match="not one of the 3 categories"):
            one.run(None, {"x": np.array([[3, 7], [1, 2]])})
