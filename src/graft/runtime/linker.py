"""Objects in, code in memory out: the linker for what Graft's own compiler makes.

Kernels are plain: code and read-only constants, distances between them, calls into the C library.
Linking them takes two dozen lines and a millisecond, while LLVM takes some 30 MB of memory. What
is not that plain is refused, and left to LLVM.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.elf import (
    EXECUTABLE,
    LOADED,
    THREADS_OWN,
    UNDEFINED,
    WRITABLE,
    ObjectFile,
    Relocation,
    Section,
    Symbol,
)
from graft.runtime.memory import address_of

# x86-64's relocations: an address; the distance from here; that to a word with the address.
_ADDRESS, _DISTANCES, _INDIRECT = 1, (2, 4), (9, 41, 42)
_KNOWN = {_ADDRESS, *_DISTANCES, *_INDIRECT}
_UNWINDING = ".eh_frame"  # how to unwind the stack, which is not needed: kernels raise nothing
# Code that jumps to the address behind it: functions of the system are out of a distance's reach.
_JUMP = b"\xff\x25\x00\x00\x00\x00"
_STUB_BYTES = 16
_WORD_BYTES = 8

_Place = tuple[int, int]  # the number of an object, and that of a section or symbol in it


def is_plain(objects: Iterable[ObjectFile]) -> bool:
    """Whether this linker knows all that is in the objects."""
    return all(_is_plain(one) for one in objects)


def _is_plain(file: ObjectFile) -> bool:
    if file.architecture != "x86_64":
        return False
    loaded = dict(_loaded(file))
    for section in loaded.values():
        if section.flags & THREADS_OWN or section.alignment > mmap.PAGESIZE:
            return False
        for one in section.relocations:
            defined_in = file.symbols[one.symbol].section
            if one.kind not in _KNOWN or (defined_in != UNDEFINED and defined_in not in loaded):
                return False
    return True


def _loaded(file: ObjectFile) -> Iterator[tuple[int, Section]]:
    """The sections that are to be in memory."""
    for index, section in enumerate(file.sections):
        if section.flags & LOADED and section.name != _UNWINDING:
            yield index, section


@dataclass(frozen=True, eq=False)
class Image:
    """Linked code, in place as long as this refers to it, and the addresses of its symbols."""

    memory: Array
    symbols: Mapping[str, int]


@dataclass
class _Layout:
    """What lies where, as offsets from the start of the memory."""

    size: int = 0
    sections: dict[_Place, int] = field(default_factory=dict)
    stubs: dict[str, int] = field(default_factory=dict)  # jumps to imported functions
    words: dict[_Place, int] = field(default_factory=dict)  # that hold symbols' addresses

    def reserve(self, size: int, alignment: int) -> int:
        start = -(-self.size // alignment) * alignment
        self.size = start + size
        return start


def link(objects: Sequence[ObjectFile], imports: Mapping[str, int]) -> Image:
    """Put plain objects into memory, where they find each other and what they import."""
    layout, parts = _laid_out(objects, imports)
    # Private, so that a forked child has code of its own, and readable and writable at first.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapped = mmap.mmap(-1, max(layout.size, 1), flags, mmap.PROT_READ | mmap.PROT_WRITE)
    memory: Array = np.frombuffer(mapped, np.uint8)
    base = address_of(memory)
    _Writer(objects, imports, layout, mapped, base).write()
    for start, end, access in parts:
        _protect(base + start, end - start, access)
    symbols = {
        symbol.name: base + layout.sections[number, symbol.section] + symbol.value
        for number, file in enumerate(objects)
        for symbol in file.symbols
        if not symbol.is_local and (number, symbol.section) in layout.sections
    }
    return Image(memory, symbols)


_KINDS: tuple[tuple[Callable[[int], bool], int], ...] = (
    (lambda flags: bool(flags & EXECUTABLE), mmap.PROT_READ | mmap.PROT_EXEC),
    (lambda flags: not flags & (EXECUTABLE | WRITABLE), mmap.PROT_READ),
    (lambda flags: flags & (EXECUTABLE | WRITABLE) == WRITABLE, mmap.PROT_READ | mmap.PROT_WRITE),
)


def _laid_out(
    objects: Sequence[ObjectFile], imports: Mapping[str, int]
) -> tuple[_Layout, list[tuple[int, int, int]]]:
    """Code, constants and variables on pages of their own; start, end and access of each part."""
    layout = _Layout()
    parts = []
    for fits, access in _KINDS:
        start = layout.reserve(0, mmap.PAGESIZE)
        for number, file in enumerate(objects):
            for index, section in _loaded(file):
                if fits(section.flags):
                    where = layout.reserve(section.size, section.alignment)
                    layout.sections[number, index] = where
        if access & mmap.PROT_EXEC:
            layout.stubs = {name: layout.reserve(_STUB_BYTES, _STUB_BYTES) for name in imports}
        elif not access & mmap.PROT_WRITE:
            symbols = dict.fromkeys(_held_in_words(objects))
            layout.words = {one: layout.reserve(_WORD_BYTES, _WORD_BYTES) for one in symbols}
        parts.append((start, layout.size, access))
    return layout, parts


def _held_in_words(objects: Sequence[ObjectFile]) -> Iterator[_Place]:
    """Symbols whose addresses code reads from memory."""
    for number, file in enumerate(objects):
        for _, section in _loaded(file):
            yield from (
                (number, one.symbol) for one in section.relocations if one.kind in _INDIRECT
            )


class _Writer:
    """Fills the memory."""

    def __init__(
        self,
        objects: Sequence[ObjectFile],
        imports: Mapping[str, int],
        layout: _Layout,
        memory: mmap.mmap,
        base: int,
    ) -> None:
        self._objects = objects
        self._imports = imports
        self._layout = layout
        self._memory = memory
        self._base = base
        self._offered = {
            symbol.name: (number, symbol)
            for number, file in enumerate(objects)
            for symbol in file.symbols
            if not symbol.is_local and symbol.section != UNDEFINED
        }

    def write(self) -> None:
        for name, where in self._layout.stubs.items():
            self._put(where, _JUMP + struct.pack("<Q", self._imports[name]))
        for (number, index), where in self._layout.words.items():
            address = self._address(number, self._objects[number].symbols[index])
            self._put(where, struct.pack("<Q", address))
        for number, file in enumerate(self._objects):
            for index, section in _loaded(file):
                self._put(self._layout.sections[number, index], section.data)
        # After all that is copied as a whole.
        for number, file in enumerate(self._objects):
            for index, section in _loaded(file):
                for one in section.relocations:
                    self._relocate(number, self._layout.sections[number, index], section, one)

    def _relocate(self, number: int, start: int, section: Section, one: Relocation) -> None:
        symbol = self._objects[number].symbols[one.symbol]
        where = start + one.offset
        form = "<Q" if one.kind == _ADDRESS else "<i"
        if one.offset + struct.calcsize(form) > section.size:
            raise UserError("this object code is damaged: a relocation lies outside its section")
        if one.kind == _ADDRESS:
            value = (self._address(number, symbol) + one.addend) % (1 << 64)
        elif one.kind in _INDIRECT:
            value = self._layout.words[number, one.symbol] + one.addend - where
        else:
            goal = self._layout.stubs.get(symbol.name)
            if goal is None:
                goal = self._address(number, symbol) - self._base
            value = goal + one.addend - where
        self._put(where, struct.pack(form, value))

    def _address(self, number: int, symbol: Symbol) -> int:
        """Where a symbol is, in this object, in another one or in the system."""
        if symbol.section == UNDEFINED:
            if symbol.name in self._imports:
                return self._imports[symbol.name]
            number, symbol = self._offered[symbol.name]
        return self._base + self._layout.sections[number, symbol.section] + symbol.value

    def _put(self, address: int, data: bytes) -> None:
        self._memory[address : address + len(data)] = data


def _protect(address: int, size: int, access: int) -> None:
    if size and ctypes.CDLL(None, use_errno=True).mprotect(
        ctypes.c_void_p(address), ctypes.c_size_t(size), access
    ):
        raise UserError(
            "the system does not let this process run code that it has loaded",
            hint="mprotect was refused: look at what SELinux or a sandbox forbids",
        )
