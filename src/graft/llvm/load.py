"""Object code -> something to call.

In go a `Function` and its object code for this machine; out comes a `Kernel` that runs on NumPy
arrays. The object code is linked into this process as it is, nothing is compiled again.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.llvm.barrier import YIELD_OFFSET
from graft.llvm.claim import CLAIM_BYTES, CLAIMS_OFFSET
from graft.llvm.emit import SCRATCH_ALIGNMENT, scratch_buffers
from graft.llvm.types import byte_size
from graft.loop.evaluate_expr import compile_expr
from graft.loop.ir import Buffer, Function, Var

Argument = Array | int | float
_ENTRY = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


@dataclass(frozen=True)
class Kernel:
    """A function in machine code. Threads may call it at the same time."""

    function: Function
    address: int
    library: Any  # keeps the code in memory

    def __call__(self, arguments: Mapping[str, Argument], threads: int = 1) -> None:
        """Run on the arguments by name, with that many threads, changing the arrays in place."""
        scalars = self._scalars(arguments)
        pointers = self._pointers(arguments)
        scratch = aligned_empty(max(1, self.scratch_bytes(arguments)) * threads, SCRATCH_ALIGNMENT)
        share = scratch.nbytes // threads
        shared = _shared_memory(threads)
        entry = _ENTRY(self.address)

        def run(thread: int) -> None:
            slots = (ctypes.c_void_p * (len(pointers) + 1))(
                *pointers, scratch.ctypes.data + thread * share
            )
            entry(slots, scalars.ctypes.data, thread, threads, shared.ctypes.data)

        workers = [threading.Thread(target=run, args=(thread,)) for thread in range(1, threads)]
        for worker in workers:
            worker.start()
        run(0)
        for worker in workers:
            worker.join()

    def scratch_bytes(self, arguments: Mapping[str, Argument]) -> int:
        """How much scratch memory each thread needs; it may depend on the scalars."""
        return scratch_bytes(self.function, arguments)

    def _scalars(self, arguments: Mapping[str, Argument]) -> Array:
        variables = [one for one in self.function.parameters if isinstance(one, Var)]
        packed = np.zeros(max(1, len(variables)), np.int64)
        for position, var in enumerate(variables):
            number = self._argument(arguments, var.name)
            if var.dtype.is_float:
                packed[position : position + 1].view(np.float64)[0] = number
            else:
                packed[position] = int(number)
        return packed

    def _pointers(self, arguments: Mapping[str, Argument]) -> list[int]:
        pointers = []
        for buffer in self.function.parameters:
            if isinstance(buffer, Buffer):
                array = self._argument(arguments, buffer.name)
                shape = shape_of(buffer, self.function, arguments)
                pointers.append(_checked_address(self.function.name, buffer, array, shape))
        return pointers

    def _argument(self, arguments: Mapping[str, Argument], name: str) -> Any:
        if name not in arguments:
            raise EvaluationError(f"{self.function.name}: argument '{name}' is missing")
        return arguments[name]


def load(function: Function, code: bytes) -> Kernel:
    """Link object code of this machine into the process."""
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(code).add_current_process().export_symbol(function.name)
    library = builder.link(_linker(), f"{function.name}.{next(_numbers())}")
    return Kernel(function, library[function.name], library)


@cache
def _linker() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=True)


@cache
def _numbers() -> itertools.count[int]:
    """Libraries need names of their own."""
    return itertools.count()


def shape_of(
    buffer: Buffer, function: Function, arguments: Mapping[str, Argument]
) -> tuple[int, ...]:
    """The extents of a buffer for given scalars, on which alone they may depend."""
    scalars = {
        parameter.name: arguments[parameter.name]
        for parameter in function.parameters
        if isinstance(parameter, Var) and parameter.name in arguments
    }
    return tuple(int(compile_expr(extent)(scalars)) for extent in buffer.extents)


def scratch_bytes(function: Function, arguments: Mapping[str, Argument]) -> int:
    """Scratch memory that each thread needs, for given scalars."""
    total = 0
    for buffer in scratch_buffers(function):
        size = prod(shape_of(buffer, function, arguments)) * byte_size(buffer.dtype)
        total += -(-size // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    return total


def _checked_address(kernel: str, buffer: Buffer, array: Any, shape: tuple[int, ...]) -> int:
    what = f"{kernel}: argument '{buffer.name}'"
    if not isinstance(array, np.ndarray) or array.dtype != buffer.dtype.numpy:
        raise EvaluationError(f"{what} has to be an array of {buffer.dtype}")
    if array.shape != shape:
        raise EvaluationError(f"{what} has shape {array.shape} where {shape} is expected")
    if not array.flags.c_contiguous or array.ctypes.data % buffer.alignment:
        raise EvaluationError(
            f"{what} has to be dense and aligned to {buffer.alignment} bytes",
            hint="graft.llvm.load.aligned makes such a copy",
        )
    return int(array.ctypes.data)


def _shared_memory(threads: int) -> Array:
    """What the threads of one run share, as barriers and claims expect it."""
    shared = aligned_empty(CLAIMS_OFFSET + CLAIM_BYTES * threads, 64)
    shared[:] = 0
    give_away = getattr(ctypes.CDLL(None), "sched_yield", None)
    if give_away is not None:
        address = ctypes.cast(give_away, ctypes.c_void_p).value or 0
        shared[YIELD_OFFSET : YIELD_OFFSET + 8].view(np.int64)[0] = address
    return shared


def aligned_empty(size: int, alignment: int) -> Array:
    """That many bytes, not set to anything, at an aligned address."""
    memory = np.empty(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size]


def aligned(array: Array, alignment: int = 64) -> Array:
    """A dense copy of an array at an aligned address."""
    copy = aligned_empty(max(array.nbytes, 1), alignment)[: array.nbytes]
    result: Array = copy.view(array.dtype).reshape(array.shape)
    result[...] = array
    return result
