"""How outputs are compared, how inputs are drawn, and what becomes of models good and bad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from benchmarks.real_models.compare import SLACK, agreement
from benchmarks.real_models.exact import distance, exact
from benchmarks.real_models.inputs import feeds, is_open, vocabulary
from benchmarks.real_models.makeup import Makeup, makeups
from benchmarks.real_models.recipes import series_for
from benchmarks.real_models.run import Outcome, found_models, in_own_process, outcome_of, table
from benchmarks.real_models.verdict import Call, Judge, gravest
from onnx import TensorProto, helper, numpy_helper

import graft
from graft.base.errors import ModelWarning

ONE = np.array([1.0, 2.0, -1000.0], np.float32)


def compared(expected: Any, actual: Any) -> str:
    return agreement(["y"], [expected], [actual]).difference


@pytest.mark.parametrize(
    ("expected", "actual", "difference"),
    [
        (ONE, ONE * np.float32(1.0005), ""),
        (ONE, ONE + np.float32(0.05), ""),  # little beside the largest
        (ONE, ONE + np.float32(0.5), "y: 2 of 3 differ, by 5.0e-04 of the largest"),
        (ONE, ONE[:2], "y: shape [2], not [3]"),
        (ONE, ONE.astype(np.float64), "y: float64, not float32"),
        (np.array([1, 2]), np.array([1, 3]), "y: 1 of 2 differ"),
        (np.array(["a"]), np.array(["a"]), ""),
        (np.array([np.nan, 1]), np.array([np.nan, 1]), ""),
        (np.array([np.inf, 1]), np.array([-np.inf, 1]), "y: 1 of 2 differ, by NaN or infinity"),
        (ONE, ONE * np.float32(np.nan), "y: 3 of 3 differ, by NaN or infinity"),
        (np.zeros((0, 3)), np.zeros((0, 3)), ""),
        (np.zeros(3), np.zeros(3), ""),
        ([ONE, ONE], [ONE, ONE * 2], "y: [1]: 3 of 3 differ, by 1.0e+00 of the largest"),
        ([ONE], [ONE, ONE], "y: 2 outputs instead of 1"),
        ({1: 0.5}, {1: 0.5}, ""),
        ({1: 0.5}, {2: 0.5}, "y: another map"),
    ],
)
def test_agreement(expected: Any, actual: Any, difference: str) -> None:
    assert compared(expected, actual) == difference


def test_the_first_difference_is_named_and_the_largest_error_told() -> None:
    found = agreement(["a", "b", "c"], [ONE, ONE, ONE], [ONE, ONE * 2, ONE * 3])
    assert found.difference.startswith("b: ")
    assert found.error == pytest.approx(2)
    assert agreement(["a"], [ONE], []).difference == "0 outputs instead of 1"


TINY = np.array([3e-8, 0.0, 1e-9], np.float32)


def test_probabilities_may_be_off_by_a_millionth_and_other_numbers_not() -> None:
    bounded = {"y": Makeup((True,))}
    sides = ([TINY], [TINY * 0])
    assert agreement(["y"], *sides, bounded).difference.startswith("y: 2 of 3 differ, by 1.0e+00")
    assert not agreement(["y"], *sides, bounded, SLACK).difference
    assert agreement(["y"], *sides, {"y": Makeup()}, SLACK).difference
    assert agreement(["y"], [TINY], [TINY + np.float32(2e-6)], bounded, SLACK).difference


def test_what_lies_side_by_side_is_measured_apart() -> None:
    boxes, scores = np.full((1, 4, 5), 300.0), np.full((1, 2, 5), 1e-3)
    expected = [np.concatenate([boxes, scores], 1).astype(np.float32)]
    actual = [np.concatenate([boxes, scores * 2], 1).astype(np.float32)]
    assert not agreement(["y"], expected, actual).difference
    makeup = {"y": Makeup((False, True), -2, (4,))}
    for slack in (0.0, SLACK):
        found = agreement(["y"], expected, actual, makeup, slack)
        assert found.difference == "y: part 1: 10 of 10 differ, by 1.0e+00 of the largest"
    longer = [np.zeros((1, 7, 5), np.float32)]
    assert agreement(["y"], expected, longer, makeup).difference.startswith("y: shape [1, 7, 5]")


MADE = """
<ir_version: 8, opset_import: ["" : 17]>
made (float[n,2,k] x, float[n,m,k] open, int64[2] flat)
    => (float[n,2,k] alone, float moved, float after, float x2, float joined, float unclear) {
  alone = Sigmoid(x)
  soft = Softmax<axis = 1>(x)
  turned = Transpose<perm = [0, 2, 1]>(soft)
  moved = Reshape(turned, flat)
  after = Neg(alone)
  x2 = Identity(x)
  joined = Concat<axis = -2>(x, soft, x)
  unclear = Concat<axis = 1>(soft, open)
}
"""


def test_what_outputs_are_made_of() -> None:
    made = makeups(onnx.parser.parse_model(MADE))
    assert made == {
        "alone": Makeup((True,)),
        "moved": Makeup((True,)),
        "after": Makeup(),
        "x2": Makeup(),
        "joined": Makeup((False, True, False), -2, (2, 4)),
        "unclear": Makeup(),
    }
    assert [part.shape for part in made["joined"].parts(np.zeros((1, 6, 3)))] == [(1, 2, 3)] * 3


def judged(folder: Path, text: str, theirs: float, ours: float, x: Any) -> str:
    """What is said when the two sides are off by so much from the truth."""
    model = onnx.parser.parse_model(text)
    onnx.save(model, folder / "model.onnx")
    (true,) = graft.compile(model, target="reference").run(None, {"x": x})
    calls = [Call({"x": x}, [(true + off).astype(true.dtype)], 0.0) for off in (theirs, ours)]
    with patch("benchmarks.real_models.verdict.by_peer", lambda *_: calls[0].outputs):
        return Judge.of(folder / "model.onnx", model, ["y"]).verdict(*calls)[0]


FLOATS = """
<ir_version: 8, opset_import: ["" : 17]> g (float[3] x) => (float[3] y) { y = Sigmoid(x) }
"""
NARROW = """
<ir_version: 8, opset_import: ["" : 17]> g (uint8[2,2] x) => (int32[2,2] y)
{ y = MatMulInteger(x, x) }
"""


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        (0, 0, "same"),
        (5e-7, 0, "same, as probabilities within 1e-06: y: 3 of 3 differ, by "),
        (0.5, 0, "the reference evaluator is with Graft"),
        (0, 0.5, "the reference evaluator is with ONNX Runtime"),
        (0.5, -0.5, "the reference evaluator is with neither"),
    ],
)
def test_verdicts_on_floats(tmp_path: Path, theirs: float, ours: float, verdict: str) -> None:
    said = judged(tmp_path, FLOATS, theirs, ours, np.full(3, -15, np.float32))
    assert verdict in said
    assert said.startswith("differs: y: 3 of 3 differ") == ("reference" in verdict)


def test_verdicts_on_narrow_integers(tmp_path: Path) -> None:
    x = np.array([[200, 1], [2, 3]], np.uint8)
    assert judged(tmp_path, NARROW, 0, 0, x) == "same"
    assert judged(tmp_path, NARROW, 1, 0, x).startswith("same as the reference; ONNX Runtime")
    said = judged(tmp_path, NARROW, 0, 1, x)
    assert said == "differs: y: 4 of 4 differ; the reference evaluator is with ONNX Runtime"


def test_what_the_optimiser_changes_is_not_held_against_a_model(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(FLOATS)
    onnx.save(model, tmp_path / "model.onnx")
    x = np.zeros(3, np.float32)
    fused, plain = (Call({"x": x}, [np.full(3, y, np.float32)], 0.0) for y in (0.4, 0.5))
    verdict, _ = Judge.of(tmp_path / "model.onnx", model, ["y"]).verdict(fused, plain)
    assert verdict.startswith("same as ONNX Runtime without its optimiser: y: 3 of 3 differ")


def test_results_that_inputs_do_not_determine_are_close(tmp_path: Path) -> None:
    """A difference of numbers that are nearly equal has few digits, however it is computed."""
    text = FLOATS.replace("Sigmoid(x)", "Sub(x, c)").replace("{ y", "<float[3] c = {1, 1, 1}> { y")
    x = np.full(3, 1 + 1e-5, np.float32)
    model = onnx.parser.parse_model(text)
    onnx.save(model, tmp_path / "model.onnx")
    calls = [Call({"x": x}, [x - np.float32(1) + off], 0.0) for off in np.float32([0, 2e-7])]
    verdict, _ = Judge.of(tmp_path / "model.onnx", model, ["y"]).verdict(*calls)
    assert verdict.startswith("close, as far as rounded inputs allow")


def test_random_numbers_are_not_compared(tmp_path: Path) -> None:
    text = FLOATS.replace("Sigmoid", "RandomUniformLike")
    assert judged(tmp_path, text, 0.5, 0.25, np.ones(3, np.float32)) == (
        "same, but for random numbers"
    )


def test_the_gravest_verdict_stands() -> None:
    verdicts = ["same", "same as the reference", "same"]
    assert gravest(verdicts) == "same as the reference"
    assert gravest([*verdicts, "close, but", "same"]) == "close, but"
    assert gravest(["differs", "close, but", "same"]) == "differs"


@dataclass(frozen=True)
class Argument:
    name: str
    shape: Sequence[Any]
    type: str = "tensor(float)"


def words() -> onnx.ModelProto:
    """Embeddings of five words, found through a cast."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "ids"], ["y"], name="lookup"),
    ]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    table_of_five = numpy_helper.from_array(np.eye(5, dtype=np.float32), "table")
    graph = helper.make_graph(nodes, "words", inputs, outputs, [table_of_five])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_inputs_are_sensible() -> None:
    model = words()
    arguments = [
        Argument("image", ["N", 3, "H", "W"]),
        Argument("audio", ["N", "samples"]),
        Argument("sr", [], "tensor(int64)"),
        Argument("state", [2, "N", 8]),
        Argument("attention_mask", ["N", "length"], "tensor(int64)"),
        Argument("input_ids", ["N", "length"], "tensor(int64)"),
        Argument("token_type_ids", ["N", "length"], "tensor(int64)"),
    ]
    assert is_open(arguments)
    shapes = set()
    for turn in range(3):
        drawn = feeds(model, arguments, turn)
        assert drawn["image"].shape[:2] == (1, 3)
        assert 0 <= drawn["image"].min() < drawn["image"].max() <= 1
        assert -1 <= drawn["audio"].min() < 0 < drawn["audio"].max() <= 1
        assert drawn["sr"].item() == 16000
        assert not drawn["state"].any()
        assert drawn["attention_mask"].all()
        assert drawn["input_ids"].shape == drawn["attention_mask"].shape
        assert 0 <= drawn["input_ids"].min() <= drawn["input_ids"].max() < 5
        assert drawn["token_type_ids"].max() <= 1
        shapes.add((drawn["image"].shape, drawn["audio"].shape, drawn["input_ids"].shape))
    assert len(shapes) == 3
    assert vocabulary(model, "another") == 100
    large = [Argument("image", ["n", "c", 1024, 4096], "tensor(float)")]
    assert feeds(model, large, 1)["image"].shape == (1, 2, 1024, 4096)
    with pytest.raises(ValueError, match="'text' of seq"):
        feeds(model, [Argument("text", [1], "seq(tensor(float))")], 0)


