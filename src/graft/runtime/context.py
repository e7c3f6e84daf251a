"""What a run needs besides the program: tables of its own that lead native code to its memory.

What can be prepared is prepared once per program (`Prepared`) or once per run in progress
(`Context`): step records, tables of addresses, arrays for the operands of Python steps and tensors
on devices. A run only fills in where its memory, inputs and outputs are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.agreement import RECORD_WORDS, SERIAL, TURNS
from graft.runtime.memory import address_of, aligned_empty, aligned_size
from graft.runtime.prepared import Prepared, Stretch
from graft.runtime.program import (
    Arena,
    Constant,
    Input,
    KernelCall,
    Operand,
    Output,
    Remote,
    RemoteTensor,
    Transfer,
)
from graft.runtime.spaces import Device
from graft.runtime.team import Job
from graft.runtime.tensor_pool import TensorPool

_BYTE, _WORD = np.dtype(np.uint8), np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class Call:
    """The operands of a Python step (or the two ends of a transfer) in one context.

    Arrays of the user's stand here only while a run lasts: `users` says where they go. Tensors of
    devices do so while the step lasts."""

    inputs: list[Any]
    outputs: list[Any]
    users: list[tuple[list[Any], int, Operand]] = field(default_factory=list)
    remotes: list[tuple[list[Any], int, int]] = field(default_factory=list)  # and which tensor
    _private: dict[int, Array] = field(default_factory=dict)

    def private_outputs(self) -> list[Any]:
        """The outputs, with arrays of the context's in place of the user's: foreign code that
        answers too late may write into them."""
        outputs = self.outputs.copy()
        for operands, position, _ in self.users:
            if operands is self.outputs:
                own = self._private.get(position)
                if own is None:
                    array = outputs[position]
                    own = self._private[position] = aligned_empty(array.shape, array.dtype)
                outputs[position] = own
        return outputs

    def publish(self, outputs: Sequence[Any]) -> None:
        """Copy what is in such arrays to the user's."""
        for position, array in self._private.items():
            if outputs[position] is array:
                np.copyto(self.outputs[position], array)


class Context:
    """What one run at a time needs. `devices` are those at hand, by memory space; tensors of other
    spaces are arrays in the host's memory. Those of devices come from a pool, if there are any."""

    def __init__(
        self,
        prepared: Prepared,
        devices: Mapping[str, Device],
        pool: TensorPool | None = None,
    ) -> None:
        self.devices, self._pool = devices, pool
        tables = prepared.tables
        self._words, self._scalars = tables.words.copy(), np.empty_like(tables.scalars)
        after = np.zeros((1, RECORD_WORDS), _WORD)  # leads from one turn of a loop to the next
        self._records = np.concatenate([tables.records, after])
        self._records[:, 1] = self._records[:, 1] * _WORD.itemsize + address_of(self._words)
        self._records[:, 2] = self._records[:, 2] * _WORD.itemsize + address_of(self._scalars)
        self._start = address_of(self._records)
        self.words = self._words.data  # single words are written faster through it
        self._inputs, self._outputs = tables.inputs, tables.outputs
        self._remotes: list[Any] = [None] * len(prepared.remotes)
        self.calls: dict[int, Call] = {}
        self._prepared: Prepared | None = None
        self._memory: Array | None = None
        self.fit(prepared)

    def fit(self, prepared: Prepared) -> None:
        """Serve the program at this size from now on."""
        if prepared is not self._prepared:
            self._stride = aligned_size(prepared.scratch_bytes)
            self._first_scratch = aligned_size(prepared.arena_bytes)
            self.nbytes = self._first_scratch + self._stride * prepared.threads
            self._scalars[:] = prepared.tables.scalars
            self._prepared, self._memory = prepared, None

    def lie_in(self, memory: Array) -> None:
        """Let the arena and scratch memory be there."""
        if memory is self._memory:
            return
        assert self._prepared is not None
        tables, base = self._prepared.tables, address_of(memory)
        self._words[tables.arena] = tables.offsets + base
        self._words[tables.scratch] = tables.owners * self._stride + (base + self._first_scratch)
        self._memory, self.calls = memory, self._calls(memory)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Let the kernels work on these arrays."""
        words = self.words
        for gaps, arrays in ((self._inputs, inputs), (self._outputs, outputs)):
            for positions, array in zip(gaps, arrays, strict=True):
                address = address_of(array)
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
            for operands, position, _ in call.remotes:
                operands[position] = None
        self._remotes = [None] * len(self._remotes)

    def enter(self, index: int) -> Call:
        """A step's operands; tensors of devices that nobody used before are allocated."""
        call = self.calls[index]
        for operands, position, number in call.remotes:
            if self._remotes[number] is None:
                assert self._prepared is not None
                self._remotes[number] = self._allocated(self._prepared.remotes[number])
            operands[position] = self._remotes[number]
        return call

    def leave(self, index: int) -> None:
        """Give back the tensors of devices that no later step uses."""
        call = self.calls[index]
        if call.remotes:
            assert self._prepared is not None
            for operands, position, number in call.remotes:
                operands[position] = None
                if self._prepared.last_uses[number] == index:
                    remote, tensor = self._prepared.remotes[number], self._remotes[number]
                    self._remotes[number] = None
                    if self._pool is not None and remote.space in self.devices:
                        self._pool.give_back(remote, tensor)

    def job(self, stretch: Stretch, times: int = 0, more: int = 0) -> Job:
        """A stretch as a job, with so `more` records behind it."""
        assert self._prepared is not None
        records = self._start + stretch.record * RECORD_WORDS * _WORD.itemsize
        return Job(records, stretch.count + more, stretch.threads, times)

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
        if device is None or self._pool is None:
            return aligned_empty(remote.shape, remote.dtype.numpy)
        return self._pool.take(remote, device)

    def _calls(self, memory: Array) -> dict[int, Call]:
        assert self._prepared is not None
        calls: dict[int, Call] = {}
        for index, step in enumerate(self._prepared.steps):
            if isinstance(step, KernelCall):
                continue
            call = calls[index] = Call([], [])
            if isinstance(step, Transfer):
                ends = [step.home, Operand(step.remote, step.home.dtype, step.home.shape)]
                sources, targets = (ends[:1], ends[1:]) if step.upload else (ends[1:], ends[:1])
            else:
                sources, targets = list(step.inputs), list(step.outputs)
            for operand in sources:
                self._add(call, call.inputs, operand, memory)
            for operand in targets:
                self._add(call, call.outputs, operand, memory)
        return calls

    def _add(self, call: Call, operands: list[Any], operand: Operand, memory: Array) -> None:
        array: Any = None
        match operand.buffer:
            case Input() | Output():
                call.users.append((operands, len(operands), operand))
            case Constant(index):
                assert self._prepared is not None
                array = _view(self._prepared.constants[index], operand, read_only=True)
            case Arena(offset, nbytes):
                slot = memory[offset : offset + nbytes]
                array = _view(slot, operand, operands is call.inputs)
            case Remote(index):
                call.remotes.append((operands, len(operands), index))
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
