"""Simulates a model's schedule on 1 to 64 threads and lists the kernels that do not scale.

    python -m benchmarks.threads models/resnet50.onnx
    python -m benchmarks.threads models/resnet50.onnx --threads 4,16 --machine icelake-server

A model in; out comes how much faster it is with so many threads, and which kernels keep it from
being faster still. Each kernel's time on one thread is measured here, or with `--machine` what the
machine's peak and memory allow. Its parallel loop has so many jobs, which the threads share: the
busiest has ceil(jobs / threads) of them. After each kernel the threads meet, one after the other at
one word of memory. Weights beyond the last cache come from memory, which a few cores keep busy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graft.backends.host.lowering.builder import BuiltProgram, build_assembled
from graft.backends.host.lowering.segments import SegmentCompiler, why_not_native
from graft.byoc.executable import Accuracy
from graft.cli.report import lines_of, table
from graft.frontends.onnx.importer import import_model
from graft.loop.evaluate_expr import compile_expr
from graft.loop.ir import For, Function, LoopKind, Var
from graft.loop.traverse import is_parallel, walk_stmt
from graft.ops.indexed import IndexRanges
from graft.passes.pipeline import optimize
from graft.program.instructions import KernelCall
from graft.program.program import Program
from graft.runtime.session import Session
from graft.target.machine import Machine
from graft.target.target import HOST, known_targets, named_target

THREADS = (1, 2, 4, 8, 16, 32, 64)
RUNS = 15
MEMORY_CORES = 8  # that keep the memory of a socket busy
LISTED = 12


@dataclass(frozen=True)
class Step:
    """A kernel call: its time on one thread, its jobs, and what it reads from memory."""

    label: str
    seconds: float
    jobs: int
    memory_bytes: int


@dataclass(frozen=True)
class Team:
    """Threads on cores of their own."""

    threads: int
    machine: Machine
    memory_cores: int = MEMORY_CORES

    def seconds(self, step: Step) -> float:
        """A step with all threads, and their meeting."""
        return max(self.working(step), self.reading(step)) + self.meeting

    def working(self, step: Step) -> float:
        """What the busiest thread works."""
        return step.seconds * -(-step.jobs // self.threads) / max(1, step.jobs)

    def reading(self, step: Step) -> float:
        """What the step's bytes take from memory."""
        rate = self.machine.memory_bytes_per_second * min(self.threads, self.memory_cores)
        return step.memory_bytes / rate if self.threads > 1 else 0.0

    @property
    def meeting(self) -> float:
        """Threads arrive one after the other: each has to have the cache line of the count, which
        the one before has written. The machine says what two take."""
        return self.machine.meeting_seconds * self.threads / 2 if self.threads > 1 else 0.0

    def limit(self, step: Step) -> str:
        """What keeps a step from being as many times faster as there are threads."""
        ideal = step.seconds / self.threads
        causes = {
            "memory": self.reading(step) - self.working(step),
            "barrier": self.meeting,
            _shortage(step.jobs, self.threads): self.working(step) - ideal,
        }
        return max(causes, key=lambda name: causes[name])


def _shortage(jobs: int, threads: int) -> str:
    if jobs <= 1:
        return "one job"
    return "few jobs" if jobs < threads else "uneven"


def main() -> int:
    options = _options()
    target = named_target(options.machine)
    graph = optimize(import_model(options.model))
    if reason := why_not_native(graph):
        sys.exit(f"threads.py wants a model with static shapes: {reason}")
    compiler = SegmentCompiler(target, Accuracy.DEFAULT, {})
    fused, assembly, guards = compiler.assembled(graph, IndexRanges(graph), {})
    built = build_assembled(fused, assembly, compiler, guards)
    steps = steps_of(built, assembly.functions, target.machine, options.machine == HOST)
    teams = [Team(threads, target.machine, options.memory_cores) for threads in options.threads]
    print("\n".join(report(options.model.stem, steps, teams)))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument(
        "--threads",
        metavar="N[,N]",
        type=lambda text: [int(number) for number in text.split(",")],
        default=THREADS,
        help="numbers of threads; by default 1 to 64",
    )
    parser.add_argument(
        "--machine",
        default=HOST,
        choices=known_targets(),
        metavar="NAME",
        help="take kernels for what this machine allows instead of measuring them here",
    )
    parser.add_argument(
        "--memory-cores",
        type=int,
        default=MEMORY_CORES,
        help="cores that keep the memory busy (default: %(default)s)",
    )
    return parser.parse_args()


