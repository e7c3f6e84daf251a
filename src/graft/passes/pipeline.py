"""The frontend optimisations in order: Graph in, better Graph out, nothing else changed.

Reads top to bottom. Each pass is logged by name when it changes something, and verified after.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from graft.ir.graph import Graph
from graft.ir.verify import verify
from graft.passes.crop_kernels import crop_kernels
from graft.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.passes.eliminate_noops import eliminate_noops
from graft.passes.eliminate_zero_size import eliminate_zero_size
from graft.passes.encode_strings import encode_strings
from graft.passes.fold_affine import fold_affine
from graft.passes.fold_constants import fold_constants
from graft.passes.hoist_slices import hoist_slices
from graft.passes.index_slices import index_slices
from graft.passes.inline_branches import inline_branches
from graft.passes.recognize import recognize
from graft.passes.select_branches import select_branches
from graft.passes.settle_ranks import settle_ranks
from graft.passes.simplify_algebra import simplify_algebra
from graft.passes.simplify_movement import simplify_movement
from graft.passes.sink_transposes import sink_transposes
from graft.passes.stack_appended import stack_appended

logger = logging.getLogger(__name__)

Pass = Callable[[Graph], Graph]

CLEAN: tuple[Pass, ...] = (
    eliminate_dead_code,
    fold_constants,
    inline_branches,
    eliminate_zero_size,
    eliminate_noops,
    simplify_algebra,
    simplify_movement,
    eliminate_common_subexpressions,
    eliminate_dead_code,
)
PASSES: tuple[Pass, ...] = (
    *CLEAN,
    select_branches,
    stack_appended,
    settle_ranks,
    index_slices,
    encode_strings,
    fold_affine,
    crop_kernels,
    sink_transposes,
    recognize,
    hoist_slices,
    *CLEAN,
)


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    changed: bool


def optimize(graph: Graph, report: Callable[[PassReport, Graph], None] | None = None) -> Graph:
    """Run all frontend passes; `report` is called for each."""
    return run_passes(graph, PASSES, report)


def run_passes(
    graph: Graph,
    passes: Iterable[Pass],
    report: Callable[[PassReport, Graph], None] | None = None,
    around: frozenset[str] = frozenset(),
) -> Graph:
    """Run passes in order, verifying what each of them gives.

    Of a graph that is a part of another, `around` are the symbols that only that one binds."""
    for transform in passes:
        start = time.perf_counter()
        result = transform(graph)
        seconds = time.perf_counter() - start
        changed = result is not graph
        name = getattr(transform, "__name__", str(transform))
        if changed:
            logger.info("%s: %d -> %d nodes", name, len(graph.nodes), len(result.nodes))
            verify(result, around)
        if report is not None:
            entry = PassReport(name, seconds, len(graph.nodes), len(result.nodes), changed)
            report(entry, result)
        graph = result
    return graph
