"""Choosing boxes by score without those that overlap a better one too much, whatever the sizes.

Every image and class is a job for itself: its scores become a heap, from which boxes come in order
until enough are kept or none is left. A box is compared with a vector of kept ones at a time. When
all jobs are done, one thread moves what they have kept together and counts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.search import Heap, Order
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Barrier, Buffer, Const
from graft.loop.statements import (
    Cell,
    StatementBuilder,
    ramp,
    scratch,
    spread,
    store_vector,
)
from graft.ops.measured import most_boxes
from graft.target.target import Target

_SIDES = ("low_y", "high_y", "low_x", "high_x")


@dataclass(frozen=True, slots=True)
class Box:
    """Least and greatest coordinate along the first axis, then along the second; and the area."""

    sides: tuple[Term, ...]
    area: Term


@dataclass(frozen=True, slots=True)
class KeptBoxes:
    """Room for `most` boxes and a vector; those behind the last one have no area."""

    code: StatementBuilder
    dtype: DType
    lanes: int
    most: Term
    overlap: Term  # from which on boxes are too near

    @property
    def memory(self) -> tuple[Buffer, ...]:
        names = (*_SIDES, "area")
        return tuple(scratch(f"kept_{n}", self.dtype, self.most + self.lanes) for n in names)

    def name(self, sides: Sequence[Term]) -> Box:
        """A box with names for its numbers."""
        corners = [self.code.let(*pair) for pair in zip(_SIDES, sides, strict=True)]
        area = (corners[1] - corners[0]) * (corners[3] - corners[2])
        return Box(tuple(corners), self.code.let("area", area))

    def add(self, box: Box, count: Term) -> None:
        """The box behind `count` others."""
        code, (*sides, areas) = self.code, self.memory
        with code.when(equal(count % self.lanes, 0)):
            code.emit(store_vector(areas, count, Term(Const(0.0, self.dtype, self.lanes))))
        for memory, side in zip(sides, box.sides, strict=True):
            code.store(memory, count, side)
        code.store(areas, count, box.area)

    @contextmanager
    def unless_near(self, box: Box, count: Term) -> Iterator[None]:
        """What is done if the box is far from all of `count` others."""
        code, at, near = self.code, Cell("compared"), Cell("near", DType.INT32)
        with code.memory(at, near):
            code.set(at, 0)
            code.set(near, 0)
            with code.as_long_as((at.value < count) & equal(near.value, 0)):
                first = code.let("first", at.value)
                hits = select(self._near(box, first), _flag(1, self.lanes), _flag(0, self.lanes))
                code.set(near, call("reduce_max", hits) if self.lanes > 1 else hits)
                code.set(at, first + self.lanes)
            with code.when(equal(near.value, 0)):
                yield

    def _near(self, box: Box, first: Term) -> Term:
        """Whether the box overlaps each of a vector of others too much."""
        *sides, areas = self.memory
        others = ramp(first, self.lanes)
        low_y, high_y, low_x, high_x = (load(side, others) for side in sides)
        area, own = load(areas, others), self._wide(box.area)
        top, bottom, left, right = map(self._wide, box.sides)
        height = minimum(high_y, bottom) - maximum(low_y, top)
        width = minimum(high_x, right) - maximum(low_x, left)
        nothing = self._wide(Term(Const(0.0, self.dtype)))
        shared = maximum(height, nothing) * maximum(width, nothing)
        union = area + own - shared
        proper = (shared > nothing) & (area > nothing) & (own > nothing) & (union > nothing)
        share = shared / select(proper, union, self._wide(Term(Const(1.0, self.dtype))))
        return proper & (share > self._wide(self.overlap))

    def _wide(self, value: Term) -> Term:
        return spread(value, self.lanes)


def _flag(value: int, lanes: int) -> Term:
    return term(Const(value, DType.INT32, lanes))


@node_kernel("vision.bounded_non_max_suppression")
def suppression(group: Group, stores: Stores, target: Target) -> Plan:
    """Boxes by score, without those that overlap a better one."""
    return node_plan(group, stores, lambda writer: _Suppression(writer, target).write())


def _wide(dtype: DType) -> DType:
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32


class _Suppression:
    """Writes the loops over jobs, over boxes by score, and over what was kept."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._code, node = writer.code, writer.group.node
        self._attrs = node.attrs
        _, classes, count = shape_of(node.args[1])
        self._classes, self._count = writer.dim(classes), writer.dim(count)
        self._jobs = writer.dim(shape_of(node.args[1])[0] * classes)
        self._most = writer.dim(most_boxes(node.attrs, node.args[0].tensor))
        self._boxes, self._scores = writer.present_operand(0), writer.present_operand(1)
        self._limits = [writer.operand(number) for number in (2, 3, 4)]
        self._rows, self._counts = writer.result(0), writer.result(1)
        order = Order(descending=True, nan_last=True)
        self._heap = Heap.of(writer.code, order, self._scores.dtype, self._count, first_on_top=True)
        dtype = _wide(self._boxes.dtype)
        overlap = self._number(1, dtype)
        self._kept = KeptBoxes(writer.code, dtype, target.lanes(dtype), self._most, overlap)
        self._remaining, self._kept_count = Cell("left"), Cell("found")

    def _number(self, which: int, dtype: DType) -> Term:
        """A limit as the attributes or an operand say, rounded to float32 where it is no count."""
        buffer: Buffer | None = self._limits[which]
        attrs = self._attrs
        attribute = (attrs.max_output_size, attrs.iou_threshold, attrs.score_threshold)[which]
        if dtype is INDEX:
            return term(attribute or 0) if buffer is None else cast(dtype, load(buffer, 0))
        if buffer is None:
            return Term(Const(float(np.float32(attribute or 0)), dtype))
        return cast(dtype, cast(DType.FLOAT32, load(buffer, 0)))

    def write(self) -> None:
        code, memory = self._code, (*self._heap.memory, *self._kept.memory)
        with (
            code.memory(*memory, self._remaining, self._kept_count),
            code.parallel("job", self._jobs) as job,
        ):
            self._job(job)
        code.emit(Barrier())
        with code.one_thread():
            self._compact()

    def _job(self, job: Term) -> None:
        code, remaining, kept_count = self._code, self._remaining, self._kept_count
        limit = minimum(self._most, self._number(0, INDEX))
        code.set(remaining, 0)
        code.set(kept_count, 0)
        with code.loop("at", self._count) as at:
            self._offer(code.let("score", load(self._scores, job * self._count + at)), at)
        with code.scope():
            self._heap.build(code.let("candidates", remaining.value))
        with code.scope():
            most = code.let("most", limit)
            with code.as_long_as((remaining.value > 0) & (kept_count.value < most)):
                self._pop(job, code.let("last", remaining.value - 1))
        code.store(self._counts, job, kept_count.value)

    def _offer(self, score: Term, at: Term) -> None:
        """A box, if its score is high enough."""
        has_limit = self._attrs.score_threshold is not None or self._limits[2] is not None
        dtype = _wide(score.dtype)
        with ExitStack() as inside:
            if has_limit:
                is_high = cast(dtype, score) > self._number(2, dtype)
                inside.enter_context(self._code.when(is_high))
            end = self._code.let("end", self._remaining.value)
            self._heap.put(end, score, at)
            self._code.set(self._remaining, end + 1)

    def _pop(self, job: Term, last: Term) -> None:
        """The best box that is left: kept, if it is far enough from all that are."""
        code, kept = self._code, self._kept
        number = code.let("number", self._heap.position(0))
        first = (job // self._classes * self._count + number) * 4
        code.set(self._remaining, last)
        self._heap.reinsert("pop", last, last)
        box, here = kept.name(self._numbers(first)), self._kept_count.value
        with kept.unless_near(box, here):
            kept.add(box, here)
            code.store(self._rows, (job * self._most + here) * 3 + 2, number)
            code.set(self._kept_count, here + 1)

    def _numbers(self, first: Term) -> list[Term]:
        """Least and greatest coordinate along the first axis, then along the second."""
        dtype = _wide(self._boxes.dtype)
        a, b, c, d = (cast(dtype, load(self._boxes, first + n)) for n in range(4))
        if self._attrs.center_point_box:
            return [a - c / 2.0, a + c / 2.0, b - d / 2.0, b + d / 2.0]
        return [minimum(a, c), maximum(a, c), minimum(b, d), maximum(b, d)]

    def _compact(self) -> None:
        """Rows move only towards the front, so none is overwritten before it is read."""
        code, end = self._code, Cell("end_of_rows")
        with code.memory(end):
            code.set(end, 0)
            with (
                code.loop("finished", self._jobs) as job,
                code.loop("kept_at", load(self._counts, job)) as at,
            ):
                source = (job * self._most + at) * 3 + 2
                number, row = code.let("kept_number", load(self._rows, source)), end.value * 3
                code.store(self._rows, row, job // self._classes)
                code.store(self._rows, row + 1, job % self._classes)
                code.store(self._rows, row + 2, number)
                code.set(end, end.value + 1)
            code.store(self._counts, self._jobs, end.value)
