from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.cli.tiny import TWO_INPUTS, saved

from graft.cli.check import localize, peer
from graft.cli.main import main
from graft.ir.graph import Graph
from graft.ops import OPS, get_op
from graft.passes import pipeline

CHAIN = """
    <ir_version: 8, opset_import: ["": 17, "local": 1]>
    chain (float[n, 4] x) => (float[n, 4] y, int64[n] best) {
        [first] a = Sigmoid (x)
        [second] b = local.shifted (a)
        [third] c = Tanh (b)
        [fourth] d = Softmax <axis = -1> (c)
        y = Mul (d, a)
        best = ArgMax <axis = 1, keepdims = 0> (y)
    }
    <domain: "local", opset_import: ["": 17]>
    shifted (a) => (b) {
        one = Constant <value_float = 1.0> ()
        b = Add (a, one)
    }
"""


def checked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["check", *arguments, "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    facts: dict[str, Any] = json.loads(captured.out)
    assert facts["agrees"] == (code == 0)
    return facts


def break_operator(monkeypatch: pytest.MonkeyPatch, name: str, error: Any) -> None:
    """Let an operator compute something else from now on."""
    op = get_op(name)

    def wrong(attrs: Any, *operands: Any) -> Any:
        return error(op.evaluate(attrs, *operands))

    monkeypatch.setitem(OPS._entries, name, replace(op, evaluate=wrong))


def test_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", saved(tmp_path, TWO_INPUTS), "--dim", "batch=3"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[1].startswith("  compared with ONNX Runtime ")
    assert lines[5].split() == ["z", "float32[batch,", "width]", "0", "0", "0", "of", "3", "agrees"]
    assert lines[-1] == "Graft and ONNX Runtime agree."


def test_every_node_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = checked(capsys, saved(tmp_path, CHAIN), "--nodes", "--dim", "n=3")
    assert facts["nodes"]["agree"] is True
    assert facts["nodes"]["values_compared"] == 6
    assert facts["nodes"]["largest"]["wrong"] == 0
    assert facts["blamed_pass"] is None


REFERENCE = ("--target", "reference")  # whose operators tests can break


def test_the_node_that_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_operator(monkeypatch, "tanh", lambda right: right * np.float32(0.5))
    model = saved(tmp_path, CHAIN)
    facts = checked(capsys, model, "--dim", "n=3", *REFERENCE, code=1)
    assert facts["outputs"][0]["agrees"] is False
    assert facts["blamed_pass"] is None
    node = facts["nodes"]["largest"]
    assert (node["node"], node["operator"], node["value"]) == ("third", "Tanh", "c")
    assert node["operands"] == [{"name": "b", "type": "float32[n, 4]"}]
    assert node["max_rel_error"] == pytest.approx(0.5, rel=1e-5)
    assert (node["wrong"], node["size"]) == (12, 12)
    assert main(["check", model, "--dim", "n=3", *REFERENCE]) == 1
    text = capsys.readouterr().out
    assert "The first node that differs: 'third' (Tanh)" in text
    assert "operand  b  float32[n, 4]" in text
    assert text.endswith("Graft and ONNX Runtime DIFFER.\n")


def test_a_node_inside_a_function_is_named_by_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_operator(monkeypatch, "add", lambda right: right * np.float32(3))
    facts = checked(capsys, saved(tmp_path, CHAIN), *REFERENCE, code=1)
    node = facts["nodes"]["largest"]
    assert (node["node"], node["operator"], node["value"]) == ("second", "shifted", "b")


def test_later_nodes_are_not_blamed_for_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of many nodes is off by less than the tolerance, all together by more."""
    break_operator(monkeypatch, "tanh", lambda right: right * np.float32(1.0008))
    nodes = " ".join(f"x{n + 1} = Tanh (x{n})" for n in range(6))
    model = saved(tmp_path, f"g (float[n] x0) => (float[n] x6) {{ {nodes} }}")
    facts = checked(capsys, model, "--dim", "n=9", *REFERENCE, code=1)
    assert facts["outputs"][0]["wrong"] > 0
    assert facts["nodes"]["agree"] is True
    assert facts["nodes"]["values_compared"] == 6
    assert main(["check", model, "--dim", "n=9", *REFERENCE]) == 1
    text = capsys.readouterr().out
    assert "6 values compared: no node differs on its own" in text
    assert "small errors that add up" in text


def swap_sides(graph: Graph) -> Graph:
    """A pass with a bug: subtracts the wrong way round."""
    nodes = tuple(
        replace(node, inputs=node.inputs[::-1]) if node.op.name == "subtract" else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


@pytest.mark.parametrize("position", [0, 7, len(pipeline.PASSES)])
def test_the_pass_that_breaks_a_graph_is_named(
    position: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    passes = (*pipeline.PASSES[:position], swap_sides, *pipeline.PASSES[position:])
    monkeypatch.setattr(pipeline, "PASSES", passes)
    model = saved(tmp_path, "g (float[5] x, float[5] y) => (float[5] z) { z = Sub (x, y) }")
    facts = checked(capsys, model, code=1)
    total = len(passes)
    assert facts["blamed_pass"] == {"name": "swap_sides", "position": position + 1, "total": total}
    assert facts["nodes"] is None
    assert main(["check", model]) == 1
    expected = f"swap_sides (pass {position + 1} of {total}) introduces the difference"
    assert expected in capsys.readouterr().out


def test_values_are_fetched_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[tuple[int, list[str]]] = []
    values = peer.Peer.values

    def recorded(self: peer.Peer, names: Any, nodes: Any, feeds: Any) -> dict[str, Any]:
        fetched.append((len(nodes), list(names)))
        return values(self, names, nodes, feeds)

    monkeypatch.setattr(peer.Peer, "values", recorded)
    monkeypatch.setattr(localize, "PORTION_BYTES", 100)
    facts = checked(capsys, saved(tmp_path, CHAIN), "--nodes", "--dim", "n=3")
    assert facts["nodes"]["values_compared"] == 6
    # Three rows of four floats are 48 bytes: two values fit, and of each only what it needs runs.
    assert fetched == [(2, ["a", "b"]), (4, ["c", "d"]), (6, ["y", "best"])]


def test_an_inner_value_is_not_taken_for_an_onnx_value_of_the_same_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before opset 13, Softmax flattens first: within the node, `softmax` is not yet the result."""
    text = "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { softmax = Softmax (x) y = Neg (softmax) }"
    facts = checked(capsys, saved(tmp_path, text, opset=11), "--nodes")
    assert facts["nodes"]["agree"] is True


def test_nodes_in_branches_count_as_their_if(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
        g (float[3] x, bool c) => (float[3] z) {
            y = Neg (x)
            [choice] z = If (c) <
                then_branch = yes () => (float[3] t) { t = Tanh (y) },
                else_branch = no () => (float[3] e) { e = Sin (y) }
            >
        }
    """
    for name in ("tanh", "sin"):
        break_operator(monkeypatch, name, lambda right: -right)
    model = saved(tmp_path, text)
    node = checked(capsys, model, *REFERENCE, code=1)["nodes"]["largest"]
    assert (node["node"], node["operator"]) == ("choice", "If")


def test_shapes_and_kinds_have_to_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_operator(monkeypatch, "nonzero", lambda right: right[:, :-1])
    text = "g (float[n] x) => (int64[1, k] y) { [which] y = NonZero (x) }"
    assert main(["check", saved(tmp_path, text), "--dim", "n=4", *REFERENCE]) == 1
    assert "DIFFERS: shape [1, 3], not [1, 4]" in capsys.readouterr().out


def test_strings_sequences_and_scalars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
        g (string[2, 2] s, float[n] x) => (string[4, 2] t, seq(float[]) parts, float total) {
            t = Concat <axis = 0> (s, s)
            parts = SplitToSequence <axis = 0> (x)
            total = ReduceSum <keepdims = 0> (x)
        }
    """
    facts = checked(capsys, saved(tmp_path, text), "--nodes", "--dim", "n=3")
    assert [output["size"] for output in facts["outputs"]] == [8, 3, 1]
    assert facts["nodes"]["values_compared"] == 3


def test_agreement_about_nothing_is_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", saved(tmp_path, TWO_INPUTS), "--dim", "batch=0"]) == 0
    assert "0 of 0  agrees, but is empty" in capsys.readouterr().out


def test_random_numbers_are_given_as_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "g () => (float[4] y) { [dice] y = RandomNormal <shape = [4]> () }"
    assert main(["check", saved(tmp_path, text)]) == 1
    assert "The node 'dice' draws random numbers" in capsys.readouterr().out


def test_tolerances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path, "g (float[64] x) => (float[64] y) { y = Erf (x) }")
    checked(capsys, model, "--rtol", "1e-5", "--atol", "1e-6")
    assert checked(capsys, model, "--rtol", "1", "--atol", "0")["rtol"] == 1.0


def test_the_tolerance_that_is_shown_is_that_of_the_dtype(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = "float16[8] x) => (float16[8] y"
    model = saved(tmp_path, f"g ({half}) {{ y = Tanh (x) }}")
    assert main(["check", model]) == 0
    assert ", rtol 0.00391, atol 0.00391\n" in capsys.readouterr().out
    both = saved(tmp_path, f"g ({half}, float[8] z) {{ y = Tanh (x)  z = Cast <to = 1> (x) }}")
    assert main(["check", both]) == 0
    shown = "rtol 0.00391, atol 0.00391 (y); rtol 0.001, atol 0.0001 (z)"
    assert shown in capsys.readouterr().out
    facts = checked(capsys, both)
    assert [one["rtol"] for one in facts["outputs"]] == [2**-8, 1e-3]
    assert main(["check", both, "--rtol", "0.1", "--atol", "0.1"]) == 0
    assert ", rtol 0.1, atol 0.1\n" in capsys.readouterr().out


@pytest.mark.parametrize("limit", [10**9, 0])
def test_skeletons_in_memory_and_in_a_folder(
    limit: int,
    models_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(peer, "LARGEST_IN_MEMORY", limit)
    facts = checked(capsys, str(models_dir / "resnet18.onnx"), "--nodes")
    assert facts["outputs"][0]["size"] == 1000
    assert facts["nodes"]["values_compared"] == 69


def test_external_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, "g (float[2] x, float[2] w) => (float[2] y) { y = Mul (x, w) }")
    model = onnx.load(path)
    weight = onnx.numpy_helper.from_array(np.array([3, 4], np.float32), "w")
    model.graph.initializer.append(weight)
    options = {"save_as_external_data": True, "size_threshold": 0, "location": "weights.bin"}
    onnx.save(model, path, **options)
    assert (tmp_path / "weights.bin").stat().st_size == 8
    checked(capsys, path, "--nodes")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["check", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_without_onnxruntime(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    text = refused(capsys, "any.onnx")
    hint = "pip install 'graft-compiler[onnxruntime]'"
    assert text == f"graft: error: ONNX Runtime is not installed\n  hint: {hint}\n"


def test_what_onnxruntime_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path, "g (complex64[2] x) => (complex64[2] y) { y = Identity (x) }")
    text = refused(capsys, model)
    assert "ONNX Runtime cannot run the model: " in text
    assert "graft check FILE.graft --against MODEL" in text


def test_native_code_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(get_op("tanh"), scalar=lambda _attrs, x: x * 0.5)
    monkeypatch.setitem(OPS._entries, "tanh", broken)
    model = saved(tmp_path, "g (float[9] x) => (float[9] y) { y = Tanh (x) }")
    assert checked(capsys, model, code=1)["blamed_pass"]["name"] == "native code"
    assert main(["check", model]) == 1
    assert "native code introduces the difference" in capsys.readouterr().out
