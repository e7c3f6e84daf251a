"""Loops that run natively: a body that is one segment, all its iterations in one call.

Between two iterations native code leads the kernels on (`driver_turns`): carried values change
places with those before them, slices and stacked results move by one. Only sizes have to stay what
they are. Long loops come back to Python now and then, for Ctrl-C and for more memory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.program.guards import INSIDE, check_guards
from graft.program.instructions import Block, Instruction, Loop, Scan, Segment, blocks
from graft.program.program import ALIGNMENT, Program
from graft.runtime.agreement import ADD, COPY, EXCHANGE, LOOP_WORDS, MOVE_WORDS
from graft.runtime.checks import Data
from graft.runtime.frame import Frame
from graft.runtime.lending import ResultSpec
from graft.runtime.memory import address_of, aligned_copy, aligned_empty, is_usable
from graft.runtime.segment import SegmentRunner, SizedSegment, ready
from graft.runtime.turns import Pieces

_WORD = np.dtype(np.int64)

# Memory for stacked results that one native call gets, and the iterations of the first call where
# only data tell how many there will be.
_BYTES_AT_ONCE, _FIRST_ITERATIONS = 1 << 26, 64


@dataclass(frozen=True, slots=True)
class BodyLayout:
    """What a body takes, in this order: flags (the number of the iteration and the condition),
    carried values, slices. It gives the condition if it takes it, carried values, slices."""

    flags: int
    carried: int
    scanned: int = 0

    @property
    def results(self) -> int:
        """Where the carried values begin among what the body gives."""
        return 1 if self.flags else 0


def layout_of(step: Loop | Scan) -> BodyLayout:
    """How a loop or scan deals with its body."""
    if isinstance(step, Loop):
        return BodyLayout(2, len(step.carried))
    return BodyLayout(0, len(step.carried), len(step.scanned))


def is_native(step: Loop | Scan, program: Program) -> bool:
    """Whether a loop can run natively, as far as can be told without sizes."""
    body, layout = step.body, layout_of(step)
    if len(body.instructions) != 1 or not isinstance(body.instructions[0], Segment):
        return False
    segment, values = body.instructions[0], program.values
    if any(values[number].slot is not None for number in (*segment.inputs, *segment.outputs)):
        return False
    made, constants = {*segment.outputs}, dict(program.constants)
    if layout.flags:
        number, condition = body.inputs[:2]
        dtypes = [values[one].dtype for one in (number, condition, body.outputs[0])]
        if dtypes != [DType.INT64, DType.BOOL, DType.BOOL]:
            return False
        always = body.outputs[0] == condition or bool(np.all(constants.get(body.outputs[0], False)))
        if body.outputs[0] not in made and not always:
            return False
    inputs = body.inputs[layout.flags :]
    results = body.outputs[layout.results :]
    kept = (results[j] == inputs[j] for j in range(layout.carried))
    carried = all(same or number in made for same, number in zip(kept, results, strict=False))
    return carried and made.issuperset(results[layout.carried :])


def python_steps(block: Block, program: Program) -> int:
    """The instructions of one run that Python has a hand in: of branches the longer; of loops one
    iteration, or none where they run natively."""
    return sum(1 + _steps_inside(one, program) for one in block.instructions)


def _steps_inside(step: Instruction, program: Program) -> int:
    if isinstance(step, Loop | Scan) and is_native(step, program):
        return 0
    return max((python_steps(one, program) for one in blocks(step)), default=0)


@dataclass(frozen=True, slots=True)
class _Uses:
    """What the loop makes of one output of the segment: positions of carried values and slices."""

    carried: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    condition: bool = False


class NativeLoop:
    """A loop or scan around one segment; only where `is_native` is true."""

    def __init__(self, step: Loop | Scan, runner: SegmentRunner, program: Program) -> None:
        body, self._layout = step.body, layout_of(step)
        self._runner = runner
        segment, layout = runner.segment, self._layout
        where = {number: position for position, number in enumerate(body.inputs)}
        self.reads = tuple((where.get(number), number) for number in segment.inputs)
        self.alignments = tuple(program.values[number].alignment for number in segment.inputs)
        self.uses = tuple(_uses(body, layout, number) for number in segment.outputs)
        self._kept = {
            j
            for j in range(layout.carried)
            if body.outputs[layout.results + j] == body.inputs[layout.flags + j]
        }

    def run(
        self,
        given: Sequence[Array],
        values: Sequence[Data],
        symbols: Mapping[str, int],
        limit: int | None,
        pieces: Pieces,
    ) -> list[Array] | None:
        """The carried values after at most `limit` iterations, of which there is one at least; None
        where sizes change.

        `given` is what the body takes, with all slices of what is scanned in one array, and
        `values` are those around the loop."""
        sized = self._runner.sized(symbols)
        at_once = self._iterations_at_once(sized, given)
        if not at_once:
            return None
        left = sys.maxsize if limit is None else limit
        decided = any(uses.condition for uses in self.uses)
        grown = _FIRST_ITERATIONS if decided else at_once
        first, flags = 0, self._layout.flags
        state = list(given[flags : flags + self._layout.carried])
        while True:
            call = _Call(self, sized, given, values, state, first, min(left, at_once, grown))
            done = call.run()
            pieces.add_stacks(call.stacked(done), done)
            state = call.state(done)
            first, left, grown = first + done, left - done, grown * 4
            if not left or not call.proceeds:
                return state

    def _iterations_at_once(self, sized: SizedSegment, given: Sequence[Array]) -> int:
        flags, bytes_ = self._layout.flags, 0
        for uses, spec in zip(self.uses, sized.prepared.results, strict=True):
            if any(given[flags + j].shape != spec[0] for j in uses.carried):
                return 0
            bytes_ += _nbytes(spec) * len(uses.pieces)
        bytes_ += sized.prepared.guarded * _WORD.itemsize
        for (position, _), alignment in zip(self.reads, self.alignments, strict=True):
            if position is None or not self.is_slice(position):
                continue
            if given[position][0, ...].nbytes % alignment:
                return 0
        most = max(1, _BYTES_AT_ONCE // max(bytes_, 1))
        return min(sized.prepared.iterations_at_once, most)

    def is_slice(self, position: int) -> bool:
        """Whether an input of the body is another one in every iteration."""
        first = self._layout.flags + self._layout.carried
        return first <= position < first + self._layout.scanned

    def carried(self, position: int) -> int | None:
        """Which carried value an input of the body is that changes; None: none."""
        flags = self._layout.flags
        if not flags <= position < flags + self._layout.carried:
            return None
        return None if position - flags in self._kept else position - flags

    def is_flag(self, position: int) -> bool:
        """Whether an input of the body is the number of the iteration, or the condition."""
        return position < self._layout.flags


def _uses(body: Block, layout: BodyLayout, number: int) -> _Uses:
    places = [place - layout.results for place, one in enumerate(body.outputs) if one == number]
    return _Uses(
        tuple(place for place in places if 0 <= place < layout.carried),
        tuple(place - layout.carried for place in places if place >= layout.carried),
        -1 in places,
    )


class _Call:
    """One native call: where kernels read and write in its first iteration, and what happens
    between iterations."""

    def __init__(
        self,
        loop: NativeLoop,
        sized: SizedSegment,
        given: Sequence[Array],
        values: Sequence[Data],
        state: Sequence[Array],
        first: int,
        most: int,
    ) -> None:
        self._sized, self._most = sized, most
        self._number, self._flag = np.array([first], np.int64), np.ones(1, np.bool_)
        self._moves: list[tuple[bool, int, int]] = []  # of an input?, which one, by how much
        self._exchanges: list[tuple[bool, int, int]] = []
        self._copies: list[tuple[int, Array, int]] = []  # output, to where, how far on the next
        self._stacks: dict[int, Array] = {}
        self._found: Array | None = None  # by guards
        # Per carried value where it is after an even and an odd number of iterations.
        self._state: list[tuple[Array, Array]] = [(one, one) for one in state]
        self._read: dict[int, Array] = {}  # carried values where they are read first
        self._specs: list[ResultSpec] = [*sized.prepared.results]
        pairs = zip(loop.uses, self._specs, strict=True)
        self._outputs = [
            self._output(index, uses, spec, state) for index, (uses, spec) in enumerate(pairs)
        ]
        if sized.prepared.guarded:
            self._specs.append(((sized.prepared.guarded,), _WORD, _WORD.itemsize))
            self._found = self._stack(len(self._outputs), self._specs[-1])
            self._outputs.append(self._found)
        self._inputs = [
            self._input(index, loop, given, values, first) for index in range(len(loop.reads))
        ]

    def run(self) -> int:
        """How many iterations it took."""
        done = self._sized.iterate(self._inputs, self._outputs, self._most, self._advance)
        found = self._found
        if found is not None and not (found[:done] == INSIDE).all():
            for one in found[:done]:
                check_guards(lambda: self._sized.prepared.guards, one)
        return done

    @property
    def proceeds(self) -> bool:
        """Whether the condition holds after the last iteration."""
        return bool(self._flag.reshape(-1)[0])

    def stacked(self, count: int) -> list[Array]:
        """The slices of so many iterations, result by result."""
        return [self._stacks[place][:count] for place in sorted(self._stacks)]

    def state(self, count: int) -> list[Array]:
        """The carried values after so many iterations."""
        return [both[count % 2] for both in self._state]

    def _output(self, index: int, uses: _Uses, spec: ResultSpec, state: Sequence[Array]) -> Array:
        alone = len(uses.pieces) == 1 and not uses.carried and not uses.condition
        if alone and _nbytes(spec) % spec[2] == 0:
            stack = self._stacks[uses.pieces[0]] = self._stack(index, spec)
            return stack
        buffer = _buffer(spec)
        if uses.condition:
            self._flag = buffer
        for place in uses.pieces:
            stack = self._stacks[place] = _buffer(spec, self._most)
            self._copies.append((index, stack, _nbytes(spec)))
        for count, place in enumerate(uses.carried):
            before = self._read[place] = aligned_copy(state[place])
            if count or uses.condition:  # which is looked for in one place
                self._state[place] = before, before
                self._copies.append((index, before, 0))
            else:
                self._state[place] = before, buffer
                self._exchanges.append((False, index, address_of(before) ^ address_of(buffer)))
        return buffer

    def _stack(self, index: int, spec: ResultSpec) -> Array:
        """Memory for the slices of all iterations, which the segment writes itself."""
        self._moves.append((False, index, _nbytes(spec)))
        return _buffer(spec, self._most)

    def _input(
        self,
        index: int,
        loop: NativeLoop,
        given: Sequence[Array],
        values: Sequence[Data],
        first: int,
    ) -> Array:
        (position, number), alignment = loop.reads[index], loop.alignments[index]
        if position is None:  # the same in every iteration
            return ready(values[number], alignment)
        if loop.is_flag(position):
            return (self._number, np.ones(1, np.bool_))[position]
        carried = loop.carried(position)
        if carried is not None:
            before, after = self._state[carried]
            if before is not after:
                self._exchanges.append((True, index, address_of(before) ^ address_of(after)))
            return self._read[carried]
        if loop.is_slice(position):
            rows = _rows(given[position][first:], alignment)
            self._moves.append((True, index, rows.strides[0]))
            return rows
        return ready(given[position], alignment)

    def _advance(self, frame: Frame) -> Array:
        """What happens between two iterations, in the words of `agreement`."""
        moves = list(self._described(frame))
        loop = np.zeros(LOOP_WORDS + MOVE_WORDS * len(moves), np.int64)
        addresses = address_of(self._number), address_of(self._flag)
        loop[:LOOP_WORDS] = (0, 0, self._most, *addresses, len(moves))
        loop[LOOP_WORDS:] = np.array(moves, np.int64).reshape(-1)
        return loop

    def _described(self, frame: Frame) -> Iterator[tuple[int, ...]]:
        """The pointer updates between two iterations. Copies must come first: they read through
        the pointers that the later moves change."""
        for index, target, step in self._copies:
            nbytes = _nbytes(self._specs[index])
            for word in frame.words_of_output(index)[:1]:  # none where there is nothing to copy
                yield COPY, address_of(target), word, nbytes, step
        for kind, moves in ((ADD, self._moves), (EXCHANGE, self._exchanges)):
            for is_input, index, amount in moves:
                words = frame.words_of_input if is_input else frame.words_of_output
                yield from ((kind, word, amount, 0, 0) for word in words(index))


def _nbytes(spec: ResultSpec) -> int:
    shape, dtype, _ = spec
    return math.prod(shape) * dtype.itemsize


def _buffer(spec: ResultSpec, *iterations: int) -> Array:
    shape, dtype, alignment = spec
    return aligned_empty((*iterations, *shape), dtype, max(alignment, ALIGNMENT))


def _rows(data: Array, alignment: int) -> Array:
    """Slices that kernels can read where they lie, one as far from the next as the others."""
    lies = is_usable(data[0, ...], alignment) and data.strides[0] % alignment == 0
    return data if lies else aligned_copy(data, max(alignment, ALIGNMENT))
