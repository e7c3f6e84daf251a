"""What steps take, by the values that they make: of one program, and of a flow of several."""

from __future__ import annotations

import numpy as np

import graft.ops  # noqa: F401  (registers the operators)
from graft.backends.host.backend import HostBackend
from graft.backends.host.executable import by_value
from graft.byoc.contract import Source
from graft.byoc.executable import Settings
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor


def test_copies_count_for_the_step_after_them() -> None:
    assert by_value([("a", 1.0), ("", 2.0), ("b", 4.0), ("", 8.0)]) == {"a": 1.0, "b": 6.0}


def found(graph: Graph, *shape: int) -> dict[str, float]:
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    costs = HostBackend(Settings(threads=2)).time_groups(graph, [data])
    assert {cost.source for cost in costs.values()} == {Source.MEASURED}
    return {name: cost.seconds for name, cost in costs.items()}


def test_steps_of_a_program() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 64, 64))
    y = build("nn.softmax", x)
    times = found(build.build(build("nn.softmax", y, axis=0)), 64, 64)
    assert len(times) == 2
    assert min(times.values()) > 0


def test_steps_of_a_flow() -> None:
    """What comes before a size is known, and what is of that size."""
    build = Builder()
    x = build.input("x", tensor("float32", 300, 7))
    y = build("nn.softmax", x)
    kept = build("nonzero", build("greater", y, build.constant(np.float32(0.1))))
    z = build("exp", build("cast", kept, dtype="float32"))
    graph = build.build(y, z)
    times = found(graph, 300, 7)
    assert times[y.name] > 0
    assert times[z.name] > 0