def test_trip_counts_are_small() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64 count, int64 other, bool go, float[1] x) => (float[1] y) {
            y = Loop (count, go, x) <body = b (int64 i, bool c, float[1] a) => (bool d, float[1] e)
                { d = Identity (c)  e = Neg (a) }>
        }""")
    names = [Argument(name, [64], "tensor(int64)") for name in ("count", "other")]
    drawn = feeds(model, names, 0)
    assert drawn["count"].max() == 4
    assert drawn["other"].max() > 4


# ONNX Runtime fuses the shape into [2, -1], and takes any n; without its optimiser only 4.
FUSED = """
<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x, float[n] other) => (float[a, b] y)
{
    n = Shape (other)
    two = Constant <value_ints = [2]> ()
    s = Concat <axis = 0> (two, n)
    y = Reshape (x, s)
}
"""


def test_inputs_fit_the_model_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "fused.onnx"
    onnx.save(onnx.parser.parse_model(FUSED), path)
    with (
        patch("benchmarks.real_models.run.series_for", wraps=series_for) as drawn,
        pytest.warns(ModelWarning),
    ):
        outcome = outcome_of(path)
    assert outcome.verdict == "same"
    assert [call.args[-1].extent for call in drawn.mock_calls] == [None, None, 1, 4]


def test_models_that_only_the_optimiser_runs_get_the_first_inputs(tmp_path: Path) -> None:
    path = tmp_path / "fused.onnx"
    onnx.save(onnx.parser.parse_model(FUSED.replace("[2, 4] x", "[2, 7] x")), path)
    with pytest.warns(ModelWarning):
        outcome = outcome_of(path)
    assert (outcome.verdict, outcome.sizes) == ("same", 3)


def test_sparse_results_are_compared_with_dense_ones(tmp_path: Path) -> None:
    path = tmp_path / "sparse.onnx"
    numbers, places = np.array([2, 5], np.float32), np.array([1, 3], np.int64)
    parts = (numpy_helper.from_array(one) for one in (numbers, places))
    sparse = helper.make_sparse_tensor(*parts, [2, 3])
    node = helper.make_node("Constant", [], ["y"], sparse_value=sparse)
    output = helper.make_sparse_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([node], "g", [], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path)
    assert outcome_of(path).verdict == "same"


def test_models_are_found_and_run(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    onnx.save(words(), folder / "words.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    paths = found_models([tmp_path, tmp_path / "broken.onnx"])
    assert [path.name for path in paths] == ["broken.onnx", "words.onnx"]
    bad, good = (outcome_of(path) for path in paths)
    assert bad.verdict.startswith("ONNX Runtime refuses it")
    assert not bad.is_good
    assert (good.verdict, good.sizes, good.nodes) == ("same", 3, 2)
    assert good.row()[2:4] == ("3", "2")
    assert set(bad.row()[2:-1]) == {""}
    assert good.native + good.evaluated > 0
    assert good.graft_seconds > 0
    lines = table([good, bad])
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[-1] == "Of 2 models, 1 give the same and 0 are close."


def test_a_process_that_dies_or_takes_forever_is_an_outcome(tmp_path: Path) -> None:
    path = tmp_path / "words.onnx"
    onnx.save(words(), path)
    assert in_own_process(path, timeout=0.001).verdict == "took more than 0.001 s"
    assert in_own_process(tmp_path / "missing.onnx", 120).verdict.startswith("ONNX Runtime refuses")
    assert in_own_process(path, timeout=120).verdict == "same"
    assert Outcome("m", package="p 1").row()[:2] == ("p 1", "m")


def test_whoever_is_nearer_to_float64_is_right(tmp_path: Path) -> None:
    """Sums of large numbers that cancel: float32 of any order is off, and one side is further."""
    rows = np.ones((4, 3), np.float32)
    rows[0] = [1e6, 1.0, -1e6]
    nodes = [
        helper.make_node("Constant", [], ["w"], value_floats=[3.0, 1.0, 3.0]),
        helper.make_node("Mul", ["x", "w"], ["p"]),
        helper.make_node("ReduceSum", ["p"], ["y"], keepdims=0),
    ]
    info = helper.make_tensor_value_info
    inputs, outputs = [info("x", TensorProto.FLOAT, [4, 3])], [info("y", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, "sums", inputs, outputs)
    path = tmp_path / "sums.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    (wide,) = exact(path, {"x": rows}) or ()
    assert (wide.dtype, wide.item()) == (np.float64, 22.0)
    judge = Judge.of(path, onnx.load(path), ["y"])
    near, far = (Call({"x": rows}, [np.float32(22 + off)], 0.0) for off in (0.004, 0.01))
    assert judge._nearer(far, near).startswith("and nearer to float64 (1.8e-04)")
    assert judge._nearer(near, far) == ""
    much = Call({"x": rows}, [np.float32(25)], 0.0)
    assert judge._nearer(much, near) == ""


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (ONE, 0.0),
        (ONE + np.float32(1), 1e-3),
        (ONE[:2], np.inf),
        (np.array([1, 2, 3]), np.inf),
        (np.array([1, 2, np.nan], np.float32), np.inf),
    ],
)
def test_distance(actual: Any, expected: float) -> None:
    assert distance([ONE.astype(np.float64)], [actual]) == pytest.approx(expected)
