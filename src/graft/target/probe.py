"""Small kernels that measure the core they run on: nothing in, rates per cycle out.

Each kernel is a loop of LLVM text with a known number of instructions that the compiler can
neither remove nor combine. A rate is the best of several short runs: whatever disturbs a run only
makes it longer. All together take about a third of a second.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_ALIGNMENT = 64  # bytes; a line of a cache, and the widest vector

_CHAIN = 64  # pairs of dependent instructions in an iteration of the clock
_CHAINS = 2  # of dependent multiply-adds, as dense as those beside the clock, but no unit is full
_UNROLL = 32  # vector instructions of one kind in an iteration
_REPEATS, _SECONDS = 15, 2e-4  # short enough that some run between two interrupts


class Probes:
    """The kernels for vectors of so many bits, linked into this process."""

    def __init__(self, features: Sequence[str], has_fma: bool, bits: int, registers: int) -> None:
        self.vector_bytes = bits // 8
        # Two registers hold the operands. More sums than latency times units need do no harm.
        self.accumulators = registers - 4
        texts = _texts(bits // 32, self.accumulators, has_fma)
        self._library = linked("\n".join(texts.values()), list(texts), features)
        self._entries = {name: _ENTRY(self._library[name]) for name in texts}
        self._small = aligned(1 << 13)

    def clock(self) -> float:
        """Cycles per second under vector load, by a chain of additions of one cycle each.

        Intel's servers slow down while multiply-adds of 512 bits are in flight and recover within
        a millisecond (a Cascade Lake core: 3.0 GHz by additions alone, 2.3 to 2.6 beside them), so
        every other addition has a multiply-add beside it.
        """
        return self._rate("clock", 2 * _CHAIN)

    def fmas(self) -> float:
        """Vector multiply-adds per second, from many independent sums."""
        return self._rate("fmas", self.accumulators)

    def fma_chain(self) -> float:
        """Multiply-adds per second where each adds to the sum of the one before."""
        return self._rate("fma_chain", _CHAINS * _UNROLL) / _CHAINS

    def loads(self) -> float:
        """Vector loads per second from the first cache."""
        return self._rate("loads", _UNROLL)

    def stores(self) -> float:
        """Vector stores per second into the first cache."""
        return self._rate("stores", _UNROLL)

    def read_bandwidth(self, size: int) -> float:
        """Bytes per second when memory of that size, a power of two, is read again and again."""
        memory = aligned(size)
        chunk = _UNROLL * self.vector_bytes
        return self._rate("loads", chunk, memory, size // chunk)

    def _rate(self, name: str, per_iteration: int, memory: Any = None, span: int = 1) -> float:
        """What is done per second; kernels step through `span` parts of `memory`, in turn."""
        address = address_of(self._small if memory is None else memory)
        entry = self._entries[name]

        def run(count: int) -> float:
            start = time.thread_time()  # the time that other processes get does not count
            entry(address, count, span - 1)
            return time.thread_time() - start

        run(span)  # into the caches
        count = max(span, _count_for(run))
        return count * per_iteration / min(run(count) for _ in range(_REPEATS))


def _count_for(run: Callable[[int], float]) -> int:
    """How many iterations take as long as a run should."""
    count = 16
    while (seconds := run(count)) < _SECONDS / 4:
        count *= 2
    return max(1, round(count * _SECONDS / seconds))


def aligned(size: int) -> Any:
    """Memory that has been written to, so that it is really there."""
    memory = np.ones(size + _ALIGNMENT, np.uint8)
    skipped = -memory.ctypes.data % _ALIGNMENT
    return memory[skipped : skipped + size]


def address_of(memory: Any) -> int:
    return int(memory.ctypes.data)


def linked(text: str, names: Sequence[str], features: Sequence[str]) -> Any:
    """The kernels in memory, by name."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        llvm.get_host_cpu_name(),
        ",".join(f"+{feature}" for feature in features),
        opt=2,
        reloc="pic",
        codemodel="small",
    )
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(machine.emit_object(llvm.parse_assembly(text))).add_current_process()
    for name in names:
        builder.export_symbol(name)
    return builder.link(llvm.create_lljit_compiler(use_jit_link=True), "graft.probes")


def _texts(lanes: int, accumulators: int, has_fma: bool) -> dict[str, str]:
    vector = f"<{lanes} x float>"
    declared = f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})\n"
    return {
        "clock": (declared if has_fma else "") + _clock(vector, has_fma),
        "fmas": _sums("fmas", vector, accumulators, 1, has_fma),
        "fma_chain": _sums("fma_chain", vector, _CHAINS, _UNROLL, has_fma),
        "loads": _loop("loads", _memory(vector, lanes * 4, "load volatile {v}, ptr %p{n}")),
        "stores": _loop(
            "stores",
            _memory(vector, lanes * 4, "store volatile {v} zeroinitializer, ptr %p{n}"),
        ),
    }


