"""How many threads pay: affinity, siblings and the quotas of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graft.base import cores
from graft.base.cores import available_cores, available_processors


class Machine:
    """A system of files that says what the tests want."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.own = root / "own_groups"
        monkeypatch.setattr(cores, "_SYSTEM", root)
        monkeypatch.setattr(cores, "_OWN_GROUPS", self.own)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_here_it_is_some_of_the_processors() -> None:
    assert 1 <= available_cores() <= available_processors() <= len(os.sched_getaffinity(0))


def test_without_control_groups_affinity_counts(machine: Machine) -> None:
    assert not machine.own.exists()
    assert available_cores() == available_processors() == 8


def test_siblings_are_one_core_but_two_processors(machine: Machine) -> None:
    for processor in range(8):
        siblings = f"{processor // 2 * 2}-{processor // 2 * 2 + 1}\n"
        folder = f"devices/system/cpu/cpu{processor}/topology"
        machine.write(f"{folder}/thread_siblings_list", siblings)
    assert (available_cores(), available_processors()) == (4, 8)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("200000 100000", 2),
        ("250000 100000", 2),  # with half a processor more, some runs would be stopped midway
        ("150000 100000", 1),
        ("50000 100000", 1),  # never none
        ("1600000 100000", 8),  # more than there are
        ("max 100000", 8),
        ("nonsense", 8),
    ],
)
def test_quota_of_version_2(machine: Machine, limit: str, expected: int) -> None:
    machine.own.write_text("0::/\n", encoding="ascii")
    machine.write("fs/cgroup/cpu.max", limit)
    assert available_cores() == available_processors() == expected


def test_the_tightest_of_nested_groups_counts(machine: Machine) -> None:
    machine.own.write_text("0::/a/b/c\n", encoding="ascii")
    machine.write("fs/cgroup/a/b/c/cpu.max", "max 100000")
    machine.write("fs/cgroup/a/b/cpu.max", "300000 100000")
    machine.write("fs/cgroup/a/cpu.max", "500000 100000")
    machine.write("cpu.max", "100000 100000")  # not a control group
    assert available_cores() == 3


@pytest.mark.parametrize(("quota", "expected"), [("300000", 3), ("-1", 8)])
def test_quota_of_version_1(machine: Machine, quota: str, expected: int) -> None:
    """The path is one that the container does not see: what it sees is its own group."""
    lines = "5:memory:/docker/f00\n4:cpu,cpuacct:/docker/f00\n3:cpuset:/\n"
    machine.own.write_text(lines, encoding="ascii")
    machine.write("fs/cgroup/cpu/cpu.cfs_quota_us", quota)
    machine.write("fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert available_cores() == expected
