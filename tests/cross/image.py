"""AArch64 programs without an operating system's help: object code and data in, changed data out.

An image is a static executable in which everything has its address from the start: a few words of
machine code that call the functions wanted, the object code, and data between pages that nobody may
touch. What a function reads or writes beyond its data ends the program, and what it writes beside
them is noticed.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.cross.link import link
from tests.cross.qemu import emulator

# A processor with what every 64-bit Arm has and nothing else, so that code which relies on more
# than it should ends with an illegal instruction.
PROCESSOR = "cortex-a53"
PAGE = 4096
CODE, DATA = 0x1000_0000, 0x4000_0000
STACK_BYTES = 1 << 20
SECONDS = 300
_FILLER = 0xA5

_WRITE, _EXIT, _EXIT_GROUP, _YIELD, _CLOCK, _CLONE, _MAP = 64, 93, 94, 124, 113, 220, 222
# What a mapping is made of, behind its size: readable and writable, private, of no file.
_ANONYMOUS = {2: 3, 3: 0x22, 4: (1 << 64) - 1, 5: 0}
_SUPERVISOR, _RETURN = 0xD4000001, 0xD65F03C0
# A thread in the same memory that clears a word when it ends.
_THREAD_FLAGS = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x200000


@dataclass(frozen=True)
class Call:
    """A function and its arguments, by name or address."""

    function: str
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """Data at an address; before them, up to the page's begin, filler."""

    address: int
    start: int  # of its first page
    data: bytes
    kept: bool  # whether anybody wants to see it afterwards


