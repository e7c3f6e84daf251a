#!/usr/bin/env python3
"""Times the compilation of adversarial models that grow tenfold, and measures its memory.

    python tools/compile_time.py [--sizes 100,1000,10000,100000] [--families chain,squares,...]
                                 [--limit 600] [--write]

Each model is compiled in a process of its own, by one thread, with an empty cache of kernels. The
table has seconds of processor time and the memory that came on top of the model's; `--write` puts
it into docs/reliability.md between its markers. What takes longer than the limit is not tried at
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


def measure(name: str, nodes: int) -> None:
    """Compile one model in this process, and print seconds and megabytes."""
    import graft

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


def row(name: str, sizes: list[int], limit: float, machines: Path) -> str:
    """A family's line of the table."""
    cells: list[str] = []
    per_node: list[str] = []
    for nodes in sizes:
        found = measured(name, nodes, limit, machines)
        if isinstance(found, str):
            cells += [found] + ["-"] * (len(sizes) - len(cells) - 1)
            break
        cells.append(f"{found[0]:.1f} s, {found[1]} MB")
        per_node.append(f"{found[0] / nodes * 1e3:.2f}")
    return f"| {name} | {' | '.join(cells)} | {', '.join(per_node)} |"


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
    lines = [
        "| model | " + " | ".join(f"{size:,} nodes" for size in sizes) + " | ms per node |",
        "|---|" + "---:|" * (len(sizes) + 1),
    ]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as folder:
        for name in options.families.split(","):
            lines.append(row(name, sizes, options.limit, Path(folder) / "machines"))
            print(lines[-1], flush=True)
    if options.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, _, rest = text.partition(START)
        table = "\n".join(lines)
        DOCUMENT.write_text(f"{before}{START}\n{table}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
