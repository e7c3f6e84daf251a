"""Where tensors are while a program runs: the user's memory, constants, or a part of the arena."""

from __future__ import annotations

from dataclasses import dataclass

from graft.base.dims import Dim
from graft.runtime.program import Constant, Input, Output


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


def within(home: Slot | Part, offset: int, nbytes: int) -> Part:
    """A range of a slot, or of a part of one."""
    if isinstance(home, Slot):
        return Part(home, offset, nbytes)
    return Part(home.slot, home.offset + offset, nbytes)
