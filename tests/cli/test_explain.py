from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from tests.byoc import body_models
from tests.byoc.explained import STRANGE, explained, network
from tests.cli.tiny import MIXED, TWO_INPUTS, saved

import graft
from graft.cli.explain import page
from graft.cli.main import main

PLACED = ("--target", "simnpu,host", "--pin", "first/Conv=simnpu")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "small.onnx"
    onnx.save(network(), path)
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(["explain", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_text_begins_with_the_summary_and_fits(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(capsys, model, *PLACED).splitlines()
    assert lines[0] == "small"
    assert lines[1].startswith("  simnpu (simulated): ")
    assert max(map(len, lines)) <= 100
    titles = [line for line in lines[1:] if line and not line.startswith(" ")]
    assert titles[:3] == ["Where the time goes", "Plans", "Regions"]
    assert "What keeps nodes on the host" in titles
    exact = next(line for line in lines if line.startswith("  exact"))
    assert "(simulated)" in exact
    region = next(line for line in lines if line.startswith("  simnpu_0"))
    assert "(simulated)" in region
    assert region.endswith("  first/Conv, first/Relu")  # of three nodes: one adds the bias


def test_many_nodes_of_a_region_are_counted() -> None:
    known = explained()
    label = known.regions[0].label
    node = next(one for one in known.nodes if one.region == label)
    names = [f"layer{number}" for number in range(9)]
    nodes = tuple(replace(node, onnx=name) for name in names)
    text = "\n".join(map(str, page(replace(known, nodes=nodes))))
    assert f"{', '.join(names[:6])} and 3 more" in text


def test_one_node(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, model, *PLACED, "--node", STRANGE)
    assert "runs on   host" in text
    assert "Refusals\n  simnpu: no pattern of simnpu ends in nn.softmax" in text
    by_value = told(capsys, model, *PLACED, "--node", "s")
    assert by_value.splitlines()[1:5] == text.splitlines()[1:5]
    facts = json.loads(told(capsys, model, *PLACED, "--node", "%s", "--json"))
    assert facts["op"] == "nn.softmax"


def test_an_onnx_node_that_became_two(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, model, *PLACED, "--node", "first/Conv")
    assert "operator   nn.conv2d" in text
    assert "of ONNX's  first/Conv, as %" in text


def test_blocks_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, compiled = tmp_path / "batches.onnx", tmp_path / "batches.graft"
    batches = network()
    for value in (*batches.graph.input, *batches.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(batches, path)
    text = told(capsys, str(path), *PLACED)
    region = next(line for line in text.splitlines() if line.startswith("  simnpu_0"))
    assert "  in blocks of 1 row: first/Conv" in region
    text = told(capsys, str(path), *PLACED, "--node", "first/Conv")
    assert "runs on    simnpu, in simnpu_0, in blocks of 1 row\n" in text
    assert "in blocks of 1 row" in text.split("Alternatives")[1]
    graft.compile(path, "simnpu", pins=["first/Conv=simnpu"]).save(compiled)
    assert "simnpu_0 in blocks of 1 row" in told(capsys, str(compiled))


def test_bodies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loop.onnx"
    onnx.save(body_models.model(body_models.LOOP), path)
    output = told(capsys, str(path), "--target", "simnpu,host")
    assert "Bodies, per inference" in output
    assert "Loop_0/body  4 times (known)" in output
    output = told(capsys, str(path), "--target", "simnpu,host", "--node", "e")
    assert "Loop_0/body, 4 times (known)" in output


def test_a_file_with_a_region_in_a_body(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = body_models.LOOP.replace("Exp (s)", "Relu (s)")
    module = graft.compile(body_models.model(text), "simnpu", pins=["e=simnpu"], threads=1)
    module.save(tmp_path / "model.graft")
    output = told(capsys, str(tmp_path / "model.graft"))
    assert "simnpu_0 in Loop_0/body" in output
    assert "between segments        0        0 B       128 B" in output


def test_a_misspelt_node(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, 1, model, *PLACED, "--node", "first/Rellu")
    assert "the optimised model has no node 'first/Rellu'" in text
    assert "did you mean 'first/Relu'?" in text


def test_json_and_page(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    facts = json.loads(told(capsys, model, *PLACED, "--json", "--html", str(page)))
    assert [backend["name"] for backend in facts["backends"]] == ["simnpu", "host"]
    assert facts["backends"][0]["simulated"] is True
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert str(page) in told(capsys, model, *PLACED, "--html", str(page)).splitlines()[-1]


def test_a_model_that_has_no_native_code_is_explained_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, saved(tmp_path, TWO_INPUTS), "--target", "simnpu")
    assert "the device wants static shapes" in " ".join(text.split())
    assert "host: 3 nodes" in text


def test_nodes_on_the_reference_evaluator_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, MIXED)
    lines = told(capsys, path, "--target", "simnpu").splitlines()
    title = lines.index("On the reference evaluator: 1 node")
    assert lines[title + 1].startswith("  times (random.uniform): ")
    facts = json.loads(told(capsys, path, "--target", "simnpu", "--json"))
    (node,) = facts["reference"]
    assert (node["onnx"], node["op"]) == ("times", "random.uniform")
    text = told(capsys, path, "--target", "simnpu", "--node", "times")
    assert f"the reference evaluator: {node['reason']}" in " ".join(text.split())


def test_end_to_end_times(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A simulated device has none: only what really runs is measured."""
    facts = json.loads(told(capsys, model, *PLACED, "--measure", "--json"))
    assert [total["measured"] for total in facts["totals"]] == [None] * len(facts["totals"])
    assert facts["demotions"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["m.onnx"], 2, "name them with --target NAME,host"),
        (["m.onnx", "--target", ""], 2, "'' is no list of backends"),
        (["m.onnx", "--target", "simnpo"], 2, "did you mean 'simnpu'?"),
        (["m.onnx", "--target", "reference"], 2, "runs whole models"),
        (["missing.onnx", "--target", "simnpu"], 1, "missing.onnx"),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, code, *arguments)


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("nowhere*=host", "the pin 'nowhere*=host' fits no node of the model"),
        ("first", "the pin 'first' cannot be read"),
        (f"{STRANGE}=simnpu", "nothing can run %s (nn.softmax)"),
    ],
)
def test_pins_that_cannot_hold(
    pin: str, message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, 1, model, "--target", "simnpu,host", "--pin", pin)
