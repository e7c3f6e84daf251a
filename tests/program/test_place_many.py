"""Offsets for more tensors than best fit is tried for."""

from __future__ import annotations

import random

import pytest

from graft.program import plan_memory
from graft.program.plan_memory import Lifetime, assign_offsets, fullest


def drawn(count: int, seed: int) -> list[Lifetime[int]]:
    chance = random.Random(seed)
    starts = [chance.randrange(count) for _ in range(count)]
    sizes = [64 * chance.randrange(9) for _ in range(count)]
    spans = [chance.choice((1, 2, 5, count)) for _ in range(count)]
    return [
        Lifetime(size, start, start + span)
        for size, start, span in zip(sizes, starts, spans, strict=True)
    ]


def overlap(one: Lifetime[int], other: Lifetime[int]) -> bool:
    return one.first <= other.last and other.first <= one.last


@pytest.mark.parametrize("limit", ["_MOST_TENSORS", "_MOST_PAIRS", ""])
@pytest.mark.parametrize("seed", range(4))
def test_tensors_alive_at_once_do_not_overlap(
    limit: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setattr(plan_memory, limit, 0)
    intervals = drawn(120, seed)
    offsets = assign_offsets(intervals)
    for i, (one, start) in enumerate(zip(intervals, offsets, strict=True)):
        for other, begin in zip(intervals[:i], offsets[:i], strict=True):
            apart = start + one.size <= begin or begin + other.size <= start
            assert apart or not (overlap(one, other) and one.size and other.size)
    arena = max(o + i.size for o, i in zip(offsets, intervals, strict=True))
    assert fullest(intervals)[0] <= arena <= 1.5 * fullest(intervals)[0]


def test_a_long_chain_needs_two_places() -> None:
    intervals = [Lifetime(64, step, step + 1) for step in range(100_000)]
    offsets = assign_offsets(intervals)
    assert max(offsets) + 64 == fullest(intervals)[0] == 128


def test_many_tensors_at_once_lie_side_by_side() -> None:
    intervals = [Lifetime(64, step, 20_000) for step in range(20_000)]
    assert sorted(assign_offsets(intervals)) == [64 * number for number in range(20_000)]