class Image:
    """A program in the making."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        self._regions: list[Region] = []
        self._next = DATA
        stubs = b"".join(_words(*words) for words in _STUBS.values())
        known, address = {}, CODE
        for name, words in _STUBS.items():
            known[name] = address
            address += 4 * len(words)
        padded = stubs + bytes(-len(stubs) % 64)
        linked = link(objects, CODE + len(padded), known)
        self.symbols = linked.symbols
        self._code = padded + linked.data

    def place(self, data: bytes, alignment: int = 64, kept: bool = True) -> int:
        """Data that end as close to the end of a page as their alignment allows."""
        address, start, end = self._room(len(data), alignment)
        self._regions.append(Region(address, start, data, kept))
        self._next = end
        return address

    def place_at(self, count: int, data_at: Callable[[int], bytes]) -> int:
        """As many bytes, which depend on the address that they get; nobody sees them afterwards."""
        address, _, _ = self._room(count, 64)
        data = data_at(address)
        assert len(data) == count
        return self.place(data, kept=False)

    def _room(self, count: int, alignment: int) -> tuple[int, int, int]:
        """The address of the next data, where their first page starts and their last one ends."""
        start = self._next + PAGE
        end = start + -(-max(count, 1) // PAGE) * PAGE
        return (end - count) // alignment * alignment, start, end

    def words(self, numbers: Sequence[int]) -> int:
        """64-bit numbers, such as addresses."""
        packed = struct.pack(f"<{len(numbers)}Q", *(n & 0xFFFFFFFFFFFFFFFF for n in numbers))
        return self.place(packed, kept=False)

    def run(self, calls: Sequence[Call], workers: Sequence[Call] = ()) -> list[bytes]:
        """Do the calls one by one while threads do the others; gives what is kept, in order."""
        gates = [self.place(struct.pack("<Q", 1), kept=False) for _ in workers]
        stacks = [self.place(bytes(STACK_BYTES), kept=False) + STACK_BYTES for _ in workers]
        code: list[int] = []
        for worker, gate, stack in zip(workers, gates, stacks, strict=True):
            child = [*self._call(worker), *_system(_EXIT, 0)]
            code += _system(_CLONE, _THREAD_FLAGS, stack, 0, 0, gate)
            code += [0xB5000000 | (len(child) + 1) << 5, *child]  # the parent jumps over
        for call in calls:
            code += self._call(call)
        for gate in gates:
            # Load with acquire; once more unless zero.
            code += [*_move(0, gate), 0x88DFFC01, 0x35000001 | (-1 & 0x7FFFF) << 5]
        kept = [region for region in self._regions if region.kept]
        for region in kept:
            code += _system(_WRITE, 1, region.start, _size(region))
        code += _system(_EXIT_GROUP, 0)
        return self._results(kept, self._execute(code))

    def _call(self, call: Call) -> list[int]:
        code = []
        for register, argument in enumerate(call.arguments):
            code += _move(register, argument)
        return [*code, *_move(16, self.symbols[call.function]), 0xD63F0000 | 16 << 5]

    def _execute(self, code: list[int]) -> bytes:
        """What the program writes."""
        start = CODE + len(self._code) + -len(self._code) % 64
        body = self._code + bytes(-len(self._code) % 64) + _words(*code)
        regions = [Region(CODE, CODE, body, False), *self._regions]
        with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryFile() as output:
            file.write(_executable(start, regions))
            file.flush()
            os.chmod(file.name, 0o700)  # the emulator looks, though it only reads
            command = [emulator(), "-cpu", PROCESSOR, file.name]
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.PIPE, check=False, timeout=SECONDS
            )
            if done.returncode != 0:
                raise AssertionError(
                    f"the program ended with {done.returncode}: {done.stderr.decode()}"
                )
            output.seek(0)
            return output.read()

    def _results(self, kept: list[Region], written: bytes) -> list[bytes]:
        results, offset = [], 0
        for region in kept:
            memory = written[offset : offset + _size(region)]
            offset += len(memory)
            before = region.address - region.start
            after = before + len(region.data)
            outside = memory[:before] + memory[after:]
            assert outside == bytes([_FILLER]) * len(outside), "memory beside the data was written"
            results.append(memory[before:after])
        return results


def _size(region: Region) -> int:
    """Bytes of the pages that hold the region."""
    return -(-max(region.address + len(region.data) - region.start, 1) // PAGE) * PAGE


def _words(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def _move(register: int, value: int) -> list[int]:
    """A 64-bit number into a register, 16 bits at a time."""
    clear_and_set, set_only = 0xD2800000, 0xF2800000
    operations = (clear_and_set, set_only, set_only, set_only)
    return [
        operation | part << 21 | (value >> 16 * part & 0xFFFF) << 5 | register
        for part, operation in enumerate(operations)
    ]


def _system(number: int, *arguments: int) -> list[int]:
    """A call of Linux."""
    code = []
    for register, argument in enumerate(arguments):
        code += _move(register, argument)
    return [*code, *_move(8, number), _SUPERVISOR]


def _copy(target: int, source: int) -> int:
    return 0xAA0003E0 | source << 16 | target


# What the run time's driver asks of the C library.
_STUBS = {
    "syscall": [_copy(8, 0), *(_copy(k, k + 1) for k in range(6)), _SUPERVISOR, _RETURN],
    "sched_yield": [*_move(8, _YIELD), _SUPERVISOR, _RETURN],
    "clock_gettime": [*_move(8, _CLOCK), _SUPERVISOR, _RETURN],
    # Byte by byte, as long as the third argument is not zero: load, store, one less, back.
    "memcpy": [_copy(3, 0), 0xB40000A2, 0x38401424, 0x38001464, 0xD1000442, 0x17FFFFFC, _RETURN],
    # Pages of their own, which stay until the program ends.
    "aligned_alloc": [
        *_move(0, 0),
        *(word for register, value in _ANONYMOUS.items() for word in _move(register, value)),
        *_move(8, _MAP),
        _SUPERVISOR,
        _RETURN,
    ],
    "free": [_RETURN],
    "madvise": [*_move(0, 0), _RETURN],
    # As above, with the second argument in place of what is loaded.
    "memset": [_copy(3, 0), 0xB4000082, 0x38001461, 0xD1000442, 0x17FFFFFD, _RETURN],
}


def _executable(entry: int, regions: Sequence[Region]) -> bytes:
    """An ELF file: its headers, then the pages of each region."""
    head = 64 + 56 * len(regions)
    offset = -(-head // PAGE) * PAGE
    headers, body = [], []
    for region in regions:
        size = _size(region)
        before = region.address - region.start
        filled = bytes([_FILLER]) * before + region.data
        body.append(filled + bytes([_FILLER]) * (size - len(filled)))
        place = (region.start, region.start, size, size, PAGE)
        headers.append(struct.pack("<IIQQQQQQ", 1, 7, offset, *place))
        offset += size
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    fields = (2, 183, 1, entry, 64, 0, 0, 64, 56, len(regions), 64, 0, 0)
    start = identity + struct.pack("<HHIQQQIHHHHHH", *fields) + b"".join(headers)
    return start + bytes(-len(start) % PAGE) + b"".join(body)
