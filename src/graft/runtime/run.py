"""A run in progress: what its values are, in the frame and beside it, and where it may work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graft.base.dtypes import Array
from graft.runtime.frames import Frame
from graft.runtime.loops import Data, ScanOutputs
from graft.runtime.profile import Recorder
from graft.runtime.spaces import Device

_NONE: Mapping[str, Device] = {}


class Values:
    """The values of a run by number: arrays in the frame, and objects beside it."""

    def __init__(self, frame: Frame, constants: Mapping[int, Array]) -> None:
        self.frame = frame
        self.objects: dict[int, Data] = {}
        self._constants = constants
        self._native = frame.image.values
        self._held: dict[int, Array] = {}  # arrays that values of the frame are
        # Whether a value may be computed again while its last instance is live: within a loop.
        self.is_repeated = False

    def __getitem__(self, number: int) -> Data:
        if number in self._constants:
            return self._constants[number]
        if number in self._native:
            value = self._held.get(number)
            if value is not None and self.frame.address(number):
                return value
            return self.frame.view(number)
        return self.objects.get(number)

    def lasting(self, number: int) -> Data:
        """A value as something that stays what it is while the run goes on."""
        data = self[number]
        in_frame = number in self._native and number not in self._constants
        if not in_frame or self._held.get(number) is data:
            return data
        return [array.copy() for array in data] if isinstance(data, list) else data.copy()

    def put(self, number: int, data: Data) -> None:
        """Let a value be something."""
        if isinstance(data, list) and number in self._native:
            self.frame.store_list(number, data)
        elif number in self._native and self.is_repeated:
            self.frame.store(number, data)
        elif number in self._native:
            self.frame.put(number, data)
            self._held[number] = data
        else:
            self.objects[number] = data


@dataclass(slots=True, eq=False)
class Run:
    """One execution of a program. `given` are arrays that outputs are wanted in, by number;
    `devices` are those at hand; `recorder` measures, where somebody wants to know."""

    values: Values
    given: Mapping[int, Array]
    devices: Mapping[str, Device] = field(default_factory=lambda: _NONE)
    recorder: Recorder | None = None
    slices: dict[int, ScanOutputs] = field(default_factory=dict)  # by the output that they are for

    @property
    def symbols(self) -> Mapping[str, int]:
        """What symbols stand for."""
        return self.values.frame.symbols()
