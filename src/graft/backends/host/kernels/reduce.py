"""Sums, means, products and extremes over any axes of row-major tensors.

Neighbouring axes that are both kept or both reduced are merged. Where the last axis is reduced,
vectors of partial results run along it and are combined at the end; where it is kept, each vector
of results gathers its own. Pointwise nodes before and after the reduction join it. Extents may be
symbolic, but for that of results side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce as fold

from graft.backends.host.coordinates import PlainCoordinate, computed, over, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import FLOATS, Layout, Plan, kernel_template
from graft.backends.host.kernels.tile import REDUCTIONS, Running
from graft.backends.host.kernels.vectors import Span, along, lanes_for, masked_store, spans_of
from graft.backends.host.kernels.views import (
    Axes,
    Extents,
    merged,
    not_pointwise,
    numbers,
    operand_shapes,
    shared_loop,
    unclear,
    viewed,
)
from graft.backends.host.storage import shape_of
from graft.ir.graph import Node, Value
from graft.loop.build import Term
from graft.loop.ir import (
    Allocate,
    Block,
    Broadcast,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Stmt,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@kernel_template(REDUCTIONS, Layout.ROW_MAJOR, dtypes=FLOATS)
def reduce(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A reduction and the pointwise nodes around it."""
    anchor = group.sole_anchor
    refused = not_pointwise(group.epilogue)
    if refused is not None:
        return refused
    if len(anchor.args) > 1:
        return Refusal("the axes are known at run time only")
    plan = _planned(group, anchor)
    if isinstance(plan, Refusal):
        return plan
    parameters = viewed(group, stores, plan.views)
    return lambda: parameters.kernel(_Writer(parameters, plan, target).body())


@dataclass(frozen=True)
class _Plan:
    """The reduction's own axes in runs, and how everything lies along them."""

    axes: Axes  # of the operand
    reduced: tuple[bool, ...]  # per run
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    views: dict[Value, Extents]


def _planned(group: Group, anchor: Node) -> _Plan | Refusal:
    data = anchor.args[0]
    shape = shape_of(data)
    chosen = anchor.attrs.axes
    if chosen is None or not (chosen or anchor.attrs.noop_with_empty_axes):
        chosen = range(len(shape))
    axes = {axis % len(shape) for axis in chosen}
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    before = group.leading_to(data)
    after = tuple(node for node in group.epilogue if node not in before)
    earlier = operand_shapes(before, len(shape)) if before else {data: shape}
    result = shape_of(anchor.output)
    later = operand_shapes(after, len(result))
    if isinstance(earlier, Refusal) or isinstance(later, Refusal):
        return Refusal("operands are read along different axes")
    later.pop(anchor.output, None)
    if result != shape_of(group.output):
        return Refusal("what follows has another shape")
    # what follows is seen with the reduced axes still there, as axes of extent 1
    spread = {value: _spread(operand, result, kept, axes) for value, operand in later.items()}
    if set(spread) & {*earlier, *(node.output for node in before)}:
        return Refusal("an operand is read before and after the reduction")
    refused = unclear(shape, earlier.values()) or unclear(kept, spread.values())
    if refused is not None:
        return refused
    runs = merged(shape, (kept, *earlier.values(), *spread.values()))
    views = {value: runs.view(operand) for value, operand in (*earlier.items(), *spread.items())}
    views[group.output] = runs.view(kept)
    reduced = tuple(
        any(axis in axes and shape[axis] != 1 for axis in range(*run)) for run in runs.runs
    )
    if not reduced[-1] and not isinstance(runs.extents[-1], int):
        return Refusal("how many results are side by side becomes known only at run time")
    return _Plan(runs, reduced, before, after, views)


def _spread(operand: Extents, result: Extents, kept: Extents, axes: set[int]) -> Extents:
    """An operand of the result's rank under the rank of what is reduced."""
    if len(result) == len(kept):
        return operand
    left = iter(operand)
    return tuple(1 if axis in axes else next(left) for axis in range(len(kept)))


