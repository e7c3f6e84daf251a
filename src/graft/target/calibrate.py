"""This machine's numbers: the table's in; those that the system reports and probes measure, out.

Measuring happens once: the numbers are kept on disk, by processor. Schedules see them rounded to
what a core can plausibly do (whole multiply-adds per cycle, bandwidths in steps of about a third),
so that calibrating again gives the same kernels. Where a measurement is implausible, because the
machine was busy, the table's number stays, and so it does for what passes between cores where a
process may use one core only. $GRAFT_CALIBRATE=0 keeps to the table altogether.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graft.base.cache_folder import default_folder, keep_text
from graft.base.cores import available_cores, core_processors
from graft.target.machine import MIB, MOST_CORES, TYPICAL_CORES, CacheLevel, Machine
from graft.target.probe import Probes
from graft.target.probe_threads import ThreadProbes

MACHINES_FOLDER = "machines"  # beside the kernels
SWITCH = "GRAFT_CALIBRATE"
_SYSTEM_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_PROCESSORS = Path("/proc/cpuinfo")

TABLE, MEASURED, SYSTEM = "table", "measured", "system"

_RATES = (0.5, 1.0, 2.0, 3.0, 4.0)  # what cores do per cycle
_NEAR = 0.18  # how far, relatively, from one of them a measurement may be
_LATENCIES = (2, 8)
_LARGEST = 256 * MIB  # of what is read to measure memory
# Seconds that are plausible for threads that meet, and for calling those that sleep.
_MEETINGS, _CALLS = (1e-8, 2e-5), (5e-7, 1e-3)
BETWEEN_CORES = ("calling_seconds", "meeting_seconds", "crossing_bytes_per_cycle")


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """A machine, and for each number that is not from the table where it is from.

    Numbers are named as fields are, those of caches with their position: `caches.1.size`.
    """

    machine: Machine
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> str:
        return self.sources.get(name, TABLE)

    def having(self, source: str, **numbers: Any) -> KnownMachine:
        """The same with other numbers of the core."""
        machine = replace(self.machine, **numbers)
        return KnownMachine(machine, {**self.sources, **dict.fromkeys(numbers, source)})

    def having_cache(self, level: int, source: str, **numbers: Any) -> KnownMachine:
        """The same with other numbers of one cache."""
        caches = list(self.machine.caches)
        caches[level] = replace(caches[level], **numbers)
        origins = dict.fromkeys((f"caches.{level}.{name}" for name in numbers), source)
        return KnownMachine(
            replace(self.machine, caches=tuple(caches)), {**self.sources, **origins}
        )


def clear_calibrations(folder: Path) -> None:
    """Forget what was measured, so that the next compilation measures anew."""
    for entry in (folder / MACHINES_FOLDER).glob("*.json"):
        entry.unlink(missing_ok=True)


def with_system_caches(base: KnownMachine) -> KnownMachine:
    """With the caches' sizes, the cores that share them, and all cores, as the system has them."""
    base = base.having(SYSTEM, cores=min(MOST_CORES, os.cpu_count() or TYPICAL_CORES))
    for level, (size, shared_by) in enumerate(_system_caches()[: len(base.machine.caches)]):
        base = base.having_cache(level, SYSTEM, size=size, shared_by=shared_by)
    return base


def calibrated(
    known: KnownMachine, cpu: str, features: Sequence[str], registers: int
) -> KnownMachine:
    """With what probes measure on this machine, now or in an earlier process."""
    if os.environ.get(SWITCH) == "0":
        return known
    path = default_folder() / MACHINES_FOLDER / f"{_key(known.machine, cpu, features)}.json"
    stored = _read(path)
    numbers = measure(known.machine, features, registers) if stored is None else stored
    if not numbers.keys() >= {*BETWEEN_CORES} and available_cores() > 1:
        # An earlier process may have had one core only.
        numbers = numbers | measure_between(known.machine, features, numbers.get("clock", 0))
    if numbers != stored:
        keep_text(path, json.dumps(numbers, indent=1))
    return with_measured(known, numbers)


def measure(machine: Machine, features: Sequence[str], registers: int) -> dict[str, float]:
    """Rates per cycle of this core by name, as measured; empty where nothing can be."""
    has_fma = machine.level == "aarch64" or bool({"fma", "avx512f"} & set(features))
    try:
        probes = Probes(features, has_fma, machine.vector_bits, registers)
        probes.fmas()  # some cores slow down for wide vectors, and take a while to do so
        clock = probes.clock()
        numbers = {
            "clock": clock,
            "vector_fmas": probes.fmas() / clock,
            "fma_latency": clock / probes.fma_chain(),
            "vector_loads": probes.loads() / clock,
            "vector_stores": probes.stores() / clock,
        }
        for name, size in _read_sizes(machine.caches).items():
            numbers[name] = probes.read_bandwidth(size) / clock
        first = numbers["caches.0.bytes_per_cycle"] / probes.vector_bytes
        numbers["vector_loads"] = max(numbers["vector_loads"], first)
    except (RuntimeError, MemoryError, OSError):
        return {}
    return numbers


