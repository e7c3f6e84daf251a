"""The buffers of tensors while a program runs: inputs, outputs, constants, arena slots, devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graft.backends.host.storage import static_shape
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.ir.graph import Node, Value


@dataclass(frozen=True, slots=True)
class Input:
    """The memory of an input of the graph."""

    index: int


@dataclass(frozen=True, slots=True)
class Output:
    """The memory of an output of the graph."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """The memory of a constant; never written."""

    index: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory of the arena whose offset is not decided yet."""

    number: int
    nbytes: Dim


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a slot: an operand of a concatenation there, or a slice of the tensor there."""

    slot: Slot
    offset: int
    nbytes: int


HostBuffer = Input | Output | Constant | Slot | Part


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """A tensor in the memory space of a device."""

    number: int
    space: str
    dtype: DType
    shape: tuple[int, ...]


def part_of(buffer: Slot | Part, offset: int, nbytes: int) -> Part:
    """A range of a slot, or of a part of one."""
    if isinstance(buffer, Slot):
        return Part(buffer, offset, nbytes)
    return Part(buffer.slot, buffer.offset + offset, nbytes)


class DeviceBuffers:
    """Buffers of values in memory spaces of devices. `spaces` are those of regions, by label."""

    def __init__(self, spaces: Mapping[str, str]) -> None:
        self.spaces = spaces
        self.results: dict[Value, tuple[Node, DeviceBuffer]] = {}  # with the region of each
        self._buffers: dict[tuple[Value, str], DeviceBuffer] = {}

    def add(self, value: Value, space: str) -> DeviceBuffer:
        """A new buffer for a value in a memory space."""
        buffer = DeviceBuffer(len(self._buffers), space, value.dtype, static_shape(value))
        self._buffers[value, space] = buffer
        return buffer

    def add_result(self, value: Value, space: str, region: Node) -> None:
        """A new buffer for a value that a region computes."""
        self.results[value] = (region, self.add(value, space))

    def has(self, value: Value, space: str) -> bool:
        """Whether a value has a buffer in a memory space."""
        return (value, space) in self._buffers

    def get(self, value: Value, space: str) -> DeviceBuffer:
        """The buffer of a value in a memory space."""
        return self._buffers[value, space]
