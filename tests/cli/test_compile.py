from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.tiny import TWO_INPUTS, saved

from graft.backends.host.passes.pipeline import host_passes
from graft.cli.main import main
from graft.frontends.onnx.importer import import_model
from graft.ir.equal import difference
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import PASSES, optimize
from graft.target.target import host_target


def staged(path: str, stage: str) -> Graph:
    graph = import_model(path)
    if stage == "graph":
        return graph
    graph = optimize(graph)
    return graph if stage == "optimized" else group_fusion(graph)


@pytest.mark.parametrize("stage", ["graph", "optimized", "fused"])
def test_each_stage_prints_its_graph(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, TWO_INPUTS)
    assert main(["compile", path, "--emit", stage]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert difference(from_text(captured.out, {}), staged(path, stage)) is None
    assert ("composite" in captured.out) == (stage == "fused")


def test_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = saved(tmp_path, TWO_INPUTS), tmp_path / "graph.txt"
    assert main(["compile", path, "--emit", "graph", "--output", str(output)]) == 0
    assert capsys.readouterr() == ("", "")
    assert output.read_text(encoding="utf-8").startswith("graph @sums(")


def test_unwritable_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = saved(tmp_path, TWO_INPUTS), tmp_path / "no" / "graph.txt"
    assert main(["compile", path, "--emit", "graph", "-o", str(output)]) == 1
    assert str(output.parent) in capsys.readouterr().err


def test_verbose_names_every_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, TWO_INPUTS)
    assert main(["compile", path, "--emit", "fused", "-v"]) == 0
    captured = capsys.readouterr()
    first, *lines = captured.err.splitlines()
    assert first.startswith("import: 3 nodes, ")
    names = [transform.__name__ for transform in PASSES]
    own = host_passes(host_target())
    names += [getattr(transform, "__name__", "") for transform in own]
    assert [line.split()[0] for line in lines] == names
    (fused,) = (line for line in lines if line.startswith("group_fusion"))
    assert fused.split()[1:5] == ["3", "->", "2", "nodes"]
    assert "no change" in lines[0]


def test_no_stage_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", saved(tmp_path, TWO_INPUTS)]) == 2
    text = capsys.readouterr().err
    assert "hint: save it with -o FILE.graft, or choose one of --emit graph" in text
    assert "--emit optimized, --emit plan, --emit partitioned, --emit fused" in text
    assert "--emit loops, --emit llvm, --emit asm" in text
