"""Assembly -> where everything lies: offsets in the arena, and tensors in the memory of devices.

The arena is used again as soon as nobody needs any more what was there; tensors of devices come
from a pool before their first use, and go back there after the last (`runtime/tensor_pool.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graft.backends.host.assemble import Assembly, NativeStep, ReferenceStep, TransferStep
from graft.backends.host.homes import Abroad, Home, Part, Slot
from graft.backends.host.storage import Storage
from graft.base.errors import InternalError
from graft.passes.plan_memory import ALIGNMENT, Interval, lower_bound, place
from graft.runtime import program as rt


@dataclass(frozen=True, eq=False)
class Places:
    """Where slots and tensors abroad are in the finished program."""

    offsets: Mapping[Slot, int]
    arena_bound: int  # no plan can do with a smaller arena
    indices: Mapping[Abroad, int]
    remotes: tuple[rt.RemoteTensor, ...]

    @property
    def arena_bytes(self) -> int:
        ends = (offset + _rounded(size_of(slot)) for slot, offset in self.offsets.items())
        return max(ends, default=0)

    def reference(self, home: Home) -> rt.BufferRef:
        match home:
            case Slot():
                return rt.Arena(self.offsets[home], size_of(home))
            case Part(slot, offset, nbytes):
                return rt.Arena(self.offsets[slot] + offset, nbytes)
        return home

    def operand(self, home: Home | Abroad, storage: Storage) -> rt.Operand:
        """A row-major tensor as functions outside of native code see it."""
        buffer = self.remote(home) if isinstance(home, Abroad) else self.reference(home)
        return rt.Operand(buffer, storage.dtype, storage.sizes)

    def remote(self, abroad: Abroad) -> rt.Remote:
        return rt.Remote(self.indices[abroad])


def lifetimes(assembly: Assembly) -> dict[Slot | Abroad, tuple[int, int]]:
    """The first and the last step that touches each piece of memory."""
    found: dict[Slot | Abroad, tuple[int, int]] = {}
    for number, step in enumerate(assembly.steps):
        for home in _homes(step):
            whole = home.slot if isinstance(home, Part) else home
            if isinstance(whole, Slot | Abroad):
                found[whole] = found.get(whole, (number, number))[0], number
    return found


def places_of(assembly: Assembly) -> Places:
    """Find a place for everything."""
    spans = lifetimes(assembly)
    slots = [one for one in spans if isinstance(one, Slot)]
    intervals = [Interval(_rounded(size_of(slot)), *spans[slot]) for slot in slots]
    offsets = dict(zip(slots, place(intervals), strict=True))
    abroad = [one for one in spans if isinstance(one, Abroad)]
    remotes = tuple(rt.RemoteTensor(one.space, one.dtype, one.shape) for one in abroad)
    indices = {one: number for number, one in enumerate(abroad)}
    return Places(offsets, lower_bound(intervals), indices, remotes)


def _homes(step: NativeStep | ReferenceStep | TransferStep) -> tuple[Home | Abroad, ...]:
    match step:
        case NativeStep():
            return step.homes
        case TransferStep():
            return (step.home[0], step.abroad)
    return tuple(home for home, _ in (*step.inputs, *step.outputs))


def size_of(slot: Slot) -> int:
    """How large a slot of a program with static shapes is."""
    if not isinstance(slot.nbytes, int):
        raise InternalError(f"a slot of a static program has the size {slot.nbytes}")
    return slot.nbytes


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
