"""The steps of a recurrent layer: `nn.recurrence`, one after the other, all threads in each.

A step multiplies the hidden state by the recurrent weight, whose blocks of units the threads share,
and applies the gates while the sums are in registers. Between steps is a barrier, since each thread
needs the whole state. The states before and after a step lie in separate working memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from operator import add

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dtypes import DType
from graft.loop.build import Term, cast, equal, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Barrier, Buffer, Const, Scope, Stmt, Store
from graft.loop.statements import StatementBuilder, ramp, spread, store
from graft.loop.traverse import block
from graft.ops.rnn import GATES, RecurrenceAttrs, activations, directions_of
from graft.target.target import Target

Activation = Callable[[Term], Term]


def are_alike(attrs: RecurrenceAttrs) -> bool:
    """Whether all directions have the same functions."""
    per_way = len(attrs.activations) // len(directions_of(attrs))
    lists = (attrs.activations, attrs.activation_alpha, attrs.activation_beta)
    return all(tuple(one[:per_way]) * 2 == tuple(one) for one in lists if len(one) > per_way)


def phases(attrs: RecurrenceAttrs) -> tuple[tuple[int, ...], ...]:
    """The gates between two barriers; a GRU's candidate may need the reset state of all units."""
    if attrs.cell == "gru" and not attrs.linear_before_reset:
        return (0, 1), (2,)
    return (tuple(range({"rnn": 1, "gru": 3, "lstm": 4}[attrs.cell])),)


@dataclass(frozen=True, eq=False)
class _GateInputs:
    """What the gates of a block of units are computed from: sums, projected inputs and state."""

    sums: Mapping[int, Term]  # by gate, the recurrent part
    projected: Mapping[int, Term]  # by gate, the projected part
    hidden: Term
    cell: Term  # or the update gate of a GRU whose candidate comes in the next phase
    peephole: tuple[Term, ...] = ()
    bias: Term | None = None

    def total(self, gate: int) -> Term:
        return self.projected[gate] + self.sums[gate]


# The new hidden state and the new cell state, if there is one.
_State = tuple[Term, Term | None]


def step(
    code: StatementBuilder, attrs: RecurrenceAttrs, direction: int, phase: int, now: _GateInputs
) -> _State:
    """What a phase of a step does to a block of units, with names."""
    functions: list[Activation] = [activation.term for activation in activations(attrs, direction)]
    if attrs.cell == "lstm":
        return _lstm(code, attrs, functions, now)
    if attrs.cell == "gru" and attrs.linear_before_reset:
        return _gru(code, attrs, functions, now)
    if attrs.cell == "gru":
        return _gru_phase(code, attrs, functions, now, phase)
    return code.let("hidden", functions[0](_clipped(attrs, now.total(0)))), None


def _clipped(attrs: RecurrenceAttrs, x: Term) -> Term:
    return x if attrs.clip is None else minimum(maximum(x, -attrs.clip), attrs.clip)


def _lstm(
    code: StatementBuilder, attrs: RecurrenceAttrs, functions: list[Activation], now: _GateInputs
) -> _State:
    f, g, h = functions

    def gate(number: int, peephole: int, cell: Term) -> Term:
        total = now.total(number)
        return f(_clipped(attrs, total + now.peephole[peephole] * cell if now.peephole else total))

    before = code.let("before", now.cell)
    share = code.let("admitted", gate(0, 0, before))
    retained = 1.0 - share if attrs.input_forget else gate(2, 2, before)
    cell = code.let("cell", retained * before + share * g(_clipped(attrs, now.total(3))))
    return code.let("hidden", gate(1, 1, cell) * h(cell)), cell


def _gru(
    code: StatementBuilder, attrs: RecurrenceAttrs, functions: list[Activation], now: _GateInputs
) -> _State:
    """The candidate's recurrent part is reset as a whole."""
    f, g = functions
    part = now.sums[2] if now.bias is None else now.sums[2] + now.bias
    reset = f(_clipped(attrs, now.total(1)))
    fresh = g(_clipped(attrs, now.projected[2] + reset * part))
    update = code.let("update", f(_clipped(attrs, now.total(0))))
    return code.let("hidden", (1.0 - update) * fresh + update * now.hidden), None


