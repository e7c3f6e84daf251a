"""Recurrent layers: nn.rnn, nn.gru and nn.lstm, each a whole sequence in one or two directions.

Types in: data [length, batch, input], weight [directions, gates * hidden, input], recurrent_weight
[directions, gates * hidden, hidden], bias [directions, 2 * gates * hidden] (of weight, then of
recurrent_weight), sequence_lengths [batch], initial states [directions, batch, hidden]. Gates stand
in ONNX's order: z r h for gru, i o f c for lstm. Types out: all hidden states [length, directions,
batch, hidden], then the last state(s). Beyond a sequence's length results are zero, and so is the
last state of a sequence of length zero. `nn.recurrence` is what a compiler makes of them: the steps
alone, on inputs that are multiplied by their weights beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array
from graft.ir.attrs import Attrs, Floats, Strings
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.loop.build import Term, call, maximum, minimum, select
from graft.ops.activation import leaky
from graft.ops.pointwise import by_scalar
from graft.ops.rules import (
    operator,
    ranked_shape,
    require,
    require_shape,
    same_dtype,
)

State = tuple[Array, ...]
Step = Callable[[Array, State], State]  # (a step's data times weight, state before) -> state after

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class RecurrentAttrs(Attrs):
    """What the recurrent layers share.

    `activations` names the functions, one direction's after the other's; `activation_alpha` and
    `activation_beta` give each its coefficients (0 where it takes none), or none at all. `clip`
    bounds what enters the gates' activations.
    """

    activations: Strings
    activation_alpha: Floats = ()
    activation_beta: Floats = ()
    clip: float | None = None
    direction: str = "forward"


@dataclass(frozen=True, slots=True)
class GruAttrs(RecurrentAttrs):
    linear_before_reset: bool = False  # reset what the recurrent weight gives, not what it takes


@dataclass(frozen=True, slots=True)
class LstmAttrs(RecurrentAttrs):
    input_forget: bool = False  # the forget gate is one minus the input gate


def _elu(x: Term, a: float, _b: float) -> Term:
    return select(x < 0.0, (call("exp", minimum(x, 0.0)) - 1.0) * a, x)


def _softplus(x: Term, _a: float, _b: float) -> Term:
    return maximum(x, 0.0) + call("log", call("exp", -call("abs", x)) + 1.0)


@dataclass(frozen=True)
class Function:
    """A function of gates: which of alpha and beta it takes, its scalar expression, and the same in
    NumPy where that has something more exact."""

    coefficients: str
    scalar: Callable[[Term, float, float], Term]
    numpy: Callable[[Array, float, float], Any] | None = None


ACTIVATIONS: dict[str, Function] = {
    "relu": Function("", lambda x, a, b: maximum(x, 0.0)),
    "tanh": Function("", lambda x, a, b: call("tanh", x)),
    "sigmoid": Function("", lambda x, a, b: call("sigmoid", x)),
    "affine": Function("ab", lambda x, a, b: x * a + b),
    "leaky_relu": Function("a", lambda x, a, b: leaky(x, a)),
    "thresholded_relu": Function("a", lambda x, a, b: select(x >= a, x, 0.0)),
    "scaled_tanh": Function("ab", lambda x, a, b: call("tanh", x * b) * a),
    "hard_sigmoid": Function("ab", lambda x, a, b: minimum(maximum(x * a + b, 0.0), 1.0)),
    "elu": Function("a", _elu, lambda x, a, b: np.where(x < 0, a * np.expm1(x), x)),
    "softsign": Function("", lambda x, a, b: x / (call("abs", x) + 1.0)),
    "softplus": Function("", _softplus, lambda x, a, b: np.logaddexp(x, x.dtype.type(0))),
}


@dataclass(frozen=True)
class Activation:
    """A function with its coefficients."""

    function: Function
    alpha: float
    beta: float

    def term(self, x: Term) -> Term:
        """The value at an element."""
        return self.function.scalar(x, self.alpha, self.beta)

    def __call__(self, x: Array) -> Array:
        if self.function.numpy is not None:
            return np.asarray(self.function.numpy(x, self.alpha, self.beta))
        return np.asarray(by_scalar(lambda _attrs, x: self.term(x))(None, x))


def activations(attrs: RecurrentAttrs, direction: int) -> list[Activation]:
    """The functions of a direction, in order."""
    count = len(attrs.activations) // len(DIRECTIONS[attrs.direction])
    alpha = attrs.activation_alpha or (0.0,) * len(attrs.activations)
    beta = attrs.activation_beta or (0.0,) * len(attrs.activations)
    every = zip((ACTIVATIONS[name] for name in attrs.activations), alpha, beta, strict=True)
    return [Activation(*one) for one in every][direction * count : (direction + 1) * count]


def _check_activations(attrs: RecurrentAttrs, functions: int) -> None:
    names = ", ".join(DIRECTIONS)
    require(attrs.direction in DIRECTIONS, f"direction is '{attrs.direction}', not of {names}")
    expected = functions * len(DIRECTIONS[attrs.direction])
    count = len(attrs.activations)
    require(count == expected, f"wants {expected} activations, has {count}")
    for name in attrs.activations:
        require(name in ACTIVATIONS, f"there is no activation '{name}'")
    for letter, values in (("a", attrs.activation_alpha), ("b", attrs.activation_beta)):
        needs = any(letter in ACTIVATIONS[name].coefficients for name in attrs.activations)
        what = "activation_alpha" if letter == "a" else "activation_beta"
        require(
            len(values) == expected or (not values and not needs),
            f"{what} has {len(values)} values, not {expected}",
        )


def _recurrent_types(
    attrs: RecurrentAttrs,
    counts: tuple[int, int],
    operands: Sequence[TensorType | None],
    states: Sequence[TensorType | None],
) -> tuple[AnyDim, tuple[TensorType, ...]]:
    """(hidden size, result types); `counts` are gates and activation functions."""
    data, weight, recurrent, bias, lengths = operands
    gates, functions = counts
    _check_activations(attrs, functions)
    dtype = same_dtype(data, weight, recurrent, bias, *states)
    require(dtype.is_float, f"wants floating-point operands, not {dtype}")
    directions = len(DIRECTIONS[attrs.direction])
    length, batch, size = ranked_shape(data, 3, "data")
    hidden = ranked_shape(recurrent, 3, "recurrent_weight")[2]
    rows = hidden * gates
    state = (directions, batch, hidden)
    for type_, expected, what in (
        (weight, (directions, rows, size), "weight"),
        (recurrent, (directions, rows, hidden), "recurrent_weight"),
        (bias, (directions, rows * 2), "bias"),
        (lengths, (batch,), "sequence_lengths"),
        *((s, state, "an initial state") for s in states),
    ):
        require_shape(type_, expected, what)
    if lengths is not None:
        require(lengths.dtype.is_integer, f"sequence_lengths is {lengths.dtype}")
    last = TensorType(dtype, state)
    return hidden, (TensorType(dtype, (length, directions, batch, hidden)), *(last for _ in states))


def _one_state(gates: int, functions: int) -> Callable[..., tuple[TensorType, ...]]:
    def rule(attrs: RecurrentAttrs, *types: TensorType | None) -> tuple[TensorType, ...]:
        return _recurrent_types(attrs, (gates, functions), types[:5], types[5:6])[1]

    return rule


def _lstm_type(attrs: LstmAttrs, *types: TensorType | None) -> tuple[TensorType, ...]:
    hidden, results = _recurrent_types(attrs, (4, 3), types[:5], types[5:7])
    if types[7] is not None:
        same_dtype(types[0], types[7])
        require_shape(types[7], (len(DIRECTIONS[attrs.direction]), hidden * 3), "peephole")
    return results


def _clipped(x: Array, attrs: RecurrentAttrs) -> Array:
    return x if attrs.clip is None else np.clip(x, -attrs.clip, attrs.clip)


def _run(
    attrs: RecurrentAttrs,
    make_step: Callable[..., Step],
    operands: Sequence[Array | None],
    states: Sequence[Array | None],
    *more: Array | None,
) -> tuple[Array, ...]:
    """Run every direction; `make_step` gets its number and its part of weights and `more`."""
    data, weight, recurrent, bias, lengths = operands
    assert data is not None
    assert weight is not None
    assert recurrent is not None
    dtype = np.dtype(np.float64 if data.dtype == np.float64 else np.float32)
    wide, rows = data.astype(dtype), weight.astype(dtype)
    projected = np.stack([np.matmul(wide, part.T) for part in rows], axis=2)
    result = _steps(attrs, make_step, projected, (recurrent, bias, lengths), states, *more)
    return tuple(a.astype(data.dtype) for a in result)


def run_projected(
    attrs: RecurrentAttrs,
    projected: Array,
    operands: tuple[Array, Array | None, Array | None],
    states: Sequence[Array | None],
    peephole: Array | None,
) -> tuple[Array, ...]:
    """The steps of a layer whose data have been multiplied by its weight; biases are extra."""
    if isinstance(attrs, LstmAttrs):
        return _steps(attrs, _lstm_step, projected, operands, states, peephole)
    step = _gru_step if isinstance(attrs, GruAttrs) else _rnn_step
    return _steps(attrs, step, projected, operands, states)


def _steps(
    attrs: RecurrentAttrs,
    make_step: Callable[..., Step],
    projected: Array,
    operands: tuple[Array, Array | None, Array | None],
    states: Sequence[Array | None],
    *more: Array | None,
) -> tuple[Array, ...]:
    """All directions of what was projected: [length, batch, directions, gates * hidden]."""
    recurrent, bias, lengths = operands
    dtype = projected.dtype
    length, batch, hidden = projected.shape[0], projected.shape[1], recurrent.shape[2]
    directions = DIRECTIONS[attrs.direction]
    hiddens = np.zeros((length, len(directions), batch, hidden), dtype)
    lasts = np.zeros((len(states), len(directions), batch, hidden), dtype)
    zeros = np.zeros((len(directions), batch, hidden), dtype)
    ends = np.full(batch, length) if lengths is None else lengths
    for i, is_reverse in enumerate(directions):
        part = [None if a is None else a[i].astype(dtype) for a in (recurrent, bias, *more)]
        step = make_step(attrs, i, *part)
        state = tuple((zeros if s is None else s.astype(dtype))[i] for s in states)
        for t in reversed(range(length)) if is_reverse else range(length):
            alive = (t < ends)[:, None]
            after = step(projected[t, :, i], state)
            state = tuple(np.where(alive, a, b) for a, b in zip(after, state, strict=True))
            hiddens[t, i] = np.where(alive, state[0], 0)
        lasts[:, i] = np.where((ends > 0)[:, None], np.stack(state), 0)
    return (hiddens, *lasts)


def _biases(bias: Array | None, rows: int) -> tuple[Array, Array] | tuple[float, float]:
    return (0.0, 0.0) if bias is None else (bias[:rows], bias[rows:])


def _rnn_step(attrs: RecurrentAttrs, direction: int, recurrent: Array, bias: Array | None) -> Step:
    (f,) = activations(attrs, direction)
    first, second = _biases(bias, len(recurrent))

    def step(projected: Array, state: State) -> State:
        return (f(_clipped(projected + state[0] @ recurrent.T + first + second, attrs)),)

    return step


def _gru_step(attrs: GruAttrs, direction: int, recurrent: Array, bias: Array | None) -> Step:
    f, g = activations(attrs, direction)
    hidden = recurrent.shape[1]
    first, second = (np.broadcast_to(b, len(recurrent)) for b in _biases(bias, len(recurrent)))
    gates, candidate = recurrent[: 2 * hidden], recurrent[2 * hidden :]

    def step(projected: Array, state: State) -> State:
        before = state[0]
        inputs = projected + first
        opened = inputs[:, : 2 * hidden] + before @ gates.T + second[: 2 * hidden]
        update, reset = np.split(f(_clipped(opened, attrs)), 2, axis=1)
        if attrs.linear_before_reset:
            recalled = reset * (before @ candidate.T + second[2 * hidden :])
        else:
            recalled = (reset * before) @ candidate.T + second[2 * hidden :]
        fresh = g(_clipped(inputs[:, 2 * hidden :] + recalled, attrs))
        return ((1 - update) * fresh + update * before,)

    return step


def _lstm_step(
    attrs: LstmAttrs,
    direction: int,
    recurrent: Array,
    bias: Array | None,
    peephole: Array | None,
) -> Step:
    f, g, h = activations(attrs, direction)
    first, second = _biases(bias, len(recurrent))
    hidden = recurrent.shape[1]
    see_i, see_o, see_f = np.zeros((3, hidden)) if peephole is None else np.split(peephole, 3)

    def gate(x: Array) -> Array:
        return f(_clipped(x, attrs))

    def step(projected: Array, state: State) -> State:
        before, cell = state
        gates = projected + before @ recurrent.T + first + second
        i, o, forget, c = np.split(gates, 4, axis=1)
        admitted = gate(i + see_i * cell)
        forget_gate = 1 - admitted if attrs.input_forget else gate(forget + see_f * cell)
        cell = forget_gate * cell + admitted * g(_clipped(c, attrs))
        return gate(o + see_o * cell) * h(cell), cell

    return step


def _recurrent_work(
    _attrs: RecurrentAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    """Every step multiplies by all weights; each gate's element costs some ten operations."""
    data, weight, recurrent = ins[0], ins[1], ins[2]
    steps = data.shape[0] * data.shape[1] if data.shape else UNKNOWN
    rows = recurrent.shape[0] * recurrent.shape[1] if recurrent.shape else UNKNOWN
    return Work(steps * (weight.size + recurrent.size), steps * rows * 10, traffic(ins, outs))


