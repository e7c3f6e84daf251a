"""Links AArch64 object code: objects and an address in, bytes to lie there and symbols out.

Only as much as object code of Graft needs: a few kinds of relocation, no libraries.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graft.runtime.elf import LOADED, UNDEFINED, Relocation, read_object

# Relocations that fill 12 bits of an instruction with the low bits of an address, of which so many
# are dropped: by the size of what is loaded or stored there.
_LOW_BITS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
_PAGE, _BRANCHES = 275, (282, 283)
_ADDRESS, _DISTANCE = 257, 261


class LinkError(Exception):
    """Object code with something in it that this linker does not know."""


@dataclass(frozen=True)
class Linked:
    """Code and constants at their address, and where the functions are."""

    data: bytes
    symbols: Mapping[str, int]


def link(objects: Sequence[bytes], base: int, known: Mapping[str, int]) -> Linked:
    """The objects one behind the other from an address on; `known` is where other functions are."""
    memory = bytearray()
    files = [read_object(code) for code in objects]
    places: list[dict[int, int]] = []
    symbols = dict(known)
    for file in files:
        place: dict[int, int] = {}
        for index, section in enumerate(file.sections):
            if section.flags & LOADED and section.name != ".eh_frame":
                memory += bytes(-len(memory) % section.alignment)
                place[index] = base + len(memory)
                memory += section.data.ljust(section.size, b"\0")
        for one in file.symbols:
            if not one.is_local and one.section in place:
                symbols[one.name] = place[one.section] + one.value
        places.append(place)
    for file, place in zip(files, places, strict=True):
        for index, start in place.items():
            for relocation in file.sections[index].relocations:
                goal = file.symbols[relocation.symbol]
                undefined = goal.section == UNDEFINED
                value = symbols[goal.name] if undefined else place[goal.section] + goal.value
                _relocate(memory, base, start, relocation, value + relocation.addend)
    return Linked(bytes(memory), symbols)


def _relocate(memory: bytearray, base: int, start: int, one: Relocation, value: int) -> None:
    """Write an address into the place that waits for it."""
    at = start + one.offset
    if one.kind == _ADDRESS:
        struct.pack_into("<Q", memory, at - base, value)
    elif one.kind == _DISTANCE:
        struct.pack_into("<i", memory, at - base, value - at)
    else:
        (word,) = struct.unpack_from("<I", memory, at - base)
        struct.pack_into("<I", memory, at - base, word | _bits(one.kind, value, at))


def _bits(kind: int, value: int, at: int) -> int:
    """What an instruction's gap is filled with."""
    if kind in _LOW_BITS:
        return (value & 0xFFF) >> _LOW_BITS[kind] << 10
    if kind in _BRANCHES:
        return (value - at) >> 2 & 0x3FFFFFF
    if kind == _PAGE:
        pages = (value >> 12) - (at >> 12)
        return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    raise LinkError(f"relocation {kind} is not known here")
