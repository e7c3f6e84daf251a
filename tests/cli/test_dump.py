"""`graft run --dump`: what nodes compute, as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.byoc.explained import network
from tests.cli.hostile import NAMES
from tests.cli.tiny import saved

from graft.cli.main import main
from graft.ir.evaluate import Data

# Everything before the softmax is one kernel.
CHAIN = """
    chain (float[n, 7] x) => (float[n, 7] z) {
        [first] a = Exp (x)
        [second] b = Identity (a)
        [third] c = Add (b, x)
        [last] z = Softmax (c)
        [unused] d = Neg (x)
    }
"""
WORDS = """
    words (string[2] x) => (int64[1] z) {
        [joined] y = StringConcat (x, x)
        [shape] z = Shape (y)
    }
"""
BRANCHES = """
    branches (float[3] x, bool c) => (float[3] z) {
        [exp] e = Exp (x)
        [choose] v = If (c) <
            then_branch = yes () => (float[3] t) { [inside] t = Neg (e) },
            else_branch = no () => (float[3] f) { f = Abs (e) }
        >
        [last] z = Add (v, x)
    }
"""
LISTS = """
    lists (float[4, 3] x) => (float[4, 3] z) {
        [cut] parts = SplitToSequence <axis = 0> (x)
        [join] z = ConcatFromSequence <axis = 0> (parts)
    }
"""

Index = dict[str, Any]
Run = Callable[..., Index]


@pytest.fixture
def dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a model with --dump; gives the index by name, with the tensors in it."""

    def run(text: str, *arguments: str) -> Index:
        folder = tmp_path / "out"
        path = saved(tmp_path, text, opset=20)
        code = main(["run", path, "--dump-to", str(folder), "--threads", "1", *arguments])
        assert (code, capsys.readouterr().err) == (0, "")
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        for one in index["tensors"]:
            one["data"] = np.load(folder / one["file"])
        return {**index, "by_name": {one["name"]: one for one in index["tensors"]}}

    return run


@pytest.mark.parametrize("variants", [(), ("--shapes", "n=3")], ids=["any size", "a variant"])
def test_all_values_of_a_model_with_a_dynamic_size(variants: list[str], dumped: Run) -> None:
    index = dumped(CHAIN, "--dump", "all", "--dim", "n=3", *variants)
    by_name = index["by_name"]
    assert list(by_name) == ["a", "b", "c", "z", "d"]
    assert all(one["shape"] == [3, 7] and one["dtype"] == "float32" for one in by_name.values())
    data = {name: one["data"] for name, one in by_name.items()}
    np.testing.assert_array_equal(data["b"], data["a"])
    np.testing.assert_allclose(np.exp(-data["d"]), data["a"], rtol=1e-6)
    assert by_name["c"]["node"] == "third"
    assert by_name["c"]["operator"] == "Add"
    # what fusion and passes leave nothing of is told as such
    changed = {name: one["changed_fusion"] for name, one in by_name.items()}
    assert changed == {"a": True, "b": True, "c": False, "z": False, "d": True}
    assert by_name["a"]["where"] == {"kind": "host kernel", "detail": "exp"}
    assert index["largest_output_difference"] < 1e-6
    assert index["kernels"] < index["kernels_with_dump"]


def test_nodes_and_values_by_name(dumped: Run) -> None:
    assert list(dumped(CHAIN, "--dump", "third, a")["by_name"]) == ["a", "c"]
    assert list(dumped(CHAIN, "--dump", "x", "--dump", "z")["by_name"]) == ["x", "z"]


def test_the_evaluator_is_named(dumped: Run) -> None:
    index = dumped(WORDS, "--dump", "joined", "--target", "host")
    tensor = index["by_name"]["y"]
    assert (tensor["dtype"], tensor["where"]["kind"]) == ("string", "evaluator")
    assert all(len(word) % 2 == 0 for word in tensor["data"])


def test_whole_lists(dumped: Run) -> None:
    tensor = dumped(LISTS, "--dump", "cut")["by_name"]["parts"]
    assert tensor["file"].endswith(".npz")
    assert [item["shape"] for item in tensor["items"]] == [[1, 3]] * 4
    assert len(tensor["data"].files) == 4


def test_values_inside_of_branches(
    dumped: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = dumped(BRANCHES, "--dump", "all")
    assert list(index["by_name"]) == ["e", "v", "z"]
    (skipped,) = index["skipped"]
    assert skipped["name"] == "choose"
    assert "2 nodes inside" in skipped["reason"]
    assert main(["run", str(tmp_path / "model.onnx"), "--dump", "inside"]) == 1
    said = capsys.readouterr().err
    assert "'inside' lies in a branch of 'choose' (If)" in said
    assert "the results of 'choose' can be dumped" in said


def test_wrong_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, CHAIN)
    assert main(["run", path, "--dump", "thirt"]) == 1
    assert "did you mean 'third'" in capsys.readouterr().err
    for arguments, said in (
        ([path, "--dump-to", "out"], "--dump-to is where --dump writes"),
        (["model.graft", "--dump", "all"], "has no values but its outputs"),
    ):
        assert main(["run", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_default_folder_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, CHAIN)
    monkeypatch.chdir(tmp_path)
    assert main(["run", path, "--dump", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dump"] == "model-dump"
    assert sorted(one.name for one in (tmp_path / "model-dump").iterdir()) == [
        "a.npy",
        "index.json",
    ]


def test_hostile_names_stay_in_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in NAMES.values() if name]
    nodes = [onnx.helper.make_node("Exp", ["x"], [name]) for name in names]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [info("x", onnx.TensorProto.FLOAT, [2])],
        [info(names[0], onnx.TensorProto.FLOAT, [2])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    inside = tmp_path / "a" / "b"
    arguments = ["--dump", "all", "--dump-to", str(inside), "--threads", "1"]
    assert main(["run", str(tmp_path / "m.onnx"), *arguments]) == 0
    index = json.loads((inside / "index.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in index["tensors"]] == names
    files = {one["file"] for one in index["tensors"]}
    assert len(files) == len(names)
    assert {one.name for one in inside.iterdir()} == {*files, "index.json"}
    assert {one.name for one in tmp_path.iterdir()} == {"m.onnx", "a"}


def test_values_inside_of_a_region(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = tmp_path / "small.onnx", tmp_path / "out"
    onnx.save(network(), path)
    arguments = ["--target", "simnpu,host", "--pin", "first/Conv=simnpu", "--dump", "all"]
    assert main(["run", str(path), *arguments, "--dump-to", str(folder)]) == 0
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    (conv,) = (one for one in index["tensors"] if one["node"] == "first/Conv")
    assert conv["where"]["kind"] == "region"
    assert conv["where"]["backend"] == "simnpu"
    expected: dict[str, Data] = {}
    assert main(["run", str(path), "--dump", "all", "--dump-to", str(tmp_path / "host")]) == 0
    for one in index["tensors"]:
        expected[one["name"]] = np.load(tmp_path / "host" / one["file"])
        np.testing.assert_allclose(
            np.load(folder / one["file"]), expected[one["name"]], rtol=1e-3, atol=1e-4
        )
