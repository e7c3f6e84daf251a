"""What passes between two cores: the probes run, and none of them waits without end."""

from __future__ import annotations

import os
import threading

import pytest

from graft.base.cores import core_processors
from graft.target.machine import MACHINES
from graft.target.probe_threads import ThreadProbes, _Pair


def two_processors() -> list[int]:
    """Where there is one core, both threads take turns on it: slow, but it works."""
    processors = core_processors()
    return processors if len(processors) > 1 else processors * 2


def test_probes_run_between_cores_of_this_machine() -> None:
    allowed, threads = os.sched_getaffinity(0), threading.active_count()
    processors = core_processors()
    if len(processors) < 2:
        pytest.skip("there is one core")
    probes = ThreadProbes(processors, ())
    assert 0 < probes.meeting() < 1
    assert 0 < probes.calling() < 1
    assert probes.crossing(1 << 16) > 1e6
    assert os.sched_getaffinity(0) == allowed
    assert threading.active_count() == threads


def test_a_core_that_does_not_answer_is_an_error() -> None:
    processors = two_processors()
    probes = ThreadProbes(processors, ())
    pair = _Pair(probes._entries, *processors[:2])
    with pytest.raises(RuntimeError, match="does not answer"):
        pair.timed("send", 0, 0, 1)


@pytest.mark.parametrize(("count", "partners"), [(2, [1]), (3, [2, 1]), (8, [7, 4, 1]), (64, 3)])
def test_near_and_far_cores_are_measured(count: int, partners: list[int] | int) -> None:
    pairs = ThreadProbes(range(count), ())._pairs
    assert {first for first, _ in pairs} == {0}
    others = [other for _, other in pairs]
    assert (others if isinstance(partners, list) else len(others)) == partners


def test_the_table_keeps_to_an_order() -> None:
    """Threads meet sooner than they wake, and lines of another core come no faster than those of
    the last cache."""
    for machine in MACHINES.values():
        assert 1e-8 < machine.meeting_seconds < machine.calling_seconds < 1e-3
        assert 0.5 < machine.crossing_bytes_per_cycle < machine.caches[-1].bytes_per_cycle
