"""What the run time adds to kernels: a run, a step and its barrier, a call of a region.

Programs of kernels that do nothing, or next to nothing. What a step or a region costs is the
difference between programs with many and with few of them, divided by how many more these are. A
region's call is leaving native code, finding the operands, the guard that falls back on the host,
the runner, and going back into native code for one kernel of a few elements.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence

import llvmlite.binding as llvm
import numpy as np

from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.backends.host.backend import HostBackend
from graft.base.dtypes import Array, DType
from graft.byoc.executable import Settings
from graft.byoc.outline import outline
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.program.instructions import Block, KernelCall, Segment
from graft.program.program import Program, Target, Value
from graft.runtime.driver import driver_object
from graft.runtime.regions import Region
from graft.runtime.session import Session

STEPS = 1001
RUNS = 500
KERNEL = "define void @nothing(ptr %b, ptr %s, i64 %thread, i64 %threads, ptr %m) { ret void }"
FEW, MANY = 4, 20  # regions
ROUNDS, CALLS = 30, 100
ELEMENTS = 8
HEADER = ("threads", "empty run, µs", "step and barrier, µs", "region call, µs")


def measure(options: argparse.Namespace) -> Json:
    """Seconds by number of threads."""
    return {
        str(threads): {
            "run": (run := run_seconds(1, threads)),
            "step": (run_seconds(STEPS, threads) - run) / (STEPS - 1),
            "region": per_call(threads),
        }
        for threads in range(1, options.threads + 1)
    }


def sections(record: Record) -> Iterator[Section]:
    rows = [
        [threads, *(f"{one[part] * 1e6:.2f}" for part in ("run", "step", "region"))]
        for threads, one in record.data.items()
    ]
    yield Section(DOCUMENT, "overhead", [*table(HEADER, rows), "", *paragraph(str(record.made))])


def run_seconds(steps: int, threads: int) -> float:
    """The median time of a run of so many steps that do nothing."""
    session = Session(program(steps), threads=threads)
    feeds = {"x": np.zeros(4, np.float32)}
    times = []
    for _ in range(RUNS):
        before = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def program(steps: int) -> Program:
    triple = llvm.get_process_triple()
    driver = driver_object(triple)  # which initialises LLVM, too
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="small")
    segment = Segment((0,), (1,), (KernelCall("nothing", (0, 1)),) * steps)
    return Program(
        Target(triple),
        (Value("x", DType.FLOAT32, (4,)), Value("y", DType.FLOAT32, (4,))),
        (),
        Block((0,), (segment,), (1,)),
        ("y",),
        (machine.emit_object(llvm.parse_assembly(KERNEL)), driver),
    )


def per_call(threads: int) -> float:
    """Seconds per region call: the least disturbed of several rounds."""
    few, many = grafted(FEW, threads), grafted(MANY, threads)
    best = {FEW: float("inf"), MANY: float("inf")}
    for _ in range(ROUNDS):
        for count, session in ((FEW, few), (MANY, many)):
            best[count] = min(best[count], _seconds(session))
    return (best[MANY] - best[FEW]) / (MANY - FEW)


def grafted(count: int, threads: int) -> Session:
    """A program that calls regions, each between two kernels."""
    graph = _chain(count)
    regions = [node for node in graph.nodes if node.op.name == "nn.relu"]
    outlined = outline(graph, [("nothing", [node]) for node in regions])
    labels = [node.attrs.label for node in outlined.nodes if node.op.name == "region"]
    runners = {label: Region(label, "nothing", _nothing, None) for label in labels}
    built = HostBackend(Settings(threads)).build(outlined, runners)
    assert len(built.program.body.instructions) == 2 * count + 1
    return built.session


def _chain(count: int) -> Graph:
    build = Builder()
    value = build("tanh", build.input("x", tensor("float32", ELEMENTS)))
    for _ in range(count):
        value = build("tanh", build("nn.relu", value))
    return build.build(value)


def _nothing(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """A runner that takes next to no time: one that writes nothing would be caught."""
    outputs[0][...] = inputs[0]


def _seconds(session: Session) -> float:
    feeds = {"x": np.zeros(ELEMENTS, np.float32)}
    start = time.perf_counter()
    for _ in range(CALLS):
        session.run(None, feeds)
    return (time.perf_counter() - start) / CALLS


BENCHMARKS = (Benchmark("overhead", measure, sections),)