_OPERANDS = "data weight recurrent_weight bias? sequence_lengths? initial_hidden?"


@operator("nn.rnn", _OPERANDS, _one_state(1, 1), work=_recurrent_work, outputs=2)
def _rnn(attrs: RecurrentAttrs, *operands: Array | None) -> tuple[Array, ...]:
    """A simple recurrent layer over whole sequences, in one or both directions."""
    return _run(attrs, _rnn_step, operands[:5], operands[5:6])


@operator("nn.gru", _OPERANDS, _one_state(3, 2), work=_recurrent_work, outputs=2)
def _gru(attrs: GruAttrs, *operands: Array | None) -> tuple[Array, ...]:
    """A gated recurrent layer over whole sequences, in one or both directions."""
    return _run(attrs, _gru_step, operands[:5], operands[5:6])


@operator(
    "nn.lstm", f"{_OPERANDS} initial_cell? peephole?", _lstm_type, work=_recurrent_work, outputs=3
)
def _lstm(attrs: LstmAttrs, *operands: Array | None) -> tuple[Array, ...]:
    """A long short-term memory layer over whole sequences, in one or both directions."""
    return _run(attrs, _lstm_step, operands[:5], operands[5:7], operands[7])


GATES = {"rnn": 1, "gru": 3, "lstm": 4}
STATES = {"rnn": 1, "gru": 1, "lstm": 2}
# Memory to work in: the hidden state before and after a step, what a GRU resets, the cell state.
ROOM = 4


