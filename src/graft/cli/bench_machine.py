"""The machine that times were taken on: nothing in, what a reader of the times has to know out."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from graft.runtime.team import available_cores

# Of the cores' time, what other work may take before it is worth a warning.
_QUIET = 0.25


@dataclass(frozen=True, slots=True)
class Machine:
    """A computer, and how busy it was before anything was started."""

    processor: str
    cores: int
    system: str
    python: str
    load: float  # processes that wanted a core, averaged over the last minute

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
    return Machine(_processor(), available_cores(), system, platform.python_version(), load)


def _processor() -> str:
    """The processor's name: Linux alone gives one that people know."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
