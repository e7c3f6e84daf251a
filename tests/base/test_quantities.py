"""Counts, durations and sizes as text."""

from __future__ import annotations

import pytest

from graft.base.quantities import counted, size_text, time_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (100_667, "101 kB"),
        (999_999, "1 MB"),
        (46_796_448, "46.8 MB"),
        (10**18, "1 EB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (1e-15, "0 µs"),
        (2.74e-8, "0.0274 µs"),
        (0.00012, "120 µs"),
        (0.0009996, "1 ms"),
        (0.4341, "434 ms"),
        (0.9999, "1 s"),
        (66.6, "66.6 s"),
        (1234.0, "1234 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_counts() -> None:
    texts = [counted(1, "node"), counted(2000, "node"), counted(0, "pass", "passes")]
    assert texts == ["1 node", "2,000 nodes", "0 passes"]
