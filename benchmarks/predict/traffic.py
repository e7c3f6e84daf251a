"""What kernels do when they run: how often each basic block, and how many bytes between caches.

In go LLVM texts of kernels, already optimised, and a machine; out come object codes of the same
kernels that report every block and its accesses to a simulation of the machine's caches. Running a
program with these gives counts that are exact for whatever the compiler has made, in the order and
at the addresses of a real run.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from graft.base.dtypes import Array
from graft.target.machine import LINE_BYTES, Machine

SOURCE = Path(__file__).with_name("traffic.c")
LEVELS, SLOTS = 4, 4096
WINDOW = 16  # runs of a block: a few hundred cycles or some thousands, as far as prefetchers look
_LEAST_WAYS = 8
_SHARERS = 2  # of a shared cache, where other cores work too

_LABEL = re.compile(r'^("?[\w.$-]+"?):')
_NAME = r'(?:[\w.$-]+|"[^"]*")'
_LOAD = re.compile(rf"= load (?:volatile )?(.+?), ptr (%{_NAME})")
_STORE = re.compile(rf"^\s*store (?:volatile )?(<[^>]*>|\w+) .*?, ptr (%{_NAME})")
_MASKED_LOAD = re.compile(rf"= .*call (<[^>]*>) @llvm\.masked\.load\S*\(ptr [^%]*(%{_NAME})")
_MASKED_STORE = re.compile(
    rf"call void @llvm\.masked\.store\S*\((<[^>]*>) .*?, ptr [^%]*(%{_NAME})"
)
_PREFETCH = re.compile(rf"call void @llvm\.prefetch\S*\(ptr [^%]*(%{_NAME}), i32 0, i32 (\d)")
_VECTOR = re.compile(r"<(\d+) x (\w+)>")
_TERMINATOR = re.compile(r"^\s*(br|ret|switch|unreachable)\b")
_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "ptr": 64}


@dataclass(frozen=True)
class Access:
    """A read or write of so many bytes, or a prefetch, into a level below the first cache."""

    size: int
    written: bool
    posted: bool  # whether nothing waits for it
    level: int = 0


@dataclass(frozen=True)
class Moved:
    """Bytes between each cache and what is below it: those that loads wait for, those that
    prefetches and those that stores ask for, those that are written back, and those of code.
    `starts` are first runs of a call that wait for a line from each level.

    Of those that loads wait for, `scattered` come from places that the prefetcher of the first
    cache does not foresee; `bursts` has what loads and what stores ask for by windows of a few of
    the block's runs. `starts` are first runs of a call that wait for a line from each level,
    `stalls` cycles by level in which code waits for what prefetches have asked for."""

    waited: Sequence[int]
    posted: Sequence[int]
    stored: Sequence[int]
    scattered: Sequence[int]
    evicted: Sequence[int]
    fetched: Sequence[int]
    starts: Sequence[int]
    stalls: Sequence[float]
    bursts: Array


@dataclass(frozen=True)
class Block:
    """A basic block of a kernel, by LLVM's name for it."""

    kernel: int
    name: str
    accesses: tuple[Access, ...]
    is_first: bool  # of the kernel


