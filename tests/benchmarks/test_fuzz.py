"""Generated models agree with ONNX Runtime; and the fuzzer sees, votes on, and reduces what does
not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import monotonic

import numpy as np
import onnx
import pytest
from benchmarks.fuzzing import campaign
from benchmarks.fuzzing import judge as judging
from benchmarks.fuzzing.campaign import run
from benchmarks.fuzzing.emitters import EMITTERS, NEWEST, OLDEST
from benchmarks.fuzzing.generate import Case, generate
from benchmarks.fuzzing.judge import difference, judge
from benchmarks.fuzzing.reduce import reduced
from benchmarks.fuzzing.report import DIED, LATE, NOTHING, Record, case_text, read_log, summary
from onnx import TensorProto, helper

from graft.llvm import codegen as native
from graft.target.target import host_target

SHORT, FULL, SHARD = 30, 2000, 100


def check(seeds: range, log: Path) -> None:
    records = run(seeds, log, minutes=30)
    assert len(records) == len(seeds)
    findings = [record for record in records if record.is_finding]
    assert not findings, summary(findings)
    died = [record for record in records if record.kind == DIED]
    assert len(died) <= len(seeds) // 50, summary(died)
    assert sum(record.kind in judging.AGREEING for record in records) > 0.85 * len(seeds)


@pytest.mark.parametrize("first", range(0, SHORT, 15))
def test_models_agree(first: int, tmp_path: Path) -> None:
    check(range(first, first + 15), tmp_path / "log.jsonl")


@pytest.mark.full
@pytest.mark.parametrize("first", range(SHORT, FULL, SHARD))
def test_many_models_agree(first: int, tmp_path: Path) -> None:
    check(range(first, min(first + SHARD, FULL)), tmp_path / "log.jsonl")


def test_a_seed_is_a_model() -> None:
    one, other = generate(7), generate(7)
    assert one is not None
    assert other is not None
    assert one.model.SerializeToString() == other.model.SerializeToString()
    for name, array in one.feeds[0].items():
        np.testing.assert_array_equal(array, other.feeds[0][name])


def test_models_are_valid_and_of_many_kinds() -> None:
    cases = [case for case in map(generate, range(400)) if case is not None]
    assert len(cases) > 390
    invalid = 0
    for case in cases:
        try:
            onnx.checker.check_model(case.model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            invalid += 1
    assert invalid < 12
    drawn = {op for case in cases for op in case.operators}
    assert len(drawn) > 0.9 * len(EMITTERS)
    opsets = {case.model.opset_import[0].version for case in cases}
    assert opsets == set(range(OLDEST, NEWEST + 1))
    assert {len(case.feeds) for case in cases} == {1, 2}
    dtypes = {
        array.dtype.name for case in cases for feeds in case.feeds for array in feeds.values()
    }
    assert dtypes >= {"float32", "float64", "float16", "int32", "int64", "int8", "uint8", "bool"}
    sizes = {n for case in cases for x in case.feeds[0].values() for n in x.shape}
    assert sizes >= {0, 1, 2, 3, 17}


def chain() -> Case:
    """x -> Abs -> Sqrt -> Neg -> y, and another output beside it."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
        helper.make_node("Exp", ["a"], ["z"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "chain",
        [info("x", TensorProto.FLOAT, [4, 6])],
        [info("y", TensorProto.FLOAT, [4, 6]), info("z", TensorProto.FLOAT, [4, 6])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    return Case(0, model, ({"x": x},), dict.fromkeys("abyz", 1e-5), {})


@pytest.mark.parametrize("machine", ["host", "plain"])
def test_agreement_is_seen(machine: str) -> None:
    assert judge(chain(), machine=machine).kind == judging.SAME


def test_a_machine_whose_code_does_not_run_here_is_a_finding() -> None:
    other = "x86-64" if host_target().is_aarch64 else "aarch64"
    assert judge(chain(), machine=other).kind == judging.REFUSED


def test_a_case_is_reduced_to_the_node_that_fails() -> None:
    def has_root(case: Case) -> bool:
        return any(node.op_type == "Sqrt" for node in case.model.graph.node)

    small = reduced(chain(), has_root)
    assert [node.op_type for node in small.model.graph.node] == ["Sqrt"]
    assert [array.shape for array in small.feeds[0].values()] == [(1, 1)]
    onnx.checker.check_model(small.model)
    assert "Sqrt" in case_text(small)


@pytest.mark.parametrize(
    ("expected", "found", "words"),
    [
        (np.float32([1, 2]), np.float32([1, 2]), ""),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), ""),
        (np.float32([1, np.nan]), np.float32([1, 2]), "1 of 2 differ"),
        (np.float32([1, np.inf]), np.float32([1, -np.inf]), "1 of 2 differ"),
        (np.float32([1, 2]), np.float32([1, 2.1]), "by 0.1"),
        (np.float32([1, 2]), np.float32([[1, 2]]), "shape [1, 2], not [2]"),
        (np.int8([1, 2]), np.int8([1, 3]), "1 of 2 differ"),
        (np.int8([1, 2]), np.int64([1, 2]), "int64, not int8"),
    ],
)
def test_differences(expected: np.ndarray, found: np.ndarray, words: str) -> None:
    case = chain()
    same = np.zeros(3, np.float32)
    said = difference(case, [[expected, same]], [[found, same]])
    assert words in said
    assert bool(words) == bool(said)


def test_a_wrong_host_is_outvoted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = judging.graft.compile

    class Wrong:
        placement = right(chain().model).placement

        def run(self, names: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [array + 1 for array in right(chain().model).run(names, feeds)]

    def compile(model: onnx.ModelProto, target: str = "host", **options: int) -> object:
        return Wrong() if target == "host" else right(model, target=target, **options)

    monkeypatch.setattr(judging.graft, "compile", compile)
    verdict = judge(chain())
    assert verdict.kind == judging.HOST_DIFFERS
    assert verdict.detail.startswith("y: 24 of 24 differ, by 1,")


def test_a_log_is_gone_on_with(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    done = Record(3, NOTHING, "as the log says")
    log.write_text(done.line() + "\n" + '{"seed": 4, "ki', encoding="utf-8")
    assert read_log(log) == [done]
    log.write_text(done.line() + "\n", encoding="utf-8")
    records = run(range(3, 5), log, minutes=5)
    assert sorted(record.seed for record in records) == [3, 4]
    assert done in records
    assert "models tried: 2" in summary(records)


def test_models_agree_without_the_optimisations_of_llvm(tmp_path: Path) -> None:
    level = native.OPTIMISATION
    records = run(range(SHARD, SHARD + 4), tmp_path / "log.jsonl", minutes=5, quick=True)
    assert [record.kind in judging.AGREEING for record in records] == [True] * 4
    assert level == native.OPTIMISATION > 0


@pytest.mark.parametrize(
    ("then", "kind"),
    [
        ("signal.setitimer(signal.ITIMER_PROF, 0.05)\nwhile True: pass", LATE),
        ("signal.raise_signal(signal.SIGABRT)", DIED),
    ],
)
def test_a_model_that_ends_its_process_is_recorded(then: str, kind: str, tmp_path: Path) -> None:
    said = json.dumps({"seed": 5, "stage": "graft"})
    source = f"import signal\nprint({said!r}, flush=True)\n{then}"
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    log = tmp_path / "log.jsonl"
    with log.open("w", encoding="utf-8") as file:
        worker = campaign._Worker([5, 6], process, since=monotonic(), attended=monotonic())
        while not campaign._attended(worker, file, stop=False):
            pass
    assert read_log(log) == [Record(5, kind, "graft")]
    assert worker.seeds == [6]
