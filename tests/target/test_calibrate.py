"""Calibration: what is made of measurements, and what is kept of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graft.base.cache_folder import CacheWarning
from graft.target import calibrate
from graft.target.calibrate import (
    BETWEEN_CORES,
    MEASURED,
    SYSTEM,
    TABLE,
    KnownMachine,
    calibrated,
    with_measured,
    with_system_caches,
)
from graft.target.machine import KIB, MACHINES, MIB
from graft.target.target import host_target, named_target

ZEN = KnownMachine(MACHINES["znver4"])
# As measured on a core with two units of full width, at 3 GHz.
NUMBERS = {
    "clock": 3.02e9,
    "vector_fmas": 1.96,
    "fma_latency": 4.03,
    "vector_loads": 1.85,
    "vector_stores": 1.08,
    "caches.0.bytes_per_cycle": 118.0,
    "caches.1.bytes_per_cycle": 45.0,
    "caches.2.bytes_per_cycle": 11.0,
    "memory_bytes_per_cycle": 4.3,
}
BETWEEN = {
    "calling_seconds": 17e-6,
    "meeting_seconds": 0.41e-6,
    "crossing_bytes_per_cycle": 9.2,
}


def test_measurements_are_rounded_to_what_cores_do() -> None:
    known = with_measured(ZEN, NUMBERS)
    machine = known.machine
    assert (machine.vector_fmas, machine.fma_latency) == (2, 4)
    assert (machine.vector_loads, machine.vector_stores) == (2, 1)
    assert [cache.bytes_per_cycle for cache in machine.caches] == [128, 48, 12]
    assert machine.memory_bytes_per_cycle == 4
    assert machine.gigahertz == 3.0
    assert known.source("gigahertz") == known.source("caches.2.bytes_per_cycle") == MEASURED
    assert known.source("caches.2.size") == TABLE


@pytest.mark.parametrize("noise", [0.9, 0.95, 1.03])
def test_noise_does_not_change_the_numbers_of_schedules(noise: float) -> None:
    disturbed = {name: value * noise for name, value in NUMBERS.items()}
    disturbed["fma_latency"] = NUMBERS["fma_latency"] / (1 - abs(noise - 1) / 3)
    first, second = with_measured(ZEN, NUMBERS).machine, with_measured(ZEN, disturbed).machine
    assert first.vector_fmas == second.vector_fmas
    assert first.fma_latency == second.fma_latency
    assert first.vector_loads == second.vector_loads
    assert first.caches == second.caches


def test_implausible_measurements_leave_the_table() -> None:
    odd = {
        **NUMBERS,
        "vector_fmas": 1.4,
        "fma_latency": 4.5,
        "caches.1.bytes_per_cycle": 300.0,
        "memory_bytes_per_cycle": 0.1,
    }
    known = with_measured(ZEN, odd)
    table = ZEN.machine
    assert known.machine.vector_fmas == table.vector_fmas
    assert known.machine.fma_latency == table.fma_latency
    assert known.machine.gigahertz == table.gigahertz
    assert known.machine.caches[1].bytes_per_cycle == table.caches[1].bytes_per_cycle
    assert known.machine.memory_bytes_per_cycle == table.memory_bytes_per_cycle
    assert known.source("vector_fmas") == known.source("gigahertz") == TABLE
    assert with_measured(ZEN, {}) == ZEN


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Calibration with a folder of its own and made-up measurements; has an entry for each."""
    runs: list[int] = []

    def measure(*_: Any) -> dict[str, float]:
        runs.append(1)
        return dict(NUMBERS)

    monkeypatch.delenv(calibrate.SWITCH)
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibrate, "measure", measure)
    monkeypatch.setattr(calibrate, "measure_between", lambda *_: dict(BETWEEN))
    monkeypatch.setattr(calibrate, "available_cores", lambda: 2)
    return runs


def test_measured_once(counted: list[int], tmp_path: Path) -> None:
    first = calibrated(ZEN, "znver4", ("avx2",), 32)
    assert first.machine.vector_fmas == 2
    assert calibrated(ZEN, "znver4", ("avx2",), 32) == first
    assert len(counted) == 1
    calibrated(ZEN, "znver4", ("avx",), 32)  # another machine
    assert len(counted) == 2
    files = list((tmp_path / "machines").iterdir())
    assert len(files) == 2
    assert json.loads(files[0].read_text()) == NUMBERS | BETWEEN