class _Writer:
    """Writes the loops of one reduction."""

    def __init__(self, parameters: Parameters, plan: _Plan, target: Target) -> None:
        self.parameters, self.plan, self.group = parameters, plan, parameters.group
        anchor = self.group.anchor
        assert anchor is not None
        self.anchor, self.dtype = anchor, anchor.output.dtype
        self.kind = REDUCTIONS[anchor.op.name]
        self.extents = tuple(map(parameters.extent, plan.axes.extents))
        self.lanes = lanes_for(target, {self.dtype}, plan.axes.extents[-1])
        self.unroll = target.machine.accumulators  # vectors side by side: none waits for another

    def elements(self, at: tuple[Expr, ...], lanes: int) -> Expr:
        """What is reduced, at a coordinate."""
        coordinate = PlainCoordinate(at, lanes)

        def read(value: Value, _axis: int | None) -> Expr:
            return coordinate.load(*self.parameters.value(value))

        data = self.anchor.args[0]
        if not self.plan.before:
            return read(data, None)
        return computed(self.plan.before, {}, read)[data]

    def finished(self, at: tuple[Expr, ...], total: Expr, condition: Expr | None) -> Stmt:
        """What becomes of a total, to memory."""
        if self.anchor.op.name == "mean":
            total = self.divided(total)
        indices = tuple(
            Const(0) if reduced else i for i, reduced in zip(at, self.plan.reduced, strict=True)
        )
        coordinate = PlainCoordinate(indices, total.lanes)
        values = computed(
            self.plan.after,
            {self.anchor.output: total},
            lambda value, _axis: coordinate.load(*self.parameters.value(value)),
        )
        _, target = self.parameters.value(self.group.output, "result")
        return masked_store(target, indices, values[self.group.output], condition)

    def divided(self, total: Expr) -> Expr:
        """A total by the number of elements in it."""
        inner = zip(self.extents, self.plan.reduced, strict=True)
        one: Expr = Const(1)
        count = fold(times, (extent for extent, reduced in inner if reduced), one)
        if isinstance(count, Const):
            return (Term(total) * (1.0 / count.value)).expr
        number = Cast(self.dtype, count)
        spread = Broadcast(number, total.lanes) if total.lanes > 1 else number
        return (Term(total) / spread).expr

    def body(self) -> Stmt:
        last = len(self.extents) - 1
        runs = [Var(f"run{number}") for number in range(last)]
        outer = [n for n in range(last) if not self.plan.reduced[n]]
        inner = [n for n in range(last) if self.plan.reduced[n]]
        jobs: list[tuple[Var, Expr]] = [(runs[n], self.extents[n]) for n in outer]
        if self.plan.reduced[-1]:
            body = self.across(runs, inner)
        else:
            chunk = Var("chunk")
            size = self.lanes * self.unroll
            jobs.append((chunk, over(plus(self.extents[-1], size - 1), size)))
            body = self.chunked(runs, inner, chunk)
        return shared_loop(jobs, body)

    def nested(self, runs: Sequence[Var], inner: Sequence[int], body: Stmt, tag: str) -> Stmt:
        """The body for all coordinates of the reduced runs before the last."""
        for n in reversed(inner):
            name = Var(f"{runs[n].name}{tag}")
            body = For(name, Const(0), self.extents[n], body)
        return body

    def renamed(self, runs: Sequence[Var], inner: Sequence[int], tag: str) -> list[Expr]:
        return [Var(f"{v.name}{tag}") if n in inner else v for n, v in enumerate(runs)]

    def across(self, runs: Sequence[Var], inner: Sequence[int]) -> Stmt:
        """One total: vectors along the last run, which is reduced."""
        running = Running("sums", self.kind, self.unroll, self.lanes, self.dtype)
        places = self.renamed(runs, inner, "")

        def add(span: Span) -> Stmt:
            found = self.elements((*places, span.index), self.lanes)
            return running.add(span.slot, span.loaded(found, running.neutral))

        vectors = along(self.extents[-1], self.lanes, "", add, unroll=self.unroll)
        total = Var("total", self.dtype)
        store = self.finished((*places, Const(0)), total, None)
        return running.around(self.nested(runs, inner, vectors, ""), total, store)

    def chunked(self, runs: Sequence[Var], inner: Sequence[int], chunk: Var) -> Stmt:
        """A few vectors of totals along the last run, which is kept."""
        size = self.lanes * self.unroll
        whole, rest = divmod(numbers(self.plan.axes.extents[-1:])[0], size)
        parts = [self.totals(runs, inner, chunk, size, "w")] if whole else []
        parts += [self.totals(runs, inner, chunk, rest, "l")] if rest else []
        if len(parts) == 1:
            return parts[0]
        return If(Compare(CompareKind.LESS, chunk, Const(whole)), parts[0], parts[1])

    def totals(
        self, runs: Sequence[Var], inner: Sequence[int], chunk: Var, count: int, tag: str
    ) -> Stmt:
        slots = -(-count // self.lanes)
        running = Running(f"sums{tag}", self.kind, slots, self.lanes, self.dtype)
        start = times(chunk, self.lanes * self.unroll)
        places = self.renamed(runs, inner, tag)
        spans = spans_of(count, self.lanes, tag, start, slots)
        adds = tuple(
            running.add(
                span.slot,
                span.loaded(self.elements((*places, span.index), self.lanes), running.neutral),
            )
            for span in spans
        )
        stores = tuple(
            self.finished((*places, span.index), running.value(span.slot), span.condition)
            for span in spans
        )
        steps = (running.clear(), self.nested(runs, inner, Block(adds), tag), *stores)
        return Allocate(running.buffer, Block(steps))
