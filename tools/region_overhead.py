"""What calling a region costs: nothing in; microseconds per call, by number of threads, out.

Programs of small kernels with regions between them that do next to nothing. The slope over the
number of regions is what one call costs: leaving native code, finding the operands, the guard that
falls back on the host, the runner, and going back into native code for one kernel of a few
elements. Run it as `python tools/region_overhead.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from graft.backends.host.backend import HostBackend
from graft.backends.host.options import HostOptions
from graft.base.dtypes import Array
from graft.byoc.outline import outline
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.runtime.cores import available_cores
from graft.runtime.regions import Region
from graft.runtime.session import Session

FEW, MANY = 4, 20
ROUNDS, CALLS = 30, 100
ELEMENTS = 8


def main() -> int:
    for threads in sorted({1, available_cores()}):
        who = "1 thread" if threads == 1 else f"{threads} threads"
        print(f"{per_call(threads) * 1e6:5.1f} µs per region call, {who}")
    return 0


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
    built = HostBackend(HostOptions(threads)).build(outlined, runners)
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


if __name__ == "__main__":
    raise SystemExit(main())
