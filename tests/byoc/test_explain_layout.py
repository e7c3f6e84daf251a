from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from graft.byoc.explain_layout import NODE_HEIGHT, NODE_WIDTH, Edge, layers, layout, rising


def test_nothing_takes_no_room() -> None:
    assert layout(0, []).nodes == ()
    assert layout(0, []).width == 0


def test_one_node() -> None:
    drawn = layout(1, [])
    assert len(drawn.nodes) == 1
    assert drawn.width >= NODE_WIDTH
    assert drawn.height >= NODE_HEIGHT


def test_layers_follow_the_longest_path() -> None:
    # 0 -> 1 -> 2, 0 -> 2, and 3, which reads nothing, is wanted by 2 only
    assert layers(5, [(0, 1), (1, 4), (0, 4), (3, 4), (1, 2)]) == [0, 1, 2, 1, 2]
    assert layers(3, []) == [0, 0, 0]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [([], []), ([3.0], [3.0]), ([1.0, 2.0], [1.0, 2.0]), ([4.0, 0.0, 2.0], [2.0, 2.0, 2.0])],
)
def test_rising(wanted: list[float], expected: list[float]) -> None:
    assert rising(wanted) == expected


def random_edges(count: int, seed: int) -> list[Edge]:
    draw = random.Random(seed)
    edges = {(max(0, n - draw.choice([1, 1, 1, 2, 5])), n) for n in range(1, count)}
    edges |= {(draw.randrange(n), n) for n in range(1, count, 7)}
    return sorted(edges)


@pytest.mark.parametrize("seed", range(5))
def test_nodes_never_overlap(seed: int) -> None:
    count = 150
    edges = random_edges(count, seed)
    drawn = layout(count, edges)
    assert len(drawn.bends) == len(edges)
    rows: dict[float, list[float]] = {}
    for x, y in drawn.nodes:
        assert 0 <= x - NODE_WIDTH / 2 <= drawn.width - NODE_WIDTH
        assert 0 <= y - NODE_HEIGHT / 2 <= drawn.height - NODE_HEIGHT
        rows.setdefault(y, []).append(x)
    for row in rows.values():
        assert all(right - left >= NODE_WIDTH for left, right in pairwise(sorted(row)))


def test_a_deep_network_is_folded_to_a_screen() -> None:
    drawn = layout(300, [(n, n + 1) for n in range(299)])
    assert 0.8 < drawn.width / drawn.height < 3
    assert drawn.gutters
    assert all(abs(gutter - x) > NODE_WIDTH / 2 for gutter in drawn.gutters for x, _ in drawn.nodes)


def test_two_thousand_nodes_take_seconds_at_most() -> None:
    edges = random_edges(2_000, 0)
    start = time.process_time()
    drawn = layout(2_000, edges)
    assert time.process_time() - start < 20
    assert len(set(drawn.nodes)) == 2_000
