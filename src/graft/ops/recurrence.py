"""The steps of a recurrent layer, its inputs being multiplied by their weights beforehand.

`nn.recurrence` is what a compiler makes of `nn.rnn`, `nn.gru` and `nn.lstm`. Types in: projected
[length, batch, directions, gates, padded], with all biases that can be added beforehand; the
recurrent weight in blocks [directions, padded / block, padded, gates, block], of which the third
axis is summed over; the candidate's bias of a GRU that resets it, [directions, padded];
sequence_lengths [batch]; initial states [directions, batch, hidden]; peephole [directions, 3,
padded]. `padded` is the hidden size brought to whole blocks, with zeros in all that is beyond it.
Types out: as of the layer, and memory to work in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.ops.rnn import DIRECTIONS, GruAttrs, LstmAttrs, RecurrentAttrs, run_projected
from graft.ops.rules import operator, require

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
STATES = {"rnn": 1, "gru": 1, "lstm": 2}
# Memory to work in: the hidden state before and after a step, what a GRU resets, the cell state.
ROOM = 4


@dataclass(frozen=True, slots=True)
class RecurrenceAttrs(RecurrentAttrs):
    """`hidden` units, in blocks of `block`."""

    cell: str = "rnn"
    hidden: int = 1
    block: int = 1
    linear_before_reset: bool = False
    input_forget: bool = False


def _type(
    attrs: RecurrenceAttrs, projected: TensorType, weight: TensorType, *_rest: TensorType | None
) -> tuple[TensorType, ...]:
    require(attrs.cell in GATES, f"there is no cell '{attrs.cell}'")
    assert projected.shape is not None
    length, batch, directions, gates, padded = projected.shape
    blocks = -(-attrs.hidden // attrs.block)
    wanted = (directions, blocks, blocks * attrs.block, gates, attrs.block)
    require(weight.shape == wanted, f"the recurrent weight is {weight}, not {wanted}")
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


def _work(attrs: RecurrenceAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """Every step multiplies by all weights; each gate's element costs some ten operations."""
    return Work(ins[0].size * attrs.hidden, ins[0].size * 10, traffic(ins, outs))


@operator(
    "nn.recurrence",
    "projected recurrent_weight recurrent_bias? sequence_lengths? initial_hidden? initial_cell?"
    " peephole?",
    _type,
    work=_work,
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
    seen = None if peephole is None else peephole[:, :, :count].reshape(directions, -1)
    given = projected[..., :count].reshape(*projected.shape[:3], gates * count)
    own = _own_attrs(attrs)
    states = [hidden, cell][: STATES[attrs.cell]]
    results = run_projected(own, given, (recurrent, biases, lengths), states, seen)
    room = np.zeros((ROOM, directions, projected.shape[1], padded), projected.dtype)
    return (*results, room)
