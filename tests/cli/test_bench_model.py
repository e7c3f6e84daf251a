from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.cli.tiny import saved

from graft.base.errors import UserError
from graft.cli.arrays import read_data, write_data
from graft.cli.bench.model import prepared
from graft.cli.compare import Tolerance, disagreements
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph


@pytest.mark.parametrize(
    "data",
    [
        np.array(1.5, np.float32),
        np.zeros((0, 3), np.int64),
        np.array([[1, 2.5, np.nan]], ml_dtypes.bfloat16),
        np.array(3, ml_dtypes.int4),
        np.array([["a", "bcd"], ["", "é"]], object),
        np.array([True, False]),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        [np.array([1, 2]), np.array(3.0)],
        [],
        {"a": np.array([1]), "b": np.array(2)},
        {3: 1.5},
        None,
    ],
)
def test_data_survive_the_way_through_files(data: Any, tmp_path: Path) -> None:
    description = json.loads(json.dumps(write_data(tmp_path, "x", data)))
    found = read_data(tmp_path, description)
    _assert_same(found, data)


def _assert_same(found: Any, data: Any) -> None:
    if isinstance(data, list):
        assert len(found) == len(data)
        for mine, other in zip(found, data, strict=True):
            _assert_same(mine, other)
    elif isinstance(data, dict):
        assert list(found) == list(data)
        for key in data:
            _assert_same(found[key], data[key])
    elif data is None:
        assert found is None
    else:
        expected = np.asarray(data)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype == object:
            assert found.tolist() == expected.tolist()
        else:
            assert found.tobytes() == expected.tobytes()  # NaN included


def options(**given: Any) -> argparse.Namespace:
    usual = {"inputs": [], "dims": [], "seed": 0, "batch": None, "strict_import": False}
    return argparse.Namespace(**{**usual, **given})


def test_weights_drawn_from_seeds_are_in_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path, "g (float[2, 3] x) => (float[2, 4] y) { y = MatMul (x, w) }")
    model = onnx.load(path)
    entry = model.metadata_props.add(key="seeded_weights")
    entry.value = json.dumps({"w": {"shape": [3, 4], "std": 0.5, "seed": 1}})
    onnx.save(model, path)
    folder = tmp_path / "run"
    folder.mkdir()
    subject = prepared(Path(path), options(), folder)
    whole = onnx.load(subject.file)
    assert [tensor.name for tensor in whole.graph.initializer] == ["w"]
    assert not whole.metadata_props
    (name, description), (fed,) = *subject.feeds, subject.inputs
    assert name == "x"
    np.testing.assert_array_equal(read_data(folder, description), fed.data)


@pytest.mark.parametrize("first", ["1", "n"])
def test_batch_changes_inputs_and_outputs(first: str, tmp_path: Path) -> None:
    text = f"""
        g (float[{first}, 3] x, float[{first}, 1] y, float[3] w) => (float[{first}, 3] z) {{
            a = Add (x, y)
            z = Mul (a, w)
        }}
    """
    subject = prepared(Path(saved(tmp_path, text)), options(batch=5), tmp_path)
    assert [fed.data.shape for fed in subject.inputs] == [(5, 3), (5, 1), (3,)]
    output = onnx.load(subject.file).graph.output[0].type.tensor_type
    assert [dim.dim_value for dim in output.shape.dim] == [5, 3]
    assert output.elem_type == onnx.TensorProto.FLOAT


