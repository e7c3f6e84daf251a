"""What one run of a segment at a time needs: tables of its own that lead native code to its memory.

A run only fills in where its memory, inputs and outputs are; the rest stays from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.agreement import RECORD_WORDS, SERIAL, TURNS
from graft.runtime.memory import address_of, aligned_size
from graft.runtime.prepare import Launch, Prepared
from graft.runtime.team import Job

_WORD = np.dtype(np.int64)


class Frame:
    """Tables for a segment, at any of its sizes."""

    def __init__(self, prepared: Prepared) -> None:
        self._tables = tables = prepared.layout.tables
        self._words, self._scalars = tables.words.copy(), np.empty_like(prepared.scalars)
        after = np.zeros((1, RECORD_WORDS), _WORD)  # leads from one iteration to the next
        self._records = np.concatenate([tables.records, after])
        self._records[:, 1] = self._records[:, 1] * _WORD.itemsize + address_of(self._words)
        self._records[:, 2] = self._records[:, 2] * _WORD.itemsize + address_of(self._scalars)
        self._start = address_of(self._records)
        self.words = self._words.data  # single words are written faster through it
        layout = prepared.layout
        self._inputs = [tables.values[number] for number in layout.inputs]
        self._outputs = [tables.values[number] for number in layout.outputs]
        self._prepared: Prepared | None = None
        self._memory: Array | None = None
        self._shared: Array | None = None
        self.fit(prepared)

    def fit(self, prepared: Prepared) -> None:
        """Serve the segment at this size from now on."""
        if prepared is not self._prepared:
            self._stride = aligned_size(prepared.scratch_bytes)
            self._first_scratch = aligned_size(prepared.arena_bytes)
            self.nbytes = self._first_scratch + self._stride * prepared.layout.threads
            self._scalars[:] = prepared.scalars
            self._prepared, self._memory, self._shared = prepared, None, None

    def lie_in(self, memory: Array, shared: Array | None = None) -> None:
        """Let the segment's arena and scratch memory be in `memory`, and the program's shelf of
        the arena in `shared`."""
        assert self._prepared is not None
        tables = self._tables
        if memory is not self._memory:
            base = address_of(memory)
            scratch = base + self._first_scratch
            self._words[tables.arena] = self._prepared.offsets + base
            self._words[tables.scratch] = tables.owners * self._stride + scratch
            self._memory = memory
        if shared is not None and shared is not self._shared:
            self._words[tables.shared] = self._prepared.shared_offsets + address_of(shared)
            self._shared = shared

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Let the kernels work on these arrays."""
        words = self.words
        for gaps, arrays in ((self._inputs, inputs), (self._outputs, outputs)):
            for positions, array in zip(gaps, arrays, strict=True):
                address = address_of(array)
                for position in positions:
                    words[position] = address

    def job(self, launch: Launch, times: int = 0, more: int = 0) -> Job:
        """A launch as a job, with so `more` records behind it."""
        records = self._start + launch.first * RECORD_WORDS * _WORD.itemsize
        return Job(records, launch.count + more, launch.threads, times)

    def end_with(self, function: int, loop: Array) -> None:
        """Let a function that decides whether there is another iteration follow the last call."""
        self._records[-1] = (function, 0, address_of(loop), 0, SERIAL | TURNS)

    def words_of_input(self, index: int) -> list[int]:
        """The addresses of the words that lead kernels to an input."""
        return self._addresses(self._inputs[index])

    def words_of_output(self, index: int) -> list[int]:
        """The addresses of the words that lead kernels to an output."""
        return self._addresses(self._outputs[index])

    def _addresses(self, positions: Sequence[int]) -> list[int]:
        start = address_of(self._words)
        return [start + position * _WORD.itemsize for position in positions]
