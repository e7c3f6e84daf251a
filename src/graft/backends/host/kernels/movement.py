"""Data movement on row-major tensors, with the pointwise nodes around it, in one pass.

Every result element is traced back to where it comes from; results are cut into boxes in each of
which that is one formula. Vectors run along the last axis. Where that axis does not come from
neighbours in memory, small blocks of it are done for one coordinate after the other of the axis
that does, so that each cache line is used up while it is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import HELD, Layout, Pattern, Plan, kernel_template
from graft.backends.host.kernels.index_map import (
    RULES,
    At,
    CannotPullError,
    CutNeededError,
    Index,
    NotInVectorsError,
    Pull,
)
from graft.backends.host.kernels.vectors import Span, along, lanes_for, masked_store
from graft.backends.host.kernels.views import not_pointwise, shared_loop
from graft.backends.host.point import plus, times
from graft.backends.host.storage import static_shape
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.llvm.types import SMALL_FLOATS
from graft.loop.ir import (
    Block,
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

_DTYPES = HELD.difference(SMALL_FLOATS)
# More boxes than this are too much code for one kernel.
MOST_BOXES = 64
# Jobs that there should at least be for the threads to share evenly.
ENOUGH_JOBS = 32


@dataclass(frozen=True, slots=True)
class MovementSchedule:
    """What a search may vary: elements of the last axis that are done at a time."""

    piece: int = 1024  # where neighbours stay neighbours
    turned_piece: int = 64  # where the last axis comes from elsewhere


@dataclass(frozen=True, slots=True)
class _Box:
    """A part of a result: per axis the first coordinate and the one behind the last."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(stop - first for first, stop in self.ranges)

    def cut(self, axis: int, places: tuple[int, ...]) -> Iterator[_Box]:
        """The box in slices along an axis."""
        first, stop = self.ranges[axis]
        edges = [first, *sorted({p for p in places if first < p < stop}), stop]
        for edge, following in pairwise(edges):
            ranges = list(self.ranges)
            ranges[axis] = (edge, following)
            yield replace(self, ranges=tuple(ranges))


@kernel_template(
    Pattern.ANY, Layout.ROW_MAJOR, tensors=_DTYPES, symbolic=False, schedule=MovementSchedule
)
def movement(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Movement and pointwise nodes, with any number of results."""
    moving = [node for node in group.nodes if node.op.name in RULES]
    if not moving:
        return Refusal("nothing moves")
    others = [node for node in group.nodes if node not in moving]
    refused = not_pointwise(others)
    if refused is not None:
        return refused
    parameters = Parameters(group, stores)
    writer = _Writer(parameters, target, {group.output.dtype})
    try:
        body = Block(tuple(s for value in group.node.outputs for s in writer.result(value)))
    except CannotPullError as error:
        return Refusal(str(error))
    return lambda: parameters.kernel(body)


class _Writer:
    """Writes the loops over the boxes of results."""

    def __init__(self, parameters: Parameters, target: Target, dtypes: set[DType]) -> None:
        self.parameters, self.target, self.dtypes = parameters, target, dtypes
        self.schedule = MovementSchedule()
        self.boxes = 0

    def result(self, value: Value) -> Iterator[Stmt]:
        """One result, box by box."""
        shape = static_shape(value) or (1,)
        left = [_Box(tuple((0, extent) for extent in shape))]
        while left:
            box = left.pop()
            try:
                yield self.written(value, box)
            except CutNeededError as needed:
                left += box.cut(needed.axis, needed.places)
            if self.boxes + len(left) > MOST_BOXES:
                raise CannotPullError("the result is made of too many pieces")

    def written(self, value: Value, box: _Box) -> Stmt:
        """One box, in vectors if possible."""
        lanes = lanes_for(self.target, self.dtypes, box.extents[-1])
        tag = f"_{self.boxes}"
        try:
            body = _Loops(self, value, box, lanes, tag).body()
        except NotInVectorsError:
            body = _Loops(self, value, box, 1, tag).body()
        self.boxes += 1
        return body


class _Loops:
    """Writes the loops over one box."""

    def __init__(self, writer: _Writer, value: Value, box: _Box, lanes: int, tag: str) -> None:
        self.writer, self.value, self.box = writer, value, box
        self.lanes, self.tag = lanes, tag
        self.last = len(box.ranges) - 1
        self.axes = [Var(f"axis{axis}{tag}") for axis in range(self.last)]
        self.scalar = not static_shape(value)

    def at(self, span: Span) -> At:
        """The result's coordinates of a vector."""
        found = [
            Index(plus(self.axes[axis], first), first, stop - 1, axis=axis)
            for axis, (first, stop) in enumerate(self.box.ranges[:-1])
        ]
        first, stop = self.box.ranges[-1]
        stride = 1 if self.lanes > 1 else 0
        return (*found, Index(span.first, first, stop - 1, stride, axis=self.last))

    def vector(self, span: Span) -> Stmt:
        at = () if self.scalar else self.at(span)
        value = Pull(self.writer.parameters, self.lanes).value(self.value, at)
        _, target = self.writer.parameters.value(self.value)
        indices = tuple(index.expr(self.lanes) for index in at)
        return masked_store(target, indices, value, span.condition)

    def turned_axis(self) -> int | None:
        """The axis whose neighbours are neighbours in memory, where that is not the last one."""
        pull = Pull(self.writer.parameters, self.lanes)
        probe = Span(Const(self.box.ranges[-1][0]), self.lanes, 0, "")
        pull.value(self.value, () if self.scalar else self.at(probe))
        for _, at in pull.loads:
            if at and at[-1].axis not in (None, self.last) and not at[-1].stride:
                return at[-1].axis
        return None

    def body(self) -> Stmt:
        turned = self.turned_axis()
        size = self.writer.schedule.piece if turned is None else self.writer.schedule.turned_piece
        size = max(size, self.lanes)
        *leading, length = self.box.extents
        inner = turned
        if turned is None and leading and math.prod(leading[:-1]) >= ENOUGH_JOBS:
            inner = len(leading) - 1
        whole, left = divmod(length, size)
        piece = Var(f"piece{self.tag}")
        body = self.line(inner, piece, size if whole else left, size, "")
        if whole and left:
            inside = Compare(CompareKind.LESS, piece, Const(whole))
            body = If(inside, body, self.line(inner, piece, left, size, "l"))
        outer = [axis for axis in range(self.last) if axis != inner]
        extents = (*(leading[axis] for axis in outer), whole + bool(left))
        variables = (*(self.axes[axis] for axis in outer), piece)
        return shared_loop([*zip(variables, extents, strict=True)], body, f"job{self.tag}")

    def line(self, inner: int | None, piece: Expr, count: int, size: int, tag: str) -> Stmt:
        """A piece of the last axis, for each coordinate of the inner axis."""
        start = plus(times(piece, size), self.box.ranges[-1][0])
        if inner is None:
            return along(count, self.lanes, f"{self.tag}{tag}", self.vector, start)
        var = Var(f"{self.axes[inner].name}{tag}")
        renamed = [var if axis == inner else other for axis, other in enumerate(self.axes)]
        own, self.axes = self.axes, renamed
        vectors = along(count, self.lanes, f"{self.tag}{tag}", self.vector, start)
        self.axes = own
        return For(var, Const(0), Const(self.box.extents[inner]), vectors)
