from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.tiny import MIXED, NATIVE, TWO_INPUTS, saved

import graft
from graft.cli.main import main
from graft.loop.parse import from_text
from graft.loop.print import to_text
from graft.program.program import arena_bytes


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path / "cache"))


def emitted(capsys: pytest.CaptureFixture[str], path: str, stage: str) -> str:
    assert main(["compile", path, "--emit", stage]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_saved_file_and_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = saved(tmp_path, NATIVE), tmp_path / "model.graft"
    assert main(["compile", path, "-o", str(file), "--threads", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    module = graft.compile(path)
    arena = arena_bytes(module.program)
    assert facts.pop("compile_seconds") > 0
    assert facts == {
        "model": path,
        "file": str(file),
        "machine": "host",
        "placement": {"host": 4},
        "variants": {},
        "kernels": 4,
        "kernel_calls": len(list(module.program.calls)),
        "file_bytes": file.stat().st_size,
        "arena_bytes": arena,
        "arena_bound_bytes": module.arena_bound,
    }
    assert arena is not None
    assert module.arena_bound is not None
    assert 0 < module.arena_bound <= arena
    session = graft.load(file)
    assert [one.name for one in session.get_inputs()] == ["x", "y"]
    assert session.threads == session.program.threads == 1
    assert main(["compile", path, "-o", str(file)]) == 0
    assert graft.load(file).program.threads is None


def test_text_about_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = saved(tmp_path, NATIVE), tmp_path / "model.graft"
    assert main(["compile", path, "-o", str(file), "-v"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == f"{path} -> {file}"
    assert lines[1:3] == ["  machine    host", "  placement  host: 4 nodes"]
    assert lines[3] == "  kernels    4, called 4 times"
    assert lines[5] == "  arena      256 B (at least 256 B needed)"
    assert lines[6].startswith("compiled in ")
    assert captured.err.startswith("import: 4 nodes, ")
    assert "fold_constants" in captured.err


def test_models_of_any_size_go_into_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = saved(tmp_path, TWO_INPUTS), tmp_path / "model.graft"
    assert main(["compile", path, "-o", str(file)]) == 0
    assert "  arena      as large as the inputs make it\n" in capsys.readouterr().out
    assert main(["compile", path, "-o", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kernels"] == facts["kernel_calls"] > 0
    assert facts["arena_bytes"] is None
    runs = []
    for one in (path, str(file)):
        assert main(["run", one, "--dim", "batch=3", "--dim", "width=5", "--json"]) == 0
        runs.append(json.loads(capsys.readouterr().out))
    assert runs[0]["outputs"] == runs[1]["outputs"]
    assert runs[0]["python_steps"] == runs[1]["python_steps"] == 0
    assert main(["run", str(file), "--dim", "depth=5"]) == 1
    assert "dynamic dims: batch, width" in capsys.readouterr().err


def test_another_suffix_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", saved(tmp_path, NATIVE), "-o", str(tmp_path / "model.so")]) == 2
    text = capsys.readouterr().err
    assert "a compiled model goes to a file whose name ends in .graft" in text
    assert f"and '{tmp_path / 'model.so'}' does not" in text
    assert not (tmp_path / "model.so").exists()


def test_loops_parse_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = emitted(capsys, saved(tmp_path, NATIVE), "loops").split("\n\n")
    assert len(kernels) == 4
    for kernel in kernels:
        text = kernel.rstrip("\n") + "\n"
        assert to_text(from_text(text)) == text
    notes = [kernel.splitlines()[1].strip() for kernel in kernels]
    assert notes[0] == 'note "nn.softmax first"'


def test_equal_kernels_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
        twins (float[3, 7] x, float[3, 7] y) => (float[3, 7] u, float[3, 7] v) {
            u = Sqrt (x)
            v = Sqrt (y)
        }
    """
    path, file = saved(tmp_path, text), tmp_path / "model.graft"
    assert emitted(capsys, path, "loops").count("kernel k") == 1
    assert main(["compile", path, "-o", str(file)]) == 0
    assert "  kernels    1, called 2 times" in capsys.readouterr().out.splitlines()


def test_llvm_and_assembly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, NATIVE)
    names = [
        line.split("(")[0].removeprefix("kernel ")
        for line in emitted(capsys, path, "loops").splitlines()
        if line.startswith("kernel ")
    ]
    llvm, asm = emitted(capsys, path, "llvm"), emitted(capsys, path, "asm")
    assert llvm.startswith("; nn.softmax first\ntarget triple = ")
    assert asm.startswith("# nn.softmax first\n")
    assert len(set(names)) == 4
    for name in names:
        assert f'define void @"{name}"(' in llvm
        assert f"\n{name}:" in asm


def test_steps_without_kernels_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = saved(tmp_path, MIXED), tmp_path / "loops.txt"
    assert main(["compile", path, "--emit", "loops", "-o", str(output)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("graft: note: 1 step on the reference evaluator; the first is %")
    assert 'note "nn.softmax last"' in output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("stage", "sign"), [("loops", "kernel k"), ("llvm", "define"), ("asm", "ret")]
)
def test_kernels_of_models_of_any_size(
    stage: str, sign: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = emitted(capsys, saved(tmp_path, TWO_INPUTS), stage)
    assert sign in text
    assert "add" in text
