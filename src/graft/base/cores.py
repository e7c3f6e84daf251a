"""How many threads pay: what the system lets this process have in, numbers of processors out.

A process may have fewer processors than the machine: affinity ties it to some of them, and a
control group, by which containers are limited, grants it so much time of all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_SYSTEM = Path("/sys")
_OWN_GROUPS = Path("/proc/self/cgroup")
# Where the controller of processor time is mounted: of version 2, and of version 1.
_UNIFIED, _SPLIT = "fs/cgroup", "fs/cgroup/cpu"

_Reader = Callable[[Path], tuple[int, int]]


def available_cores() -> int:
    """The physical cores that this process may keep busy; at least one."""
    return _within_quota(len(core_processors()))


def core_processors() -> list[int]:
    """One processor of each physical core that this process may run on, in order."""
    processors = sorted(os.sched_getaffinity(0), reverse=True)
    return sorted({_siblings(processor): processor for processor in processors}.values())


def available_processors() -> int:
    """The processors that it may keep busy, siblings on one core counted apart."""
    return _within_quota(len(os.sched_getaffinity(0)))


def _within_quota(count: int) -> int:
    """Whole processors only. A thread for a part of one makes most runs faster and some very slow:
    once the quota is used up, all threads stop until the period ends (docs/runtime.md has numbers).
    """
    return max(1, min([count, *(int(share) for share in _quotas())]))


def _siblings(processor: int) -> str:
    """Which processors share a core with this one; none where Linux does not say."""
    path = _SYSTEM / f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(processor)


def _quotas() -> Iterator[float]:
    """The limits of this process's control groups, in processors. Groups are nested, and the limit
    of an outer one holds for the inner ones."""
    with suppress(OSError):
        for line in _OWN_GROUPS.read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield from _limits(_SYSTEM / _UNIFIED, group, _of_version_2)
            elif "cpu" in controllers.split(","):
                yield from _limits(_SYSTEM / _SPLIT, group, _of_version_1)


def _limits(mount: Path, group: str, read: _Reader) -> Iterator[float]:
    """Those of a group and of all groups around it, as far as they are seen from here."""
    folder = mount / group.lstrip("/")
    for one in (folder, *folder.parents):
        if one.is_relative_to(mount):
            # Without a limit there is no file, or one that says so.
            with suppress(OSError, ValueError):
                quota, period = read(one)
                if quota > 0 and period > 0:
                    yield quota / period


def _of_version_2(folder: Path) -> tuple[int, int]:
    quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    return int(quota), int(period)


def _of_version_1(folder: Path) -> tuple[int, int]:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    quota, period = ((folder / name).read_text(encoding="ascii") for name in names)
    return int(quota), int(period)
