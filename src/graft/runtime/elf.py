"""Object code in, what is in it out: sections, symbols, relocations.

LLVM links an object of another processor without a word and does not name the symbols it misses,
so Graft looks before it links; and what is as simple as its own kernels, it links itself. Only as
much of ELF is read as that takes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from graft.base.errors import UserError

_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_RELOCATABLE, _SYMBOL_TABLE, _RELOCATIONS, _LOCAL = 1, 2, 4, 0

EMPTY = 8  # a section that takes memory, and no room in the file
WRITABLE, LOADED, EXECUTABLE, THREADS_OWN = 1, 2, 4, 1 << 10  # what sections are
UNDEFINED = 0  # the section of symbols that are in none


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place in a section that is to hold something about a symbol's address."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of an object; `relocations` are those within it."""

    name: str
    kind: int
    flags: int
    alignment: int
    size: int
    data: bytes
    relocations: tuple[Relocation, ...] = ()


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name for a place in a section, or for one in another object."""

    name: str
    section: int
    value: int
    is_local: bool


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """An object's architecture, its sections and its symbols, as the object counts them."""

    architecture: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    @property
    def defined(self) -> frozenset[str]:
        """The names it offers to other objects."""
        return frozenset(one.name for one in self._global() if one.section != UNDEFINED)

    @property
    def undefined(self) -> frozenset[str]:
        """The names it needs."""
        return frozenset(one.name for one in self._global() if one.section == UNDEFINED)

    def _global(self) -> list[Symbol]:
        return [symbol for symbol in self.symbols if symbol.name and not symbol.is_local]


def read_object(code: bytes) -> ObjectFile:
    """Look into a relocatable ELF object."""
    if code[:4] != b"\x7fELF":
        raise UserError("this is not object code in the ELF format")
    if code[4:6] != b"\x02\x01":
        raise UserError("this object code is not for a 64-bit little-endian processor")
    try:
        return _read(code)
    except (struct.error, ValueError, IndexError) as error:
        raise UserError("this object code is damaged") from error


_Header = tuple[int, ...]


def _read(code: bytes) -> ObjectFile:
    header = _HEADER.unpack_from(code)
    kind, machine, start, size, count = header[1], header[2], header[6], header[11], header[12]
    if kind != _RELOCATABLE or size != _SECTION.size:
        raise ValueError("not a relocatable object")
    headers = [_SECTION.unpack_from(code, start + index * size) for index in range(count)]
    symbols: tuple[Symbol, ...] = ()
    relocations: dict[int, tuple[Relocation, ...]] = {}
    for one in headers:
        if one[1] == _SYMBOL_TABLE:
            names = _content(code, headers[one[6]])
            symbols = tuple(_symbol(entry, names) for entry in _entries(code, one, _SYMBOL))
        elif one[1] == _RELOCATIONS:
            entries = _entries(code, one, _RELOCATION)
            relocations[one[7]] = tuple(_relocation(entry) for entry in entries)
    if any(one.symbol >= len(symbols) for group in relocations.values() for one in group):
        raise ValueError("a relocation names no symbol")
    names = _content(code, headers[header[13]]) if headers else b""
    sections = (
        _section(code, one, names, relocations.get(index, ())) for index, one in enumerate(headers)
    )
    return ObjectFile(_MACHINES.get(machine, f"machine {machine}"), tuple(sections), symbols)


def _content(code: bytes, header: _Header) -> bytes:
    offset, size = header[4], header[5]
    if offset + size > len(code):
        raise ValueError("a section ends outside of the object")
    return code[offset : offset + size]


def _entries(code: bytes, header: _Header, form: struct.Struct) -> list[tuple[int, ...]]:
    if header[9] != form.size:
        raise ValueError("a table has entries of an odd size")
    return list(form.iter_unpack(_content(code, header)))


def _section(
    code: bytes, header: _Header, names: bytes, relocations: tuple[Relocation, ...]
) -> Section:
    name, kind, flags, _, _, size, _, _, alignment, _ = header
    data = b"" if kind == EMPTY else _content(code, header)
    return Section(_text(names, name), kind, flags, max(alignment, 1), size, data, relocations)


def _symbol(entry: Sequence[int], names: bytes) -> Symbol:
    name, info, _, section, value, _ = entry
    return Symbol(_text(names, name), section, value, info >> 4 == _LOCAL)


def _relocation(entry: Sequence[int]) -> Relocation:
    offset, info, addend = entry
    return Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)


def _text(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode("utf-8")
