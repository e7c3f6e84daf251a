"""Traces of real runs: what viewers expect of them."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny import saved

from graft.byoc.formats.c_source import compiler
from graft.cli.main import main
from graft.cli.profile_regions import Slice, write_events

Event = dict[str, Any]

MANY_KERNELS = """
    net (float[64, 96] x) => (float[64, 8] y) {
        [wave] a = Sin (x)
        [soft] b = Softmax <axis = -1> (a)
        [turned] c = Transpose (b)
        [sum] d = ReduceSum <keepdims = 1> (c)
        [more] e = Add (c, d)
        [halved] f = Softmax <axis = 0> (e)
        indices = Constant <value = int64[8] {0, 3, 5, 7, 9, 11, 2, 1}> ()
        [some] g = Gather (f, indices)
        [back] y = Transpose (g)
    }
"""

# A region before a loop.
LOOP_AND_REGION = """
    net (int64 turns, float[3, 8] x) => (float[3, 8] y) {
        always = Constant <value = bool {1}> ()
        [before] r = Relu (x)
        [again] y = Loop (turns, always, r) <
            body = one (int64 i, bool c, float[3, 8] v) => (bool same, float[3, 8] w) {
                same = Identity (c)
                [wave] s = Sin (v)
                [root] w = Softmax <axis = -1> (s)
            }
        >
    }
"""


def check_nesting(events: list[Event]) -> None:
    """Slices of a track nest or are disjoint, and every track has a name."""
    tracks: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin, length = event["ts"] * 1000, event["dur"] * 1000
            assert begin == pytest.approx(round(begin), abs=1e-3)  # whole nanoseconds
            track = tracks[event["pid"], event["tid"]]
            track.append((round(begin), round(begin) + round(length)))
    for slices in tracks.values():
        open_until: list[int] = []
        for begin, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            assert 0 <= begin <= end
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    named = {name: set() for name in ("process_name", "thread_name")}
    for event in events:
        if event["ph"] == "M":
            named[event["name"]].add((event["pid"], event["tid"]))
    assert tracks.keys() <= named["thread_name"]
    assert {process for process, _ in tracks} == {process for process, _ in named["process_name"]}


def trace_of(tmp_path: Path, model: str, *options: str) -> list[Event]:
    trace = tmp_path / "trace.json"
    arguments = ["run", model, "--profile", "--trace", str(trace), "--json", *options]
    assert main(arguments) == 0
    events: list[Event] = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    check_nesting(events)
    return [event for event in events if event["ph"] == "X"]


def test_threads_by_their_own_clocks(tmp_path: Path) -> None:
    slices = trace_of(tmp_path, saved(tmp_path, MANY_KERNELS), "--threads", "3")
    kernels = [event for event in slices if event["cat"] == "native"]
    threads = {event["tid"] for event in kernels}
    assert threads == {0, 1, 2}
    begins = {thread: [e["ts"] for e in kernels if e["tid"] == thread] for thread in threads}
    assert begins[0] != begins[1]  # no two threads begin a kernel in the very same nanosecond


@pytest.mark.parametrize("backend", ["csource", "simnpu"])
def test_regions_and_loops(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if backend == "csource" and compiler() is None:
        pytest.skip("there is no C compiler here")
    turns = tmp_path / "turns.npy"
    np.save(turns, np.array(4))
    model = saved(tmp_path, LOOP_AND_REGION)
    pins = (f"before={backend}", "again/body/*=host")
    placed = ("--target", f"{backend},host", *(word for pin in pins for word in ("--pin", pin)))
    slices = trace_of(tmp_path, model, "--input", f"turns={turns}", *placed, "--threads", "2")
    native = [event for event in slices if event["cat"] == "native" and event["tid"] == 0]
    assert len(native) >= 4
    around = [event for event in slices if event["name"].startswith("around ")]
    assert len(around) >= 4
    parts = [event for event in slices if event["args"].get("region")]
    assert {event["args"]["simulated"] for event in parts} == {backend == "simnpu"}
    capsys.readouterr()


def test_nothing_to_trace(tmp_path: Path) -> None:
    write_events(tmp_path / "trace.json", [], 1)
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    assert [event["args"]["name"] for event in events] == ["graft", "thread 0"]


def test_time_begins_with_the_first_slice(tmp_path: Path) -> None:
    clock = 10**18 + 1  # after decades, what floats cannot tell from the next nanosecond
    slices = [Slice("b", "native", clock + 5, clock + 7), Slice("a", "native", clock, clock + 5)]
    write_events(tmp_path / "trace.json", slices, 1)
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    shown = [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert shown == [("a", 0, 0.005), ("b", 0.005, 0.002)]
