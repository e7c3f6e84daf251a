"""The gates of recurrent cells: what becomes of a step's sums, as formulas on vectors.

Attributes of `nn.recurrence` and the sums of some gates enter; the new state leaves, by way of
names for what is needed more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graft.backends.host.kernels.writing import let
from graft.loop.build import Term, maximum, minimum
from graft.loop.ir import Stmt
from graft.ops.rnn import RecurrenceAttrs, activations, directions_of

Activation = Callable[[Term], Term]


def are_alike(attrs: RecurrenceAttrs) -> bool:
    """Whether all directions have the same functions."""
    per_way = len(attrs.activations) // len(directions_of(attrs))
    lists = (attrs.activations, attrs.activation_alpha, attrs.activation_beta)
    return all(tuple(one[:per_way]) * 2 == tuple(one) for one in lists if len(one) > per_way)


def phases(attrs: RecurrenceAttrs) -> tuple[tuple[int, ...], ...]:
    """The gates that are computed before the threads meet; a GRU may need what others reset."""
    if attrs.cell == "gru" and not attrs.linear_before_reset:
        return (0, 1), (2,)
    return (tuple(range({"rnn": 1, "gru": 3, "lstm": 4}[attrs.cell])),)


@dataclass(frozen=True, eq=False)
class Before:
    """What a block of units has before a step: sums per gate, what was projected, its state."""

    sums: Mapping[int, Term]  # by gate, the recurrent part
    given: Mapping[int, Term]  # by gate, the projected part
    hidden: Term
    cell: Term  # of a GRU whose candidate waits, the update gate
    peephole: tuple[Term, ...] = ()
    bias: Term | None = None

    def total(self, gate: int) -> Term:
        return self.given[gate] + self.sums[gate]


# Ends a step with the new hidden state and the new cell state, if there is one.
Ending = Callable[[Term, Term | None], Stmt]


def step(attrs: RecurrenceAttrs, direction: int, phase: int, now: Before, end: Ending) -> Stmt:
    """What a phase of a step does to a block of units."""
    functions: list[Activation] = [one.term for one in activations(attrs, direction)]
    if attrs.cell == "lstm":
        return _lstm(attrs, functions, now, end)
    if attrs.cell == "gru":
        linear = attrs.linear_before_reset
        return (_gru if linear else _gru_phase)(attrs, functions, now, end, phase)
    return let("hidden", functions[0](_clipped(attrs, now.total(0))), lambda h: end(h, None))


def _clipped(attrs: RecurrenceAttrs, x: Term) -> Term:
    return x if attrs.clip is None else minimum(maximum(x, -attrs.clip), attrs.clip)


def _lstm(attrs: RecurrenceAttrs, functions: list[Activation], now: Before, end: Ending) -> Stmt:
    f, g, h = functions

    def gate(number: int, seen: int, cell: Term) -> Term:
        total = now.total(number)
        return f(_clipped(attrs, total + now.peephole[seen] * cell if now.peephole else total))

    def admitted(cell: Term, share: Term) -> Stmt:
        kept = 1.0 - share if attrs.input_forget else gate(2, 2, cell)
        fresh = share * g(_clipped(attrs, now.total(3)))
        return let("cell", kept * cell + fresh, shown)

    def shown(cell: Term) -> Stmt:
        return let("hidden", gate(1, 1, cell) * h(cell), lambda hidden: end(hidden, cell))

    def known(cell: Term) -> Stmt:
        return let("admitted", gate(0, 0, cell), lambda share: admitted(cell, share))

    return let("before", now.cell, known)


def _gru(
    attrs: RecurrenceAttrs, functions: list[Activation], now: Before, end: Ending, _phase: int
) -> Stmt:
    """The candidate's recurrent part is reset as a whole."""
    f, g = functions
    part = now.sums[2] if now.bias is None else now.sums[2] + now.bias
    reset = f(_clipped(attrs, now.total(1)))
    fresh = g(_clipped(attrs, now.given[2] + reset * part))

    def mixed(update: Term) -> Stmt:
        hidden = (1.0 - update) * fresh + update * now.hidden
        return let("hidden", hidden, lambda h: end(h, None))

    return let("update", f(_clipped(attrs, now.total(0))), mixed)


def _gru_phase(
    attrs: RecurrenceAttrs, functions: list[Activation], now: Before, end: Ending, phase: int
) -> Stmt:
    """First what is reset of the state, and the update gate; then the candidate."""
    f, g = functions
    if phase == 0:
        reset = f(_clipped(attrs, now.total(1))) * now.hidden
        update = f(_clipped(attrs, now.total(0)))
        return let("reset", reset, lambda r: let("update", update, lambda u: end(r, u)))
    fresh = g(_clipped(attrs, now.total(2)))
    hidden = (1.0 - now.cell) * fresh + now.cell * now.hidden
    return let("hidden", hidden, lambda h: end(h, None))
