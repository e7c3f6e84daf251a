"""AArch64 kernels and programs on this machine: like native ones, but in an emulator."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.cross.image import Call, Image

from graft.base.dtypes import Array
from graft.llvm.barrier import YIELD_OFFSET
from graft.llvm.claim import CLAIM_BYTES, CLAIMS_OFFSET
from graft.llvm.emit import SCRATCH_ALIGNMENT
from graft.llvm.load import Argument, Kernel
from graft.loop.ir import Buffer, Function
from graft.program import bytecode
from graft.program.bytecode import encode
from graft.program.layout import EXECUTE, VALUE_WORDS, Header, Value
from graft.program.program import Program
from graft.program.verify import nbytes_of
from graft.runtime import thread_pool
from graft.runtime.frames import LinkedImage

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
    """A whole compiled program, by its own driver and with its own threads."""
    encoded, image = encode(program, threads), Image(program.objects)
    assert not encoded.work, "Python does not run in the emulator"
    constants = {
        number: image.place(one.tobytes(), kept=False) for number, one in program.constants
    }
    context: Any = SimpleNamespace(
        library=SimpleNamespace(address=image.symbols.__getitem__),
        constant=constants.__getitem__,
        thread_pool=SimpleNamespace(threads=threads),
    )
    words = LinkedImage(encoded, program, context).words
    pool = image.place(_team(image, threads), kept=False)
    words[Header.THREAD_POOL], words[Header.STARTED], words[Header.BUDGET] = pool, 1, 1 << 62
    for number, array in zip(program.body.inputs, inputs, strict=True):
        _put(words, encoded, number, image.place(array.tobytes(), kept=False), array.shape)
    for number, value in zip(program.body.outputs, program.outputs, strict=True):
        shape = tuple(map(int, value.shape or ()))
        _put(words, encoded, number, image.place(bytes(nbytes_of(value))), shape)

    def frame_at(base: int) -> bytes:
        words[encoded.addresses] = words[encoded.addresses] * 8 + base
        words[Header.PC] = words[Header.ENTRY] = base + encoded.entry * 8
        return words.tobytes()

    frame = image.place_at(words.nbytes, frame_at)
    workers = [Call(thread_pool.WORK, (pool, thread)) for thread in range(1, threads)]
    results = image.run([Call(EXECUTE, (frame,)), Call(thread_pool.STOP, (pool,))], workers)
    return [
        np.frombuffer(result, value.dtype.numpy if value.dtype else None).reshape(value.shape)
        for result, value in zip(results, program.outputs, strict=True)
    ]


def _put(
    words: Array, encoded: bytecode.Image, number: int, address: int, shape: tuple[int, ...]
) -> None:
    """Let a value of the program be at an address."""
    position = encoded.values[number]
    words[position + Value.DATA] = address
    words[position + VALUE_WORDS : position + VALUE_WORDS + len(shape)] = shape


def _team(image: Image, threads: int) -> bytes:
    """The memory that the threads of a program meet in."""
    pool = bytearray(thread_pool.THREAD_POOL_BYTES + thread_pool.CLAIM_BYTES * threads)
    struct.pack_into("<Q", pool, thread_pool.GIVE_AWAY, image.symbols["sched_yield"])
    for offset in thread_pool.PATIENCES:
        struct.pack_into("<QQ", pool, offset, LOOKS, OFFERS)
    return bytes(pool)
