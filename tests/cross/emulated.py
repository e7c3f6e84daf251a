"""AArch64 kernels and programs on this machine: like native ones, but in an emulator."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tests.cross.image import Call, Image

from graft.base.dtypes import Array
from graft.llvm.barrier import YIELD_OFFSET
from graft.llvm.claim import CLAIM_BYTES, CLAIMS_OFFSET
from graft.llvm.emit import SCRATCH_ALIGNMENT
from graft.llvm.load import Argument, Kernel
from graft.loop.ir import Buffer, Function
from graft.program import instructions as p
from graft.program.program import Program, segment_arena
from graft.program.verify import nbytes_of
from graft.runtime import thread_pool
from graft.runtime.memory import aligned_size

# How patiently threads wait at the driver's gates: briefly, so that they sleep and are woken, too.
LOOKS, OFFERS = 5, 5


@dataclass(frozen=True)
class EmulatedKernel(Kernel):
    """A function in machine code of another machine; `library` is its object code."""

    def __call__(self, arguments: Mapping[str, Argument], threads: int = 1) -> None:
        self._pointers(arguments)  # checks them
        image = Image([self.library])
        buffers = [one for one in self.function.parameters if isinstance(one, Buffer)]
        arrays = [self._argument(arguments, buffer.name) for buffer in buffers]
        addresses = [
            image.place(array.tobytes(), buffer.alignment)
            for buffer, array in zip(buffers, arrays, strict=True)
        ]
        scalars = image.words(self._scalars(arguments).tolist())
        shared = bytearray(CLAIMS_OFFSET + CLAIM_BYTES * threads)
        struct.pack_into("<Q", shared, YIELD_OFFSET, image.symbols["sched_yield"])
        meeting = image.place(bytes(shared), kept=False)
        calls = []
        for thread in range(threads):
            scratch = image.place(
                bytes(self.scratch_bytes(arguments)), SCRATCH_ALIGNMENT, kept=False
            )
            table = image.words([*addresses, scratch])
            calls.append(Call(self.function.name, (table, scalars, thread, threads, meeting)))
        results = image.run(calls[:1], calls[1:])
        for array, result in zip(arrays, results, strict=True):
            changed = np.frombuffer(result, array.dtype).reshape(array.shape)
            if array.flags.writeable:
                array[...] = changed
            else:
                assert changed.tobytes() == array.tobytes(), "a constant was written"


def load(function: Function, code: bytes) -> EmulatedKernel:
    """Object code of AArch64 as something to call."""
    return EmulatedKernel(function, 0, code)


def run_program(program: Program, inputs: list[Array], threads: int = 1) -> list[Array]:
    """A whole compiled program of one segment, by its own driver and with its own threads."""
    (segment,) = program.body.instructions
    assert isinstance(segment, p.Segment), "Python does not run in the emulator"
    image = Image(program.objects)
    memory: dict[int, int] = {}
    for number, array in (*program.constants, *zip(program.body.inputs, inputs, strict=True)):
        memory[number] = image.place(array.tobytes(), kept=False)
    for number, value in zip(program.body.outputs, program.outputs, strict=True):
        memory[number] = image.place(bytes(nbytes_of(value)))
    arena = image.place(bytes(segment_arena(segment) or 0), kept=False)
    stride = aligned_size(max(map(int, segment.scratch), default=0))
    scratch = image.place(bytes(stride * threads), kept=False)

    def address(buffer: p.Buffer, thread: int) -> int:
        if isinstance(buffer, p.Slot):
            return arena + int(buffer.offset)
        return memory[buffer] if isinstance(buffer, int) else scratch + thread * stride

    records: list[int] = []
    for call in segment.calls:
        table = [address(one, thread) for thread in range(threads) for one in call.buffers]
        flags = thread_pool.SERIAL * call.serial | thread_pool.RUNS_ON * call.overlaps
        scalars = [int(scalar) for scalar in call.scalars]
        words = image.words(table), image.words(scalars), 8 * len(call.buffers)
        records += [image.symbols[call.symbol], *words, flags]
    meeting = image.place(_team(image, threads), kept=False)
    run = Call(thread_pool.RUN, (meeting, image.words(records), len(segment.calls), threads, 0))
    workers = [Call(thread_pool.WORK, (meeting, thread)) for thread in range(1, threads)]
    results = image.run([run, Call(thread_pool.STOP, (meeting,))], workers)
    return [
        np.frombuffer(result, value.dtype.numpy if value.dtype else None).reshape(value.shape)
        for result, value in zip(results, program.outputs, strict=True)
    ]


def _team(image: Image, threads: int) -> bytes:
    """The memory that the threads of a program meet in."""
    pool = bytearray(thread_pool.THREAD_POOL_BYTES + thread_pool.CLAIM_BYTES * threads)
    struct.pack_into("<Q", pool, thread_pool.GIVE_AWAY, image.symbols["sched_yield"])
    for offset in thread_pool.PATIENCES:
        struct.pack_into("<QQ", pool, offset, LOOKS, OFFERS)
    return bytes(pool)
