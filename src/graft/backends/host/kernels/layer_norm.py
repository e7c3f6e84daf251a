"""Layer normalisation, and that by the root of the mean square, on row-major tensors.

A row is what is normalised: the axes from the given one on. It is read for its mean, then for its
variance, then for the result, from the nearest cache but the first time. The threads share rows.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Parameters, Stores
from graft.backends.host.kernel_template import FLOATS, Layout, Plan, kernel_template
from graft.backends.host.kernels.running import Running
from graft.backends.host.kernels.vectors import Span, along, lanes_for, masked_store
from graft.backends.host.kernels.views import Extents, total, viewed
from graft.backends.host.storage import shape_of
from graft.ir.graph import Node, Value
from graft.loop.build import Term, call
from graft.loop.ir import BinaryKind, Const, Expr, For, Let, Load, LoopKind, Stmt, Var
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Vectors that are worked on side by side, so that none waits for the one before it.
UNROLL = 4


@kernel_template(("nn.layer_norm", "nn.rms_norm"), Layout.ROW_MAJOR, dtypes=FLOATS, alone=True)
def layer_norm(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """One normalisation over the last axes."""
    node = group.node
    views = _views(node)
    if isinstance(views, Refusal):
        return views
    rows, length = views[node.output]
    if not isinstance(length, int):
        return Refusal("how long a row is becomes known only at run time")

    def write() -> Kernel:
        parameters = viewed(group, stores, views)
        lanes = lanes_for(target, {node.output.dtype}, length)
        writer = _Writer(parameters, node, length, lanes)
        count = parameters.extent(rows)
        body = For(writer.row, Const(0), count, writer.body(), LoopKind.PARALLEL)
        return parameters.kernel(body)

    return write


def _views(node: Node) -> dict[Value, Extents] | Refusal:
    """The tensors as rows; scale and shift as one row each."""
    shape = shape_of(node.output)
    first = node.attrs.axis % len(shape)
    row = total(shape[first:])
    whole = (total(shape[:first]), row)
    views: dict[Value, Extents] = {node.args[0]: whole, node.output: whole}
    for parameter in node.args[1:]:
        given = shape_of(parameter)
        if total(given) != row or given[-len(shape[first:]) :] != shape[first:]:
            return Refusal("scale or shift is not one row", node)
        if views.setdefault(parameter, (row,)) != (row,):
            return Refusal("the data is its own scale or shift", node)
    return views


class _Writer:
    """Writes what happens to one row."""

    def __init__(self, parameters: Parameters, node: Node, length: int, lanes: int) -> None:
        self.row = Var("row")
        self.length, self.lanes, self.dtype = length, lanes, node.output.dtype
        self.epsilon: float = node.attrs.epsilon
        self.centered = node.op.name == "nn.layer_norm"
        _, self.source = parameters.value(node.args[0], "data")
        # scale and shift are optional, each of them
        self.scale, self.shift = (
            None if value is None else parameters.value(value)[1]
            for value in (*node.inputs[1:], None, None)[:2]
        )
        _, self.result = parameters.value(node.output, "result")
        self.mean, self.factor = Var("mean", self.dtype), Var("factor", self.dtype)

    def each(self, tag: str, action: Callable[[Span], Stmt]) -> Stmt:
        return along(self.length, self.lanes, tag, action, unroll=UNROLL)

    def element(self, span: Span) -> Expr:
        return Load(self.source, (self.row, span.index))

    def deviation(self, span: Span) -> Term:
        """The elements less their mean, where that is taken off."""
        element = Term(self.element(span))
        return element - self.mean if self.centered else element

    def body(self) -> Stmt:
        squares = Running("squares", BinaryKind.ADD, UNROLL, self.lanes, self.dtype)

        def square(span: Span) -> Stmt:
            name = Var(f"off{span.tag}", self.dtype, self.lanes)
            added = squares.add(span.slot, (Term(name) * name).expr)
            return Let(name, span.loaded(self.deviation(span).expr, 0.0), added)

        total = Var("total", self.dtype)
        variance = Term(total) * (1.0 / self.length) + self.epsilon
        last = Let(self.factor, call("rsqrt", variance).expr, self.each("_c", self.store))
        body = squares.around(self.each("_b", square), total, last)
        return self.after_mean(body) if self.centered else body

    def after_mean(self, body: Stmt) -> Stmt:
        """The body, which knows the row's mean."""
        sums = Running("sums", BinaryKind.ADD, UNROLL, self.lanes, self.dtype)
        total = Var("sum", self.dtype)
        mean = (Term(total) * (1.0 / self.length)).expr

        def add(span: Span) -> Stmt:
            return sums.add(span.slot, span.loaded(self.element(span), 0.0))

        return sums.around(self.each("_a", add), total, Let(self.mean, mean, body))

    def store(self, span: Span) -> Stmt:
        value = self.deviation(span) * self.factor
        if self.scale is not None:
            value = value * Load(self.scale, (span.index,))
        if self.shift is not None:
            value = value + Load(self.shift, (span.index,))
        place = (self.row, span.index)
        return masked_store(self.result, place, value.expr, span.condition)
