from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.cli.tiny import TWO_INPUTS, saved

from graft.cli.main import main
from graft.cli.run import described

Json = dict[str, Any]


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> Json:
    assert main(["run", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    facts: Json = json.loads(captured.out)
    return facts


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["run", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def shapes(facts: Json) -> dict[str, list[int]]:
    return {output["name"]: output["shape"] for output in facts["outputs"]}


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.array([[1, np.nan, 3], [-4, 5, 7]], np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.zeros((2, 1), np.float32))
    files = [f"--input={name}={tmp_path / name}.npy" for name in "xy"]
    assert main(["run", saved(tmp_path, TWO_INPUTS), *files]) == 0
    lines = capsys.readouterr().out.replace(str(tmp_path), "FOLDER").splitlines()
    assert lines[:-1] == [
        "FOLDER/model.onnx (host: 3 nodes)",
        "",
        "Inputs",
        "  x  float32[2, 3]  FOLDER/x.npy",
        "  y  float32[2, 1]  FOLDER/y.npy",
        "",
        "Outputs",
        "  name   type           min  mean  max  NaN",
        "  z      float32[2, 3]    0   3.2    7    1",
        "  shape  int64[2]         2   2.5    3    0",
        "",
    ]
    assert lines[-1].startswith("compiled in ")


def test_shared_dims_agree_and_default_to_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path, TWO_INPUTS)
    assert shapes(ran(capsys, model))["z"] == [1, 1]
    facts = ran(capsys, model, "--dim", "batch=3", "--dim", "width=0")
    assert shapes(facts)["z"] == [3, 0]
    assert [one["type"] for one in facts["inputs"]] == ["float32[3, 0]", "float32[3, 1]"]
    assert facts["outputs"][0]["min"] is None


def test_a_file_sets_the_dims_of_generated_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 2), np.float32))
    facts = ran(capsys, saved(tmp_path, TWO_INPUTS), "--input", f"x={tmp_path}/x.npy")
    assert shapes(facts)["z"] == [5, 2]
    assert [one["origin"] for one in facts["inputs"]] == [f"{tmp_path}/x.npy", "generated, seed 0"]


def test_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path, TWO_INPUTS)

    def outputs(*options: str) -> Any:
        return ran(capsys, model, "--dim", "width=9", *options)["outputs"]

    assert outputs() == outputs("--seed", "0")
    assert outputs() != outputs("--seed", "1")


def test_archive_gives_inputs_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = {"x": np.full((2, 2), -1, np.float32), "y": np.full((2, 1), 3, np.float32)}
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **arrays)
    facts = ran(capsys, saved(tmp_path, TWO_INPUTS), "--input", str(tmp_path / "inputs.npz"))
    assert facts["outputs"][0]["mean"] == 2.0


