"""Runs a program: contiguous arrays in, results in the arrays given for them.

What can be prepared is prepared once: step records, tables of addresses, the places in them where
the addresses of inputs and outputs go. A run fills these in and makes one native call per stretch
of kernels; a program without Python steps is one stretch, unless it takes so long that somebody may
want to interrupt it. Each run in progress has a context, that is an arena and tables, of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.runtime.agreement import RECORD_WORDS, RUNS_ON, SERIAL
from graft.runtime.engine import Engine
from graft.runtime.memory import address_of, aligned_empty, aligned_size
from graft.runtime.native import Library
from graft.runtime.program import (
    Arena,
    BufferRef,
    Constant,
    Input,
    KernelCall,
    Operand,
    Output,
    Program,
    PythonStep,
    Scratch,
)
from graft.runtime.regions import Runner, deliver

# Work after which a native call ends, so that Python can see to Ctrl-C: some seconds' worth.
_LONG_FLOPS, _LONG_BYTES = 100_000_000_000, 20_000_000_000

_BYTE, _WORD = np.dtype(np.uint8), np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Kernel calls between Python steps: positions among the records, and among the steps."""

    record: int
    step: int
    count: int


@dataclass(frozen=True, eq=False)
class Times:
    """What a profiled run measured: seconds per step, and per thread and step those it worked."""

    seconds: Array
    busy: Array


class _Tables:
    """The native form of a program's kernel calls, with gaps for what differs between contexts."""

    def __init__(self, program: Program, library: Library, threads: int) -> None:
        self.words: list[int] = []
        self.records: list[tuple[int, ...]] = []
        self.scalars: list[int] = []
        self.inputs: list[list[int]] = [[] for _ in program.inputs]
        self.outputs: list[list[int]] = [[] for _ in program.outputs]
        self.arena: list[int] = []
        self.scratch: list[tuple[int, int]] = []
        self._constants = [address_of(array) for array in program.constants]
        for step in program.steps:
            if isinstance(step, KernelCall):
                self._add(step, library.address(step.symbol), threads)

    def _add(self, step: KernelCall, function: int, threads: int) -> None:
        """Only kernels with scratch memory need a table for each thread."""
        own = any(isinstance(reference, Scratch) for reference in step.buffers)
        stride = len(step.buffers) * _WORD.itemsize if own else 0
        flags = SERIAL * step.serial | RUNS_ON * step.runs_on
        table, scalars = len(self.words), len(self.scalars)
        self.records.append((function, table, scalars, stride, flags))
        self.scalars += step.scalars
        for thread in range(threads if own else 1):
            for reference in step.buffers:
                self._refer(reference, thread)

    def _refer(self, reference: BufferRef, thread: int) -> None:
        position = len(self.words)
        word = 0
        match reference:
            case Input(index):
                self.inputs[index].append(position)
            case Output(index):
                self.outputs[index].append(position)
            case Constant(index):
                word = self._constants[index]
            case Arena(offset):
                self.arena.append(position)
                word = offset
            case Scratch():
                self.scratch.append((position, thread))
        self.words.append(word)