class Traffic:
    """Caches of a machine, and what the kernels of a program do to them."""

    def __init__(
        self,
        texts: Sequence[str],
        machine: Machine,
        line_cycles: Sequence[float],
        code_bytes: Sequence[Mapping[str, int]],
        is_alone: bool = False,
    ) -> None:
        """`line_cycles` has what a line from below each cache takes where many come, `code_bytes`
        the sizes of each kernel's blocks. `is_alone` where no other core works meanwhile: shared
        caches are then the model's."""
        self._library = _library()
        self._slots = ctypes.addressof(ctypes.c_uint64.in_dll(self._library, "slots"))
        self._touch = ctypes.cast(self._library.touch, ctypes.c_void_p).value or 0
        self.blocks: list[Block] = []
        self.objects = [self._instrumented(number, text) for number, text in enumerate(texts)]
        self._runs = np.zeros(len(self.blocks), np.int64)
        self._lines = np.zeros((7, len(self.blocks), LEVELS), np.int64)
        self._stalls = np.zeros((len(self.blocks), LEVELS))
        self._paces = np.zeros(len(self.blocks))
        self._code_bytes = code_bytes
        self._set_up(machine, line_cycles, 1 if is_alone else _SHARERS)

    def clear(self, cycles: Sequence[Mapping[str, float]]) -> None:
        """Count from nothing; what is in the caches stays there. From now on each run of a kernel's
        block takes so many `cycles`."""
        self._paces[:] = [cycles[block.kernel].get(block.name, 0.0) for block in self.blocks]
        self._runs[:] = 0
        self._lines[:] = 0
        self._stalls[:] = 0
        self._library.forget_bursts()

    def block_runs(self, kernel: int) -> dict[str, int]:
        """How often each block of a kernel ran."""
        pairs = zip(self.blocks, self._runs.tolist(), strict=True)
        return {block.name: runs for block, runs in pairs if block.kernel == kernel}

    def bytes_below(self, kernel: int) -> dict[str, Moved]:
        """Bytes that moved by each block."""
        *lines, starts = self._lines
        amounts = (*(kind * LINE_BYTES for kind in lines), starts, self._stalls)
        rows = zip(self.blocks, *(amount.tolist() for amount in amounts), strict=True)
        return {
            block.name: Moved(*kinds, self._bursts(number))
            for number, (block, *kinds) in enumerate(rows)
            if block.kernel == kernel
        }

    def _bursts(self, block: int) -> Array:
        lines = ctypes.POINTER(ctypes.c_int32)()
        count = self._library.bursts_of(ctypes.c_int64(block), ctypes.byref(lines))
        if not count:
            return np.zeros((0, 2, LEVELS), np.int64)
        return np.ctypeslib.as_array(lines, (count, 2, LEVELS)).astype(np.int64) * LINE_BYTES

    def _set_up(self, machine: Machine, line_cycles: Sequence[float], sharers: int) -> None:
        shapes = [_shape(cache.size // min(cache.shared_by, sharers)) for cache in machine.caches]
        firsts = np.cumsum([0, *(len(block.accesses) for block in self.blocks)])
        every = (access for block in self.blocks for access in block.accesses)
        kinds = [(one.size, one.written, one.posted, one.level) for one in every]
        self._kept: list[Any] = [
            np.array([sets for sets, _ in shapes], np.int64),
            np.array([ways for _, ways in shapes], np.int64),
            firsts.astype(np.int64),
            np.array(kinds or [(0, 0, 0, 0)], np.int32),
            np.array(list(self._codes()) or [(0, 0, 0, 0)], np.int32),
            np.array(line_cycles, np.float64),
        ]
        *before, codes, cycles = self._kept
        counted = self._runs, self._lines
        arrays = [*before, *counted, codes, cycles, self._paces, self._stalls]
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        self._library.setup(len(shapes), *pointers, ctypes.c_int64(len(self.blocks)))

    def _codes(self) -> Iterator[tuple[int, bool, int, int]]:
        """Each block's kernel, whether it is the first one, and its lines of code."""
        line = 0
        for block in self.blocks:
            lines = -(-self._code_bytes[block.kernel].get(block.name, 0) // LINE_BYTES)
            yield block.kernel, block.is_first, line, lines
            line += lines

    def _instrumented(self, kernel: int, text: str) -> bytes:
        lines: list[str] = []
        name, accesses, body, is_first = "", [], False, False
        for line in text.splitlines():
            if line.startswith("define"):
                body = not line.startswith("define internal")  # barriers and claims are no work
                is_first = body
            elif body and line == "}":
                body = False
            label = _LABEL.match(line) if body else None
            if label:
                name, accesses = label[1].strip('"'), []
            lines_before: list[str] = []
            if body and name:
                if found := _access(line):
                    pointer, access = found
                    lines_before.append(self._noted(pointer, len(accesses)))
                    accesses.append(access)
                elif _TERMINATOR.match(line):
                    lines_before.append(self._called(len(self.blocks)))
                    self.blocks.append(Block(kernel, name, tuple(accesses), is_first))
                    name, is_first = "", False
            lines += [*lines_before, line]
        return _host_object("\n".join(lines))

    def _noted(self, pointer: str, slot: int) -> str:
        address = self._slots + 8 * (slot % SLOTS)
        return f"  store volatile ptr {pointer}, ptr inttoptr (i64 {address} to ptr), align 8"

    def _called(self, block: int) -> str:
        return f"  call void inttoptr (i64 {self._touch} to ptr)(i32 {block})"


def _access(line: str) -> tuple[str, Access] | None:
    """Pointer and kind of what a line reads or writes."""
    for pattern, written in (
        (_LOAD, False),
        (_STORE, True),
        (_MASKED_LOAD, False),
        (_MASKED_STORE, True),
    ):
        if found := pattern.search(line):
            return found[2], Access(_size(found[1]), written, posted=written)
    if found := _PREFETCH.search(line):
        return found[1], Access(1, written=False, posted=True, level=3 - int(found[2]))
    return None


def _size(type_: str) -> int:
    vector = _VECTOR.fullmatch(type_)
    count, element = (int(vector[1]), vector[2]) if vector else (1, type_)
    bits = _BITS[element] if element in _BITS else int(element.removeprefix("i"))
    return max(1, count * bits // 8)


def _shape(size: int) -> tuple[int, int]:
    """Sets and ways of a cache: a power of two, and as few more than eight as make up the size."""
    lines = size // LINE_BYTES
    sets = 1 << (max(1, lines // _LEAST_WAYS).bit_length() - 1)
    return sets, max(1, lines // sets)


def _host_object(text: str) -> bytes:
    """Object code for this machine, of kernels for any: LLVM takes wider vectors apart."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = llvm.get_process_triple()
    text = re.sub(r"^target (datalayout|triple) = .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'"tune-cpu"="[^"]*"|"(min-legal|prefer)-vector-width"="\d+"', "", text)
    machine = llvm.Target.from_triple(triple).create_target_machine(
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        opt=1,
        reloc="pic",
        codemodel="small",
    )
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = triple, str(machine.target_data)
    return bytes(machine.emit_object(module))


def _library() -> Any:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("predict.py simulates caches in C and finds no compiler: apt install gcc")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "traffic.so"
        options = ["-O2", "-fPIC", "-shared", f"-DWINDOW={WINDOW}"]
        subprocess.run([compiler, *options, "-o", path, SOURCE], check=True)
        library = ctypes.CDLL(str(path))
    library.bursts_of.restype = ctypes.c_int64
    return library
