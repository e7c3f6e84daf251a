"""Where tensors are while a program runs: the user's memory, constants, a part of the arena, or
the memory of a device."""

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
    """A range of a slot: one of the tensors that are joined there, or cut from what is there."""

    slot: Slot
    offset: int
    nbytes: int


Home = Input | Output | Constant | Slot | Part


@dataclass(frozen=True, slots=True)
class Abroad:
    """A tensor in the memory space of a device."""

    number: int
    space: str
    dtype: DType
    shape: tuple[int, ...]


def within(home: Slot | Part, offset: int, nbytes: int) -> Part:
    """A range of a slot, or of a part of one."""
    if isinstance(home, Slot):
        return Part(home, offset, nbytes)
    return Part(home.slot, home.offset + offset, nbytes)


class Travels:
    """Which values are where abroad. `spaces` are those of regions, by label."""

    def __init__(self, spaces: Mapping[str, str]) -> None:
        self.spaces = spaces
        self.made: dict[Value, tuple[Node, Abroad]] = {}  # by which region, where
        self._places: dict[tuple[Value, str], Abroad] = {}

    def arrive(self, value: Value, space: str) -> Abroad:
        """A value gets to a memory space."""
        there = Abroad(len(self._places), space, value.dtype, static_shape(value))
        self._places[value, space] = there
        return there

    def make(self, value: Value, space: str, region: Node) -> None:
        """A region makes a value in its memory space."""
        self.made[value] = (region, self.arrive(value, space))

    def is_at(self, value: Value, space: str) -> bool:
        """Whether a value is in a memory space."""
        return (value, space) in self._places

    def at(self, value: Value, space: str) -> Abroad:
        """Where a value is that has got there."""
        return self._places[value, space]