def _loop(name: str, body: Sequence[str], before: Sequence[str] = (), phis: str = "") -> str:
    """A kernel that runs `body` so many times; `%at` walks through the parts of its memory."""
    lines = [
        f"define void @{name}(ptr %memory, i64 %count, i64 %mask) {{",
        "entry:",
        *before,
        "br label %loop",
        "loop:",
        "%i = phi i64 [0, %entry], [%next, %loop]",
        phis,
        "%at = and i64 %i, %mask",
        *body,
        "%next = add i64 %i, 1",
        "%more = icmp ult i64 %next, %count",
        "br i1 %more, label %loop, label %done",
        "done:",
        "ret void",
        "}",
    ]
    return "\n".join(lines)


def _clock(vector: str, has_fma: bool) -> str:
    """Additions and exclusive ors of numbers that the compiler does not know, in turn.

    Some cores add constants for nothing while they rename registers; none does so here. One
    multiply-add per pair, of eight sums in turn, has the core at the clock of vector code.
    """
    before = ["%a = load volatile i64, ptr %memory", "%b = load volatile i64, ptr %memory"]
    body, phis = [], [f"%x0 = phi i64 [1, %entry], [%x{_CHAIN}, %loop]"]
    sums = [f"%s{n}" for n in range(8 if has_fma else 0)]
    if has_fma:
        before.append(f"%v = load volatile {vector}, ptr %memory")
        last = _CHAIN - len(sums)
        phis += [
            f"{one} = phi {vector} [zeroinitializer, %entry], [%f{last + n}, %loop]"
            for n, one in enumerate(sums)
        ]
    for n in range(_CHAIN):
        body += [f"%y{n} = add i64 %x{n}, %a", f"%x{n + 1} = xor i64 %y{n}, %b"]
        if has_fma:
            operand = f"{vector} {sums[n % len(sums)]}"
            body.append(f"%f{n} = {_fma(vector)}({vector} %v, {vector} %v, {operand})")
            sums[n % len(sums)] = f"%f{n}"
    # The ends of the chains have to be used.
    body.append(f"store volatile i64 %x{_CHAIN}, ptr %memory")
    text = _loop("clock", body, before, "\n".join(phis))
    return text.replace("ret void", "\n".join([*_kept(vector, sums), "ret void"]))


def _fma(vector: str) -> str:
    return f"call {vector} @llvm.fma.v{vector[1:].split()[0]}f32"


def _sums(name: str, vector: str, count: int, steps: int, has_fma: bool) -> str:
    """So many independent sums, each added to so many times in an iteration.

    Without multiply-add instructions a chain is one of additions, since those are what a sum waits
    for, and throughput is that of a multiplication and an addition.
    """
    before = [f"%a = load volatile {vector}, ptr %memory"]
    body, phis = [], []
    for n in range(count):
        for k in range(steps):
            old, new = f"%s{n}.{k}", f"%s{n}.{k + 1}"
            if has_fma:
                body.append(f"{new} = {_fma(vector)}({vector} %a, {vector} %a, {vector} {old})")
            elif steps > 1:
                body.append(f"{new} = fadd {vector} {old}, %a")
            else:
                body += [f"%p{n}.{k} = fmul {vector} {old}, %a"]
                body += [f"{new} = fadd {vector} %p{n}.{k}, %a"]
        phis.append(f"%s{n}.0 = phi {vector} [zeroinitializer, %entry], [%s{n}.{steps}, %loop]")
    ends = [f"%s{n}.{steps}" for n in range(count)]
    return _loop(name, body, before, "\n".join(phis)).replace(
        "ret void", "\n".join([*_kept(vector, ends), "ret void"])
    )


def _kept(vector: str, values: Sequence[str]) -> Iterator[str]:
    """Stores that keep the compiler from dropping unused values."""
    for value in values:
        yield f"store volatile {vector} {value}, ptr %memory"


def _memory(vector: str, size: int, instruction: str) -> list[str]:
    """One instruction per vector of a part of memory."""
    body = [f"%start = mul i64 %at, {_UNROLL * size}"]
    for n in range(_UNROLL):
        body += [
            f"%o{n} = add i64 %start, {n * size}",
            f"%p{n} = getelementptr i8, ptr %memory, i64 %o{n}",
        ]
        line = instruction.format(v=vector, n=n)
        body.append((f"%v{n} = " if line.startswith("load") else "") + line + ", align 16")
    return body
