"""Times the compilation of adversarial models that grow tenfold, and measures its memory.

Each model is compiled in a process of its own, by one thread, with an empty cache of kernels:
seconds of processor time, and the memory that came on top of the model's. What takes longer than
the limit is not tried at larger sizes. The whole table takes hours; families and sizes that are not
measured this time stay as they are recorded.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import graft
from benchmarks.adversarial import FAMILIES
from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import ROOT, table
from graft.llvm import pool

SIZES = (100, 1_000, 10_000, 100_000)
PAGE = Path("docs/reliability.md")
NOT_MEASURED = "not measured"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=1)
    parser.add_argument("--sizes", type=_numbers, default=SIZES, help="separated by commas")
    parser.add_argument("--families", type=lambda names: names.split(","), default=[*FAMILIES])
    parser.add_argument("--limit", type=float, default=600, help="seconds of processor time")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def measure(options: argparse.Namespace) -> Json:
    """By family and number of nodes: seconds and megabytes, or what went wrong."""
    sizes = options.sizes[:1] if options.quick else options.sizes
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        machines = Path(folder) / "machines"
        measured("unused", 1, options.limit, machines)  # calibrates, which takes memory for once
        for name in options.families:
            results[name] = _family(name, sizes, options.limit, machines)
    return results


def merge(earlier: Json, new: Json) -> Json:
    return {name: {**earlier.get(name, {}), **new.get(name, {})} for name in {**earlier, **new}}


def _family(name: str, sizes: list[int], limit: float, machines: Path) -> Json:
    """What is beyond the limit is not tried any larger."""
    cells: dict[str, Json] = {}
    for nodes in sizes:
        result = measured(name, nodes, limit, machines)
        cells[str(nodes)] = result
        if isinstance(result, str):
            return {**cells, **{str(n): "-" for n in sizes if n > nodes}}
        print(f"{name}, {nodes:,} nodes: {_cell(cells[str(nodes)])}", flush=True)
    return cells


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def measured(name: str, nodes: int, limit: float, machines: Path) -> list[float] | str:
    """Seconds and megabytes of a model, or what went wrong."""
    command = [sys.executable, "-m", "benchmarks.compile_time", name, str(nodes)]
    with tempfile.TemporaryDirectory() as folder:
        if machines.exists():
            shutil.copytree(machines, Path(folder) / "machines")
        environment = {**os.environ, "GRAFT_CACHE_DIR": folder}
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                timeout=8 * limit,
                capture_output=True,
                text=True,
                check=False,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(limit),) * 2),
            )
        except subprocess.TimeoutExpired:
            return f"> {limit:.0f} s"
        if not machines.exists() and (Path(folder) / "machines").exists():
            shutil.copytree(Path(folder) / "machines", machines)
    if done.returncode < 0:
        return f"> {limit:.0f} s"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:60]
    seconds, megabytes = done.stdout.split()
    return [float(seconds), int(megabytes)]


def compile_once(name: str, nodes: int) -> None:
    """Compile one model in this process, and print seconds and megabytes."""
    pool.WORTH_A_PROCESS = sys.maxsize  # what other processes take would not be counted
    model = FAMILIES[name](nodes)
    graft.compile(FAMILIES["unused"](1), threads=1)  # imports, and the machine's calibration
    before, start = _peak(), time.process_time()
    graft.compile(model, threads=1)
    print(time.process_time() - start, max(0, _peak() - before))


def sections(record: Record) -> Iterator[Section]:
    yield Section(PAGE, "compile time", time_table(record.data))


def time_table(results: Mapping[str, Json]) -> list[str]:
    """A row per family, and a column per size that any family was measured at."""
    sizes = sorted({int(size) for cells in results.values() for size in cells})
    rows = []
    for name in filter(results.__contains__, FAMILIES):
        cells = [results[name].get(str(size), NOT_MEASURED) for size in sizes]
        pairs = zip(cells, sizes, strict=True)
        timed = [(cell[0], size) for cell, size in pairs if not isinstance(cell, str)]
        per_node = ", ".join(f"{seconds / size * 1e3:.2g}" for seconds, size in timed)
        rows.append([name, *map(_cell, cells), per_node])
    return table(["model", *(f"{size:,} nodes" for size in sizes), "ms per node"], rows)


def _cell(result: Json) -> str:
    return result if isinstance(result, str) else f"{result[0]:.1f} s, {result[1]} MB"


BENCHMARKS = (Benchmark("compile-time", measure, sections, add_arguments, merge=merge),)

if __name__ == "__main__":  # a process of its own
    compile_once(sys.argv[1], int(sys.argv[2]))
