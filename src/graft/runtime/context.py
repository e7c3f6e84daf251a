"""What a run needs besides the program: memory, and tables that lead native code to it.

What can be prepared is prepared once per program (`Tables`) or once per run in progress
(`Context`): the arena, step records, tables of addresses, arrays for the operands of Python steps
and tensors on devices. A run only fills in where its inputs and outputs are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.agreement import RECORD_WORDS, RUNS_ON, SERIAL, TURNS
from graft.runtime.engine import Engine
from graft.runtime.memory import address_of, aligned_empty, aligned_size
from graft.runtime.program import (
    Arena,
    BufferRef,
    Constant,
    Input,
    KernelCall,
    Operand,
    Output,
    Program,
    Remote,
    RemoteTensor,
    Scratch,
    Transfer,
)
from graft.runtime.regions import LostDeviceError
from graft.runtime.spaces import Device

_BYTE, _WORD = np.dtype(np.uint8), np.dtype(np.int64)


class Tables:
    """The native form of a program's kernel calls, with gaps for what differs between contexts."""

    def __init__(self, program: Program, engine: Engine) -> None:
        library, threads = engine.library, engine.team.threads
        self.words: list[int] = []
        self.records: list[tuple[int, ...]] = []
        self.scalars: list[int] = []
        self.inputs: list[list[int]] = [[] for _ in program.inputs]
        self.outputs: list[list[int]] = [[] for _ in program.outputs]
        self.arena: list[int] = []
        self.scratch: list[tuple[int, int]] = []
        self._constants = engine.addresses(program.constants)
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
        """Binding to a new size comes through here for every buffer of every kernel, hence the
        order by frequency."""
        words = self.words
        word = 0
        if isinstance(reference, Arena):
            self.arena.append(len(words))
            word = reference.offset
        elif isinstance(reference, Scratch):
            self.scratch.append((len(words), thread))
        elif isinstance(reference, Constant):
            word = self._constants[reference.index]
        elif isinstance(reference, Input):
            self.inputs[reference.index].append(len(words))
        else:
            self.outputs[reference.index].append(len(words))
        words.append(word)


@dataclass(frozen=True, slots=True)
class Call:
    """The operands of a Python step (or the two ends of a transfer) in one context.

    Arrays of the user's stand here only while a run lasts: `users` says where they go."""

    inputs: list[Any]
    outputs: list[Any]
    users: list[tuple[list[Any], int, Operand]] = field(default_factory=list)


class Context:
    """Memory for one run at a time. `devices` are those at hand, by memory space; tensors of other
    spaces are arrays in the host's memory."""

    def __init__(
        self, program: Program, tables: Tables, threads: int, devices: Mapping[str, Device]
    ) -> None:
        self.devices = devices
        self._program = program
        self._arena = aligned_empty((program.arena_bytes,), _BYTE)
        scratch_stride = aligned_size(program.scratch_bytes)
        self._scratch = aligned_empty((scratch_stride * threads,), _BYTE)
        self._scalars = np.array(tables.scalars, _WORD)
        self._words = np.array(tables.words, _WORD)
        self._words[tables.arena] += address_of(self._arena)
        start = address_of(self._scratch)
        positions = [position for position, _ in tables.scratch]
        self._words[positions] = [start + thread * scratch_stride for _, thread in tables.scratch]
        after = (0,) * RECORD_WORDS  # for what leads from one turn of a loop to the next
        self._records = np.array([*tables.records, after], _WORD)
        self._records[:, 1] = self._records[:, 1] * _WORD.itemsize + address_of(self._words)
        self._records[:, 2] = self._records[:, 2] * _WORD.itemsize + address_of(self._scalars)
        self._start = address_of(self._records)
        self._gaps = self._words.data  # single words are written faster through it
        self._inputs, self._outputs = tables.inputs, tables.outputs
        self._remotes = [self._allocated(remote) for remote in program.remotes]
        self.calls = self._calls()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Let the kernels work on these arrays."""
        words = self._gaps
        for gaps, arrays in ((self._inputs, inputs), (self._outputs, outputs)):
            for positions, array in zip(gaps, arrays, strict=True):
                address = array.__array_interface__["data"][0]
                for position in positions:
                    words[position] = address
        for call in self.calls.values():
            for operands, position, operand in call.users:
                buffer = operand.buffer
                assert isinstance(buffer, Input | Output)
                array = (inputs if isinstance(buffer, Input) else outputs)[buffer.index]
                operands[position] = _view(array, operand, operands is call.inputs)

    def release(self) -> None:
        """Hold on to nothing of the user's."""
        for call in self.calls.values():
            for operands, position, _ in call.users:
                operands[position] = None

    def records_at(self, index: int) -> int:
        """Where the step record of that index is."""
        return self._start + index * RECORD_WORDS * _WORD.itemsize

    def end_with(self, function: int, loop: Array) -> None:
        """Let a function that decides whether there is another turn follow the last step."""
        self._records[-1] = (function, 0, address_of(loop), 0, SERIAL | TURNS)

    def words_of_input(self, index: int) -> list[int]:
        """Where kernels are told where an input is."""
        return self._addresses(self._inputs[index])

    def words_of_output(self, index: int) -> list[int]:
        """Where kernels are told where an output is."""
        return self._addresses(self._outputs[index])

    def _addresses(self, positions: Sequence[int]) -> list[int]:
        start = address_of(self._words)
        return [start + position * _WORD.itemsize for position in positions]

    def _allocated(self, remote: RemoteTensor) -> Any:
        device = self.devices.get(remote.space)
        if device is None:
            return aligned_empty(remote.shape, remote.dtype.numpy)
        try:
            return device.allocate(remote.shape, remote.dtype.numpy)
        except Exception as error:
            raise LostDeviceError(remote.space) from error

    def _calls(self) -> dict[int, Call]:
        calls: dict[int, Call] = {}
        for index, step in enumerate(self._program.steps):
            if isinstance(step, KernelCall):
                continue
            call = calls[index] = Call([], [])
            if isinstance(step, Transfer):
                ends = [step.home, Operand(step.remote, step.home.dtype, step.home.shape)]
                sources, targets = (ends[:1], ends[1:]) if step.upload else (ends[1:], ends[:1])
            else:
                sources, targets = list(step.inputs), list(step.outputs)
            for operand in sources:
                self._add(call, call.inputs, operand)
            for operand in targets:
                self._add(call, call.outputs, operand)
        return calls

    def _add(self, call: Call, operands: list[Any], operand: Operand) -> None:
        array: Any = None
        match operand.buffer:
            case Input() | Output():
                call.users.append((operands, len(operands), operand))
            case Constant(index):
                array = _view(self._program.constants[index], operand, read_only=True)
            case Arena(offset, nbytes):
                slot = self._arena[offset : offset + nbytes]
                array = _view(slot, operand, operands is call.inputs)
            case Remote(index):
                array = self._remotes[index]
        operands.append(array)


def _view(array: Array, operand: Operand, read_only: bool) -> Array:
    """An operand's memory as an array."""
    if array.dtype == operand.dtype.numpy and array.shape == operand.shape:
        found = array.view()
    else:
        flat = array.reshape(-1).view(_BYTE)[: operand.nbytes]
        found = flat.view(operand.dtype.numpy).reshape(operand.shape)
    if read_only:
        found.flags.writeable = False
    return found