class Context:
    """Memory for one run at a time."""

    def __init__(self, program: Program, tables: _Tables, threads: int) -> None:
        self.arena = aligned_empty((program.arena_bytes,), _BYTE)
        scratch_stride = aligned_size(program.scratch_bytes)
        self._scratch = aligned_empty((scratch_stride * threads,), _BYTE)
        self._scalars = np.array(tables.scalars, _WORD)
        self._words = np.array(tables.words, _WORD)
        self._words[tables.arena] += address_of(self.arena)
        for position, thread in tables.scratch:
            self._words[position] = address_of(self._scratch) + thread * scratch_stride
        self._records = np.array(tables.records, _WORD).reshape(-1, RECORD_WORDS)
        self._records[:, 1] = self._records[:, 1] * _WORD.itemsize + address_of(self._words)
        self._records[:, 2] = self._records[:, 2] * _WORD.itemsize + address_of(self._scalars)
        self._start = address_of(self._records)
        self._inputs = [np.array(positions, np.intp) for positions in tables.inputs]
        self._outputs = [np.array(positions, np.intp) for positions in tables.outputs]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Let the kernels work on these arrays."""
        words = self._words
        for positions, array in zip(self._inputs, inputs, strict=True):
            words[positions] = array.__array_interface__["data"][0]
        for positions, array in zip(self._outputs, outputs, strict=True):
            words[positions] = array.__array_interface__["data"][0]

    def records_at(self, index: int) -> int:
        """Where the step record of that index is."""
        return self._start + index * RECORD_WORDS * _WORD.itemsize


_Memory = tuple[Context, Sequence[Array], Sequence[Array]]


class Executor:
    """A program, linked and ready to run. Safe to call from several threads."""

    def __init__(self, program: Program, engine: Engine, functions: Mapping[str, Runner]) -> None:
        self._program = program
        self._functions = dict(functions)
        for step in program.python_steps:
            if step.function not in self._functions:
                raise UserError(
                    f"the program calls the Python function '{step.function}', which is not given",
                    place=step.place,
                    hint=f"functions={{'{step.function}': ...}} supplies it",
                )
        self._engine, self._team = engine, engine.team
        self._tables = _Tables(program, engine.library, self._team.threads)
        self._plan = _plan(program)
        self._free: list[Context] = []

    @property
    def threads(self) -> int:
        return self._team.threads

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], times: Times | None = None
    ) -> None:
        """Run once; the arrays are contiguous and as the program describes them."""
        with self._team.turn():
            context = self._take_context()
            try:
                context.bind(inputs, outputs)
                for item in self._plan:
                    if isinstance(item, Stretch):
                        self._run_stretch(item, context, times)
                    else:
                        self._run_python(item, (context, inputs, outputs), times)
            finally:
                self._free.append(context)

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Times:
        """Run once and measure every step."""
        steps = len(self._program.steps)
        times = Times(np.zeros(steps), np.zeros((self.threads, steps)))
        self.run(inputs, outputs, times)
        return times

    def _take_context(self) -> Context:
        try:
            return self._free.pop()
        except IndexError:
            return Context(self._program, self._tables, self.threads)

    def _run_stretch(self, stretch: Stretch, context: Context, times: Times | None) -> None:
        records = context.records_at(stretch.record)
        if times is None:
            self._team.run(records, stretch.count)
            return
        stamps = np.zeros((self.threads, 2 * stretch.count + 1), _WORD)
        self._team.run(records, stretch.count, address_of(stamps))
        begun, ended = stamps[:, 0::2], stamps[:, 1::2]
        steps = slice(stretch.step, stretch.step + stretch.count)
        times.seconds[steps] = np.diff(begun[0]) * 1e-9
        times.busy[:, steps] = (ended - begun[:, :-1]) * 1e-9

    def _run_python(self, index: int, memory: _Memory, times: Times | None) -> None:
        step = self._program.steps[index]
        assert isinstance(step, PythonStep)
        before = time.perf_counter()
        arguments = [self._view(operand, memory) for operand in step.inputs]
        homes = [self._view(operand, memory) for operand in step.outputs]
        for argument in arguments:
            argument.flags.writeable = False
        try:
            deliver(self._functions[step.function](arguments, homes), homes, step.function)
        except GraftError as error:
            raise error.at(step.place) from None
        if times is not None:
            times.seconds[index] = times.busy[0, index] = time.perf_counter() - before

    def _view(self, operand: Operand, memory: _Memory) -> Array:
        """An operand's memory as an array."""
        context, inputs, outputs = memory
        match operand.buffer:
            case Input(index):
                array = inputs[index]
            case Output(index):
                array = outputs[index]
            case Constant(index):
                array = self._program.constants[index]
            case Arena(offset, nbytes):
                array = context.arena[offset : offset + nbytes]
        flat = array.reshape(-1).view(_BYTE)[: operand.nbytes]
        return flat.view(operand.dtype.numpy).reshape(operand.shape)


def _plan(program: Program) -> list[Stretch | int]:
    """Stretches of kernel calls, and the positions of Python steps, in order."""
    plan: list[Stretch | int] = []
    record = flops = moved = 0
    for index, step in enumerate(program.steps):
        if isinstance(step, PythonStep):
            plan.append(index)
            continue
        last = plan[-1] if plan else None
        if isinstance(last, Stretch) and flops < _LONG_FLOPS and moved < _LONG_BYTES:
            plan[-1] = Stretch(last.record, last.step, last.count + 1)
        else:
            plan.append(Stretch(record, index, 1))
            flops = moved = 0
        flops += step.flops
        moved += step.bytes
        record += 1
    return plan
