"""Kernel calls in their native form: a segment in; step records, tables of addresses and scalars
out.

All of it is laid out once. A size fills in offsets and scalars, and a run fills in where its
memory, inputs and outputs are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dims import Dim
from graft.base.dtypes import Array
from graft.program.instructions import Buffer, KernelCall, Scratch, Slot
from graft.runtime.agreement import RECORD_WORDS, RUNS_ON, SERIAL
from graft.runtime.context import RuntimeContext

_WORD = np.dtype(np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Tables:
    """Words for kernels to find their memory by: addresses of constants, and gaps for the rest.
    Positions count words."""

    words: Array
    records: Array  # with positions of tables and scalars
    values: dict[int, list[int]]  # positions, per input or output
    shared: Array  # positions of what lies on the program's shelf of the arena
    arena: Array  # of what lies on the segment's
    scratch: Array
    owners: Array  # of scratch memory: threads


class TableWriter:
    """Lays tables out, call by call. `scalars` and slots are collected for whoever sizes them;
    `values` are the inputs and outputs, all else that has a number are constants."""

    def __init__(self, context: RuntimeContext, values: Sequence[int]) -> None:
        self.scalars: list[Dim] = []
        self.shared_slots: list[Slot] = []
        self.slots: list[Slot] = []
        self._library, self._threads = context.library, context.team.threads
        self._constant: Callable[[int], int] = context.constant
        self._words: list[int] = []
        self._records: list[tuple[int, ...]] = []
        self._values: dict[int, list[int]] = {number: [] for number in values}
        self._shared: list[int] = []
        self._arena: list[int] = []
        self._scratch: list[int] = []
        self._owners: list[int] = []

    def add(self, call: KernelCall) -> None:
        """Only kernels with scratch memory need a table for each thread."""
        own = any(isinstance(buffer, Scratch) for buffer in call.buffers)
        stride = len(call.buffers) * _WORD.itemsize if own else 0
        flags = SERIAL * call.serial | RUNS_ON * call.overlaps
        function = self._library.address(call.symbol)
        self._records.append((function, len(self._words), len(self.scalars), stride, flags))
        self.scalars += call.scalars
        for thread in range(self._threads if own else 1):
            for buffer in call.buffers:
                self._refer(buffer, thread)

    def _refer(self, buffer: Buffer, thread: int) -> None:
        position, word = len(self._words), 0
        match buffer:
            case Slot(shelf=0):
                self._shared.append(position)
                self.shared_slots.append(buffer)
            case Slot():
                self._arena.append(position)
                self.slots.append(buffer)
            case Scratch():
                self._scratch.append(position)
                self._owners.append(thread)
            case int() if buffer in self._values:
                self._values[buffer].append(position)
            case int():
                word = self._constant(buffer)
        self._words.append(word)

    def tables(self) -> Tables:
        """All that was added."""
        return Tables(
            np.array(self._words, _WORD),
            np.array(self._records, _WORD).reshape(-1, RECORD_WORDS),
            self._values,
            np.array(self._shared, _WORD),
            np.array(self._arena, _WORD),
            np.array(self._scratch, _WORD),
            np.array(self._owners, _WORD),
        )
