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
from graft.runtime import agreement
from graft.runtime import program as rt
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


def run_program(program: rt.Program, inputs: list[Array], threads: int = 1) -> list[Array]:
    """A whole compiled program, by its own driver and with its own threads."""
    image = Image(program.objects)
    memory: dict[rt.BufferRef, int] = {}
    for index, array in enumerate(program.constants):
        memory[rt.Constant(index)] = image.place(array.tobytes(), kept=False)
    for index, array in enumerate(inputs):
        memory[rt.Input(index)] = image.place(array.tobytes(), kept=False)
    for index, spec in enumerate(program.outputs):
        memory[rt.Output(index)] = image.place(bytes(spec.nbytes))
    arena = image.place(bytes(program.arena_bytes), kept=False)
    stride = aligned_size(program.scratch_bytes)
    scratch = image.place(bytes(stride * threads), kept=False)

    def address(reference: rt.BufferRef, thread: int) -> int:
        if isinstance(reference, rt.Arena):
            return arena + reference.offset
        return scratch + thread * stride if reference == rt.Scratch() else memory[reference]

    records: list[int] = []
    for step in program.steps:
        assert isinstance(step, rt.KernelCall), "Python does not run in the emulator"
        table = [address(one, thread) for thread in range(threads) for one in step.buffers]
        flags = agreement.SERIAL * step.serial | agreement.RUNS_ON * step.runs_on
        words = image.words(table), image.words(step.scalars), 8 * len(step.buffers)
        records += [image.symbols[step.symbol], *words, flags]
    meeting = image.place(_team(image, threads), kept=False)
    run = Call(agreement.RUN, (meeting, image.words(records), len(program.steps), threads, 0))
    workers = [Call(agreement.WORK, (meeting, thread)) for thread in range(1, threads)]
    results = image.run([run, Call(agreement.STOP, (meeting,))], workers)
    return [
        np.frombuffer(result, spec.dtype.numpy).reshape(spec.shape)
        for result, spec in zip(results, program.outputs, strict=True)
    ]


def _team(image: Image, threads: int) -> bytes:
    """The memory that the threads of a program meet in."""
    team = bytearray(agreement.TEAM_BYTES + agreement.CLAIM_BYTES * threads)
    struct.pack_into("<Q", team, agreement.GIVE_AWAY, image.symbols["sched_yield"])
    for offset in agreement.PATIENCES:
        struct.pack_into("<QQ", team, offset, LOOKS, OFFERS)
    return bytes(team)
