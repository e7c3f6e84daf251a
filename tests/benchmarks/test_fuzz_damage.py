"""Damaged files are refused or run rightly; and what is neither is a finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.fuzzing import mutants
from benchmarks.fuzzing.campaign import run
from benchmarks.fuzzing.judge import GRAFT_DIFFERS, HOST_DIFFERS, RAISED, SAME
from benchmarks.fuzzing.mutants import (
    ARTIFACTS,
    DECLINED,
    MODELS,
    PROGRAMS,
    RAN,
    mutant,
    tried_mutant,
)
from benchmarks.fuzzing.mutations import damaged_bytes, damaged_model
from benchmarks.fuzzing.report import Record, summary

from graft.byoc.kit.draw import Draw


def silent(_stage: str) -> None:
    pass


def check(kind: str, count: int, log: Path) -> list[Record]:
    records = run(range(count), log, minutes=30, options=["--damage", kind], quick=True)
    assert len(records) == count
    findings = [record for record in records if record.is_finding]
    assert not findings, summary(findings)
    return records


def test_damaged_models(tmp_path: Path) -> None:
    records = check(MODELS, 60, tmp_path / "log.jsonl")
    kinds = {record.kind for record in records}
    assert {SAME, DECLINED} <= kinds
    assert all(record.detail for record in records if record.kind == DECLINED)


def test_damaged_artifacts(tmp_path: Path) -> None:
    check(ARTIFACTS, 40, tmp_path / "log.jsonl")


def test_changed_programs(tmp_path: Path) -> None:
    records = check(PROGRAMS, 60, tmp_path / "log.jsonl")
    assert {record.kind for record in records} == {RAN, DECLINED}


@pytest.mark.full
@pytest.mark.parametrize("kind", [MODELS, ARTIFACTS, PROGRAMS])
def test_many_damaged_files(kind: str, tmp_path: Path) -> None:
    check(kind, 1000, tmp_path / "log.jsonl")


@pytest.mark.parametrize("kind", [MODELS, ARTIFACTS, PROGRAMS])
def test_a_seed_is_a_file(kind: str) -> None:
    assert mutant(kind, 3, None) == mutant(kind, 3, None) != mutant(kind, 4, None)


def test_a_corpus_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "one.onnx").write_bytes(mutants._case(1).model.SerializeToString())
    files = {mutant(MODELS, seed, tmp_path) for seed in range(20)}
    assert len(files) > 15


def test_most_damage_to_models_leaves_them_readable() -> None:
    model = mutants._case(1).model
    before = model.SerializeToString()
    changed = {damaged_model(model, Draw(str(seed))).SerializeToString() for seed in range(200)}
    assert model.SerializeToString() == before
    assert len(changed) > 150
    assert all(onnx.load_from_string(data) is not None for data in changed)


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256))])
def test_any_bytes_can_be_damaged(data: bytes) -> None:
    files = {damaged_bytes(data, Draw(str(seed))) for seed in range(50)}
    assert len(files) > 1


def sound_seed() -> int:
    """A seed whose file is sound enough to run."""
    return next(n for n in range(100) if tried_mutant(MODELS, n, None, silent).kind == SAME)


def test_what_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    seed, right = sound_seed(), mutants.graft.compile

    def fails(*_args: Any, **_options: Any) -> Any:
        raise ValueError("oops")

    monkeypatch.setattr(mutants.graft, "compile", fails)
    verdict = tried_mutant(MODELS, seed, None, silent)
    assert (verdict.kind, verdict.detail) == (RAISED, "ValueError: oops")
    assert Record(seed, verdict.kind).is_finding

    class Wrong:
        def __init__(self, module: Any) -> None:
            self.get_inputs, self.get_outputs = module.get_inputs, module.get_outputs
            self.module = module

        def run(self, names: None, feeds: dict[str, Any]) -> list[Any]:
            return [np.logical_not(array) for array in self.module.run(names, feeds)]

    def wrong_host(data: bytes, **options: Any) -> Any:
        return right(data, **options) if "target" in options else Wrong(right(data, **options))

    monkeypatch.setattr(mutants.graft, "compile", wrong_host)
    assert tried_mutant(MODELS, seed, None, silent).kind == HOST_DIFFERS
    monkeypatch.setattr(mutants.graft, "compile", lambda data, **o: Wrong(right(data, **o)))
    assert tried_mutant(MODELS, seed, None, silent).kind == GRAFT_DIFFERS
