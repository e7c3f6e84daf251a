#!/usr/bin/env python3
"""Runs trained models with ONNX Runtime and with Graft, and prints a table of how they compare.

    python tools/real_models.py MODEL_OR_FOLDER... [--timeout SECONDS] [--json FILE]

Takes .onnx files, and folders that are searched for them. Each model runs in a process of its own,
at several sizes where its shape leaves some open, with inputs drawn by the rules of
`real_models_inputs`. Where a model computes with narrow integers and differs from ONNX Runtime, it
is also compared with Graft's reference evaluator: ONNX Runtime's products of bytes may saturate. If
one element in a million is rounded up instead of down, the next layers make many of it; such a
model is called close if it still finds the same largest element.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import graft
from graft.cli.report import seconds_text
from real_models_compare import Agreement, agreement
from real_models_inputs import SIZES, feeds, is_open

_REPEATS = 3
_NARROW = ("Integer", "QLinear", "Quantize")  # in the names of operators on narrow integers
_ROUNDING = (
    0.06  # how far, of the largest, an integer rounded otherwise may carry in a deep network
)
_HEADER = ("model", "sizes", "nodes", "native", "evaluator", "error", "Graft", "ORT", "verdict")


@dataclass(frozen=True)
class Outcome:
    """What came of one model."""

    model: str
    nodes: int = 0
    sizes: int = 0
    native: int = 0
    evaluated: int = 0
    error: float = 0.0
    graft_seconds: float = 0.0
    peer_seconds: float = 0.0
    verdict: str = "not run"

    @property
    def is_good(self) -> bool:
        return self.verdict.startswith(("same", "close"))

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        times = (seconds_text(s) if s else "" for s in (self.graft_seconds, self.peer_seconds))
        counts = (str(n) for n in (self.sizes, self.nodes, self.native, self.evaluated))
        return self.model, *counts, f"{self.error:.1e}", *times, self.verdict


def main() -> int:
    options = _options()
    if options.one is not None:
        print(json.dumps(asdict(outcome_of(options.one))))
        return 0
    models = found_models(options.paths)
    outcomes = []
    for number, path in enumerate(models, start=1):
        print(f"{number} of {len(models)}: {path.name} ... ", end="", flush=True, file=sys.stderr)
        outcomes.append(in_own_process(path, options.timeout))
        print(outcomes[-1].verdict, file=sys.stderr)
    print("\n".join(table(outcomes)))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    return 0 if outcomes and all(outcome.is_good for outcome in outcomes) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", metavar="MODEL_OR_FOLDER", nargs="*", type=Path)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=600.0)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the outcomes there, too")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # what a child is started with
    options = parser.parse_args()
    if options.one is None and not options.paths:
        parser.error("no models are given")
    return options


def found_models(paths: Iterable[Path]) -> list[Path]:
    """The files among the paths, and all .onnx files in the folders among them."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def in_own_process(path: Path, timeout: float) -> Outcome:
    """One model's outcome; a crash or an endless run is one, too."""
    command = [sys.executable, __file__, "--one", str(path)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return Outcome(path.name, verdict=f"took more than {timeout:g} s")
    lines = child.stdout.splitlines()
    if child.returncode or not lines:
        last = (child.stderr.strip().splitlines() or ["without a word"])[-1]
        return Outcome(path.name, verdict=f"ended with {child.returncode}: {last}")
    return Outcome(**json.loads(lines[-1]))


def outcome_of(path: Path) -> Outcome:
    """Run one model at all its sizes; the first thing that goes wrong is the verdict."""
    outcome = Outcome(path.name)
    try:
        peer = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  (whatever it is, the peer does not run the model)
        return replace(outcome, verdict=f"ONNX Runtime refuses it: {_in_a_line(error)}")
    try:
        proto = onnx.load(path, load_external_data=False)
        module = graft.compile(str(path))
    except Exception as error:  # noqa: BLE001  (one model's failure never stops the rest)
        return replace(outcome, verdict=f"not compiled: {_in_a_line(error)}")
    evaluated = module.placement.nodes.get("reference", 0)
    native = sum(module.placement.nodes.values()) - evaluated
    outcome = replace(outcome, nodes=len(proto.graph.node), native=native, evaluated=evaluated)
    for turn in range(SIZES if is_open(peer.get_inputs()) else 1):
        outcome = _at_size(outcome, path, proto, peer, module, turn)
        if not outcome.is_good:
            return outcome
    return outcome


def _at_size(
    outcome: Outcome, path: Path, proto: onnx.ModelProto, peer: Any, module: Any, turn: int
) -> Outcome:
    try:
        given = feeds(proto, peer.get_inputs(), turn)
        expected, peer_seconds = _timed(lambda: peer.run(None, given))
    except Exception as error:  # noqa: BLE001
        return replace(outcome, verdict=f"ONNX Runtime fails on the inputs: {_in_a_line(error)}")
    try:
        actual, seconds = _timed(lambda: module.run(None, given))
    except Exception as error:  # noqa: BLE001
        return replace(outcome, verdict=f"does not run: {_in_a_line(error)}")
    names = [output.name for output in peer.get_outputs()]
    found = agreement(names, expected, actual)
    verdict = _verdict(found, path, proto, names, given, (expected, actual))
    return replace(
        outcome,
        sizes=outcome.sizes + 1,
        error=max(outcome.error, found.error if np.isfinite(found.error) else 1.0),
        graft_seconds=seconds,
        peer_seconds=peer_seconds,
        verdict=verdict,
    )


def _verdict(
    found: Agreement,
    path: Path,
    proto: onnx.ModelProto,
    names: Sequence[str],
    given: dict[str, Any],
    results: tuple[Sequence[Any], Sequence[Any]],
) -> str:
    """In words; `results` are ONNX Runtime's and Graft's."""
    if not found.difference:
        return "same"
    if not any(word in node.op_type for node in proto.graph.node for word in _NARROW):
        return f"differs: {found.difference}"
    reference = graft.compile(str(path), target="reference").run(None, given)
    if not agreement(names, reference, results[1]).difference:
        return f"same as the reference; ONNX Runtime differs: {found.difference}"
    if found.error <= _ROUNDING and all(map(_same_place, *results)):
        return f"close, but rounded otherwise: {found.difference}"
    return f"differs: {found.difference}"


def _same_place(expected: Any, actual: Any) -> bool:
    """Whether the largest element is the same one."""
    return int(np.argmax(expected)) == int(np.argmax(actual))


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What a run gives, and the median of its seconds after one to warm up."""
    result = run()
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The outcomes as a Markdown table, and how many are good."""
    rows = [_HEADER, tuple("---" for _ in _HEADER), *(outcome.row() for outcome in outcomes)]
    same = sum(outcome.verdict.startswith("same") for outcome in outcomes)
    close = sum(outcome.is_good for outcome in outcomes) - same
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return [*lines, "", f"Of {len(outcomes)} models, {same} give the same and {close} are close."]


if __name__ == "__main__":
    sys.exit(main())
