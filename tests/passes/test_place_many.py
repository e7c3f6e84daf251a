"""Offsets for more tensors than best fit is tried for."""

from __future__ import annotations

import random

import pytest

from graft.passes import plan_memory
from graft.passes.plan_memory import Interval, lower_bound, place


def drawn(count: int, seed: int) -> list[Interval]:
    chance = random.Random(seed)
    starts = [chance.randrange(count) for _ in range(count)]
    sizes = [64 * chance.randrange(9) for _ in range(count)]
    spans = [chance.choice((1, 2, 5, count)) for _ in range(count)]
    return [
        Interval(size, start, start + span)
        for size, start, span in zip(sizes, starts, spans, strict=True)
    ]


@pytest.mark.parametrize("limit", ["_MOST_TENSORS", "_MOST_PAIRS", ""])
@pytest.mark.parametrize("seed", range(4))
def test_tensors_alive_at_once_do_not_overlap(
    limit: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setattr(plan_memory, limit, 0)
    intervals = drawn(120, seed)
    offsets = place(intervals)
    for i, (one, start) in enumerate(zip(intervals, offsets, strict=True)):
        for other, begin in zip(intervals[:i], offsets[:i], strict=True):
            apart = start + one.size <= begin or begin + other.size <= start
            assert apart or not (one.overlaps(other) and one.size and other.size)
    arena = max(o + i.size for o, i in zip(offsets, intervals, strict=True))
    assert lower_bound(intervals) <= arena <= 1.5 * lower_bound(intervals)


def test_a_long_chain_needs_two_places() -> None:
    intervals = [Interval(64, step, step + 1) for step in range(100_000)]
    offsets = place(intervals)
    assert max(offsets) + 64 == lower_bound(intervals) == 128


def test_many_tensors_at_once_lie_side_by_side() -> None:
    intervals = [Interval(64, step, 20_000) for step in range(20_000)]
    assert sorted(place(intervals)) == [64 * number for number in range(20_000)]
