"""Orders of regions: valid always, and with as few launches as there can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.byoc.brute import covers, fewest_launches
from tests.byoc.problems import random_problem

from graft.byoc.problem import Flow, Option, Problem, Site, bill, cycle_among
from graft.byoc.schedule import schedule


def two_lines(capacity: int | None = None) -> Problem:
    """Host 0 -> accelerator 1 and host 2 -> accelerator 3, side by side."""
    sites = Site("host"), Site("acc", 1.0, 0, capacity)
    options = Option(0, (0,), 1.0), Option(1, (1,), 1.0), Option(0, (2,), 1.0), Option(1, (3,), 1.0)
    flows = (
        Flow(0, (1,), (0.0,), (0.0,)),
        Flow(2, (3,), (0.0,), (0.0,)),
        Flow(1, (), (0.0,), (0.0,), leaves=True, sizes=(1,)),
        Flow(3, (), (0.0,), (0.0,), leaves=True, sizes=(1,)),
    )
    return Problem(sites, 4, options, flows)


def test_what_can_run_in_one_go_does() -> None:
    problem = two_lines()
    stages = schedule(problem, range(4))
    assert stages is not None
    assert stages[1] == stages[3]
    assert bill(problem, range(4), stages).launches == 1.0


def test_memory_asks_for_two() -> None:
    problem = two_lines(capacity=1)
    stages = schedule(problem, range(4))
    assert stages is not None
    assert bill(problem, range(4), stages).launches == 2.0


def test_constants_of_all_regions_stay() -> None:
    """Each region alone would fit; both of their constants and the results of one have to."""
    problem = replace(two_lines(capacity=3), held=(0, 1, 0, 1))
    stages = schedule(problem, range(4))
    assert stages is not None
    assert bill(problem, range(4), stages).launches == 2.0
    assert schedule(replace(problem, held=(0, 2, 0, 1)), range(4)) is None


def test_what_does_not_fit_has_no_order() -> None:
    assert schedule(two_lines(capacity=0), range(4)) is None


def test_stages_tell_the_site() -> None:
    problem = two_lines()
    stages = schedule(problem, range(4))
    assert stages is not None
    for number, option in enumerate(problem.options):
        assert stages[option.nodes[0]] % 2 == option.site, number


def test_options_that_wait_for_each_other() -> None:
    sites = Site("host"), Site("acc", 1.0)
    options = Option(1, (0, 3), 1.0), Option(1, (1, 2), 1.0)
    flows = Flow(0, (1,), (0.0,), (0.0,)), Flow(2, (3,), (0.0,), (0.0,))
    problem = Problem(sites, 4, options, flows)
    assert schedule(problem, (0, 1)) is None
    assert set(cycle_among(problem, (0, 1))) == {0, 1}


@pytest.mark.parametrize("seed", range(40))
def test_launches_equal_brute_force_with_one_accelerator_and_enough_memory(seed: int) -> None:
    problem = random_problem(seed, most_nodes=7)
    roomy = all(site.capacity is None for site in problem.sites)
    for number, cover in enumerate(covers(problem)):
        if number == 20:
            break
        stages = schedule(problem, cover)
        if cycle_among(problem, cover):
            assert stages is None
        elif roomy:
            assert stages is not None
            found = bill(problem, cover, stages).launches
            fewest = fewest_launches(problem, cover)
            if len(problem.sites) == 2:
                assert found == pytest.approx(fewest), (seed, cover)
            else:
                assert found >= fewest - 1e-9
