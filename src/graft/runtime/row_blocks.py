"""Code for a fixed number of rows, run on any number: in blocks.

The last block is filled up with copies of the last row, whose results are dropped. Without rows
nothing is run. Operands are arrays in the host's memory; a device with memory of its own gets the
inputs without rows once for all blocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.memory import aligned_empty
from graft.runtime.regions import deliver
from graft.runtime.spaces import (
    Runner,
    device_of,
    is_simulated,
    refuse_arrays,
    rounding_of,
)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The rows of a block, and the numbers of the inputs that have none: each block reads all of
    them. All other inputs and all outputs have the rows as their first axis."""

    rows: int
    whole: tuple[int, ...] = ()


class _Memory(NamedTuple):
    """The operands of a block on a device."""

    inputs: list[Any]
    outputs: list[Any]


class BlockRunner:
    """A runner on any number of rows, of one on the rows of a block."""

    def __init__(self, runner: Runner, blocks: Blocks) -> None:
        self._runner, self._blocks = runner, blocks
        self._device = device_of(runner)
        self._spare = deque[_Memory]()  # on the device, of earlier calls
        self.keeps_deadlines = bool(getattr(runner, "keeps_deadlines", False))
        self.rounding, self.simulated = rounding_of(runner), is_simulated(runner)
        if self.simulated:
            self.seconds: float = getattr(runner, "seconds")  # noqa: B009
            self.launch_seconds: float = getattr(runner, "launch_seconds")  # noqa: B009

    def calls(self, outputs: Sequence[Array]) -> int:
        """The number of blocks for outputs of these shapes."""
        count: int = outputs[0].shape[0]
        return -(-count // self._blocks.rows)

    def __call__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], deadline: float | None = None
    ) -> None:
        end = None if deadline is None else time.monotonic() + deadline
        count, size = outputs[0].shape[0], self._blocks.rows
        memory = self._memory(inputs, outputs) if count else None
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            block = [
                operand if index in self._blocks.whole else _filled(operand[rows], size)
                for index, operand in enumerate(inputs)
            ]
            try:
                self._run(block, [output[rows] for output in outputs], memory, end)
            except Exception:
                self._spare.clear()  # the device may be lost
                raise
        if memory is not None:
            self._spare.append(memory)

    def _run(
        self,
        block: Sequence[Array],
        outputs: Sequence[Array],
        memory: _Memory | None,
        end: float | None,
    ) -> None:
        """Run on a block, and store those of its results that are asked for."""
        size, device = self._blocks.rows, self._device
        left = () if end is None else (end - time.monotonic(),)
        results = [_of_rows(output, size) for output in outputs]
        if device is None or memory is None:
            deliver(self._runner(block, results, *left), results, "a block of rows")
        else:
            for index, array in enumerate(block):
                if index not in self._blocks.whole:
                    device.upload(np.ascontiguousarray(array), memory.inputs[index])
            refuse_arrays(self._runner(memory.inputs, memory.outputs, *left))
            for there, array in zip(memory.outputs, results, strict=True):
                device.download(there, array)
        for result, output in zip(results, outputs, strict=True):
            if result is not output:
                output[...] = result[: len(output)]

    def _memory(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> _Memory | None:
        """Memory on the device for a block, holding the inputs without rows already; that of an
        earlier call if there is some, since a GPU prepares launches for addresses that come
        again."""
        size, device = self._blocks.rows, self._device
        if device is None:
            return None
        try:
            memory = self._spare.pop()
        except IndexError:
            whole = self._blocks.whole
            memory = _Memory(
                [
                    device.allocate(one.shape if i in whole else (size, *one.shape[1:]), one.dtype)
                    for i, one in enumerate(inputs)
                ],
                [device.allocate((size, *one.shape[1:]), one.dtype) for one in outputs],
            )
        for index in self._blocks.whole:
            device.upload(np.ascontiguousarray(inputs[index]), memory.inputs[index])
        return memory


def _filled(rows: Array, size: int) -> Array:
    """Rows with copies of the last one behind them, up to a number."""
    if len(rows) == size:
        return rows
    block = aligned_empty((size, *rows.shape[1:]), rows.dtype)
    block[: len(rows)], block[len(rows) :] = rows, rows[-1]
    return block


def _of_rows(output: Array, size: int) -> Array:
    """Memory for so many rows: that of the output if it has as many."""
    if len(output) == size:
        return output
    return aligned_empty((size, *output.shape[1:]), output.dtype)


def in_blocks(runner: Runner, blocks: Blocks | None) -> Runner:
    """A runner in blocks of rows, if there are any."""
    return runner if blocks is None else BlockRunner(runner, blocks)
