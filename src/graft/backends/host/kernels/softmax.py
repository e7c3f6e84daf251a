"""Softmax and its logarithm along the last axis of row-major tensors.

Each row is read for its maximum, then its exponentials are written and added up, then it is scaled;
a row is small enough to stay in the nearest cache between the passes. Rows that would leave most of
a vector empty are computed side by side, a row to a lane, in registers. The threads share the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import add

from graft.backends.host.coordinates import minus, over, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Parameters, Stores
from graft.backends.host.kernel_template import FLOATS, Layout, Plan, kernel_template
from graft.backends.host.kernels.tile import Running
from graft.backends.host.kernels.vectors import Span, along, lanes_for, mask_of, masked_store
from graft.backends.host.kernels.views import total, viewed
from graft.backends.host.storage import shape_of
from graft.base.dims import Dim
from graft.loop.build import Term, call, maximum
from graft.loop.ir import (
    BinaryKind,
    Block,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Stmt,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@kernel_template(("nn.softmax", "nn.log_softmax"), Layout.ROW_MAJOR, dtypes=FLOATS, alone=True)
def softmax(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A softmax, or its logarithm, over the last axis."""
    rank = len(shape_of(group.output))
    if group.node.attrs.axis % rank != rank - 1:
        return Refusal("the softmax is not along the last axis")
    return lambda: _kernel(group, stores, target)


def _kernel(group: Group, stores: Stores, target: Target) -> Kernel:
    node = group.node
    shape, dtype = shape_of(node.output), node.output.dtype
    view = (total(shape[:-1]), shape[-1])
    parameters = viewed(group, stores, {node.args[0]: view, node.output: view})
    if _is_short(view, target.lanes(dtype)):
        return parameters.kernel(_ShortRows(parameters, view, target.lanes(dtype)).all_rows())
    length, lanes = parameters.extent(view[1]), lanes_for(target, {dtype}, view[1])
    row = _Row(parameters, length, lanes, target.machine.accumulators)
    body = row.logarithms() if node.op.name == "nn.log_softmax" else row.probabilities()
    count = parameters.extent(view[0])
    return parameters.kernel(For(row.number, Const(0), count, body, LoopKind.PARALLEL))


def _is_short(view: tuple[Dim, Dim], lanes: int) -> bool:
    """Whether vectors across rows are fuller than along them. Elements of a column are as many
    loads and shuffles as there are columns, which half a vector of them is not worth."""
    rows, length = view
    enough = not isinstance(rows, int) or rows >= lanes
    return enough and isinstance(length, int) and 2 * length <= lanes


class _ShortRows:
    """Writes what happens to as many rows as a vector has lanes."""

    def __init__(self, parameters: Parameters, view: tuple[Dim, Dim], lanes: int) -> None:
        self._node, self._lanes = parameters.group.node, lanes
        self._dtype, self._columns = self._node.output.dtype, range(int(view[1]))
        self._count = parameters.extent(view[0])
        _, self._source = parameters.value(self._node.args[0], "data")
        _, self._result = parameters.value(self._node.output, "result")

    def all_rows(self) -> Stmt:
        """The loop over vectors of rows, of which the last may be partial."""
        block = Var("block")
        first = times(block, self._lanes)
        remaining = minus(self._count, first)
        whole = Span(first, self._lanes, 0, "_w")
        some = Span(first, self._lanes, 0, "_s", mask_of(remaining, self._lanes))
        is_whole = Compare(CompareKind.GREATER_EQUAL, remaining, Const(self._lanes))
        body = If(is_whole, self._vector(whole), self._vector(some))
        blocks = over(plus(self._count, self._lanes - 1), self._lanes)
        return For(block, Const(0), blocks, body, LoopKind.PARALLEL)

    def _vector(self, span: Span) -> Stmt:
        columns = [self._name(f"x{column}", span) for column in self._columns]
        powers = [self._name(f"power{column}", span) for column in self._columns]
        top = self._name("top", span)
        is_log = self._node.op.name == "nn.log_softmax"
        total = reduce(add, map(Term, powers))
        scale = self._name("scale", span)
        results = [Term(x) - top - scale for x in columns] if is_log else None
        results = results or [Term(power) * scale for power in powers]
        stores = [
            masked_store(self._result, (span.index, Const(column)), value.expr, span.condition)
            for column, value in enumerate(results)
        ]
        values = [Load(self._source, (span.index, Const(column))) for column in self._columns]
        lets = [(x, span.loaded(value, 0.0)) for x, value in zip(columns, values, strict=True)]
        lets += [(top, reduce(maximum, map(Term, columns)).expr)]
        exponents = zip(powers, columns, strict=True)
        lets += [(power, call("exp", Term(x) - top).expr) for power, x in exponents]
        lets += [(scale, (call("log", total) if is_log else 1.0 / total).expr)]
        body: Stmt = Block(tuple(stores))
        for name, value in reversed(lets):
            body = Let(name, value, body)
        return body

    def _name(self, name: str, span: Span) -> Var:
        return Var(f"{name}{span.tag}", self._dtype, self._lanes)


