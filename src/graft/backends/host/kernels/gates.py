"""The gates of recurrent cells: what becomes of a step's sums, as formulas on vectors.

Attributes of `nn.recurrence` and the sums of some gates enter; the new state leaves, by way of
names for what is needed more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graft.backends.host.kernels.writing import let
from graft.loop.build import Term, call, maximum, minimum, select
from graft.loop.ir import Stmt
from graft.ops.recurrence import RecurrenceAttrs, directions_of

Activation = Callable[[Term], Term]


def _elu(x: Term, a: float) -> Term:
    return select(x < 0.0, (call("exp", minimum(x, 0.0)) - 1.0) * a, x)


def _softplus(x: Term) -> Term:
    rest = call("log", call("exp", -call("abs", x)) + 1.0)
    return maximum(x, 0.0) + rest


_FORMULAS: Mapping[str, Callable[[Term, float, float], Term]] = {
    "relu": lambda x, a, b: maximum(x, 0.0),
    "tanh": lambda x, a, b: call("tanh", x),
    "sigmoid": lambda x, a, b: call("sigmoid", x),
    "affine": lambda x, a, b: x * a + b,
    "leaky_relu": lambda x, a, b: select(x < 0.0, x * a, x),
    "thresholded_relu": lambda x, a, b: select(x >= a, x, 0.0),
    "scaled_tanh": lambda x, a, b: call("tanh", x * b) * a,
    "hard_sigmoid": lambda x, a, b: minimum(maximum(x * a + b, 0.0), 1.0),
    "elu": lambda x, a, b: _elu(x, a),
    "softsign": lambda x, a, b: x / (call("abs", x) + 1.0),
    "softplus": lambda x, a, b: _softplus(x),
}


def activations(attrs: RecurrenceAttrs, direction: int) -> list[Activation]:
    """The functions of a direction, in order."""
    count = len(attrs.activations) // len(directions_of(attrs))
    return [_bound(attrs, n) for n in range(direction * count, (direction + 1) * count)]


def _bound(attrs: RecurrenceAttrs, number: int) -> Activation:
    formula = _FORMULAS[attrs.activations[number]]
    alpha = attrs.activation_alpha[number] if attrs.activation_alpha else 0.0
    beta = attrs.activation_beta[number] if attrs.activation_beta else 0.0
    return lambda x: formula(x, alpha, beta)


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
    functions = activations(attrs, direction)
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
