#!/usr/bin/env python3
"""Times what the run time adds to kernels: a step and its barrier, and a call of `run`.

    python tools/barrier.py [--threads N ...]

Prints medians and best times of programs whose kernels do nothing. A step's cost is the difference
between programs of many and few steps, divided by the number of steps between them.
"""

from __future__ import annotations

import argparse
import statistics
import time

import llvmlite.binding as llvm
import numpy as np

from graft.base.dtypes import DType
from graft.program.instructions import Block, KernelCall, Segment
from graft.program.program import Program, Target, Value
from graft.runtime.driver import driver_object
from graft.runtime.session import Session

FEW, MANY = 1, 1001
RUNS = 500
KERNEL = "define void @nothing(ptr %b, ptr %s, i64 %thread, i64 %threads, ptr %m) { ret void }"


def program(steps: int) -> Program:
    """So many steps that do nothing."""
    triple = llvm.get_process_triple()
    driver = driver_object(triple)
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="small")
    segment = Segment((0,), (1,), (KernelCall("nothing", (0, 1)),) * steps)
    return Program(
        Target(triple),
        tuple(Value(name, DType.FLOAT32, (4,)) for name in "xy"),
        (),
        Block((0,), (segment,), (1,)),
        ("y",),
        (machine.emit_object(llvm.parse_assembly(KERNEL)), driver),
    )


def microseconds(steps: int, threads: int) -> tuple[float, float]:
    """Median and best time of a run."""
    session = Session(program(steps), threads=threads)
    feeds = {"x": np.zeros(4, np.float32)}
    times = []
    for _ in range(RUNS):
        before = time.perf_counter()
        session.run(None, feeds)
        times.append((time.perf_counter() - before) * 1e6)
    return statistics.median(times), min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="time barriers and empty runs")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3])
    print("threads   empty run, µs      step and barrier, µs")
    print("          median     best    median       best")
    for threads in parser.parse_args().threads:
        few, many = microseconds(FEW, threads), microseconds(MANY, threads)
        median, best = ((more - less) / (MANY - FEW) for more, less in zip(many, few, strict=True))
        print(f"{threads:7} {few[0]:9.1f} {few[1]:8.1f} {median:9.3f} {best:10.3f}")


if __name__ == "__main__":
    main()
