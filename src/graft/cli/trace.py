"""A run as trace events, which Perfetto and Chrome's about:tracing show: slices in, a file out.

Slices of a track nest or are disjoint, or viewers draw them wrongly. So they are cut to whole
nanoseconds, the unit that stamps are taken in, before they become the format's microseconds: two
numbers that were equal stay equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM, DEVICES = 1, 2  # the processes of a trace: what runs, and what simulated devices would do


@dataclass(frozen=True, slots=True)
class Slice:
    """What a thread did from when until when, in nanoseconds."""

    name: str
    category: str
    begin: int
    end: int
    thread: int = 0
    process: int = PROGRAM
    args: Mapping[str, Any] = field(default_factory=dict)


def write_events(path: Path, slices: Iterable[Slice], threads: int) -> None:
    """Write the slices of a program of so many threads; time begins with the first."""
    ordered = sorted(slices, key=lambda one: (one.begin, -one.end))
    origin = ordered[0].begin if ordered else 0
    names = _names(threads, any(one.process == DEVICES for one in ordered))
    events = [*names, *(_event(one, origin) for one in ordered)]
    trace = {"traceEvents": events, "displayTimeUnit": "ns"}
    path.write_text(json.dumps(trace), encoding="utf-8")


def _names(threads: int, with_devices: bool) -> Iterator[dict[str, Any]]:
    """What processes and threads are called."""
    yield _name("process_name", PROGRAM, 0, "graft")
    for thread in range(threads):
        # The first thread is the caller's: it also does what Python does between kernels.
        note = " (calls the others)" if thread == 0 and threads > 1 else ""
        yield _name("thread_name", PROGRAM, thread, f"thread {thread}{note}")
    if with_devices:
        yield _name("process_name", DEVICES, 0, "devices (simulated)")
        yield _name("thread_name", DEVICES, 0, "all devices")


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _event(one: Slice, origin: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": one.name,
        "cat": one.category,
        "pid": one.process,
        "tid": one.thread,
        "ts": (one.begin - origin) / 1000,
        "dur": (one.end - one.begin) / 1000,
        "args": dict(one.args),
    }
