"""Every fault in every setting: results stay right, and whoever runs the model is told.

docs/reliability.md has the table; a cell there is a test here.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from tests.byoc.shaky import FAULTS, HARMLESS, IN_A_PROCESS, TOLD, Isolated, Shaky, fault

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.byoc.contract import Backend
from graft.byoc.discover import register_backend, unregister_backend
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import TensorType, tensor
from graft.runtime.incidents import Fault, Incidents
from graft.runtime.regions import Region, RegionWarning, incidents_of

X = np.random.default_rng(0).standard_normal((3, 40), dtype=np.float32)
DEADLINE = 0.5
AT_RUN_TIME = tuple(FAULTS)
BEFORE = ("hangs at price", "hangs at compile", "hangs at load", "wrong numbers", "crash")
SETTINGS = ("static", "symbolic", "loop", "file", "threads")
UNTRIED = {
    ("hangs with the interpreter's lock", "file"): "a worker of a file has 30 s to answer here",
}


def cells(names: Iterable[str]) -> list[ParameterSet]:
    """Every fault in every setting; short runs try each as static and in one more, in turn."""
    found = []
    for number, name in enumerate(names):
        short = ("static", SETTINGS[1 + number % (len(SETTINGS) - 1)])
        for setting in SETTINGS:
            marks = () if setting in short else (pytest.mark.full,)
            found.append(pytest.param(name, setting, marks=marks))
    return found


# How each fault is told, if not as an exception.
KINDS = {
    "wrong numbers": Fault.DIFFERS,
    "NaN": Fault.DIFFERS,
    "unwritten output": Fault.UNWRITTEN,
    "overwritten input": Fault.OVERWROTE,
    "hangs": Fault.LATE,
    "crash": Fault.CRASHED,
    "killed worker": Fault.CRASHED,
    "ends its process (`os._exit`)": Fault.CRASHED,
    "closes all descriptors": Fault.CRASHED,
    "hangs with the interpreter's lock": Fault.LATE,
}


class Switch:
    """Tells the backend how to fail."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, fault: str) -> None:
        self._path.write_text(fault)


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Switch]:
    monkeypatch.setenv(TOLD, str(tmp_path / "fault"))
    # installed, as far as this process and its workers can tell
    about = tmp_path / "site" / "shaky-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shaky\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[graft.runtimes]\nshaky = tests.byoc.shaky:load\n")
    monkeypatch.setattr(sys, "path", [str(about.parent), str(Path.cwd()), *sys.path])
    yield Switch(tmp_path / "fault")
    unregister_backend("shaky")


@dataclass
class Subject:
    """A model in some setting."""

    run: Callable[[Array], Array]
    expected: Callable[[Array], Array]
    regions: Mapping[str, Region]

    @property
    def incidents(self) -> Incidents:
        return incidents_of(self.regions)


def plain(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.exp(np.tanh(x)))))


def network(*shape: Any) -> Graph:
    build = Builder()
    x = build.input("x", TensorType(DType.FLOAT32, shape))
    return build.build(build("sigmoid", build("exp", build("tanh", x))))


def of_module(module: Any, expected: Callable[[Array], Array] = plain) -> Subject:
    def run(x: Array) -> Array:
        return np.asarray(module.run(None, {"x": x})[0])

    return Subject(run, expected, module.regions)


def compiled(graph: Graph, deadline: float = DEADLINE, threads: int = 1) -> Any:
    # what is pinned and cannot be priced is refused instead
    pins = [] if fault() == "hangs at price" else ["exp=shaky"]
    options: Any = {"pins": pins, "threads": threads, "deadline": deadline, "fallback": "host"}
    return graft.compile(graph, "shaky", **options)


def loop_network() -> Graph:
    """Three times tanh and exp."""
    inner = Builder()
    inner.input("i", tensor("int64"))
    proceed = inner.input("proceed", tensor("bool"))
    value = inner.input("value", tensor("float32", 3, 40))
    body = inner.build(proceed, inner("exp", inner("tanh", value)))
    outer = Builder()
    x = outer.input("x", tensor("float32", 3, 40))
    count = outer.constant(np.array(3, np.int64))
    return outer.build(*outer.call("loop", count, None, x, body=body, carried=1))


def three_times(x: Array) -> Array:
    for _ in range(3):
        x = np.exp(np.tanh(x))
    return x


def subject(
    setting: str, backend: Backend, folder: Path, deadline: float = DEADLINE, threads: int = 1
) -> Subject:
    """The model in a setting; the backend is as it is told to be meanwhile."""
    register_backend(backend)
    if setting == "loop":
        return of_module(compiled(loop_network(), deadline, threads), three_times)
    if setting == "symbolic":
        return of_module(compiled(network(symbol("n"), 40), deadline, threads))
    module = compiled(network(3, 40), deadline, threads)
    if setting != "file":
        return of_module(module)
    module.save(folder / "model.graft")
    # a worker has to import what the run time of this backend stands on
    deadline = deadline if backend.isolation == "none" else 30.0
    return of_module(graft.load(folder / "model.graft", deadline=deadline))


