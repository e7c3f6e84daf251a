"""Greedy, pruned, host-only: what others do, on problems where it can be foretold."""

from __future__ import annotations

import pytest
from tests.byoc.problems import random_problem

from graft.byoc.greedy import greedy, host_only, pruned
from graft.byoc.problem import Flow, Option, Problem, Site, bill, site_of

FREE = (0.0, 0.0)


def line(
    *options: Option, nodes: int = 3, capacity: int | None = None, launch: float = 1.0
) -> Problem:
    """Nodes in a row, each on the host for 10, and options of one accelerator."""
    host = [Option(0, (node,), 10.0) for node in range(nodes)]
    flows = [
        Flow(n, (n + 1,) if n + 1 < nodes else (), FREE, FREE, n + 1 == nodes, (1, 1))
        for n in range(nodes)
    ]
    sites = Site("host"), Site("acc", launch, 1, capacity)
    return Problem(sites, nodes, (*host, *options), tuple(flows))


def chosen(problem: Problem, options: tuple[int, ...]) -> list[int]:
    return site_of(problem, options)


def test_host_only() -> None:
    problem = line(Option(1, (0, 1, 2), 0.1))
    found = host_only(problem)
    assert found is not None
    assert (found.seconds, found.method, set(found.stages)) == (30.0, "host-only", {0})


def test_where_the_host_cannot() -> None:
    sites = Site("host"), Site("acc")
    assert host_only(Problem(sites, 1, (Option(1, (0,), 1.0),), ())) is None


def test_greedy_takes_what_it_can_however_dear() -> None:
    problem = line(Option(1, (1,), 500.0))
    found = greedy(problem)
    assert found is not None
    assert chosen(problem, found.options) == [0, 1, 0]
    assert found.seconds == 10 + 500 + 1 + 10


def test_larger_pieces_first_and_neighbours_merge() -> None:
    problem = line(Option(1, (0,), 1.0), Option(1, (0, 1), 1.0), Option(1, (2,), 1.0))
    found = greedy(problem)
    assert found is not None
    assert [problem.options[o].nodes for o in found.options] == [(0, 1), (2,)]
    assert len(set(found.stages)) == 1  # one region, one launch
    assert found.seconds == 1 + 1 + 1


def test_the_first_accelerator_has_priority() -> None:
    sites = Site("host"), Site("one", form=1), Site("two", form=2)
    options = Option(0, (0,), 9.0), Option(2, (0,), 1.0), Option(1, (0,), 5.0)
    found = greedy(Problem(sites, 1, options, ()))
    assert found is not None
    assert found.options == (2,)


def test_pieces_too_large_for_the_memory_are_not_taken() -> None:
    problem = line(Option(1, (0, 1), 1.0, workspace=1), Option(1, (2,), 1.0), capacity=2)
    found = greedy(problem)
    assert found is not None
    assert chosen(problem, found.options) == [0, 0, 1]


def test_memory_splits_regions() -> None:
    problem = line(*(Option(1, (node,), 1.0) for node in range(3)), capacity=2)
    found = greedy(problem)
    assert found is not None
    assert len(set(found.stages)) == 2
    assert found.seconds == 3 + 2 * 1.0


def test_pieces_that_would_wait_for_each_other_are_not_both_taken() -> None:
    """0 -> 1 and 2 -> 3; the pieces {0, 3} and {1, 2} each need the other's result."""
    sites = Site("host"), Site("acc")
    options = [Option(0, (node,), 1.0) for node in range(4)]
    options += [Option(1, (0, 3), 0.1), Option(1, (1, 2), 0.1)]
    flows = Flow(0, (1,), (0.0,), (0.0,)), Flow(2, (3,), (0.0,), (0.0,))
    problem = Problem(sites, 4, tuple(options), flows)
    found = greedy(problem)
    assert found is not None
    assert bill(problem, found.options, found.stages).total == found.seconds


def test_pruning() -> None:
    """Regions {0} and {2} with the host between; only those that hold node 2 are kept."""
    problem = line(Option(1, (0,), 1.0), Option(1, (2,), 1.0))
    start = greedy(problem)
    assert start is not None
    found = pruned(problem, start, lambda region: 2 in region)
    assert chosen(problem, found.options) == [0, 0, 1]
    assert found.method == "greedy+prune"
    assert found.seconds == 10 + 10 + 1 + 1


def test_what_the_host_cannot_run_is_not_pruned() -> None:
    sites = Site("host"), Site("acc")
    problem = Problem(sites, 1, (Option(1, (0,), 3.0),), ())
    start = greedy(problem)
    assert start is not None
    found = pruned(problem, start, lambda region: False)
    assert (found.options, found.seconds, found.method) == ((0,), 3.0, "greedy+prune")


@pytest.mark.parametrize("seed", range(60))
def test_what_is_found_can_be_billed(seed: int) -> None:
    problem = random_problem(seed)
    for found in (host_only(problem), greedy(problem)):
        assert found is not None
        assert bill(problem, found.options, found.stages).total == pytest.approx(found.seconds)
        less = pruned(problem, found, lambda region: len(region) > 1)
        assert bill(problem, less.options, less.stages).total == pytest.approx(less.seconds)
