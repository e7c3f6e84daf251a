"""Fuzzes Graft against ONNX Runtime with generated ONNX models, and prints what came of it.

    python -m benchmarks.fuzzing --models 50000 --seed 0 --minutes 60 --jobs 2
    python -m benchmarks.fuzzing --show 1234
    python -m benchmarks.fuzzing --damage models --models 10000 [--corpus FOLDER]

Every seed is one model. With `--damage`, it is a damaged file: a model, of the generator's or of a
folder's, the artifact that one is compiled to, or one whose program says something else and whose
checksums are right. What came of each goes into a log, and a run goes on where the log ends. Ends
with an error if a model was found on which Graft is wrong.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import IO

from benchmarks.fuzzing.campaign import run, stages, tried, work
from benchmarks.fuzzing.generate import generate
from benchmarks.fuzzing.mutants import ARTIFACTS, MODELS, PROGRAMS, limit_memory, tried_mutant
from benchmarks.fuzzing.report import Record, case_text, summary
from graft.target.target import HOST


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=int, default=1000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=10.0, help="when to stop")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--log", type=Path, help="what is done; by default in build/")
    parser.add_argument("--damage", choices=(MODELS, ARTIFACTS, PROGRAMS), help="try damaged files")
    parser.add_argument("--corpus", type=Path, help="the models to damage: a folder")
    parser.add_argument("--no-reduction", action="store_true", help="keep findings as they are")
    parser.add_argument(
        "--quick", action="store_true", help="three models of four without LLVM's optimisations"
    )
    parser.add_argument("--machine", default=HOST, help="whose code to try: one that runs here")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one model and its verdict")
    parser.add_argument("--work", help=argparse.SUPPRESS)  # what the processes are started with
    return parser.parse_args()


def main() -> int:
    """Run, or show one model."""
    asked = _arguments()
    if asked.work:
        if asked.damage:
            limit_memory()
        work([int(seed) for seed in asked.work.split(",")], partial(_tried, asked), asked.quick)
        return 0
    if asked.show is not None:
        if not asked.damage:
            case = generate(asked.show)
            print(case_text(case) if case else "nothing drawn")
        record = _tried(asked, asked.show)
        print(f"{record.kind}: {record.detail}\n{record.reduced}")
        return int(record.is_finding)
    seeds = range(asked.seed, asked.seed + asked.models)
    kinds = [asked.damage] * bool(asked.damage) + [asked.machine] * (asked.machine != HOST)
    log = asked.log or Path("build", "-".join(("fuzz", *kinds)) + ".jsonl")
    records = run(seeds, log, asked.minutes, asked.jobs, _options(asked), asked.quick)
    print(summary(records))
    return int(any(record.is_finding for record in records))


def _tried(asked: argparse.Namespace, seed: int, say: IO[str] | None = None) -> Record:
    if not asked.damage:
        return tried(seed, not asked.no_reduction, asked.machine, say)
    verdict = tried_mutant(asked.damage, seed, asked.corpus, stages(seed, say))
    return Record(seed, verdict.kind, verdict.detail[:2000])


def _options(asked: argparse.Namespace) -> list[str]:
    """What the workers are started with to do the same."""
    options = ["--no-reduction"] if asked.no_reduction else []
    options += ["--damage", asked.damage] if asked.damage else []
    options += ["--machine", asked.machine]
    options += ["--corpus", str(asked.corpus)] if asked.corpus else []
    return options


if __name__ == "__main__":
    raise SystemExit(main())
