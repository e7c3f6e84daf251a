"""Runs segments: arrays in, results in fresh arrays or in those given for them.

A segment is prepared for sizes when it first runs at them; the last few sizes are remembered, and
those that come often get a native call of their own (`native_call`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graft.base.dtypes import Array
from graft.program.guards import check_guards
from graft.program.instructions import Segment
from graft.program.program import ALIGNMENT, Program
from graft.runtime.agreement import ADVANCE
from graft.runtime.checks import Data, Symbols
from graft.runtime.context import RuntimeContext
from graft.runtime.frame import Frame
from graft.runtime.memory import address_of, aligned_copy, aligned_empty, is_usable
from graft.runtime.native_call import RUNS_BEFORE, NativeCall
from graft.runtime.prepare import Launch, Prepared, SegmentLayout

# Sizes that a segment stays prepared for.
REMEMBERED = 8

_WORD = np.dtype(np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class CallTimes:
    """What a profiled run of a segment measured: seconds per kernel call; by thread and call the
    seconds it worked, and when it began, in nanoseconds of `time.perf_counter_ns`, 0 where it took
    no part."""

    seconds: Array
    busy: Array
    begins: Array

    @classmethod
    def zeros(cls, threads: int, calls: int) -> CallTimes:
        shape = threads, calls
        return cls(np.zeros(calls), np.zeros(shape), np.zeros(shape, _WORD))


class SegmentRunner:
    """A segment, at whatever sizes come. Safe to call from several threads."""

    def __init__(self, segment: Segment, program: Program, context: RuntimeContext) -> None:
        self.segment, self._program, self._context = segment, program, context
        values = program.values
        self._operands = [
            (number, values[number].alignment)
            for number in segment.inputs
            if values[number].slot is None
        ]
        self._known: OrderedDict[tuple[int, ...], SizedSegment] = OrderedDict()
        self._frames: list[Frame] = []  # which serve all sizes

    @cached_property
    def layout(self) -> SegmentLayout:
        """Laid out when it first runs: many branches never do."""
        return SegmentLayout(self.segment, self._program, self._context)

    def operands(self, values: Sequence[Data]) -> list[Array]:
        """What kernels read, where they can read it."""
        return [ready(values[number], alignment) for number, alignment in self._operands]

    def alignment(self, number: int) -> int:
        """How kernels need a value aligned that they read."""
        return max([alignment for one, alignment in self._operands if one == number], default=1)

    def native_call(
        self, count: int, values: Sequence[int | Array], symbols: Symbols, order: Sequence[int]
    ) -> NativeCall | None:
        """The segment at some sizes, as `NativeCall` has it; `values` are its sources by number.
        None where it is but a part of what works in an arena."""
        if self.layout.uses_shelf:
            return None
        sources = [
            source if isinstance(source := values[number], int) else ready(source, alignment)
            for number, alignment in self._operands
        ]
        return NativeCall(self.sized(symbols).prepared, self._context, count, sources, order)

    def sized(self, symbols: Mapping[str, int]) -> SizedSegment:
        """The segment at some sizes."""
        key = tuple([symbols[name] for name in self.layout.symbols])
        known = self._known.get(key)
        if known is None:
            prepared = self.layout.at(symbols)
            known = self._known[key] = SizedSegment(prepared, self._context, self._frames)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known


class SizedSegment:
    """A segment at some sizes. `frames` are free ones, which serve it at any size."""

    def __init__(self, prepared: Prepared, context: RuntimeContext, frames: list[Frame]) -> None:
        self.prepared, self._context, self._frames = prepared, context, frames
        self._team = context.team
        self._runs = 0

    def run(self, operands: Sequence[Array]) -> list[Array]:
        """Run once, with results in fresh arrays; the segment needs no memory of the program's."""
        if self._runs >= RUNS_BEFORE:
            return self._call.run(*operands)
        self._runs += 1
        outputs = self.allocate()
        self.run_into(operands, outputs)
        return outputs

    @cached_property
    def _call(self) -> NativeCall:
        inputs, results = len(self.prepared.layout.inputs), len(self.prepared.results)
        return NativeCall(self.prepared, self._context, inputs, range(inputs), range(results))

    def allocate(self, given: Mapping[int, Array] | None = None) -> list[Array]:
        """Arrays for the results: of those `given` by number what fits, else fresh ones."""
        arrays, results = [], self._context.results
        specs = zip(self.prepared.layout.results, self.prepared.results, strict=True)
        for number, (shape, dtype, alignment) in specs:
            array = given.get(number) if given else None
            if array is None or array.shape != shape:
                array = results.empty(shape, dtype, _at(alignment))
            arrays.append(array)
        return arrays

    def run_into(
        self,
        operands: Sequence[Array],
        outputs: Sequence[Array],
        shared: Array | None = None,
        times: CallTimes | None = None,
    ) -> None:
        """Run once; `shared` is the program's shelf of the arena, where it has one. Refuses results
        that come from indices outside of what they point into."""
        guarded = self.prepared.guarded
        found = [aligned_empty((guarded,), _WORD)] if guarded else []
        frame, memory = self._take_frame(shared)
        try:
            frame.bind(operands, [*outputs, *found])
            for launch in self.prepared.launches:
                self._launch(launch, frame, times)
        finally:
            self._give_back(frame, memory)
        for array in found:
            check_guards(lambda: self.prepared.guards, array)

    def iterate(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        most: int,
        advance: Callable[[Frame], Array],
    ) -> int:
        """Run at most so many times in one native call, and tell how often it was.

        `advance` tells what happens between two iterations, in the words of `agreement`. What
        guards find is an output like all others here."""
        launch = self.prepared.repeated(most)
        with self._team.turn() if launch.is_shared else nullcontext():
            frame, memory = self._take_frame(None)
            try:
                frame.bind(inputs, outputs)
                loop = advance(frame)
                frame.end_with(self._context.library.address(ADVANCE), loop)
                self._team.run(frame.job(launch, more=1))
            finally:
                self._give_back(frame, memory)
        return int(loop[1])

    def _take_frame(self, shared: Array | None) -> tuple[Frame, Array]:
        """A frame, and memory for it that nobody else works in."""
        try:
            frame = self._frames.pop()
            frame.fit(self.prepared)
        except IndexError:
            frame = Frame(self.prepared)
        memory = self._context.memory.borrow(frame.nbytes)
        frame.lie_in(memory, shared)
        return frame, memory

    def _give_back(self, frame: Frame, memory: Array) -> None:
        self._context.memory.give_back(memory)
        self._frames.append(frame)

    def _launch(self, launch: Launch, frame: Frame, times: CallTimes | None) -> None:
        with self._team.turn() if launch.is_shared else nullcontext():
            if times is None:
                self._team.run(frame.job(launch))
                return
            stamps = np.zeros((self._team.threads, 2 * launch.count + 1), _WORD)
            self._team.run(frame.job(launch, address_of(stamps)))
        begun, ended = stamps[:, 0::2], stamps[:, 1::2]
        calls = slice(launch.first, launch.first + launch.count)
        times.begins[:, calls] = begun[:, :-1]
        times.seconds[calls] = np.diff(begun[0]) * 1e-9
        times.busy[:, calls] = (ended - begun[:, :-1]) * 1e-9


def ready(data: Array, alignment: int) -> Array:
    """The array where it lies, or a copy that kernels can read."""
    return data if is_usable(data, alignment) else aligned_copy(data, _at(alignment))


def _at(alignment: int) -> int:
    return max(alignment, ALIGNMENT)
