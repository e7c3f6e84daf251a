"""Loops that turn natively: a body that is one native program, all its turns in one call.

Between two turns native code leads the kernels on (`driver_turns`): carried values change places
with those before them, slices and stacked pieces move by one. Only sizes have to stay what they
are. Long loops come back to Python now and then, for Ctrl-C and for more memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.agreement import ADD, COPY, EXCHANGE, LOOP_WORDS, MOVE_WORDS
from graft.runtime.bound import Bound, Sized, ready
from graft.runtime.context import Context
from graft.runtime.flow import Flow, Stretch
from graft.runtime.flow_checks import Symbols
from graft.runtime.guards import INSIDE, check_guards
from graft.runtime.loop_bodies import Layout
from graft.runtime.memory import ALIGNMENT, address_of, aligned_copy, aligned_empty, is_usable
from graft.runtime.program import TensorSpec
from graft.runtime.turns import Pieces

_WORD = np.dtype(np.int64)

# Memory for stacked pieces that one native call gets, and the turns of the first call where only
# data tell how many there will be.
_BYTES_AT_ONCE, _FIRST_TURNS = 1 << 26, 64


@dataclass(frozen=True, slots=True)
class _Uses:
    """What the loop makes of one output of the program: positions of carried values and pieces."""

    carried: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    condition: bool = False


class NativeTurns:
    """A loop or scan around one native program."""

    def __init__(self, body: Flow, bound: Bound, layout: Layout) -> None:
        """Only where `can_turn` is true."""
        (stretch,) = body.steps
        assert isinstance(stretch, Stretch)
        self._bound, self._layout = bound, layout
        where = {number: position for position, number in enumerate(body.inputs)}
        self.reads = tuple(where.get(number) for number in stretch.inputs)
        constants = dict(body.constants)
        self.constants = tuple(constants.get(number) for number in stretch.inputs)
        self.uses = tuple(_uses(body, layout, number) for number in stretch.outputs)
        self._kept = {
            j
            for j in range(layout.carried)
            if body.outputs[layout.results + j] == body.inputs[layout.flags + j]
        }

    def run(
        self, given: Sequence[Array], symbols: Symbols, limit: int | None, pieces: Pieces
    ) -> list[Array] | None:
        """The carried values after at most `limit` turns, of which there is one at least; None
        where sizes change.

        `given` is what the body takes, with all slices of what is scanned in one array."""
        sized = self._bound.sized(symbols)
        at_once = self._turns_at_once(sized, given)
        if not at_once:
            return None
        left = sys.maxsize if limit is None else limit
        decided = any(uses.condition for uses in self.uses)
        grown = _FIRST_TURNS if decided else at_once
        first, flags = 0, self._layout.flags
        state = list(given[flags : flags + self._layout.carried])
        while True:
            call = _Call(self, sized, given, state, first, min(left, at_once, grown))
            turns = call.run()
            pieces.add_stacks(call.stacked(turns), turns)
            state = call.state(turns)
            first, left, grown = first + turns, left - turns, grown * 4
            if not left or not call.proceeds:
                return state

    def _turns_at_once(self, sized: Sized, given: Sequence[Array]) -> int:
        flags, bytes_ = self._layout.flags, 0
        for uses, spec in zip(self.uses, sized.known.outputs, strict=False):
            if any(given[flags + j].shape != spec.shape for j in uses.carried):
                return 0
            bytes_ += spec.nbytes * len(uses.pieces)
        bytes_ += len(sized.known.guards) * _WORD.itemsize
        for position, spec in zip(self.reads, sized.known.inputs, strict=True):
            if self.is_slice(position) and spec.nbytes % spec.alignment:
                return 0
        most = max(1, _BYTES_AT_ONCE // max(bytes_, 1))
        return min(sized.executor.turns_at_once, most)

    def is_slice(self, position: int | None) -> bool:
        """Whether an input of the body is another one in every turn."""
        first = self._layout.flags + self._layout.carried
        return position is not None and first <= position < first + self._layout.scanned

    def carried(self, position: int | None) -> int | None:
        """Which carried value an input of the body is that changes; None: none."""
        flags = self._layout.flags
        if position is None or not flags <= position < flags + self._layout.carried:
            return None
        return None if position - flags in self._kept else position - flags

    def is_flag(self, position: int | None) -> bool:
        """Whether an input of the body is the number of the turn, or the condition."""
        return position is not None and position < self._layout.flags


def _uses(body: Flow, layout: Layout, number: int) -> _Uses:
    places = [place - layout.results for place, one in enumerate(body.outputs) if one == number]
    return _Uses(
        tuple(place for place in places if 0 <= place < layout.carried),
        tuple(place - layout.carried for place in places if place >= layout.carried),
        -1 in places,
    )


class _Call:
    """One native call: where kernels read and write in its first turn, and what happens between
    turns."""

    def __init__(
        self,
        turns: NativeTurns,
        sized: Sized,
        given: Sequence[Array],
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
        # Per carried value where it is after an even and an odd number of turns.
        self._state: list[tuple[Array, Array]] = [(one, one) for one in state]
        self._read: dict[int, Array] = {}  # carried values where they are read in the first turn
        self._outputs = [
            self._output(index, uses, spec, state)
            for index, (uses, spec) in enumerate(_used(turns, sized))
        ]
        self._inputs = [
            self._input(index, turns, spec, given, first)
            for index, spec in enumerate(sized.known.inputs)
        ]

    def run(self) -> int:
        """How many turns it took."""
        turns = self._sized.executor.run_turns(
            self._inputs, self._outputs, self._most, self._lead_on
        )
        found = self._found
        if found is not None and not (found[:turns] == INSIDE).all():
            for one in found[:turns]:
                check_guards(lambda: self._sized.known.guards, one)
        return turns

    @property
    def proceeds(self) -> bool:
        """Whether the condition holds after the last turn."""
        return bool(self._flag.reshape(-1)[0])

    def stacked(self, turns: int) -> list[Array]:
        """The pieces of so many turns, result by result."""
        return [self._stacks[place][:turns] for place in sorted(self._stacks)]

    def state(self, turns: int) -> list[Array]:
        """The carried values after so many turns."""
        return [both[turns % 2] for both in self._state]

    def _output(
        self, index: int, uses: _Uses | None, spec: TensorSpec, state: Sequence[Array]
    ) -> Array:
        if uses is None:
            self._found = self._stack(index, spec)
            return self._found
        alone = len(uses.pieces) == 1 and not uses.carried and not uses.condition
        if alone and spec.nbytes % spec.alignment == 0:
            stack = self._stacks[uses.pieces[0]] = self._stack(index, spec)
            return stack
        home = _home(spec)
        if uses.condition:
            self._flag = home
        for place in uses.pieces:
            stack = self._stacks[place] = _home(spec, self._most)
            self._copies.append((index, stack, spec.nbytes))
        for count, place in enumerate(uses.carried):
            before = self._read[place] = aligned_copy(state[place])
            if count or uses.condition:  # which is looked for in one place
                self._state[place] = before, before
                self._copies.append((index, before, 0))
            else:
                self._state[place] = before, home
                self._exchanges.append((False, index, address_of(before) ^ address_of(home)))
        return home

    def _stack(self, index: int, spec: TensorSpec) -> Array:
        """Memory for all turns' pieces, which the program writes itself."""
        self._moves.append((False, index, spec.nbytes))
        return _home(spec, self._most)

    def _input(
        self, index: int, turns: NativeTurns, spec: TensorSpec, given: Sequence[Array], first: int
    ) -> Array:
        position = turns.reads[index]
        carried = turns.carried(position)
        if position is None:
            constant = turns.constants[index]
            assert constant is not None
            return ready(constant, spec.alignment)
        if turns.is_flag(position):
            return (self._number, np.ones(1, np.bool_))[position]
        if carried is not None:
            before, after = self._state[carried]
            if before is not after:
                self._exchanges.append((True, index, address_of(before) ^ address_of(after)))
            return self._read[carried]
        if turns.is_slice(position):
            rows = _rows(given[position][first:], spec.alignment)
            self._moves.append((True, index, rows.strides[0]))
            return rows
        return ready(given[position], spec.alignment)

    def _lead_on(self, context: Context) -> Array:
        """What happens between two turns, in the words of `agreement`."""
        moves = list(self._described(context))
        loop = np.zeros(LOOP_WORDS + MOVE_WORDS * len(moves), np.int64)
        addresses = address_of(self._number), address_of(self._flag)
        loop[:LOOP_WORDS] = (0, 0, self._most, *addresses, len(moves))
        loop[LOOP_WORDS:] = np.array(moves, np.int64).reshape(-1)
        return loop

    def _described(self, context: Context) -> Iterator[tuple[int, ...]]:
        """Copies before all else: they look where the words have led the kernels."""
        for index, target, step in self._copies:
            nbytes = self._sized.known.outputs[index].nbytes
            for word in context.words_of_output(index)[:1]:  # none where there is nothing to copy
                yield COPY, address_of(target), word, nbytes, step
        for kind, moves in ((ADD, self._moves), (EXCHANGE, self._exchanges)):
            for is_input, index, amount in moves:
                words = context.words_of_input if is_input else context.words_of_output
                yield from ((kind, word, amount, 0, 0) for word in words(index))


def _used(turns: NativeTurns, sized: Sized) -> Iterator[tuple[_Uses | None, TensorSpec]]:
    """Outputs and what they are used for; None is what guards find."""
    guards = (None,) if sized.known.guards else ()
    yield from zip((*turns.uses, *guards), sized.known.outputs, strict=True)


def _home(spec: TensorSpec, *turns: int) -> Array:
    alignment = max(spec.alignment, ALIGNMENT)
    return aligned_empty((*turns, *spec.shape), spec.dtype.numpy, alignment)


def _rows(data: Array, alignment: int) -> Array:
    """Slices that kernels can read where they lie, one as far from the next as the others."""
    lies = is_usable(data[0, ...], alignment) and data.strides[0] % alignment == 0
    return data if lies else aligned_copy(data, max(alignment, ALIGNMENT))