class _Row:
    """Writes what happens to one row."""

    def __init__(self, parameters: Parameters, length: Expr, lanes: int, unroll: int) -> None:
        self.unroll = unroll  # vectors side by side, so that none waits for the one before it
        node = parameters.group.node
        self.number = Var("row")
        self.length, self.lanes, self.dtype = length, lanes, node.output.dtype
        _, self.source = parameters.value(node.args[0], "data")
        _, self.result = parameters.value(node.output, "result")
        self.top, self.total = Var("top", self.dtype), Var("total", self.dtype)

    def element(self, span: Span) -> Term:
        """The elements of a vector, and minus infinity where there are none."""
        return Term(span.loaded(Load(self.source, (self.number, span.index)), -math.inf))

    def each(self, tag: str, action: Callable[[Span], Stmt]) -> Stmt:
        return along(self.length, self.lanes, tag, action, unroll=self.unroll)

    def store(self, span: Span, value: Term) -> Stmt:
        place = (self.number, span.index)
        return masked_store(self.result, place, value.expr, span.condition)

    def after_top(self, body: Stmt) -> Stmt:
        """The body, which knows the row's maximum."""
        running = Running("tops", BinaryKind.MAXIMUM, self.unroll, self.lanes, self.dtype)
        passed = self.each("_a", lambda span: running.add(span.slot, self.element(span).expr))
        return running.around(passed, self.top, body)

    def probabilities(self) -> Stmt:
        running = Running("sums", BinaryKind.ADD, self.unroll, self.lanes, self.dtype)

        def power(span: Span) -> Stmt:
            name = Var(f"power{span.tag}", self.dtype, self.lanes)
            value = call("exp", self.element(span) - self.top)
            both = (self.store(span, Term(name)), running.add(span.slot, name))
            return Let(name, value.expr, Block(both))

        def scale(span: Span) -> Stmt:
            return self.store(span, Term(Load(self.result, (self.number, span.index))) * factor)

        factor = Var("factor", self.dtype)
        last = Let(factor, (1.0 / Term(self.total)).expr, self.each("_c", scale))
        return self.after_top(running.around(self.each("_b", power), self.total, last))

    def logarithms(self) -> Stmt:
        running = Running("sums", BinaryKind.ADD, self.unroll, self.lanes, self.dtype)
        log = Var("log", self.dtype)

        def add(span: Span) -> Stmt:
            return running.add(span.slot, call("exp", self.element(span) - self.top).expr)

        def shift(span: Span) -> Stmt:
            return self.store(span, self.element(span) - self.top - log)

        last = Let(log, call("log", Term(self.total)).expr, self.each("_c", shift))
        return self.after_top(running.around(self.each("_b", add), self.total, last))
