"""What tests of flows share: graphs compiled, run, and compared with the evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import graft.ops  # noqa: F401  (registers the operators)
from graft.backends.host.backend import HostBackend
from graft.base.dtypes import Array
from graft.byoc.executable import Settings
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph


def check_flow(graph: Graph, *runs: Sequence[Array], tolerance: float = 0) -> list[str]:
    """The results are the evaluator's, with one thread and two; the kinds of steps in order."""
    kinds: list[str] = []
    for threads in (1, 2):
        built = HostBackend(Settings(threads=threads)).build(graph)
        kinds = [type(step).__name__ for step in built.program.body.instructions]
        for arrays in runs:
            wanted = evaluate(graph, list(arrays))
            for mine, right in zip(built(list(arrays)), wanted, strict=True):
                assert mine.dtype == right.dtype
                assert mine.shape == right.shape
                np.testing.assert_allclose(
                    mine.astype(np.float64), right.astype(np.float64), tolerance, tolerance
                )
    return kinds