def test_batch_written_into_targets_follows_too(tmp_path: Path) -> None:
    """As a vision transformer has it: a token for each image, and heads taken apart."""
    text = """
        g (float[1, 3, 4] x) => (float[1, 4, 4] z) <float[1, 1, 4] token = {1, 2, 3, 4}> {
            length = Constant <value_ints = [1, 1, 4]> ()
            each = Expand (token, length)
            all = Concat <axis = 1> (each, x)
            heads = Constant <value_ints = [1, 4, 2, 2]> ()
            split = Reshape (all, heads)
            turned = Transpose <perm = [0, 2, 1, 3]> (split)
            back = Transpose <perm = [0, 2, 1, 3]> (turned)
            whole = Constant <value_ints = [1, 4, 4]> ()
            z = Reshape (back, whole)
        }
    """
    subject = prepared(Path(saved(tmp_path, text)), options(batch=3), tmp_path)
    (fed,) = subject.inputs
    (z,) = subject.graph.outputs
    assert str(z.type) == "float32[3, 4, 4]"
    (found,) = ReferenceEvaluator(onnx.load(subject.file)).run(None, {"x": fed.data})
    token = np.tile(np.array([1, 2, 3, 4], np.float32), (3, 1, 1))
    np.testing.assert_array_equal(found, np.concatenate([token, fed.data], axis=1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float x) => (float y) { y = Neg (x) }", "no input has a dim that could be"),
        (
            "g (float[1, 3] x) => (float[3] y) { s = Constant <value_ints = [3]> ()"
            " y = Reshape (x, s) }",
            "does not work with a batch of 4",
        ),
        (
            "g (float[1, 3] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }",
            "the output 'y' does not follow the batch of 4: it is float32[]",
        ),
    ],
)
def test_batch_is_refused_where_the_model_does_not_follow(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="batch") as caught:
        prepared(Path(saved(tmp_path, text)), options(batch=4), tmp_path)
    assert message in str(caught.value)


def graph_of(text: str) -> Graph:
    head = '<ir_version: 8, opset_import: ["": 17]>'
    return import_model(onnx.parser.parse_model(head + text))


@pytest.fixture(scope="module")
def halves() -> Graph:
    return graph_of("g (float[3] x) => (float[3] y, int64[1] n) { y = Neg (x) n = Shape (x) }")


def results(value: float, count: int = 3) -> list[Any]:
    return [np.full(count, value, np.float32), np.array([3], np.int64)]


def test_all_agree_within_the_tolerance(halves: Graph) -> None:
    outputs = {"graft": results(1.0), "a": results(1.0005), "b": results(0.9995)}
    assert disagreements(halves, outputs, Tolerance()) == {}
    assert disagreements(halves, {}, Tolerance()) == {}


@pytest.mark.parametrize("odd", ["graft", "a", "b"])
def test_the_majority_is_believed(odd: str, halves: Graph) -> None:
    outputs = {"graft": results(1.0), "a": results(1.0), "b": results(1.0), odd: results(1.5)}
    believed = next(name for name in outputs if name != odd)
    reason = f"differs from {believed}: output 'y': 3 of 3 wrong, max abs error 5.00e-01"
    assert disagreements(halves, outputs, Tolerance()) == {odd: reason}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (results(1.0, 4), "output 'y': shape [4], not [3]"),
        ([results(1.0)[0], np.array([3], np.int32)], "output 'n': int32, not int64"),
        (results(float("nan")), "output 'y': 3 of 3 wrong, max abs error inf"),
    ],
)
def test_kinds_of_difference(other: list[Any], reason: str, halves: Graph) -> None:
    outputs = {"graft": results(1.0), "a": results(1.0), "b": other}
    assert disagreements(halves, outputs, Tolerance()) == {"b": f"differs from graft: {reason}"}


def test_the_number_of_outputs_has_to_be_right(halves: Graph) -> None:
    outputs = {"graft": results(1.0), "a": results(1.0), "b": results(1.0)[:1]}
    assert disagreements(halves, outputs, Tolerance()) == {"b": "gives 1 output, not 2"}


def test_without_a_majority_nobody_is_believed(halves: Graph) -> None:
    outputs = {"graft": results(1.0), "a": results(2.0)}
    found = disagreements(halves, outputs, Tolerance())
    assert set(found) == {"graft", "a"}
    assert found["graft"].startswith("differs from a, and no majority tells which is right: ")
    four = {"graft": results(1.0), "a": results(1.0), "b": results(2.0), "c": results(2.0)}
    assert set(disagreements(halves, four, Tolerance())) == set(four)


def test_rows_that_only_the_data_count_may_stand_in_another_order() -> None:
    graph = graph_of("g (float[n] x) => (int64[k, 1] y) { z = NonZero (x) y = Transpose (z) }")
    outputs = {"graft": [np.array([[1], [4]])], "a": [np.array([[4], [1]])]}
    assert disagreements(graph, outputs, Tolerance()) == {}
