"""Takes recurrent layers apart: one product for the inputs of all steps, then the steps.

A graph enters; `nn.rnn`, `nn.gru` and `nn.lstm` leave as a dense layer and `nn.recurrence`, their
weights in blocks as wide as the machine's vectors. Biases that are only added are added to the
product; floats of 16 bits become float32 for all steps, as in the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import DType
from graft.ir.attrs import make_attrs
from graft.ir.evaluate import run_op
from graft.ir.graph import Graph, Value
from graft.ops import get_op
from graft.ops.rnn import DIRECTIONS, GATES, STATES
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet
from graft.target.target import Target

_LAYERS = ("nn.rnn", "nn.gru", "nn.lstm")
_SHARED = ("activations", "activation_alpha", "activation_beta", "clip", "direction")


def split_recurrent(graph: Graph, target: Target) -> Graph:
    """Apply the rule to every layer."""
    rules = RuleSet("split_recurrent")

    @rules.rule(is_op(*_LAYERS))
    def steps(site: Site) -> Replacement:
        return _Layer(site, target).split()

    return apply_rules(graph, rules)


class _Layer:
    """One layer and its extents."""

    def __init__(self, site: Site, target: Target) -> None:
        self._site, self._node = site, site.node
        self._attrs: Any = site.node.attrs
        self._cell = site.node.op.name.removeprefix("nn.")
        self._gates = GATES[self._cell]
        self._directions = len(DIRECTIONS[self._attrs.direction])
        inputs = [*site.node.inputs, *[None] * (8 - len(site.node.inputs))]
        data = site.node.args[0]
        self._dtype = data.dtype
        self._wide = DType.FLOAT64 if data.dtype is DType.FLOAT64 else DType.FLOAT32
        self._block = target.lanes(self._wide)
        self._inputs = [self._widened(value) if n != 4 else value for n, value in enumerate(inputs)]

    def split(self) -> Replacement:
        recurrent = self._node.args[2].shape
        hidden = recurrent[2] if recurrent else None
        shape = self._node.args[0].shape
        inputs = self._node.args[1].shape
        sized = inputs is not None and isinstance(inputs[2], int)
        if shape is None or not sized or not isinstance(hidden, int) or hidden == 0:
            return Refusal("the extents of its weights are not known")
        self._hidden, self._padded = hidden, -(-hidden // self._block) * self._block
        lengths, initial, cell, peephole = self._inputs[4:]
        own = {name: getattr(self._attrs, name) for name in _SHARED}
        results = self._site.emit_all(
            "nn.recurrence",
            self._projected(shape[:2]),
            self._blocked(),
            self._candidate_bias(),
            lengths,
            initial,
            cell,
            None if peephole is None else self._padded_units(peephole, 3),
            cell=self._cell,
            hidden=hidden,
            block=self._block,
            linear_before_reset=getattr(self._attrs, "linear_before_reset", False),
            input_forget=getattr(self._attrs, "input_forget", False),
            **own,
        )
        return tuple(self._narrowed(value) for value in results[: 1 + STATES[self._cell]])

    def _widened(self, value: Value | None) -> Value | None:
        if value is None or value.dtype is self._wide:
            return value
        return self._do("cast", value, dtype=self._wide)

    def _narrowed(self, value: Value) -> Value:
        same = value.dtype is self._dtype
        return value if same else self._site.emit("cast", value, dtype=self._dtype)

    def _do(self, op: str, *values: Value, **attrs: Any) -> Value:
        """A node, or what it gives where its operands are constants."""
        arrays = [self._site.array(value) for value in values]
        if any(array is None for array in arrays):
            return self._site.emit(op, *values, **attrs)
        operator = get_op(op)
        (result,) = run_op(operator, make_attrs(operator.attrs, attrs), arrays)
        return self._site.constant(result)

    def _padded_units(self, value: Value, parts: int) -> Value:
        """[directions, parts * hidden, ...] as [directions, parts, padded, ...]."""
        rest = tuple(value.shape or ())[2:]
        apart = self._do("reshape", value, shape=(self._directions, parts, self._hidden, *rest))
        return self._with_zeros(apart, 2)

    def _with_zeros(self, value: Value, axis: int) -> Value:
        if self._padded == self._hidden:
            return value
        rank = len(value.shape or ())
        width = [0] * (2 * rank)
        width[rank + axis] = self._padded - self._hidden
        return self._do("nn.pad", value, pad_width=tuple(width))

    def _projected(self, outer: Sequence[AnyDim]) -> Value:
        """What all steps' inputs come to: [length, batch, directions, gates, padded]."""
        data, weight, _, bias = self._inputs[:4]
        assert data is not None
        assert weight is not None
        units = self._directions * self._gates * self._padded
        rows = self._padded_units(weight, self._gates)
        matrix = self._do("reshape", rows, shape=(units, (weight.shape or ())[2]))
        product = self._site.emit("nn.dense", data, matrix)
        if bias is not None:
            added = self._do("reshape", self._added_bias(bias), shape=(units,))
            product = self._site.emit("nn.bias_add", product, added, axis=-1)
        shape = (*outer, self._directions, self._gates, self._padded)
        return self._site.emit("reshape", product, shape=shape)

    def _halves(self, bias: Value) -> Value:
        return self._padded_units(bias, 2 * self._gates)

    def _resets_candidate(self) -> bool:
        return bool(getattr(self._attrs, "linear_before_reset", False))

    def _added_bias(self, bias: Value) -> Value:
        """Both biases, but for the one that a GRU resets."""
        halves = self._halves(bias)
        first = self._part(halves, 0, self._gates)
        biased_gates = self._gates - 1 if self._resets_candidate() else self._gates
        second = self._part(halves, self._gates, self._gates + biased_gates)
        if biased_gates < self._gates:
            width = (0, 0, 0, 0, self._gates - biased_gates, 0)
            second = self._do("nn.pad", second, pad_width=width)
        return self._do("add", first, second)

    def _candidate_bias(self) -> Value | None:
        bias = self._inputs[3]
        if bias is None or not self._resets_candidate():
            return None
        last = self._part(self._halves(bias), 2 * self._gates - 1, 2 * self._gates)
        return self._do("reshape", last, shape=(self._directions, self._padded))

    def _part(self, value: Value, begin: int, end: int) -> Value:
        return self._do("strided_slice", value, begin=(begin,), end=(end,), axes=(1,))

    def _blocked(self) -> Value:
        """The recurrent weight [directions, blocks, summed, gates, block]."""
        weight = self._inputs[2]
        assert weight is not None
        units = self._with_zeros(self._padded_units(weight, self._gates), 3)
        blocks = self._padded // self._block
        shape = (self._directions, self._gates, blocks, self._block, self._padded)
        apart = self._do("reshape", units, shape=shape)
        return self._do("transpose", apart, axes=(0, 2, 4, 1, 3))
