from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from tests.cli.tiny import OBSTACLES, TWO_INPUTS, saved
from tests.conftest import Golden

from graft.cli.main import main
from graft.frontends.onnx.importer import import_model
from graft.ir.equal import difference
from graft.ir.parser import from_text


def inspected(capsys: pytest.CaptureFixture[str], path: str, *options: str) -> tuple[int, str]:
    code = main(["inspect", path, *options])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, captured.out


def in_folder(text: str, folder: Path) -> str:
    return text.replace(str(folder), "FOLDER")


def test_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    code, text = inspected(capsys, saved(tmp_path, TWO_INPUTS))
    assert code == 0
    golden("inspect_two_inputs", in_folder(text, tmp_path))


def test_every_obstacle_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    code, text = inspected(capsys, saved(tmp_path, OBSTACLES), "--strict-import")
    assert code == 1
    golden("inspect_obstacles", in_folder(text, tmp_path))


def test_obstacles_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = inspected(capsys, saved(tmp_path, OBSTACLES), "--strict-import", "--json")
    facts = json.loads(text)
    assert code == 1
    assert facts["importable"] is False
    assert facts["imported"] is None
    found = [(one["domain"], one["operator"], one["node"]) for one in facts["obstacles"]]
    assert found == [
        ("com.example", "Shear", "first"),
        ("ai.onnx", "Reluu", "Reluu_1"),
        ("com.example", "Bend", "If_2/then_branch/inside"),
        ("elsewhere", "Fold", "calls/deep"),
        ("ai.onnx", "Relu", "odd"),
    ]
    assert facts["error"]["node"] == "first"
    assert facts["error"]["operator"] == "Shear"


def test_json_of_a_model_that_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = inspected(capsys, saved(tmp_path, TWO_INPUTS), "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["importable"] is True
    assert (facts["obstacles"], facts["error"]) == ([], None)
    assert facts["opsets"] == {"ai.onnx": 17}
    assert facts["operators"] == {"Add": 1, "Relu": 1, "Shape": 1}
    assert facts["inputs"] == [
        {"name": "x", "type": "float32[batch, width]", "dynamic": ["batch", "width"]},
        {"name": "y", "type": "float32[batch, 1]", "dynamic": ["batch"]},
    ]
    imported = facts["imported"]
    assert imported["macs"] == 0
    assert imported["flops"] == "2*batch*width"
    assert imported["dims"] == {
        "batch": ["axis 0 of x", "axis 0 of y"],
        "width": ["axis 1 of x"],
    }


def test_text_is_the_imported_graph_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, TWO_INPUTS)
    code, text = inspected(capsys, path, "--text")
    assert code == 0
    assert difference(from_text(text, {}), import_model(path)) is None


def test_text_of_what_cannot_be_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", saved(tmp_path, OBSTACLES), "--text"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Shear" in captured.err


def test_skeleton_and_multiply_accumulates(
    models_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = inspected(capsys, str(models_dir / "resnet18.onnx"), "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["nodes"] == 69
    # torchvision's 11,689,512 trainable ones and the batch norms' 9,600 statistics
    assert facts["parameters"] == {"count": 11_699_112, "bytes": 46_796_448}
    assert facts["imported"]["macs"] == 1_814_073_344
    after = [facts["imported"][f"nodes{stage}"] for stage in ("", "_after_passes", "_after_fusion")]
    assert after == sorted(after, reverse=True)
    assert len(set(after)) == 3


def test_long_expressions_are_shortened(
    models_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = inspected(capsys, str(models_dir / "ssd512_mobilenet1.0.onnx"))
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert " + terms in " in text
    assert "  d0   found by NonZero '/m/NonZero'\n" in text
    assert " more that only the data decide" in text


def test_what_the_data_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
        positives (float[n, 123456] x) => (int64[2, k] places, float[n, 123456] y) {
            [ask] p = Relu (x)
            [look] places = NonZero (p)
            y = Add (p, x)
        }
    """
    code, text = inspected(capsys, saved(tmp_path, text))
    assert code == 0
    assert "  places  int64[2, d0]        dynamic: d0\n" in text
    assert "  n   given by axis 0 of x\n  d0  found by NonZero 'look'\n" in text
    assert "  other operations      370,368*n" in text


def test_constants_and_nested_weights_count_as_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
        weights (float[2] x, bool c) => (float[2] z)
        <float[2] w = {1, 2}, int8[3] unused = {1, 2, 3}> {
            k = Constant <value = double[5] {1, 2, 3, 4, 5}> ()
            y = Add (x, w)
            z = If (c) <
                then_branch = yes () => (float[2] t) <float[2] v = {1, 2}> { t = Mul (y, v) },
                else_branch = no () => (float[2] e) { e = Neg (y) }
            >
        }
    """
    code, output = inspected(capsys, saved(tmp_path, text), "--json")
    assert code == 0
    assert json.loads(output)["parameters"] == {"count": 12, "bytes": 8 + 3 + 40 + 8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("opset", "opset 4000 is newer"),
        ("cycle", "the nodes form a cycle"),
        ("input type", "a type is missing"),
        ("weight type", "element type"),
    ],
)
def test_other_import_errors_still_give_a_summary(
    change: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, TWO_INPUTS)
    model = onnx.load(path)
    if change == "opset":
        model.opset_import[0].version = 4000
    elif change == "cycle":
        model.graph.node[0].input[1] = "z"
    elif change == "input type":
        model.graph.input[0].ClearField("type")
    else:
        model.graph.initializer.add(name="w", data_type=999, dims=[3])
    onnx.save(model, path)
    code, text = inspected(capsys, path)
    assert code == 1
    assert "ONNX operators" in text
    assert "Graft cannot import it" in text
    assert message in text
