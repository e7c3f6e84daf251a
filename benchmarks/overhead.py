"""What the run time adds to kernels: a run, a step and its barrier, a region, a size, an iteration.

Programs of kernels that do nothing, or next to nothing. What a step or a region costs is the
difference between programs with many and with few of them, divided by how many more these are. A
region's call is leaving native code, finding the operands, the guard that falls back on the host,
the runner, and going back into native code for one kernel of a few elements. A loop adds a vector
to another one: a new size is what its run takes longer than one at a size that has come before, an
iteration what one, or a hundred, add to a run without any, kernel included.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import llvmlite.binding as llvm
import numpy as np

from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.backends.host.backend import HostBackend
from graft.base.dims import symbol
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
HEADER = (
    "threads",
    "empty run, µs",
    "step and barrier, µs",
    "region call, µs",
    "new size, µs",
    "first iteration, µs",
    "iteration, µs",
)
PARTS = ("run", "step", "region", "size", "first", "iteration")
ITERATIONS = 100


def measure(options: argparse.Namespace) -> Json:
    """Seconds by number of threads."""
    return {
        str(threads): {
            "run": (run := run_seconds(1, threads)),
            "step": (run_seconds(STEPS, threads) - run) / (STEPS - 1),
            "region": per_call(threads),
            **loop_seconds(threads),
        }
        for threads in range(1, options.threads + 1)
    }


def sections(record: Record) -> Iterator[Section]:
    rows = [
        [threads, *(f"{one[part] * 1e6:.2f}" for part in PARTS)]
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


def loop_seconds(threads: int) -> dict[str, float]:
    """What a new size, the first iteration of a loop and the others take: differences of minima."""
    session = HostBackend(Settings(threads)).build(_loop()).session
    lengths = itertools.count(ELEMENTS)

    def least(iterations: int, is_new: bool) -> float:
        best, length = float("inf"), next(lengths)
        for _ in range(RUNS):
            length = next(lengths) if is_new else length
            vector = np.zeros(length, np.float32)
            feeds = {"n": np.array(iterations), "x": vector, "step": vector}
            start = time.perf_counter()
            session.run(None, feeds)
            best = min(best, time.perf_counter() - start)
        return best

    none, known = least(0, is_new=True), least(0, is_new=False)
    return {
        "size": none - known,
        "first": least(1, is_new=True) - none,
        "iteration": (least(ITERATIONS, is_new=False) - known) / ITERATIONS,
    }


def _loop() -> Graph:
    """So many additions of one vector to another."""
    shape = (symbol("extent"),)
    body = Builder("body")
    body.input("i", tensor("int64"))
    proceed = body.input("proceed", tensor("bool"))
    state, step = (body.input(name, tensor("float32", *shape)) for name in ("state", "step"))
    graph = body.build(proceed, body("add", state, step))
    build = Builder()
    trips = build.input("n", tensor("int64"))
    data, change = (build.input(name, tensor("float32", *shape)) for name in ("x", "step"))
    proceed = build.constant(np.array(True))
    return build.build(*build.call("loop", trips, proceed, data, change, body=graph, carried=1))


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
