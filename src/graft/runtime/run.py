"""A run in progress: what values and symbols are, and where memory is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graft.base.dtypes import Array
from graft.runtime.checks import Data, Symbols
from graft.runtime.profile import Path, Recorder
from graft.runtime.spaces import Device

_NONE: Mapping[str, Device] = {}


@dataclass(slots=True, eq=False)
class Run:
    """One execution of a program; blocks inside it have symbols of their own. `given` are arrays
    that outputs are wanted in, by number, `shelf` is the program's shelf of the arena, `devices`
    are those at hand, and `recorder` measures, where somebody wants to know."""

    values: list[Data]
    symbols: Symbols
    given: Mapping[int, Array] = field(default_factory=dict)
    shelf: Array | None = None
    devices: Mapping[str, Device] = field(default_factory=lambda: _NONE)
    recorder: Recorder | None = None
    path: Path = ()  # of the instruction that runs

    def inside(self) -> Run:
        """The same for a block of the instruction that runs, which may bind more symbols."""
        return Run(
            self.values,
            dict(self.symbols),
            self.given,
            self.shelf,
            self.devices,
            self.recorder,
            self.path,
        )
