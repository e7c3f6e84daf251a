"""The native form of kernel calls: programs in; step records, tables of addresses and scalars out.

What differs between runs is left open: where memory, inputs and outputs are. Of a program for every
size all else is laid out once, and a new size only fills in offsets and scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.agreement import RECORD_WORDS, RUNS_ON, SERIAL
from graft.runtime.engine import Engine
from graft.runtime.program import (
    Arena,
    Constant,
    Input,
    KernelCall,
    Output,
    Program,
    Scratch,
)
from graft.runtime.shaped import Measured, ShapedCall, ShapedProgram, ShapedRef, Shelf

_WORD = np.dtype(np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Tables:
    """Words for kernels to find their memory by: addresses of constants, and gaps. Positions count
    words."""

    words: Array
    offsets: Array  # into the arena, in the order of `arena`
    scalars: Array
    records: Array  # with positions of tables and scalars
    inputs: Sequence[Sequence[int]]  # positions, per input
    outputs: Sequence[Sequence[int]]
    arena: Array
    scratch: Array
    owners: Array  # of scratch memory: threads


def tables_of(program: Program, engine: Engine) -> Tables:
    """The kernel calls of a program."""
    writer = _Writer(program, engine)
    for step in program.steps:
        if isinstance(step, KernelCall):
            writer.add(step, step.runs_on)
            writer.scalars += step.scalars
    return writer.tables([slot.offset for slot in writer.slots if isinstance(slot, Arena)])


class ShapedTables:
    """The kernel calls of a program for every size."""

    def __init__(self, program: ShapedProgram, engine: Engine) -> None:
        writer = _Writer(program, engine)
        for step in program.steps:
            writer.add(step, runs_on=False)
            writer.scalars += map(program.number_of, step.scalars)
        self._tables = writer.tables(())
        slots = [slot for slot in writer.slots if isinstance(slot, Shelf)]
        # Positions among the dims' numbers, with the beginnings of shelves behind them.
        wanted = [program.number_of(slot.offset) for slot in slots]
        wanted += [program.numbers + slot.number for slot in slots]
        self._slots, self._wanted = len(slots), np.array([*wanted, *writer.scalars], _WORD)

    def at(self, measured: Measured) -> Tables:
        """The same at some size."""
        found = measured.words[self._wanted]
        slots, tables = self._slots, self._tables
        return Tables(
            tables.words,
            found[:slots] + found[slots : 2 * slots],
            found[2 * slots :],
            tables.records,
            tables.inputs,
            tables.outputs,
            tables.arena,
            tables.scratch,
            tables.owners,
        )


class _Writer:
    """Lays tables out, call by call; `scalars` are up to whoever calls."""

    def __init__(self, program: Program | ShapedProgram, engine: Engine) -> None:
        self.scalars: list[int] = []
        self.slots: list[ShapedRef] = []
        self._library, self._threads = engine.library, engine.team.threads
        self._constants = engine.addresses(program.constants)
        self._words: list[int] = []
        self._records: list[tuple[int, ...]] = []
        self._inputs: list[list[int]] = [[] for _ in program.inputs]
        self._outputs: list[list[int]] = [[] for _ in program.outputs]
        self._arena: list[int] = []
        self._scratch: list[int] = []
        self._owners: list[int] = []

    def add(self, step: KernelCall | ShapedCall, runs_on: bool) -> None:
        """Only kernels with scratch memory need a table for each thread."""
        own = any(isinstance(reference, Scratch) for reference in step.buffers)
        stride = len(step.buffers) * _WORD.itemsize if own else 0
        flags = SERIAL * step.serial | RUNS_ON * runs_on
        function = self._library.address(step.symbol)
        self._records.append((function, len(self._words), len(self.scalars), stride, flags))
        for thread in range(self._threads if own else 1):
            for reference in step.buffers:
                self._refer(reference, thread)

    def _refer(self, reference: ShapedRef, thread: int) -> None:
        position, word = len(self._words), 0
        match reference:
            case Arena() | Shelf():
                self._arena.append(position)
                self.slots.append(reference)
            case Scratch():
                self._scratch.append(position)
                self._owners.append(thread)
            case Constant(index):
                word = self._constants[index]
            case Input(index):
                self._inputs[index].append(position)
            case Output(index):
                self._outputs[index].append(position)
        self._words.append(word)

    def tables(self, offsets: Sequence[int]) -> Tables:
        """All that was added."""
        return Tables(
            np.array(self._words, _WORD),
            np.array(offsets, _WORD),
            np.array(self.scalars, _WORD),
            np.array(self._records, _WORD).reshape(-1, RECORD_WORDS),
            self._inputs,
            self._outputs,
            np.array(self._arena, _WORD),
            np.array(self._scratch, _WORD),
            np.array(self._owners, _WORD),
        )
