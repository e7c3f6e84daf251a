"""Runs many seeds: worker processes draw and judge models, and a log remembers what came of each.

A model may take its process down, in ONNX Runtime or in Graft. So the workers are processes of
their own, which say what they are about to do; when one dies, its model is recorded and another
worker goes on with the next. What the log holds already is not run again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.fuzzing.generate import Case, generate
from benchmarks.fuzzing.judge import FINDINGS, PEER_DIFFERS, Stage, Verdict, judge
from benchmarks.fuzzing.reduce import BUDGET, reduced
from benchmarks.fuzzing.report import DIED, LATE, NOTHING, Record, case_text, read_log
from graft.llvm import codegen as native

LONGEST = 60.0  # seconds of work on one model
PATIENCE = 900.0  # seconds to wait for one, on a machine that may have other things to do
PAUSE = 5.0  # seconds between two looks at a worker after which it is not to blame
PEER_BUDGET = 5.0  # seconds for making a model small on which only the peer is wrong
SLICE = 100  # seeds of one process, so that nothing piles up
DAMAGED_SLICE = 500  # likewise of damaged files, most of which are refused at once
OPTIMISED = 4  # of so many slices one is, when it has to be quick
ROOT = Path(__file__).resolve().parents[2]


def stages(seed: int, say: IO[str] | None) -> Stage:
    """What is told each stage of a seed, and says so."""

    def stage(name: str) -> None:
        if say is not None:
            print(json.dumps({"seed": seed, "stage": name}), file=say, flush=True)

    return stage


def tried(seed: int, shrink: bool, machine: str, say: IO[str] | None = None) -> Record:
    """Draw and judge the model of a seed; a finding is reduced, be it the peer's."""
    stage = stages(seed, say)
    stage("draw")
    case = generate(seed)
    if case is None:
        return Record(seed, NOTHING)
    verdict = judge(case, stage, machine)
    text = ""
    if verdict.kind in (*FINDINGS, PEER_DIFFERS):
        small, verdict = _small(case, verdict, machine) if shrink else (case, verdict)
        text = case_text(small)
    return Record(seed, verdict.kind, verdict.detail[:2000], case.operators, text)


def _small(case: Case, verdict: Verdict, machine: str) -> tuple[Case, Verdict]:
    """The reduced case: of the same kind, and where something was raised, the same thing."""

    def same(other: Case) -> bool:
        found = judge(other, machine=machine)
        return found.kind == verdict.kind and _gist(found) == _gist(verdict)

    small = reduced(case, same, PEER_BUDGET if verdict.kind == PEER_DIFFERS else BUDGET)
    return small, judge(small, machine=machine)


def _gist(verdict: Verdict) -> str:
    """What makes two refusals one: the class of the error and its first words."""
    return verdict.detail[:40] if verdict.kind in ("refused", "raised") else ""


def work(
    seeds: Sequence[int], try_seed: Callable[[int, IO[str]], Record], plain: bool = False
) -> None:
    """What a worker does: seeds in, one line for each stage and record on standard output.

    `plain` leaves out LLVM's optimisations, which take most of the time that is left."""
    if plain:
        native.OPTIMISATION = 0
    for seed in seeds:
        signal.setitimer(signal.ITIMER_PROF, LONGEST)  # after which this process is killed
        print(try_seed(seed, sys.stdout).line(), flush=True)


@dataclass
class _Worker:
    """A process at work on its seeds."""

    seeds: list[int]
    process: subprocess.Popen[bytes]
    said: bytes = b""  # a line that is not finished yet
    stage: str = ""
    since: float = 0.0  # when it was last heard of
    attended: float = 0.0  # when it was last looked at


def _started(seeds: list[int], options: Sequence[str], quick: bool, folder: str) -> _Worker:
    command = [sys.executable, "-m", "benchmarks.fuzzing", "--work", ",".join(map(str, seeds))]
    command += options
    plain = quick and seeds[0] // SLICE % OPTIMISED != 0
    if plain:
        command.append("--quick")
    # Nobody asks again for the kernels of these models, so they have a cache of their own; and
    # those without optimisations another one.
    cache = Path(folder, "plain" if plain else "optimized")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"GRAFT_CACHE_DIR": str(cache)},
    )
    return _Worker(seeds, process, since=time.monotonic(), attended=time.monotonic())


def run(
    seeds: Sequence[int],
    log: Path,
    minutes: float,
    jobs: int = 1,
    options: Sequence[str] = (),
    quick: bool = False,
) -> list[Record]:
    """Try all seeds that the log does not hold yet, as far as the time goes; gives all records.

    Workers are started with `options`. `quick`: of some slices of seeds, all but one are compiled
    without LLVM's optimisations."""
    deadline = time.monotonic() + 60 * minutes
    wanted = set(seeds)
    done = {record.seed for record in read_log(log)}
    waiting = [seed for seed in seeds if seed not in done]
    workers: list[_Worker] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    size = DAMAGED_SLICE if "--damage" in options else SLICE
    with tempfile.TemporaryDirectory() as folder, log.open("a", encoding="utf-8") as file:
        while workers or (waiting and time.monotonic() < deadline):
            while waiting and len(workers) < jobs and time.monotonic() < deadline:
                workers.append(_started(waiting[:size], options, quick, folder))
                del waiting[:size]
            for worker in list(workers):
                if _attended(worker, file, time.monotonic() > deadline):
                    workers.remove(worker)
                    if time.monotonic() < deadline:
                        waiting[:0] = worker.seeds
    return [record for record in read_log(log) if record.seed in wanted]


def _attended(worker: _Worker, log: IO[str], stop: bool) -> bool:
    """Take in what a worker says; true when it has ended, with what it has left to do in it."""
    assert worker.process.stdout is not None
    now = time.monotonic()
    if now - worker.attended > PAUSE:  # the machine stood still, or all of this was stopped
        worker.since += now - worker.attended
    worker.attended = now
    pipe = worker.process.stdout.fileno()
    ready, _, _ = select.select([pipe], [], [], 0.2)
    said = os.read(pipe, 1 << 16) if ready else b""
    if said:
        *lines, worker.said = (worker.said + said).split(b"\n")
        for line in lines:
            _heard(worker, json.loads(line), log)
    elif ready or time.monotonic() - worker.since > PATIENCE:
        if not ready:
            worker.process.kill()
        in_time = worker.process.wait() != -signal.SIGPROF and ready
        if worker.seeds and worker.stage:
            kind = DIED if in_time else LATE
            _write(log, Record(worker.seeds.pop(0), kind, worker.stage))
        return True
    if stop:
        worker.process.kill()
        worker.process.wait()
        return True
    return False


def _heard(worker: _Worker, said: dict[str, object], log: IO[str]) -> None:
    worker.since = time.monotonic()
    if "stage" in said:
        worker.stage = str(said["stage"])
        return
    worker.stage = ""
    worker.seeds.remove(int(str(said["seed"])))
    _write(log, Record(**said))  # type: ignore[arg-type]


def _write(log: IO[str], record: Record) -> None:
    log.write(record.line() + "\n")
    log.flush()
