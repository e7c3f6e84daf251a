"""Draws control flow and composites, whose nested graphs are drawn like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.property.sketch import STRICT, Info, Sketch, is_ranked, is_small

from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, tensor

Fill = Callable[[Sketch, int], None]


class Nest:
    """A nested graph while it is drawn, and the captures of the graph around it."""

    def __init__(self, outer: Sketch, name: str) -> None:
        self.outer = outer
        self.sketch = Sketch(outer.draw, Builder(name, outer.g.symbols), outer.depth + 1)
        self.operands: list[Value] = []

    def take(self, values: Sequence[Value]) -> list[Value]:
        """Formal inputs for values of the outer graph."""
        formals = []
        for value in values:
            formal = self.sketch.take(value.name, value.type)
            formals.append(self.sketch.know(formal, self.outer.info[value]))
            self.operands.append(value)
        return formals

    def build(self, *outputs: Value) -> Graph:
        return self.sketch.g.build(*outputs)


def captures(s: Sketch, least: int = 1) -> list[Value]:
    """Some values of the graph so far, each once."""
    found: dict[Value, None] = {}
    for _ in range(s.number(least, 2)):
        value = s.find(lambda v: is_small(v) and isinstance(v.type, TensorType))
        found[value if value is not None else s.source(DType.FLOAT32, s.shape())] = None
    return list(found)


def results(s: Sketch, formals: Sequence[Value], count: int) -> list[Value]:
    """Outputs of a nested graph."""
    found = [s.find(is_ranked) or formals[0] for _ in range(count)]
    return [value for value in found if value is not None]


def condition(s: Sketch) -> Value:
    """One truth value: constant, or known only when the graph runs."""
    known = s.find(lambda v: is_ranked(v) and v.dtype is DType.BOOL and v.tensor.size == 1)
    if known is not None and s.chance(2):
        return known
    if s.depth or s.chance(2):
        return s.constant(np.array(s.chance(2)).reshape(s.pick(((), (1,)))))
    return s.input(DType.BOOL, (), "tame")


def composite(s: Sketch, fill: Fill) -> None:
    nest = Nest(s, "part")
    formals = nest.take(captures(s))
    fill(nest.sketch, s.number(1, 4))
    outputs = results(nest.sketch, formals, s.number(1, 2))
    made = s.call("composite", *nest.operands, body=nest.build(*outputs), label="some.part")
    for value, inner in zip(made, outputs, strict=True):
        s.know(value, nest.sketch.info[inner])


def branch(s: Sketch, fill: Fill) -> None:
    operands = captures(s)
    yes, no = Nest(s, "yes"), Nest(s, "no")
    formals = yes.take(operands)
    fill(yes.sketch, s.number(1, 3))
    one = results(yes.sketch, formals, s.number(1, 2))
    no.take(operands)
    fill(no.sketch, s.number(0, 3))
    other = [_like(no.sketch, value) for value in one]
    bodies = {"then_branch": yes.build(*one), "else_branch": no.build(*other)}
    made = s.call("if", condition(s), *operands, **bodies)
    for value, a, b in zip(made, one, other, strict=True):
        s.know(value, _either(yes.sketch.info[a], no.sketch.info[b]))


def _like(s: Sketch, wanted: Value) -> Value:
    """A value that can stand where the other branch gives `wanted`."""
    same = s.find(lambda v: v.type == wanted.type)
    if same is not None and not s.chance(4):
        return same
    near = s.find(lambda v: isinstance(v.type, TensorType) and v.dtype == wanted.dtype)
    if near is not None and s.chance(4):
        return near  # maybe of another shape, even of another rank
    extents = [dim if isinstance(dim, int) else 2 for dim in wanted.shape or ()]
    return s.tame_constant(wanted.dtype, extents)


def _either(one: Info, other: Info) -> Info:
    return Info(min(one.level, other.level), max(one.bound, other.bound))


def loop(s: Sketch, fill: Fill) -> None:
    """A loop of up to three turns; a carried value keeps its type, its level and its bound."""
    values = captures(s)
    carried = s.number(0, min(len(values), 1))
    nest = Nest(s, "body")
    inner = nest.sketch
    turn = inner.know(inner.take("turn", tensor(DType.INT64)), Info(STRICT, 3.0))
    inner.know(inner.take("go", tensor(DType.BOOL)), Info(STRICT, 1.0))
    formals = nest.take(values)
    fill(inner, s.number(1, 3))
    states = [_next(inner, formal) for formal in formals[:carried]]
    go = inner.constant(np.array(not s.chance(4)))
    if s.chance(2):
        go = inner.add("less", turn, inner.constant(np.array(1)), bound=1.0)
    stacked = [inner.find(is_ranked) or turn for _ in range(s.number(0, 2))]
    body = nest.build(go, *states, *stacked)
    count = s.constant(np.array(s.number(0, 3))) if s.chance(2) else s.counts(None)
    made = s.call("loop", count, condition(s), *nest.operands, body=body, carried=carried)
    # A carried value may end as it began, where no turn is made.
    ends = [
        _either(s.info[first], inner.info[last])
        for first, last in zip(values, states, strict=False)
    ]
    for value, info in zip(made, (*ends, *(inner.info[one] for one in stacked)), strict=True):
        s.know(value, info)


def _next(s: Sketch, formal: Value) -> Value:
    before = s.info[formal]

    def keeps(value: Value) -> bool:
        after = s.info[value]
        return (
            value.type == formal.type
            and after.level >= before.level
            and after.bound <= before.bound
        )

    return s.find(keeps) or formal


def scan(s: Sketch, fill: Fill) -> None:
    x = s.find(lambda v: is_small(v) and bool(v.shape))
    x = x or s.source(DType.FLOAT32, (3, 2))
    axis = s.number(0, len(x.shape or ()) - 1)
    nest = Nest(s, "step")
    inner = nest.sketch
    shape = [dim for i, dim in enumerate(x.shape or ()) if i != axis]
    inner.know(inner.take("piece", TensorType(x.dtype, tuple(shape))), s.info[x])
    fill(inner, s.number(1, 2))
    out = inner.find(is_ranked)
    if out is None:
        return
    attrs: dict[str, Any] = {"carried": 0, "num_scan_inputs": 1, "output_axes": [0]}
    directions = {"input_directions": [s.number(0, 1)], "output_directions": [s.number(0, 1)]}
    (made,) = s.call("scan", x, body=nest.build(out), input_axes=[axis], **attrs, **directions)
    s.know(made, inner.info[out])


def repeated(s: Sketch, _fill: Fill) -> None:
    """A node once more, for common-subexpression elimination to find."""
    if s.calls:
        op, inputs, level, bound, attrs = s.pick(s.calls[-6:])
        flip = op in ("add", "multiply", "maximum", "subtract", "less") and s.chance(2)
        s.add(op, *inputs[:: -1 if flip else 1], level=level, bound=bound, **attrs)


def twin_constants(s: Sketch, _fill: Fill) -> None:
    """Constants that differ in no bit, or only in the sign of a zero."""
    zeros = np.array([[0.0, -0.0, np.nan]], np.float32)
    one = s.constant(zeros)
    other = s.constant(zeros.copy() if s.chance(2) else -zeros)
    quotient = s.add("divide", s.constant(np.float32(1)), other)
    s.add("add", one, s.add("subtract", quotient, one))


EMITTERS = (composite, branch, branch, loop, scan, repeated, repeated, repeated, twin_constants)
