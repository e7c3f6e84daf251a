"""Exact placement equals brute force."""

from __future__ import annotations

import os

import pytest
from tests.byoc.brute import cheapest
from tests.byoc.problems import random_problem

from graft.byoc.choose import choose
from graft.byoc.problem import bill

COUNT = 1000 if os.environ.get("GRAFT_FULL") == "1" else 100


@pytest.mark.parametrize("chunk", range(10))
def test_equals_brute_force(chunk: int) -> None:
    for seed in range(chunk * COUNT // 10, (chunk + 1) * COUNT // 10):
        problem = random_problem(seed)
        found = choose(problem)
        assert found.seconds == pytest.approx(cheapest(problem)), seed
        assert found.proven, (seed, found)
        assert bill(problem, found.options, found.stages).total == pytest.approx(found.seconds)
