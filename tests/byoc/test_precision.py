"""The exact choice of precisions is as good as trying all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.byoc.brute import cheapest
from tests.byoc.problems import random_problem

from graft.byoc.precision import (
    FLOAT,
    PlacedUnits,
    SharedValue,
    UnitCosts,
    UnitOption,
    choose_precisions,
    error_of,
    pareto_front,
    seconds_of,
    uniform,
)
from graft.byoc.problem import Flow, Option, Problem, Site

NAMES = (FLOAT, "bf16", "int8")


def problem(seed: int) -> tuple[list[UnitCosts], list[SharedValue], float]:
    """Up to six units in up to three precisions, some of which share values."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 7))
    units: list[UnitCosts] = []
    for _ in range(count):
        errors = (0.0, *draw.random(2))
        names = NAMES[: draw.integers(1, 4)]
        units.append(
            {n: UnitOption(1e-4 * draw.random(), e) for n, e in zip(names, errors, strict=False)}
        )
    sizes = draw.integers(2, min(count, 3) + 1, draw.integers(0, 5)) if count > 1 else ()
    shared = [
        SharedValue(tuple(map(int, draw.choice(count, size, replace=False))), 2e-5 * draw.random())
        for size in sizes
    ]
    return units, shared, float(draw.choice([0.0, draw.random(), 3 * draw.random(), 100.0]))


def best_by_trying(units: list[UnitCosts], shared: list[SharedValue], limit: float) -> float:
    every = itertools.product(*units)
    return min(seconds_of(units, shared, one) for one in every if error_of(units, one) <= limit)


@pytest.mark.parametrize("block", range(10))
def test_equal_to_brute_force(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        units, shared, limit = problem(seed)
        found = choose_precisions(units, shared, limit)
        assert found.error <= limit * (1 + 1e-6)
        assert found.seconds == pytest.approx(best_by_trying(units, shared, limit), rel=1e-6)
        assert found.bound <= found.seconds * (1 + 1e-6)


def test_one_precision_for_all_that_have_it() -> None:
    units = [{FLOAT: UnitOption(2.0), "int8": UnitOption(1.0, 0.5)}, {FLOAT: UnitOption(1.0)}]
    found = uniform(units, [SharedValue((0, 1), 0.25)], "int8")
    assert found.precisions == ("int8", FLOAT)
    assert (found.seconds, found.error, found.changed) == (2.25, 0.5, {0})


@pytest.mark.parametrize("block", range(10))
def test_placed_units_equal_brute_force(block: int) -> None:
    """Units of a graph that accelerators run, too: a backend and a precision each."""
    for seed in range(10 * block, 10 * block + 10):
        plain, draw = random_problem(seed, most_nodes=6), np.random.default_rng(seed)
        chosen = [node for node in range(plain.nodes) if draw.random() < 0.6]
        units = [
            {
                FLOAT: UnitOption(0.0),
                "int8": UnitOption(float(draw.integers(1, 9)) / 4, draw.random()),
                "bf16": UnitOption(float(draw.integers(1, 9)) / 2, draw.random() / 4),
            }
            for _ in chosen
        ]
        placed = PlacedUnits(plain, tuple((node,) for node in chosen), rate=8.0)
        limit = float(draw.choice([0.0, draw.random(), 2 * draw.random(), 100.0]))
        found = placed.choose(units, limit)
        assert found.seconds == pytest.approx(cheapest(placed.problem(units, limit))), seed
        assert found.error <= limit * (1 + 1e-6)


def test_units_that_accelerators_run_faster_stay_with_them() -> None:
    sites = Site("host"), Site("npu", launch=0.1, form=1)
    options = [Option(0, (0,), 4.0), Option(0, (1,), 4.0), Option(1, (1,), 0.5)]
    flow = Flow(0, (1,), (0.0, 0.1), (0.0, 0.1))
    plain = Problem(sites, 2, tuple(options), (flow,))
    unit = {FLOAT: UnitOption(4.0), "int8": UnitOption(1.0, 0.01)}
    placed = PlacedUnits(plain, ((0,), (1,)), rate=1e9)
    assert placed.choose([unit, unit], 0.1).precisions == ("int8", FLOAT)
    assert placed.choose([unit, unit], 0.001).precisions == (FLOAT, FLOAT)


def test_front_falls() -> None:
    units, shared, _ = problem(11)
    limits = [0.0, 0.1, 0.3, 1.0, 100.0]
    front = pareto_front(lambda limit: choose_precisions(units, shared, limit), limits)
    errors, seconds = [one.error for one in front], [one.seconds for one in front]
    assert errors == sorted(errors)
    assert seconds == sorted(seconds, reverse=True)