def steps_of(
    built: BuiltProgram, functions: dict[str, Function], machine: Machine, measure: bool
) -> list[Step]:
    """The kernel calls of a program."""
    program = built.program
    calls = list(program.calls)
    seconds = _measured(built) if measure else [_allowed(call, machine) for call in calls]
    resident = sum(array.nbytes for _, array in program.constants) <= machine.caches[-1].size
    return [
        Step(
            call.label,
            taken,
            jobs_of(functions[call.symbol], [int(scalar) for scalar in call.scalars]),
            0 if resident else _constant_bytes(call, program),
        )
        for call, taken in zip(calls, seconds, strict=True)
    ]


def _measured(built: BuiltProgram) -> list[float]:
    """Seconds of each kernel call on one thread: the best of several runs."""
    program = built.program
    draw = np.random.default_rng(0)
    feeds = {one.name: draw.random(one.shape).astype(one.dtype.numpy) for one in program.inputs}
    session = Session(program, 1, built.supplied)
    session.run(None, feeds)
    runs = [[call.seconds for call in session.profile(feeds).calls] for _ in range(RUNS)]
    return np.min(runs, axis=0).tolist()


def _allowed(call: KernelCall, machine: Machine) -> float:
    """Seconds that one core needs for a kernel's arithmetic or, if longer, its tensors."""
    rate = machine.caches[-1].bytes_per_cycle * machine.gigahertz * 1e9
    return max(int(call.flops) / machine.peak_flops, int(call.bytes) / rate)


def jobs_of(function: Function, scalars: Sequence[int]) -> int:
    """Iterations that threads share: those of the longest parallel loop; 1 of a serial kernel."""
    if not is_parallel(function.body):
        return 1
    variables = [parameter.name for parameter in function.parameters if isinstance(parameter, Var)]
    environment = dict(zip(variables, scalars, strict=False))
    loops = (one for one in walk_stmt(function.body) if isinstance(one, For))
    extents = [loop.extent for loop in loops if loop.kind is LoopKind.PARALLEL]
    return max(int(compile_expr(extent)(environment)) for extent in extents)


def _constant_bytes(call: KernelCall, program: Program) -> int:
    constants = dict(program.constants)
    return sum(constants[one].nbytes for one in {*call.buffers} if one in constants)


def report(model: str, steps: Sequence[Step], teams: Sequence[Team]) -> Iterator[str]:
    """Speed-ups, and the kernels that lose most with as many threads as there are."""
    alone = sum(step.seconds for step in steps)
    yield f"{model}: {len(steps)} kernels, {alone * 1e3:.2f} ms on one thread"
    rows = []
    for team in teams:
        together = sum(map(team.seconds, steps))
        speedup = alone / together
        efficiency = f"{speedup / team.threads:.0%}"
        rows.append([str(team.threads), f"{together * 1e3:.2f}", f"{speedup:.1f}", efficiency])
    yield from lines_of(table(rows, ["threads", "ms", "speed-up", "efficiency"], right=range(4)))
    for team in teams:
        if team.threads > 1:
            yield ""
            yield from _losses(steps, team)


def _losses(steps: Sequence[Step], team: Team) -> Iterator[str]:
    together = sum(map(team.seconds, steps))
    lost: dict[tuple[str, int, str], list[float]] = {}
    for step in steps:
        loss = team.seconds(step) - step.seconds / team.threads
        sums = lost.setdefault((step.label, step.jobs, team.limit(step)), [0.0, 0.0, 0.0])
        for position, part in enumerate((1, step.seconds, loss)):
            sums[position] += part
    order = sorted(lost.items(), key=lambda item: -item[1][2])[:LISTED]
    causes: dict[str, float] = {}
    for (_, _, cause), (_, _, loss) in lost.items():
        causes[cause] = causes.get(cause, 0.0) + loss / together
    shares = ", ".join(f"{cause} {share:.0%}" for cause, share in causes.items() if share > 0.005)
    yield f"{team.threads} threads lose of their time: {shares or 'nothing'}"
    rows = [
        [label[:44], f"{calls:.0f}", str(jobs), f"{taken * 1e3:.3f}", f"{loss / together:.1%}", why]
        for (label, jobs, why), (calls, taken, loss) in order
        if loss > 0.005 * together
    ]
    header = ["kernel", "calls", "jobs", "ms alone", "lost", "because of"]
    yield from lines_of(table(rows, header, right=range(1, 5)))


if __name__ == "__main__":
    sys.exit(main())