@dataclass(frozen=True, slots=True)
class RecurrenceAttrs(RecurrentAttrs):
    """`hidden` units, in blocks of `block`; `padded` is the hidden size brought to whole blocks,
    with zeros in all that is beyond it.

    Types in: projected [length, batch, directions, gates, padded], with all biases that can be
    added beforehand; the recurrent weight in blocks [directions, padded / block, padded, gates,
    block], of which the third axis is summed over; the candidate's bias of a GRU that resets it,
    [directions, padded]; sequence_lengths [batch]; initial states [directions, batch, hidden];
    peephole [directions, 3, padded]. Types out: as of the layer, and memory to work in.
    """

    cell: str = "rnn"
    hidden: int = 1
    block: int = 1
    linear_before_reset: bool = False
    input_forget: bool = False


def _recurrence_type(
    attrs: RecurrenceAttrs, projected: TensorType, weight: TensorType, *_rest: TensorType | None
) -> tuple[TensorType, ...]:
    require(attrs.cell in GATES, f"there is no cell '{attrs.cell}'")
    assert projected.shape is not None
    length, batch, directions, gates, padded = projected.shape
    blocks = -(-attrs.hidden // attrs.block)
    expected = (directions, blocks, blocks * attrs.block, gates, attrs.block)
    require(weight.shape == expected, f"the recurrent weight is {weight}, not {expected}")
    require(padded == blocks * attrs.block, f"{padded} units are not {blocks} blocks")
    state = TensorType(projected.dtype, (directions, batch, attrs.hidden))
    every = TensorType(projected.dtype, (length, directions, batch, attrs.hidden))
    room = TensorType(projected.dtype, (ROOM, directions, batch, padded))
    return (every, *(state for _ in range(STATES[attrs.cell])), room)


def _own_attrs(attrs: RecurrenceAttrs) -> RecurrentAttrs:
    shared = (
        attrs.activations,
        attrs.activation_alpha,
        attrs.activation_beta,
        attrs.clip,
        attrs.direction,
    )
    if attrs.cell == "gru":
        return GruAttrs(*shared, linear_before_reset=attrs.linear_before_reset)
    if attrs.cell == "lstm":
        return LstmAttrs(*shared, input_forget=attrs.input_forget)
    return RecurrentAttrs(*shared)


def directions_of(attrs: RecurrenceAttrs) -> tuple[bool, ...]:
    """Per direction, whether it runs from the last step to the first."""
    return DIRECTIONS[attrs.direction]


def _recurrence_work(
    attrs: RecurrenceAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    """Every step multiplies by all weights; each gate's element costs some ten operations."""
    return Work(ins[0].size * attrs.hidden, ins[0].size * 10, traffic(ins, outs))


@operator(
    "nn.recurrence",
    "projected recurrent_weight recurrent_bias? sequence_lengths? initial_hidden? initial_cell?"
    " peephole?",
    _recurrence_type,
    work=_recurrence_work,
    outputs=None,
)
def _recurrence(
    attrs: RecurrenceAttrs,
    projected: Array,
    weight: Array,
    bias: Array | None,
    lengths: Array | None,
    hidden: Array | None,
    cell: Array | None,
    peephole: Array | None,
) -> tuple[Array, ...]:
    """The steps of a recurrent layer on projected inputs.

    The layer's own steps on what is not padding.
    """
    count = attrs.hidden
    _, _, directions, gates, padded = projected.shape
    rows = weight.transpose(0, 3, 1, 4, 2).reshape(directions, gates, padded, padded)
    recurrent = rows[:, :, :count, :count].reshape(directions, gates * count, count)
    biases: Array | None = None
    if bias is not None:
        apart = np.zeros((directions, 2, gates, count), projected.dtype)
        apart[:, 1, -1] = bias[:, :count]
        biases = apart.reshape(directions, -1)
    peepholes = None if peephole is None else peephole[:, :, :count].reshape(directions, -1)
    inputs = projected[..., :count].reshape(*projected.shape[:3], gates * count)
    own = _own_attrs(attrs)
    states = [hidden, cell][: STATES[attrs.cell]]
    results = run_projected(own, inputs, (recurrent, biases, lengths), states, peepholes)
    room = np.zeros((ROOM, directions, projected.shape[1], padded), projected.dtype)
    return (*results, room)