def _gru_phase(
    code: StatementBuilder,
    attrs: RecurrenceAttrs,
    functions: list[Activation],
    now: _GateInputs,
    phase: int,
) -> _State:
    """First what is reset of the state, and the update gate; then the candidate."""
    f, g = functions
    if phase == 0:
        reset = code.let("reset", f(_clipped(attrs, now.total(1))) * now.hidden)
        return reset, code.let("update", f(_clipped(attrs, now.total(0))))
    fresh = g(_clipped(attrs, now.total(2)))
    return code.let("hidden", (1.0 - now.cell) * fresh + now.cell * now.hidden), None


# Sums that are in registers at once: enough to hide how long an addition takes.
_SUMS = 8


@dataclass(frozen=True, eq=False)
class _TilePosition:
    """The position of a tile: phase and gates, iteration and its step, direction, unit and row."""

    phase: int
    gates: tuple[int, ...]
    iteration: Term
    time: Term
    direction: Term
    unit: Term
    first: Term


@dataclass(frozen=True, eq=False)
class _Sums:
    """The sums of a tile in registers: per gate and row, in several sets that are added up last."""

    buffer: Buffer
    gates: tuple[int, ...]
    rows: int
    sets: int
    lanes: int

    @classmethod
    def of(cls, tile: _TilePosition, rows: int, steps: int, lanes: int, dtype: DType) -> _Sums:
        """As many sets as keep the registers busy and divide the steps."""
        sets = max(1, _SUMS // (len(tile.gates) * rows))
        while steps % sets:
            sets -= 1
        extents = (Const(sets * rows * len(tile.gates) * lanes),)
        return cls(Buffer("sums", dtype, extents, Scope.REGISTER), tile.gates, rows, sets, lanes)

    def _at(self, number: int, gate: int, row: int) -> Term:
        start = ((number * len(self.gates) + self.gates.index(gate)) * self.rows + row) * self.lanes
        return ramp(term(start), self.lanes)

    def add(self, number: int, gate: int, row: int, value: Term) -> Stmt:
        at = self._at(number, gate, row)
        return store(self.buffer, at, load(self.buffer, at) + value)

    def clear(self) -> Stmt:
        zero = Term(Const(0.0, self.buffer.dtype, self.lanes))
        every = product(range(self.sets), self.gates, range(self.rows))
        return block(*(store(self.buffer, self._at(*one), zero) for one in every))

    def total(self, row: int, gate: int) -> Term:
        """The sum of a gate."""
        parts = (load(self.buffer, self._at(number, gate, row)) for number in range(self.sets))
        return reduce(add, parts)


@node_kernel("nn.recurrence")
def recurrence(group: Group, stores: Stores, _target: Target) -> Plan:
    """The steps of a recurrent layer."""
    return node_plan(group, stores, lambda writer: _Steps(writer).write())


class _Steps:
    """Writes the loops over steps, blocks of units and rows of the batch."""

    def __init__(self, writer: Writer) -> None:
        self._code, node = writer.code, writer.group.node
        self._attrs = attrs = node.attrs
        self._gates, self._lanes, self._hidden = GATES[attrs.cell], attrs.block, attrs.hidden
        self._blocks = -(-attrs.hidden // attrs.block)
        self._padded = self._blocks * attrs.block
        self._directions = directions_of(attrs)
        length, batch, *_ = shape_of(node.args[0])
        self._length, self._batch = writer.dim(length), writer.dim(batch)
        self._rows = min(batch, _SUMS // self._gates) if isinstance(batch, int) else 1
        self._rows = max(self._rows, 1)
        self._projected, self._weight = writer.present_operand(0), writer.present_operand(1)
        self._bias, self._lengths, *self._initial = (writer.operand(n) for n in (2, 3, 4, 5))
        self._peephole = writer.operand(6)
        *self._results, self._room = (writer.result(n) for n in range(len(node.outputs)))
        self._state = self._batch * (len(self._directions) * self._padded)  # elements of a state

    def write(self) -> None:
        self._initialize()
        self._code.emit(Barrier())
        with self._code.loop("iteration", self._length) as iteration:
            for number, gates in enumerate(phases(self._attrs)):
                with self._job(f"phase{number}") as (direction, unit):
                    self._phase(number, gates, iteration, direction, unit)
                self._code.emit(Barrier())
        self._finalize()

    @contextmanager
    def _job(self, name: str) -> Iterator[tuple[Term, Term]]:
        """The blocks of all directions, which the threads share: a direction and a first unit."""
        code = self._code
        with code.parallel(name, self._blocks * len(self._directions)) as job:
            direction = code.let("way", job // self._blocks)
            yield direction, code.let("unit", job % self._blocks * self._lanes)

    def _at(self, part: Term | int, direction: Term, row: Term, unit: Term) -> Term:
        """The index of an element of the working memory."""
        offset = (direction * self._batch + row) * self._padded + unit
        element: Term = term(part) * self._state + offset
        return element

    @contextmanager
    def _each_unit(self, name: str) -> Iterator[tuple[Term, Term, Term]]:
        """Rows and units of a block, one by one, without those that are padding."""
        with self._job(name) as (direction, unit), self._code.loop("row", self._batch) as row:
            count = select(unit + self._lanes > self._hidden, self._hidden - unit, self._lanes)
            with self._code.loop("lane", count) as lane:
                yield direction, row, unit + lane

    def _initialize(self) -> None:
        """Copy the initial states, or zeros where there are none, to the working memory."""
        code = self._code
        with self._job("cleared") as (direction, unit), code.loop("row", self._batch) as row:
            for part in range(4):
                at = self._ramp(self._at(part, direction, row, unit))
                code.store(self._room, at, self._zeros)
        for part, source in zip((0, 3), self._initial, strict=True):
            if source is not None:
                with self._each_unit(f"given{part}") as (direction, row, unit):
                    value = load(source, (direction * self._batch + row) * self._hidden + unit)
                    code.store(self._room, self._at(part, direction, row, unit), value)

    def _finalize(self) -> None:
        """Copy the last states to the results; zero for a sequence without steps."""
        parts = (self._length % 2, term(3))
        for number, (result, part) in enumerate(zip(self._results[1:], parts, strict=False)):
            with self._each_unit(f"last{number}") as (direction, row, unit):
                value = load(self._room, self._at(part, direction, row, unit))
                if self._lengths is not None:
                    value = select(cast(INDEX, load(self._lengths, row)) > 0, value, 0.0)
                at = (direction * self._batch + row) * self._hidden + unit
                self._code.store(result, at, value)

    def _phase(
        self, phase: int, gates: tuple[int, ...], iteration: Term, direction: Term, unit: Term
    ) -> None:
        """Some gates of a block of units, for all rows."""
        backwards = self._length - 1 - iteration
        time = backwards if self._directions == (True,) else iteration
        if len(self._directions) > 1:
            time = select(equal(direction, 1), backwards, iteration)

        def rows(count: int, first: Term) -> None:
            tile = _TilePosition(phase, gates, iteration, time, direction, unit, first)
            self._tile(tile, count)

        whole = self._batch // self._rows
        with self._code.loop("tile", whole) as tile:
            rows(self._rows, tile * self._rows)
        if self._rows > 1:
            with self._code.loop("rest", self._batch % self._rows) as row:
                rows(1, whole * self._rows + row)

    def _tile(self, tile: _TilePosition, count: int) -> None:
        """Some rows: their sums in registers, then their gates."""
        code = self._code
        sums = _Sums.of(tile, count, self._padded, self._lanes, self._room.dtype)
        source = term(2) if tile.phase else tile.iteration % 2
        base = (tile.direction * self._padded + tile.unit) * (self._padded * self._gates)
        with code.memory(sums.buffer):
            code.emit(sums.clear())
            with code.loop("k", self._padded // sums.sets) as k:
                for number, gate in product(range(sums.sets), tile.gates):
                    at = k * sums.sets + number
                    start = base + (at * self._gates + gate) * self._lanes
                    with code.scope():
                        weight = code.let("weight", self._vector(self._weight, start))
                        for row in range(count):
                            unit = self._at(source, tile.direction, tile.first + row, at)
                            state = spread(load(self._room, unit), self._lanes)
                            code.emit(sums.add(number, gate, row, state * weight))
            for row in range(count):
                self._apply_gates(tile, row, partial(sums.total, row))

    def _apply_gates(self, tile: _TilePosition, row: int, total: Callable[[int], Term]) -> None:
        """A row's gates, and its new state."""
        at, direction, unit = tile.first + row, tile.direction, tile.unit
        outer = (tile.time * self._batch + at) * len(self._directions) + direction

        def projected(gate: int) -> Term:
            return self._vector(self._projected, (outer * self._gates + gate) * self._padded + unit)

        def old(part: Term | int) -> Term:
            return self._vector(self._room, self._at(part, direction, at, unit))

        peepholes: tuple[Term, ...] = ()
        if self._peephole is not None:
            starts = ((direction * 3 + n) * self._padded + unit for n in range(3))
            peepholes = tuple(self._vector(self._peephole, start) for start in starts)
        bias = None
        if self._bias is not None:
            bias = self._vector(self._bias, direction * self._padded + unit)
        sums = {gate: total(gate) for gate in tile.gates}
        projections = {gate: projected(gate) for gate in tile.gates}
        inputs = _GateInputs(sums, projections, old(tile.iteration % 2), old(3), peepholes, bias)
        apart = () if are_alike(self._attrs) else range(len(self._directions))
        if not apart:
            with self._code.scope():
                state = step(self._code, self._attrs, 0, tile.phase, inputs)
                self._store_state(tile, at, inputs, *state)
        for number in apart:
            first = self._code.when(equal(direction, 0))
            with self._code.otherwise() if number else first:
                state = step(self._code, self._attrs, number, tile.phase, inputs)
                self._store_state(tile, at, inputs, *state)

    def _store_state(
        self, tile: _TilePosition, row: Term, inputs: _GateInputs, hidden: Term, cell: Term | None
    ) -> None:
        """Store the new state; a sequence that has ended keeps its state, and outputs zero."""
        direction, unit = tile.direction, tile.unit

        def set_part(part: Term | int, value: Term) -> None:
            at = self._ramp(self._at(part, direction, row, unit))
            self._code.store(self._room, at, self._without_padding(unit, value))

        if tile.phase < len(phases(self._attrs)) - 1:
            assert cell is not None
            set_part(2, hidden)
            set_part(3, cell)
            return
        output = hidden
        if self._lengths is not None:
            alive = tile.time < cast(INDEX, load(self._lengths, row))
            output = select(alive, hidden, self._zeros)
            hidden = select(alive, hidden, inputs.hidden)
            cell = None if cell is None else select(alive, cell, inputs.cell)
        start = (
            (tile.time * len(self._directions) + direction) * self._batch + row
        ) * self._hidden + unit
        set_part((tile.iteration + 1) % 2, hidden)
        self._store_output(start, unit, output)
        if cell is not None:
            set_part(3, cell)

    def _without_padding(self, unit: Term, value: Term) -> Term:
        """Zero in the padding: a NaN there would reach all units."""
        if self._padded == self._hidden:
            return value
        return select(self._ramp(unit) < self._hidden, value, self._zeros)

    def _store_output(self, start: Term, unit: Term, value: Term) -> None:
        """Store a block of a step's outputs, without its padding."""
        at = self._ramp(start)
        inside = None
        if self._padded > self._hidden:
            inside = (self._ramp(unit) < self._hidden).expr
        self._code.emit(Store(self._results[0], (at.expr,), value.expr, inside))

    def _ramp(self, start: Term) -> Term:
        return ramp(start, self._lanes)

    @property
    def _zeros(self) -> Term:
        return spread(Term(Const(0.0, self._room.dtype)), self._lanes)

    def _vector(self, buffer: Buffer, start: Term) -> Term:
        return load(buffer, self._ramp(start))