def measure_between(machine: Machine, features: Sequence[str], clock: float) -> dict[str, float]:
    """What passes between this core and others; empty where nothing can be measured."""
    level = machine.caches[min(1, len(machine.caches) - 1)]
    try:
        probes = ThreadProbes(core_processors(), features)
        return {
            "calling_seconds": probes.calling(),
            "meeting_seconds": probes.meeting(),
            "crossing_bytes_per_cycle": probes.crossing(_power_below(level.size // 2)) / clock,
        }
    except (RuntimeError, MemoryError, OSError, ZeroDivisionError):
        return {}


def with_measured(base: KnownMachine, numbers: Mapping[str, float]) -> KnownMachine:
    """With measured numbers, rounded, as far as they are plausible."""
    for name in ("vector_fmas", "vector_loads", "vector_stores"):
        nearest = min(_RATES, key=lambda rate: abs(rate - numbers.get(name, 0)))
        if abs(numbers.get(name, 0) / nearest - 1) < _NEAR:
            base = base.having(MEASURED, **{name: nearest})
    latency = numbers.get("fma_latency", 0)
    if _LATENCIES[0] <= round(latency) <= _LATENCIES[1] and abs(latency - round(latency)) < 0.25:
        base = base.having(MEASURED, fma_latency=round(latency))
    if base.source("vector_fmas") == MEASURED:
        # What all units sustain together, which is what peaks are reckoned from.
        rate = numbers["clock"] * numbers["vector_fmas"] / base.machine.vector_fmas
        base = base.having(MEASURED, gigahertz=round(rate / 1e9, 1))
    meeting, calling = numbers.get("meeting_seconds", 0), numbers.get("calling_seconds", 0)
    if _MEETINGS[0] <= meeting <= _MEETINGS[1]:
        base = base.having(MEASURED, meeting_seconds=_coarse(meeting * 1e9) / 1e9)
    if _CALLS[0] <= calling <= _CALLS[1]:
        base = base.having(MEASURED, calling_seconds=float(f"{calling:.0e}"))
    return _with_bandwidths(base, numbers)


def _with_bandwidths(base: KnownMachine, numbers: Mapping[str, float]) -> KnownMachine:
    """With the bandwidths; a level that seems faster than the one before it was not measured."""
    machine, last = base.machine, math.inf
    if base.source("vector_loads") == MEASURED:
        last = machine.vector_loads * machine.vector_bits / 8
        base = base.having_cache(0, MEASURED, bytes_per_cycle=last)
    for level in range(1, len(machine.caches)):
        rate = numbers.get(f"caches.{level}.bytes_per_cycle", 0)
        if 1 <= rate <= last * 1.1:
            base = base.having_cache(level, MEASURED, bytes_per_cycle=_coarse(rate))
            last = rate
    rate = numbers.get("memory_bytes_per_cycle", 0)
    if 0.5 <= rate <= last * 1.1:
        base = base.having(MEASURED, memory_bytes_per_cycle=_coarse(rate))
    # Lines of another core come by way of the last cache, or from farther.
    rate = numbers.get("crossing_bytes_per_cycle", 0)
    if 0.1 <= rate <= base.machine.caches[-1].bytes_per_cycle * 1.5:
        base = base.having(MEASURED, crossing_bytes_per_cycle=_coarse(rate))
    return base


def _coarse(rate: float) -> float:
    """The nearest of 1, 1.5, 2, 3, 4, 6, 8, 12, …"""
    below = 2.0 ** math.floor(math.log2(rate))
    steps = [scale * below for scale in (1.0, 1.5, 2.0)]
    return min(steps, key=lambda step: abs(math.log(step / rate)))


def _read_sizes(caches: Sequence[CacheLevel]) -> dict[str, int]:
    """How much is read to measure each level: more than the one before holds, and half of it."""
    sizes = {}
    for level, one in enumerate(caches):
        size = _power_below(one.size // 2)
        if level == len(caches) - 1 and level:  # others may use most of it
            size = min(size, _power_below(4 * caches[level - 1].size))
        if not level or size >= 2 * caches[level - 1].size or level < len(caches) - 1:
            sizes[f"caches.{level}.bytes_per_cycle"] = size
    memory = _power_below(3 * caches[-1].size)
    if memory <= _LARGEST:
        sizes["memory_bytes_per_cycle"] = memory
    return sizes


def _power_below(size: int) -> int:
    return 1 << (max(size, 1 << 12).bit_length() - 1)


def _system_caches() -> list[tuple[int, int]]:
    """Sizes and sharing cores of the data caches, nearest first, where the system reports them."""
    measurements = {}
    for folder in sorted(_SYSTEM_CACHES.glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level = int((folder / "level").read_text())
            text = (folder / "size").read_text().strip()
            scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
            size = int(text.rstrip("KM")) * scale
            processors = _count((folder / "shared_cpu_list").read_text())
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            measurements[level] = (size, processors)
    levels = [one for _, one in sorted(measurements.items())]
    # Threads of one core share its first cache.
    return [(size, max(1, count // levels[0][1])) for size, count in levels]


def _count(processors: str) -> int:
    """How many a list such as `0-3,64-67` names."""
    total = 0
    for part in processors.strip().split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _key(machine: Machine, cpu: str, features: Sequence[str]) -> str:
    """A name for this machine and for how it is measured."""
    caches = [(cache.size, cache.shared_by) for cache in machine.caches]
    names = ("probe.py", "probe_threads.py")
    probes = (Path(__file__).with_name(name).read_text("utf-8") for name in names)
    parts = (cpu, *features, _model(), repr(caches), *probes)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _model() -> str:
    """The processor's name, which distinguishes what LLVM takes for the same."""
    try:
        lines = _PROCESSORS.read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())


def _read(path: Path) -> dict[str, float] | None:
    """What an earlier process has measured; None where it has not, or the file is damaged."""
    try:
        entry = json.loads(path.read_text("utf-8"))
        numbers = {str(name): float(value) for name, value in entry.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    usable = numbers and all(0 < value < math.inf for value in numbers.values())
    return numbers if usable else None