def check(one: Subject, setting: str) -> None:
    """Right on several inputs, by one thread or two."""
    before = X.copy()

    def run(scale: float) -> None:
        result = one.run(X * np.float32(scale))
        np.testing.assert_allclose(result, one.expected(X * np.float32(scale)), rtol=1e-4)

    scales = [1.0, 0.5, 2.0, 1.5]
    with ThreadPoolExecutor(2 if setting == "threads" else 1) as pool:
        list(pool.map(run, scales))
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize(("name", "setting"), cells(AT_RUN_TIME))
def test_at_run_time(name: str, setting: str, switch: Switch, tmp_path: Path) -> None:
    if (name, setting) in UNTRIED:
        pytest.skip(UNTRIED[name, setting])
    one = subject(setting, Isolated() if name in IN_A_PROCESS else Shaky(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        check(one, setting)
    assert one.incidents == []
    switch(name)
    # as after the first runs of another input, or of another day
    for region in one.regions.values():
        region.guard.start_over()
    began = time.monotonic()
    with pytest.warns(RegionWarning, match="the region 'shaky_0' failed on shaky"):
        check(one, setting)
    assert time.monotonic() - began < 30
    assert KINDS.get(name, Fault.RAISED) in {incident.fault for incident in one.incidents}
    assert all(len(incident.reason) < 10_000 for incident in one.incidents)
    assert all(region.open for region in one.regions.values())


@pytest.mark.parametrize("deadline", [DEADLINE, math.inf])
@pytest.mark.parametrize(("name", "setting"), cells(HARMLESS))
def test_what_does_no_harm(
    name: str, setting: str, deadline: float, switch: Switch, tmp_path: Path
) -> None:
    """Right results without an incident, and nothing is left behind: not in the thread that calls
    the model, where the region runs if there is no deadline, nor in that of the next call."""
    one = subject(setting, Shaky(), tmp_path, deadline)
    modes = rounding(), np.geterr()
    switch(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks, by Python
        check(one, setting)
        assert (rounding(), np.geterr()) == modes
        switch("")
        check(one, setting)
    assert one.incidents == []
    children = tmp_path / "children"
    for child in children.read_text().split() if children.exists() else ():
        assert os.waitstatus_to_exitcode(os.waitpid(int(child), 0)[1]) == 1


def rounding() -> int:
    return int(ctypes.PyDLL(None).fegetround())


@pytest.mark.parametrize(("name", "setting"), cells(BEFORE))
def test_before_it_runs(name: str, setting: str, switch: Switch, tmp_path: Path) -> None:
    if (name, setting) in UNTRIED:
        pytest.skip(UNTRIED[name, setting])
    switch(name)
    began = time.monotonic()
    with pytest.warns(RegionWarning):
        one = subject(setting, Isolated() if name in IN_A_PROCESS else Shaky(), tmp_path)
    assert time.monotonic() - began < 30
    check(one, setting)
    assert not one.regions


def test_a_file_whose_code_does_not_load_in_time(switch: Switch, tmp_path: Path) -> None:
    register_backend(Shaky())
    compiled(network(3, 40)).save(tmp_path / "model.graft")
    switch("hangs at load")
    with pytest.warns(RegionWarning, match="shaky 1 cannot run here: no answer within"):
        session = graft.load(tmp_path / "model.graft")
    assert [incident.fault for incident in session.incidents] == [Fault.LATE]
    check(of_module(session), "file")


def table() -> str:
    """Return the table of faults and settings as the documentation has it."""
    header = f"| fault | reported as | {' | '.join(SETTINGS)} |"
    lines = [header, "|---" * (2 + len(SETTINGS)) + "|"]
    reports = {name: f"incident, `{KINDS.get(name, Fault.RAISED)}`" for name in AT_RUN_TIME}
    rows = [(name, name, reports[name]) for name in AT_RUN_TIME]
    for name in BEFORE:
        shown = name if name.startswith("hangs at") else f"{name} when compiled"
        rows.append((name, shown, "demotion and warning"))
    rows += [(name, name, "not reported: harmless") for name in HARMLESS]
    for name, shown, how in rows:
        cells = " ".join("- |" if (name, one) in UNTRIED else "yes |" for one in SETTINGS)
        lines.append(f"| {shown} | {how} | {cells}")
    return "\n".join(lines)


def test_the_documentation_has_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "reliability.md"
    assert table() in page.read_text("utf-8")