def test_outputs_are_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
        names (string[2] s, float[n] x) =>
              (string[2] _a_b, seq(float[]) parts, bfloat16[n] b, float[n] _a_b_2) {
            _a_b = Identity (s)
            parts = SplitToSequence <axis = 0, keepdims = 1> (x)
            b = Cast <to = 16> (x)
            _a_b_2 = Neg (x)
        }
    """
    np.save(tmp_path / "s.npy", np.array(["ä", "longer"]))
    np.save(tmp_path / "x.npy", np.array([1, 2, 3], np.float32))
    files = [f"--input={name}={tmp_path / name}.npy" for name in "sx"]
    folder = tmp_path / "deep" / "out"
    facts = ran(capsys, saved(tmp_path, text), *files, "--output-dir", str(folder))
    names = ["a_b.npy", "parts.npz", "b.npy", "a_b_2.npy"]
    assert list(facts["files"].values()) == [str(folder / name) for name in names]
    assert np.load(folder / "a_b.npy").tolist() == ["ä", "longer"]
    with np.load(folder / "parts.npz") as parts:
        assert [parts[name].tolist() for name in parts.files] == [[1.0], [2.0], [3.0]]
    bits = np.load(folder / "b.npy").view(ml_dtypes.bfloat16)
    assert bits.astype(float).tolist() == [1.0, 2.0, 3.0]
    assert [one["name"] for one in facts["outputs"]][1:4] == ["parts[0]", "parts[1]", "parts[2]"]


def test_exotic_arrays_make_the_round_trip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "g (bfloat16[n] x) => (bfloat16[n] y) { y = Neg (x) }"
    np.save(tmp_path / "x.npy", np.array([1, -2.5], ml_dtypes.bfloat16))
    facts = ran(capsys, saved(tmp_path, text), "--input", f"x={tmp_path}/x.npy")
    assert (facts["outputs"][0]["min"], facts["outputs"][0]["max"]) == (-1.0, 2.5)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("float16[3]", "float16"),
        ("double[3]", "float64"),
        ("uint8[3]", "uint8"),
        ("int4[3]", "int4"),
        ("uint4[3]", "uint4"),
        ("bool[3]", "bool"),
        ("string[3]", "string"),
        ("complex64[3]", "complex64"),
        ("float8e4m3fn[3]", "float8_e4m3fn"),
        ("int64", "int64"),
    ],
)
def test_inputs_of_every_kind_are_generated(
    declared: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"g ({declared} x) => ({declared} y) {{ y = Identity (x) }}"
    facts = ran(capsys, saved(tmp_path, text, opset=21))
    output = facts["outputs"][0]
    assert output["dtype"] == expected
    if "int" in expected:
        assert 0 <= output["min"] <= output["max"] <= 9


def test_sequences_and_optionals_are_generated_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
        g (seq(float[2]) s, optional(float[2]) o) => (int64 n, float[2] v) {
            n = SequenceLength (s)
            v = OptionalGetElement (o)
        }
    """
    model = saved(tmp_path, text, opset=18)
    assert ran(capsys, model)["outputs"][0]["max"] == 2
    np.savez(tmp_path / "s.npz", *[np.ones(2, np.float32)] * 5, allow_pickle=False)
    np.save(tmp_path / "o.npy", np.full(2, 8, np.float32))
    files = [f"--input=s={tmp_path}/s.npz", f"--input=o={tmp_path}/o.npy"]
    assert [one["max"] for one in ran(capsys, model, *files)["outputs"]] == [5, 8]


def save(path: Path, array: Any) -> str:
    np.save(path, array)
    return str(path)


def test_wrong_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path, TWO_INPUTS)
    good = save(tmp_path / "good.npy", np.ones((2, 3), np.float32))
    wide = save(tmp_path / "wide.npy", np.ones((2, 3)))
    cube = save(tmp_path / "cube.npy", np.ones((2, 3, 4), np.float32))
    tall = save(tmp_path / "tall.npy", np.ones((4, 1), np.float32))
    three = save(tmp_path / "three.npy", np.ones((2, 3), np.float32))
    cases = {
        f"w={good}": "there is no input 'w'\n  hint: inputs: 'x', 'y'",
        f"x={wide}": f"the input 'x' wants float32[batch, width], but '{wide}' holds float64[2, 3]"
        "\n  hint: convert it with .astype('float32')",
        f"x={cube}": f"but '{cube}' holds float32[2, 3, 4]",
        f"y={three}": f"the input 'y' wants float32[batch, 1], but '{three}' holds float32[2, 3]",
        f"x={tmp_path}/none.npy": f"cannot read '{tmp_path}/none.npy': No such file or directory",
        f"x={tmp_path}": "Is a directory",
    }
    for option, message in cases.items():
        assert message in refused(capsys, model, "--input", option)
    twice = refused(capsys, model, f"--input=x={good}", f"--input=x={good}")
    assert "the input 'x' is given twice" in twice
    differ = refused(capsys, model, f"--input=x={good}", f"--input=y={tall}")
    assert "the dim 'batch' is 2, but 4 in the input 'y'" in differ
    differ = refused(capsys, model, f"--input=x={good}", "--dim=width=7")
    assert "the dim 'width' is 7, but 3 in the input 'x'" in differ


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a readable NumPy file: it has another format, or is empty"),
        (b"1 2 3\n", "hint: write it with numpy.save"),
        (b"PK\x03\x04 and so on", "is not a readable NumPy file"),
        (b"\x93NUMPY\x01\x00", "is not a readable NumPy file"),
    ],
)
def test_files_that_are_no_arrays(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    text = refused(capsys, saved(tmp_path, TWO_INPUTS), "--input", f"x={tmp_path}/x.npy")
    assert message in text


def test_python_objects_are_never_unpickled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "s.npy", np.array(["a"], object))
    model = saved(tmp_path, "g (string[n] s) => (string[n] t) { t = Identity (s) }")
    text = refused(capsys, model, "--input", f"s={tmp_path}/s.npy")
    assert "it holds Python objects\n  hint: strings can be written" in text


