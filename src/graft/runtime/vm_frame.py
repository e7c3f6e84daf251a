"""Frames: what one run at a time of a program works in, and how Python and the driver take turns.

An image (`program/bytecode.py`) and addresses enter; arrays for inputs go in, and arrays come out.
The driver comes back for whatever lives in Python, and goes on where it was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.program.bytecode import Image, PythonWork
from graft.program.layout import VALUE_WORDS, Header, Status
from graft.program.layout import Value as Field
from graft.program.program import Program
from graft.runtime.memory import address_of, aligned_copy

_WORD = 8
_MOST = (1 << 63) - 1
_EXECUTE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)

# Work is counted in operations and bytes. After so much the driver comes back, so that Python can
# see to Ctrl-C: some seconds' worth.
LONG_WORK = 100_000_000_000
# What a core does of it in a second, roughly, and seconds that it takes to call other threads and
# to meet them.
_RATE, _CALLING, _MEETING = 3e10, 20e-6, 2e-6


class LinkedImage:
    """An image whose functions and constants have addresses."""

    def __init__(
        self,
        image: Image,
        program: Program,
        address: Callable[[str], int],  # of a function
        execute: int,  # the address of the driver
        threads: int,
    ) -> None:
        self.image, self.program, self.threads = image, program, threads
        self.execute = _EXECUTE(execute)
        self._constants = dict(program.constants)  # which have to live as long as their addresses
        words = image.words.copy()
        for position, name in image.functions:
            words[position] = address(name)
        for position, number in image.constants:
            words[position] = address_of(self._constants[number])
        words[Header.THREADS] = threads
        words[Header.LONG] = LONG_WORK
        words[Header.CALLING] = int(_CALLING * _RATE)
        words[Header.MEETING] = int(_MEETING * _RATE)
        self.words = words

    def frame(self) -> Frame:
        """Another frame."""
        return Frame(self)


class Frame:
    """A copy of an image, in which one run at a time works."""

    def __init__(self, linked: LinkedImage) -> None:
        image = linked.image
        self.linked = linked
        self._memory = words = aligned_copy(linked.words)
        self._base = address_of(words)
        words[image.addresses] = words[image.addresses] * _WORD + self._base
        words[Header.PC] = words[Header.ENTRY] = self._base + image.entry * _WORD
        words[Header.BUDGET] = LONG_WORK
        self.words = words.data
        self._execute = linked.execute

    def begin(self, pool: int, is_started: bool) -> None:
        """Let the next call begin with the first instruction."""
        words = self.words
        words[Header.POOL], words[Header.STARTED] = pool, is_started
        words[Header.PC], words[Header.BUDGET] = words[Header.ENTRY], LONG_WORK

    def go_on(self) -> Status:
        """Run until there is something for Python to do."""
        return Status(self._execute(self._base))

    @property
    def detail(self) -> int:
        """What the last status is about."""
        return self.words[Header.DETAIL]

    @property
    def work(self) -> PythonWork:
        """What Python is to do."""
        return self.linked.image.work[self.detail]

    def put(self, number: int, array: Array) -> None:
        """Let a value be an array, which the caller holds."""
        position, words = self.linked.image.values[number], self.words
        words[position + Field.DATA] = address_of(array)
        words[position + Field.OWNER] = 0
        for axis, extent in enumerate(array.shape):
            words[position + VALUE_WORDS + axis] = extent

    def shape(self, number: int) -> tuple[int, ...]:
        """A value's shape now."""
        position = self.linked.image.values[number] + VALUE_WORDS
        rank = len(self.linked.program.values[number].shape or ())
        return tuple(self.words[position : position + rank])

    def address(self, number: int) -> int:
        """Where a value is."""
        return self.words[self.linked.image.values[number] + Field.DATA]

    def view(self, number: int) -> Array:
        """A value as an array that is good until the next instruction."""
        value = self.linked.program.values[number]
        assert value.dtype is not None
        shape, dtype = self.shape(number), value.dtype.numpy
        size = int(np.prod(shape)) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        memory = (ctypes.c_char * size).from_address(self.address(number))
        return np.frombuffer(memory, dtype).reshape(shape)

    def symbols(self) -> Mapping[str, int]:
        """What symbols stand for."""
        return {name: self.words[at] for name, at in self.linked.image.registers.items()}


def outputs_of(frame: Frame, numbers: Sequence[int]) -> list[Any]:
    """Copies of values."""
    return [frame.view(number).copy() for number in numbers]
