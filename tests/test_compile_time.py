"""Compile time grows with the number of nodes and with nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from benchmarks.adversarial import FAMILIES

import graft

SMALL = 48
# Four times the nodes may take so many times the processor time, of at least so many seconds: far
# more than what is linear takes on a busy machine, and far less than what is not.
MOST, LEAST = 12, 0.5


def seconds(family: str, nodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Processor time of a compilation whose kernels are not in the cache."""
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(folder / f"{family}{nodes}"))
    model = FAMILIES[family](nodes)
    start = time.process_time()
    graft.compile(model, threads=1)
    return time.process_time() - start


# What took exponential time, recursed as deep as the graph, or is quadratic most easily.
WORST = ("squares", "integers", "alternating", "nested", "transposes", "symbolic_shapes", "joined")


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in WORST else pytest.mark.full) for name in FAMILIES],
)
def test_time_grows_with_the_number_of_nodes(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds("unused", 1, tmp_path, monkeypatch)  # imports, and the machine's calibration
    short = seconds(family, SMALL, tmp_path, monkeypatch)
    long = seconds(family, 4 * SMALL, tmp_path, monkeypatch)
    assert long < MOST * max(short, LEAST)


def test_chains_are_not_as_deep_as_pythons_stack() -> None:
    graft.compile(FAMILIES["alternating"](2000), threads=1)
    graft.compile(FAMILIES["squares"](2000), threads=1)