def test_archives_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path, TWO_INPUTS)
    one = np.ones((1, 1), np.float32)
    np.savez(tmp_path / "two.npz", allow_pickle=False, x=one, other=one)
    assert "there is no input 'other'" in refused(capsys, model, f"--input={tmp_path}/two.npz")
    text = refused(capsys, model, f"--input=x={tmp_path}/two.npz")
    assert "holds 2 arrays, but 'x' is one tensor" in text


def test_big_endian_files_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.array([[2.5]], ">f4"))
    np.save(tmp_path / "y.npy", np.array([[0.5]], "<f4"))
    files = [f"--input={name}={tmp_path / name}.npy" for name in "xy"]
    assert ran(capsys, saved(tmp_path, TWO_INPUTS), *files)["outputs"][0]["max"] == 3.0


def test_unknown_dims_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path, TWO_INPUTS)
    text = refused(capsys, model, "--dim", "depth=2")
    assert "no input has a dynamic dim 'depth'\n  hint: dynamic dims: batch, width" in text
    assert "both 2 and 3" in refused(capsys, model, "--dim", "width=2", "--dim", "width=3")


@pytest.mark.parametrize("width", [10**12, 10**18, 10**25])
def test_absurd_dims(width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dim", f"width={width}", "--dim", "batch=1000"]
    assert "does not fit into memory" in refused(capsys, saved(tmp_path, TWO_INPUTS), *options)


def test_inputs_that_cannot_be_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "g (float x) => (float y) { y = Neg (x) }"
    assert ran(capsys, saved(tmp_path, text))["outputs"][0]["shape"] == []
    unranked = refused(capsys, saved(tmp_path, text.replace("float", "float[]")))
    assert "the input 'x' has no known rank" in unranked
    assert "hint: give it with --input x=FILE.npy" in unranked


def test_unwritable_folder_is_found_out_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    text = refused(capsys, "missing.onnx", "--output-dir", str(tmp_path / "file"))
    assert "File exists" in text


def test_errors_while_running_name_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "g (float[n] x, int64[m] i) => (float[m] z) { [pick] z = Gather (x, i) }"
    message = refused(capsys, saved(tmp_path, text), "--dim", "m=20", "--target", "reference")
    assert "at node 'pick' (Gather)" in message


@pytest.mark.parametrize(
    ("data", "figures"),
    [
        (np.array([np.inf, 1.0]), (1.0, np.inf, np.inf, 0)),
        (np.array([np.nan]), (None, None, None, 1)),
        (np.array([True, False]), (0.0, 0.5, 1.0, 0)),
        (np.array([65504, 65504], np.float16), (65504.0, 65504.0, 65504.0, 0)),
        (np.array([1j]), (None, None, None, 0)),
        (None, (None, None, None, 0)),
    ],
)
def test_statistics(data: Any, figures: tuple[Any, ...]) -> None:
    (found,) = described("y", data)
    assert (found.minimum, found.mean, found.maximum, found.nans) == figures


def test_statistics_of_maps_and_sequences() -> None:
    names = [one.name for one in described("y", [{"a": 1.0, "b": 2.0}, {}, np.zeros(2)])]
    assert names == ["y[0]['a']", "y[0]['b']", "y[2]"]


def test_sizes_that_nobody_gave(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Images are as large as images are; where a run fails, the sizes are told."""
    image = saved(tmp_path, "g (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Relu (x) }")
    assert main(["run", image, "--dim", "w=32"]) == 0
    assert "float32[1, 3, 224, 32]" in capsys.readouterr().out
    two = "two = Constant <value_ints = [2]> ()"
    body = f"{{ {two} y, at = TopK (x, two) }}"
    wants_two = saved(tmp_path, f"g (float[n, m] x) => (float[n, 2] y) {body}")
    assert main(["run", wants_two]) == 1
    told = capsys.readouterr().err
    assert "sizes that nobody gave were taken to be n=1, m=1: --dim sets them" in told
    assert main(["run", wants_two, "--dim", "m=3"]) == 0


def test_generated_indices_lie_inside(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Tokens of two kinds, where integers would be drawn below 10."""
    table = "<float[2, 3] table = {1, 2, 3, 4, 5, 6}>"
    body = "{ y = Gather (table, tokens) }"
    text = f"g (int64[n, 40] tokens) => (float[n, 40, 3] y) {table} {body}"
    assert main(["run", saved(tmp_path, text)]) == 0
    assert "float32[1, 40, 3]" in capsys.readouterr().out