def test_one_core_leaves_the_table_until_there_are_more(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes between cores is measured by the first process that has two of them."""
    monkeypatch.setattr(calibrate, "available_cores", lambda: 1)
    alone = calibrated(ZEN, "znver4", (), 32)
    for name in BETWEEN_CORES:
        assert alone.source(name) == TABLE
        assert getattr(alone.machine, name) == getattr(ZEN.machine, name)
    monkeypatch.setattr(calibrate, "available_cores", lambda: 2)
    known = calibrated(ZEN, "znver4", (), 32)
    assert {known.source(name) for name in BETWEEN_CORES} == {MEASURED}
    assert known.machine.calling_seconds == 2e-5
    assert known.machine.meeting_seconds == pytest.approx(384e-9)
    assert known.machine.crossing_bytes_per_cycle == 8
    assert (
        replace(known.machine, **{n: getattr(alone.machine, n) for n in BETWEEN}) == alone.machine
    )
    monkeypatch.setattr(calibrate, "measure_between", lambda *_: pytest.fail("measured again"))
    assert calibrated(ZEN, "znver4", (), 32) == known
    monkeypatch.setattr(calibrate, "available_cores", lambda: 1)
    assert calibrated(ZEN, "znver4", (), 32) == known
    assert len(counted) == 1


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_implausible_times_between_cores_leave_the_table(factor: float) -> None:
    odd = {name: value * factor for name, value in BETWEEN.items()}
    known = with_measured(ZEN, NUMBERS | odd)
    assert {known.source(name) for name in BETWEEN_CORES} == {TABLE}


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}", '{"clock": "x"}', '{"clock": -1}'])
def test_damaged_files_are_measured_anew(counted: list[int], tmp_path: Path, content: str) -> None:
    calibrated(ZEN, "znver4", (), 32)
    (path,) = (tmp_path / "machines").iterdir()
    path.write_text(content)
    assert calibrated(ZEN, "znver4", (), 32).machine.vector_fmas == 2
    assert len(counted) == 2
    assert json.loads(path.read_text()) == NUMBERS | BETWEEN


def test_a_folder_that_cannot_be_written(
    counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(CacheWarning, match="nothing is kept for the next time"):
        found = calibrated(ZEN, "znver4", (), 32)
    assert found.machine.vector_fmas == 2


def test_the_switch(counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(calibrate.SWITCH, "0")
    assert calibrated(ZEN, "znver4", (), 32) is ZEN
    assert not counted


def test_named_machines_are_not_calibrated(counted: list[int]) -> None:
    named_target("znver4")
    named_target("plain")
    assert not counted


def test_probes_run_on_this_machine() -> None:
    host = host_target()
    numbers = calibrate.measure(host.machine, host.features, host.vector_registers)
    assert {"clock", "vector_fmas", "fma_latency", "vector_loads", "vector_stores"} <= set(numbers)
    assert all(value > 0 for value in numbers.values())


def test_system_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads a core: the first caches are a core's own, four cores share the last."""
    levels = [
        ("Data", 1, "48K", "0,8"),
        ("Instruction", 1, "32K", "0,8"),
        ("Unified", 2, "2M", "0,8"),
        ("Unified", 3, "30720K", "0-3,8-11"),
        ("Unified", 4, "odd", "0"),
    ]
    for number, (kind, level, size, processors) in enumerate(levels):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in zip(
            ("type", "level", "size", "shared_cpu_list"),
            (kind, str(level), size, processors),
            strict=True,
        ):
            (folder / name).write_text(text + "\n")
    monkeypatch.setattr(calibrate, "_SYSTEM_CACHES", tmp_path)
    known = with_system_caches(ZEN)
    caches = known.machine.caches
    assert [cache.size for cache in caches] == [48 * KIB, 2 * MIB, 30 * MIB]
    assert [cache.shared_by for cache in caches] == [1, 1, 4]
    assert known.source("caches.2.shared_by") == SYSTEM
    assert known.source("caches.2.bytes_per_cycle") == TABLE


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_SYSTEM_CACHES", tmp_path / "nothing")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    known = with_system_caches(ZEN)
    assert known.machine == replace(ZEN.machine, cores=2)
    assert known.sources == {**ZEN.sources, "cores": SYSTEM}


def test_importing_and_listing_do_not_calibrate(tmp_path: Path) -> None:
    """Only compiling for this machine does, and loading what was compiled is not compiling."""
    program = "import graft, graft.cli.compile; from graft.byoc.discover import find_backends; "
    program += "find_backends()"
    environment = {**os.environ, "GRAFT_CACHE_DIR": str(tmp_path)}
    environment.pop(calibrate.SWITCH)
    environment["PYTHONPATH"] = str(Path(calibrate.__file__).parents[2])
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert not list(tmp_path.rglob("*.json"))
