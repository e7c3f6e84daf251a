"""Machines: a target's core, caches and memory with the source of each number; and the computer
that benchmarks run on, with how busy it is.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.base.cores import available_cores
from graft.base.quantities import counted
from graft.cli.report import Block, paragraph, section, table
from graft.target.calibrate import BETWEEN_CORES, MEASURED, SYSTEM, KnownMachine
from graft.target.target import HOST, Target, TargetError, host_machine, host_target, named_target

# A number computed from others has the least reliable of their sources.
_TRUST = (SYSTEM, MEASURED)


@dataclass(frozen=True, slots=True)
class Description:
    """A target, and its machine model."""

    target: Target
    known: KnownMachine
    cores: int | None  # that this process may use; None for another machine

    def lines(self) -> Iterator[Block]:
        """The machine as text."""
        target, machine = self.target, self.known.machine
        where = "this machine" if target.name == HOST else target.name
        yield f"{where}: {machine.summary} ({machine.name})"
        vectors = f"{target.vector_bits} bits, {target.vector_registers} registers"
        yield from table([("tuned for", target.cpu), ("vectors", vectors)])
        features = paragraph(" ".join(target.features))
        yield from section("Required CPU features", [features])
        yield from section("Core", table(self._core(), ("", "", "source"), right=(1,)))
        header = ("level", "size", "source", "B/cycle", "GB/s", "source", "shared by", "source")
        yield from section("Memory", table(self._memory(), header, right=(1, 3, 4)))
        between = [*table(self._between(), ("", "", "source"), right=(1,))]
        yield from section("Between cores", [*between, *self._one_core()])

    def _core(self) -> list[tuple[str, str, str]]:
        machine, source = self.known.machine, self.known.source
        rows = [
            ("FMAs per cycle", f"{machine.vector_fmas:g}", source("vector_fmas")),
            ("FMA latency, cycles", f"{machine.fma_latency}", source("fma_latency")),
            ("loads per cycle", f"{machine.vector_loads:g}", source("vector_loads")),
            ("stores per cycle", f"{machine.vector_stores:g}", source("vector_stores")),
            ("GHz under vector load", f"{machine.gigahertz:g}", source("gigahertz")),
            ("peak GFLOP/s, float32", f"{machine.peak_flops / 1e9:.0f}", self._peak_source()),
        ]
        if self.cores is not None:
            rows.append(("cores", str(self.cores), SYSTEM))
        return rows

    def _peak_source(self) -> str:
        sources = {self.known.source(name) for name in ("vector_fmas", "gigahertz")}
        return next((source for source in sources if source not in _TRUST), MEASURED)

    def _memory(self) -> Iterator[tuple[str, ...]]:
        machine, source = self.known.machine, self.known.source
        for level, one in enumerate(machine.caches):
            name = f"caches.{level}"
            yield (
                f"L{level + 1}",
                _binary(one.size),
                source(f"{name}.size"),
                f"{one.bytes_per_cycle:g}",
                f"{one.bytes_per_cycle * machine.gigahertz:.0f}",
                source(f"{name}.bytes_per_cycle"),
                counted(one.shared_by, "core"),
                source(f"{name}.shared_by"),
            )
        rate = machine.memory_bytes_per_cycle
        speed = f"{machine.memory_bytes_per_second / 1e9:.0f}"
        yield ("memory", "", "", f"{rate:g}", speed, source("memory_bytes_per_cycle"), "", "")

    def _between(self) -> list[tuple[str, str, str]]:
        machine, source = self.known.machine, self.known.source
        rows = (
            ("µs to wake a sleeping thread", machine.calling_seconds * 1e6, "calling_seconds"),
            ("µs per barrier of two threads", machine.meeting_seconds * 1e6, "meeting_seconds"),
            (
                "B/cycle from another core's caches",
                machine.crossing_bytes_per_cycle,
                "crossing_bytes_per_cycle",
            ),
        )
        return [(words, f"{number:.2g}", source(name)) for words, number, name in rows]

    def _one_core(self) -> Iterator[Block]:
        """A note if nothing could be measured between cores."""
        if self.cores == 1 and self.known.source(BETWEEN_CORES[0]) != MEASURED:
            yield paragraph("This process may use one core only, so nothing was measured here.")

    def to_json(self) -> dict[str, Any]:
        """The same as JSON: each number with its source."""
        target, machine, source = self.target, self.known.machine, self.known.source

        def told(value: float, name: str) -> dict[str, Any]:
            return {"value": value, "source": source(name)}

        names = ("vector_fmas", "fma_latency", "vector_loads", "vector_stores", "gigahertz")
        caches = [
            {
                part: told(getattr(one, part), f"caches.{level}.{part}")
                for part in ("size", "bytes_per_cycle", "shared_by")
            }
            for level, one in enumerate(machine.caches)
        ]
        memory = "memory_bytes_per_cycle"
        return {
            "name": target.name,
            "microarchitecture": machine.name,
            "summary": machine.summary,
            "cpu": target.cpu,
            "features": list(target.features),
            "vector_bits": target.vector_bits,
            "vector_registers": target.vector_registers,
            **{name: told(getattr(machine, name), name) for name in names},
            "peak_flops": {"value": machine.peak_flops, "source": self._peak_source()},
            "caches": caches,
            memory: told(machine.memory_bytes_per_cycle, memory),
            "memory_bytes_per_second": told(machine.memory_bytes_per_second, memory),
            **{name: told(getattr(machine, name), name) for name in BETWEEN_CORES},
            "cores": self.cores,
        }


def describe(name: str) -> Description:
    """The machine of that name; this one is calibrated if necessary."""
    target = named_target(name)
    if name == HOST:
        return Description(target, host_machine(), available_cores())
    return Description(target, KnownMachine(target.machine), None)


def _binary(size: int) -> str:
    """A size in the units that caches come in."""
    return f"{size >> 20} MiB" if size >= 10 << 20 else f"{size >> 10} KiB"


# What x86 processors call their vectors of so many bits.
_X86_VECTORS = {128: "SSE", 256: "AVX2", 512: "AVX-512"}

# The share of the cores' time that other work may take without a warning.
_QUIET = 0.25


@dataclass(frozen=True, slots=True)
class Machine:
    """A computer, and its load before the benchmark."""

    processor: str
    vectors: str  # the extension that Graft's code uses; empty where it makes none
    cores: int
    system: str
    python: str
    load: float  # runnable processes, averaged over the last minute

    def __str__(self) -> str:
        name = f"{self.processor} with {self.vectors}" if self.vectors else self.processor
        return f"{name}, {counted(self.cores, 'core')}, {self.system}"

    def warnings(self, threads: int) -> list[str]:
        """Reasons to distrust the times."""
        result = []
        if self.load > _QUIET * self.cores:
            result.append(
                f"other work is running (load average {self.load:.1f} on {self.cores} cores):"
                " trust the ratios, not the times"
            )
        if threads > self.cores:
            result.append(f"there are {threads} threads, but only {self.cores} cores")
        return result


def this_machine() -> Machine:
    """The computer that Graft is running on."""
    system = f"{platform.system()} {platform.machine()}"
    load = os.getloadavg()[0]
    python = platform.python_version()
    return Machine(_processor(), _vectors(), available_cores(), system, python, load)


def _vectors() -> str:
    try:
        target = host_target()
    except TargetError:  # a processor that runs models on the reference evaluator alone
        return ""
    if target.is_x86:
        return _X86_VECTORS[target.vector_bits]
    return "NEON" if target.is_aarch64 else ""


def _processor() -> str:
    """The processor's name: Linux alone gives one that people know."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
