#!/usr/bin/env python3
"""Times the compilation of adversarial models that grow tenfold, and measures its memory.

    python tools/compile_time.py [--sizes 100,1000,10000,100000] [--families chain,squares,...]
                                 [--limit 600] [--write]

Each model is compiled in a process of its own, by one thread, with an empty cache of kernels. The
table has seconds of processor time and the memory that came on top of the model's. `--write` puts
each family into docs/reliability.md as soon as it is measured, and leaves other families and sizes
there as they are: the whole table takes hours. What takes longer than the limit is not tried at
larger sizes.
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
from pathlib import Path

from adversarial import FAMILIES

SIZES = (100, 1_000, 10_000, 100_000)
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"
START, END = "<!-- compile time: start -->", "<!-- compile time: end -->"
NOT_MEASURED = "not measured"
Cells = dict[int, str]  # by number of nodes


def measure(name: str, nodes: int) -> None:
    """Compile one model in this process, and print seconds and megabytes."""
    import graft
    from graft.llvm import pool

    pool.WORTH_A_PROCESS = sys.maxsize  # what other processes take would not be counted
    model = FAMILIES[name](nodes)
    graft.compile(FAMILIES["unused"](1), threads=1)  # imports, and the machine's calibration
    before, start = _peak(), time.process_time()
    graft.compile(model, threads=1)
    print(time.process_time() - start, max(0, _peak() - before))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def measured(name: str, nodes: int, limit: float, machines: Path) -> tuple[float, int] | str:
    """Seconds and megabytes of a model, or what went wrong."""
    command = [sys.executable, __file__, "--one", name, str(nodes)]
    with tempfile.TemporaryDirectory() as folder:
        if machines.exists():
            shutil.copytree(machines, Path(folder) / "machines")
        environment = {**os.environ, "GRAFT_CACHE_DIR": folder}
        try:
            done = subprocess.run(
                command,
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
    return float(seconds), int(megabytes)


def measured_row(name: str, sizes: list[int], limit: float, machines: Path) -> Cells:
    """A family's cells of the table, by size; what is beyond the limit is not tried any larger."""
    cells: Cells = {}
    for nodes in sizes:
        found = measured(name, nodes, limit, machines)
        if isinstance(found, str):
            return {**cells, nodes: found, **dict.fromkeys((n for n in sizes if n > nodes), "-")}
        cells[nodes] = f"{found[0]:.1f} s, {found[1]} MB"
        print(f"{name}, {nodes:,} nodes: {cells[nodes]}", flush=True)
    return cells


def table_text(rows: dict[str, Cells]) -> str:
    """The table, with a column per size that any family was measured at."""
    sizes = sorted({size for cells in rows.values() for size in cells})
    lines = [
        "| model | " + " | ".join(f"{size:,} nodes" for size in sizes) + " | ms per node |",
        "|---|" + "---:|" * (len(sizes) + 1),
    ]
    for name in filter(rows.__contains__, FAMILIES):
        cells = rows[name]
        seconds = {n: cells[n].partition(" s,")[0] for n in sizes if " s," in cells.get(n, "")}
        per_node = ", ".join(f"{float(text) / n * 1e3:.2g}" for n, text in seconds.items())
        texts = (cells.get(size, NOT_MEASURED) for size in sizes)
        lines.append(f"| {name} | {' | '.join(texts)} | {per_node} |")
    return "\n".join(lines)


def table_rows(text: str) -> dict[str, Cells]:
    """The cells of a table as `table_text` writes it."""
    lines = [line.strip("| ").split(" | ") for line in text.strip().splitlines()]
    sizes = [int(title.split()[0].replace(",", "")) for title in lines[0][1:-1]]
    return {
        line[0]: {n: one for n, one in zip(sizes, line[1:], strict=False) if one != NOT_MEASURED}
        for line in lines[2:]
    }


def write(rows: dict[str, Cells]) -> None:
    """Put cells into the document's table, beside those that were not measured this time."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    table, _, after = rest.partition(END)
    known = table_rows(table)
    merged = {name: {**known.get(name, {}), **rows.get(name, {})} for name in {**known, **rows}}
    DOCUMENT.write_text(f"{before}{START}\n{table_text(merged)}\n{END}{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--limit", type=float, default=600, help="seconds of processor time")
    parser.add_argument("--write", action="store_true", help="update docs/reliability.md")
    parser.add_argument("--one", nargs=2, metavar=("FAMILY", "NODES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], int(options.one[1]))
        return
    sizes = [int(size) for size in options.sizes.split(",")]
    rows: dict[str, Cells] = {}
    with tempfile.TemporaryDirectory() as folder:
        machines = Path(folder) / "machines"
        measured("unused", 1, options.limit, machines)  # calibrates, which takes memory for once
        for name in options.families.split(","):
            rows[name] = measured_row(name, sizes, options.limit, machines)
            if options.write:
                write({name: rows[name]})
    print(table_text(rows))


if __name__ == "__main__":
    main()
