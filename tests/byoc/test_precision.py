"""The exact choice of precisions is as good as trying all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from graft.byoc.precision import (
    SharedValue,
    UnitCosts,
    choose_precisions,
    error_of,
    pareto_front,
    seconds_of,
)

Problem = tuple[list[UnitCosts], list[SharedValue], float]


def problem(seed: int) -> Problem:
    """Up to eight units, some of which share values."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 9))
    units = [
        UnitCosts(*(1e-4 * draw.random(2)), float(draw.choice([0.0, *draw.random(3)])))
        for _ in range(count)
    ]
    sizes = draw.integers(2, min(count, 3) + 1, draw.integers(0, 5)) if count > 1 else ()
    shared = [
        SharedValue(tuple(map(int, draw.choice(count, size, replace=False))), 2e-5 * draw.random())
        for size in sizes
    ]
    return units, shared, float(draw.choice([0.0, draw.random(), 3 * draw.random(), 100.0]))


def best_by_trying(units: list[UnitCosts], shared: list[SharedValue], limit: float) -> float:
    numbers = range(len(units))
    subsets = itertools.chain(
        *(itertools.combinations(numbers, size) for size in (*numbers, len(units)))
    )
    return min(
        seconds_of(units, shared, subset) for subset in subsets if error_of(units, subset) <= limit
    )


@pytest.mark.parametrize("block", range(10))
def test_equal_to_brute_force(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        units, shared, limit = problem(seed)
        found = choose_precisions(units, shared, limit)
        assert found.error <= limit * (1 + 1e-6)
        assert found.seconds == pytest.approx(best_by_trying(units, shared, limit), rel=1e-6)
        assert found.bound <= found.seconds * (1 + 1e-6)


def test_front_falls() -> None:
    units, shared, _ = problem(11)
    front = pareto_front(units, shared, [0.0, 0.1, 0.3, 1.0, 100.0])
    errors, seconds = [one.error for one in front], [one.seconds for one in front]
    assert errors == sorted(errors)
    assert seconds == sorted(seconds, reverse=True)
