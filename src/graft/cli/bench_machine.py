"""The machine that times were taken on: nothing in, what a reader of the times has to know out."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from graft.cli.report import counted
from graft.runtime.cores import available_cores
from graft.target.target import TargetError, host_target

# What x86 processors call their vectors of so many bits.
_X86_VECTORS = {128: "SSE", 256: "AVX2", 512: "AVX-512"}

# Of the cores' time, what other work may take before it is worth a warning.
_QUIET = 0.25


@dataclass(frozen=True, slots=True)
class Machine:
    """A computer, and how busy it was before anything was started."""

    processor: str
    vectors: str  # the extension that Graft's code uses; empty where it makes none
    cores: int
    system: str
    python: str
    load: float  # processes that wanted a core, averaged over the last minute

    def __str__(self) -> str:
        name = f"{self.processor} with {self.vectors}" if self.vectors else self.processor
        return f"{name}, {counted(self.cores, 'core')}, {self.system}"

    def warnings(self, threads: int) -> list[str]:
        """What makes the times less trustworthy."""
        found = []
        if self.load > _QUIET * self.cores:
            found.append(
                f"other work is running (load average {self.load:.1f} on {self.cores} cores):"
                " trust the ratios, not the times"
            )
        if threads > self.cores:
            found.append(f"there are {threads} threads, but only {self.cores} cores")
        return found


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
