"""Object code in, what it is made for, defines and asks for out.

LLVM links an object of another processor without a word and does not name the symbols it misses,
so Graft looks before it links. Only as much of ELF is read as that takes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from graft.base.errors import UserError

_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATABLE, _SYMBOL_TABLE, _LOCAL = 1, 2, 0


@dataclass(frozen=True, slots=True)
class ObjectSymbols:
    """An object's architecture, the names it offers and the names it needs."""

    architecture: str
    defined: frozenset[str]
    undefined: frozenset[str]


def read_object(code: bytes) -> ObjectSymbols:
    """Look into a relocatable ELF object."""
    if code[:4] != b"\x7fELF":
        raise UserError("this is not object code in the ELF format")
    if code[4:6] != b"\x02\x01":
        raise UserError("this object code is not for a 64-bit little-endian processor")
    try:
        return _read(code)
    except (struct.error, ValueError, IndexError) as error:
        raise UserError("this object code is damaged") from error


def _read(code: bytes) -> ObjectSymbols:
    header = _HEADER.unpack_from(code)
    kind, machine, start, size, count = header[1], header[2], header[6], header[11], header[12]
    if kind != _RELOCATABLE or size != _SECTION.size:
        raise ValueError("not a relocatable object")
    sections = [_SECTION.unpack_from(code, start + index * size) for index in range(count)]
    defined: set[str] = set()
    undefined: set[str] = set()
    for _, section_kind, _, _, offset, length, link, _, _, entry in sections:
        if section_kind != _SYMBOL_TABLE or entry != _SYMBOL.size:
            continue
        names = code[sections[link][4] : sections[link][4] + sections[link][5]]
        for position in range(offset, offset + length, entry):
            name, info, _, home, _, _ = _SYMBOL.unpack_from(code, position)
            if name and info >> 4 != _LOCAL:
                text = names[name : names.index(b"\0", name)].decode("utf-8")
                (defined if home else undefined).add(text)
    architecture = _MACHINES.get(machine, f"machine {machine}")
    return ObjectSymbols(architecture, frozenset(defined), frozenset(undefined))
