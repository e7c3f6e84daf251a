"""Frames: what one run of a program at a time works in, and what Python reads and writes of them.

An image (`program/bytecode.py`) and what has been linked enter; frames leave, each with the driver
that executes it. Words are those of `program/layout.py`.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graft.base import capacity
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, Location
from graft.program.bytecode_segments import WORK_PER_OPERATION
from graft.program.bytecode_work import Image
from graft.program.layout import (
    ALLOCATE,
    BUFFER_BYTES,
    DISCARD,
    EXECUTE,
    VALUE_WORDS,
    Buffer,
    Header,
    Status,
)
from graft.program.layout import Value as Field
from graft.program.program import Program, Target
from graft.runtime.context import RuntimeContext
from graft.runtime.memory import address_of, aligned_copy

_WORD, _INT64 = 8, np.dtype(np.int64)
_C_ALIGNMENT = 16  # which the C library gives
_EXECUTE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_DISCARD = ctypes.CFUNCTYPE(None, ctypes.c_int64)

# What the driver does before it comes back for Ctrl-C: operations that take some seconds.
LONG_WORK = 100_000_000_000 * WORK_PER_OPERATION
_NEVER = (1 << 63) - 1
# The share of a core's peak rates that kernels with little to do come to.
_REACHED = 1 / 4


def sharing_work(target: Target) -> tuple[int, int]:
    """What it costs to call the other threads, which may sleep, and to meet them after a kernel, as
    work that one core does in that time."""
    rate = target.core[0] * _REACHED * WORK_PER_OPERATION
    return int(target.calling * rate), int(target.meeting * rate)


class LinkedImage:
    """An image whose functions and constants have addresses; makes frames."""

    def __init__(self, image: Image, program: Program, context: RuntimeContext) -> None:
        self.image, self.program, self.context = image, program, context
        library = context.library
        self.execute: Callable[[int], int] = _EXECUTE(library.address(EXECUTE))
        self.allocate: Callable[[int, int], int] = _ALLOCATE(library.address(ALLOCATE))
        self.discard: Callable[[int], None] = _DISCARD(library.address(DISCARD))
        words = image.words.copy()
        for position, name in image.functions:
            words[position] = library.address(name)
        for position, number in image.constants:
            words[position] = context.constant(number)
        words[Header.THREADS] = context.thread_pool.threads
        words[Header.LONG] = LONG_WORK
        words[Header.LIMIT] = capacity.MOST_BYTES
        words[Header.CALLING], words[Header.MEETING] = sharing_work(program.target)
        self.words = words
        # Where outputs are that are neither inputs nor constants.
        external = {*program.body.inputs, *(number for number, _ in program.constants)}
        outputs = {*program.body.outputs} - external
        self.own_outputs = [image.values[n] for n in outputs if n in image.values]


class Frame:
    """A copy of an image. One that a run has failed in is not used again."""

    def __init__(self, linked: LinkedImage) -> None:
        image = linked.image
        self.image, self.program, self._linked = image, linked.program, linked
        words = aligned_copy(linked.words)
        self.base = address_of(words)
        words[image.addresses] = words[image.addresses] * _WORD + self.base
        words[Header.PC] = words[Header.ENTRY] = self.base + image.entry * _WORD
        words[Header.BUDGET] = LONG_WORK
        self.words = words.data  # single words are read and written faster through it
        self.execute = linked.execute
        # Of its inputs and outputs, where the caller tracks them; whoever changes any says so here.
        self.sizes: object = None
        self._outputs = linked.own_outputs
        self.attach_pool()
        linked.context.thread_pool.frames.add(self)
        # The finalizer keeps the words and the code as long as it needs them. It does not run when
        # the process ends: daemon threads and exit handlers may run programs even then.
        weakref.finalize(self, _discard, linked, words).atexit = False

    def attach_pool(self) -> None:
        """Note where the thread pool is, and whether it has workers."""
        pool = self._linked.context.thread_pool
        self.words[Header.THREAD_POOL], self.words[Header.STARTED] = pool.address, pool.is_started

    def detach_pool(self) -> None:
        """Note that the pool has no workers any more."""
        self.words[Header.STARTED] = 0

    def go_on(self) -> Status:
        """Run until there is something for Python to do."""
        return Status(self.execute(self.base))

    def pause(self) -> None:
        """After the driver has come back for Ctrl-C, let it work for as long again."""
        self.words[Header.BUDGET] = LONG_WORK

    def start_workers(self) -> None:
        """Start the threads of the pool, if they have not been started."""
        self._linked.context.thread_pool.start()
        self.attach_pool()

    def measure(self, times: Array | None) -> None:
        """Let times of segments go there, or nowhere; segments that are timed are never cut."""
        self.words[Header.TIMES] = 0 if times is None else address_of(times)
        self.words[Header.LONG] = LONG_WORK if times is None else _NEVER

    @property
    def location(self) -> Location | None:
        """The node of the last instruction."""
        position = (self.words[Header.PC] - self.base) // _WORD
        return self.image.location(position - 1)

    @property
    def detail(self) -> int:
        """What the last status is about."""
        return self.words[Header.DETAIL]

    def forget_outputs(self) -> None:
        """Let no output be where the caller of the last run wanted it."""
        words = self.words
        for position in self._outputs:
            if not words[position + Field.OWNER]:
                words[position + Field.DATA] = 0

    def put(self, number: int, array: Array) -> None:
        """Let a value be an array, which the caller holds as long as it is needed."""
        position, words = self.image.values[number], self.words
        words[position + Field.DATA] = address_of(array)
        words[position + Field.OWNER] = 0
        for axis, extent in enumerate(array.shape):
            words[position + VALUE_WORDS + axis] = extent

    def store(self, number: int, array: Array) -> None:
        """Let a value be a copy of an array, in a reference-counted buffer."""
        pointer = self._buffer(array)
        self.put(number, array)
        position, words = self.image.values[number], self.words
        words[position + Field.DATA], words[position + Field.OWNER] = (
            pointer,
            pointer - BUFFER_BYTES,
        )

    def store_list(self, number: int, arrays: Sequence[Array]) -> None:
        """Let a list be copies of arrays, in reference-counted buffers."""
        element = self.program.values[number].element
        assert element is not None
        rank = element[1]
        words = np.zeros((len(arrays), VALUE_WORDS + rank), np.int64)
        for row, array in zip(words, arrays, strict=True):
            if array.dtype != element[0].numpy or array.ndim != rank:
                raise EvaluationError(f"an element of a list is {array.dtype} of rank {array.ndim}")
            row[Field.DATA] = self._buffer(np.ascontiguousarray(array))
            row[Field.OWNER] = row[Field.DATA] - BUFFER_BYTES
            row[VALUE_WORDS:] = array.shape
        pointer, position = self._buffer(words), self.image.values[number]
        head = (ctypes.c_int64 * (BUFFER_BYTES // _WORD)).from_address(pointer - BUFFER_BYTES)
        head[Buffer.ELEMENTS], head[Buffer.WIDTH] = words.shape[0], words.shape[1] * _WORD
        self.words[position + Field.DATA] = pointer
        self.words[position + Field.OWNER] = pointer - BUFFER_BYTES
        self.words[position + VALUE_WORDS] = len(arrays)

    def _buffer(self, array: Array) -> int:
        """The address of a new buffer with an array's elements."""
        pointer = self._linked.allocate(self.base, array.nbytes)
        if not pointer:
            raise EvaluationError(f"there is no memory for {array.nbytes} bytes")
        ctypes.memmove(pointer, address_of(array), array.nbytes)
        return pointer

    def _list(self, number: int, element: tuple[DType, int]) -> list[Array]:
        """The tensors of a list, as long as nothing else is there."""
        position, (dtype, rank) = self.image.values[number], element
        count = self.words[position + VALUE_WORDS]
        width = VALUE_WORDS + rank
        table = _view(self, self.words[position + Field.DATA], (count, width), _INT64).tolist()
        return [_view(self, row[Field.DATA], row[VALUE_WORDS:], dtype.numpy) for row in table]

    def shape(self, number: int) -> tuple[int, ...]:
        """A value's shape now."""
        position = self.image.values[number] + VALUE_WORDS
        rank = len(self.program.values[number].shape or ())
        return tuple(self.words[position : position + rank])

    def address(self, number: int) -> int:
        """Where a value is."""
        return self.words[self.image.values[number] + Field.DATA]

    def view(self, number: int) -> Any:
        """A value as an array, or a list of arrays, as long as nothing else is there; they keep the
        frame."""
        value = self.program.values[number]
        if value.element is not None:
            return self._list(number, value.element)
        assert value.dtype is not None
        return _view(self, self.address(number), self.shape(number), value.dtype.numpy)

    def copied(self, number: int) -> Any:
        """A value as arrays of its own, aligned as the program says."""
        alignment, view = self.program.values[number].alignment, self.view(number)
        if isinstance(view, list):
            return [array.copy() for array in view]
        return view.copy() if alignment <= _C_ALIGNMENT else aligned_copy(view, alignment)

    def symbols(self) -> Mapping[str, int]:
        """What symbols stand for."""
        registers = self.image.registers.items()
        sizes = {name: self.words[position] for name, position in registers}
        return {name: number for name, number in sizes.items() if number >= 0}


def _view(frame: Frame, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Memory of a frame as an array, which keeps the frame."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(address)
    memory.frame = frame  # type: ignore[attr-defined]
    return np.ndarray(shape, dtype, memoryview(memory))


def _discard(linked: LinkedImage, words: Array) -> None:
    linked.discard(address_of(words))
