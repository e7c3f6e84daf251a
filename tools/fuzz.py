#!/usr/bin/env python3
"""Fuzzes Graft against ONNX Runtime with generated ONNX models, and prints what came of it.

    python tools/fuzz.py --models 50000 --seed 0 --minutes 60 --jobs 2
    python tools/fuzz.py --show 1234

Every seed is one model. What came of each goes into a log, and a run goes on where the log ends.
Ends with an error if a model was found on which Graft is wrong.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fuzzing.campaign import run, tried, work
from fuzzing.generate import generate
from fuzzing.report import case_text, summary


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=int, default=1000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=10.0, help="when to stop")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--log", type=Path, default=Path("build/fuzz.jsonl"), help="what is done")
    parser.add_argument("--no-reduction", action="store_true", help="keep findings as they are")
    parser.add_argument(
        "--quick", action="store_true", help="three models of four without LLVM's optimisations"
    )
    parser.add_argument("--show", type=int, metavar="SEED", help="print one model and its verdict")
    parser.add_argument("--work", help=argparse.SUPPRESS)  # what the processes are started with
    return parser.parse_args()


def main() -> int:
    """Run, or show one model."""
    asked = _arguments()
    shrink = not asked.no_reduction
    if asked.work:
        work([int(seed) for seed in asked.work.split(",")], shrink, asked.quick)
        return 0
    if asked.show is not None:
        case = generate(asked.show)
        print(case_text(case) if case else "nothing drawn")
        record = tried(asked.show, shrink)
        print(f"{record.kind}: {record.detail}\n{record.reduced}")
        return int(record.is_finding)
    seeds = range(asked.seed, asked.seed + asked.models)
    records = run(seeds, asked.log, asked.minutes, asked.jobs, shrink, asked.quick)
    print(summary(records))
    return int(any(record.is_finding for record in records))


if __name__ == "__main__":
    raise SystemExit(main())
