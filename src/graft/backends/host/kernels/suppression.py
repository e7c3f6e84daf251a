"""Choosing boxes by score without those that overlap a better one too much, whatever the sizes.

Every image and class is a job for itself: its scores become a heap, from which boxes come in order
until enough are kept or none is left. A box is compared with a vector of kept ones at a time. When
all jobs are done, one thread moves what they have kept together and counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.search import Heap, Order
from graft.backends.host.kernels.writing import Writer
from graft.backends.host.storage import shape_of
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Barrier, Buffer, Const, Stmt
from graft.loop.statements import (
    Cell,
    as_long_as,
    let,
    lets,
    loop,
    parallel,
    ramp,
    scratch,
    spread,
    store,
    store_vector,
    when,
    with_memory,
)
from graft.loop.traverse import block
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

    dtype: DType
    lanes: int
    most: Term
    overlap: Term  # from which on boxes are too near

    @property
    def memory(self) -> tuple[Buffer, ...]:
        names = (*_SIDES, "area")
        return tuple(scratch(f"kept_{n}", self.dtype, self.most + self.lanes) for n in names)

    def corners(self, sides: Sequence[Term], body: Callable[[Box], Stmt]) -> Stmt:
        """A name for each number of a box."""

        def with_area(*corners: Term) -> Stmt:
            area = (corners[1] - corners[0]) * (corners[3] - corners[2])
            return let("area", area, lambda size: body(Box(corners, size)))

        return lets(dict(zip(_SIDES, sides, strict=True)), with_area)

    def add(self, box: Box, count: Term) -> Stmt:
        """The box behind `count` others."""
        *sides, areas = self.memory
        cleared = store_vector(areas, count, Term(Const(0.0, self.dtype, self.lanes)))
        stored = [store(memory, count, side) for memory, side in zip(sides, box.sides, strict=True)]
        fresh = equal(count % self.lanes, 0)
        return block(when(fresh, cleared), *stored, store(areas, count, box.area))

    def unless_near(self, box: Box, count: Term, body: Stmt) -> Stmt:
        """Run the body if the box is far from all of `count` others."""
        at, near = Cell("compared"), Cell("near", DType.INT32)

        def step(first: Term) -> Stmt:
            hits = select(self._near(box, first), _flag(1, self.lanes), _flag(0, self.lanes))
            hit = call("reduce_max", hits) if self.lanes > 1 else hits
            return block(near.set(hit), at.set(first + self.lanes))

        search = block(
            at.set(0),
            near.set(0),
            as_long_as((at.value < count) & equal(near.value, 0), let("first", at.value, step)),
            when(equal(near.value, 0), body),
        )
        return with_memory(search, at, near)

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
    return lambda: _Suppression(Writer(group, stores), target).kernel()


def _wide(dtype: DType) -> DType:
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32


class _Suppression:
    """Writes the loops over jobs, over boxes by score, and over what was kept."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._writer, node = writer, writer.group.node
        self._attrs = node.attrs
        _, classes, count = shape_of(node.args[1])
        self._classes, self._count = writer.dim(classes), writer.dim(count)
        self._jobs = writer.dim(shape_of(node.args[1])[0] * classes)
        self._most = writer.dim(most_boxes(node.attrs, node.args[0].tensor))
        self._boxes, self._scores = writer.present_operand(0), writer.present_operand(1)
        self._limits = [writer.operand(number) for number in (2, 3, 4)]
        self._rows, self._counts = writer.result(0), writer.result(1)
        order = Order(descending=True, nan_last=True)
        self._heap = Heap.of(order, self._scores.dtype, self._count, first_on_top=True)
        dtype = _wide(self._boxes.dtype)
        self._kept = KeptBoxes(dtype, target.lanes(dtype), self._most, self._number(1, dtype))
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

    def kernel(self) -> Kernel:
        jobs = parallel("job", self._jobs, self._job)
        jobs = with_memory(
            jobs, *self._heap.memory, *self._kept.memory, self._remaining, self._kept_count
        )
        gathered = parallel("only", 1, lambda _only: self._compact())
        return self._writer.kernel(block(jobs, Barrier(), gathered))

    def _job(self, job: Term) -> Stmt:
        remaining, kept_count = self._remaining, self._kept_count
        limit = minimum(self._most, self._number(0, INDEX))

        def select_boxes(most: Term) -> Stmt:
            more = (remaining.value > 0) & (kept_count.value < most)
            return as_long_as(more, let("last", remaining.value - 1, partial(self._popped, job)))

        def offered(at: Term) -> Stmt:
            return let("score", load(self._scores, job * self._count + at), partial(scored, at))

        def scored(at: Term, score: Term) -> Stmt:
            entered = let(
                "end",
                remaining.value,
                lambda end: block(self._heap.put(end, score, at), remaining.set(end + 1)),
            )
            if self._attrs.score_threshold is None and self._limits[2] is None:
                return entered
            dtype = _wide(score.dtype)
            return when(cast(dtype, score) > self._number(2, dtype), entered)

        return block(
            remaining.set(0),
            kept_count.set(0),
            loop("at", self._count, offered),
            let("candidates", remaining.value, self._heap.build),
            let("most", limit, select_boxes),
            store(self._counts, job, kept_count.value),
        )

    def _popped(self, job: Term, last: Term) -> Stmt:
        """The best box that is left: kept, if it is far enough from all that are."""

        def popped(number: Term) -> Stmt:
            first = (job // self._classes * self._count + number) * 4
            return block(
                self._remaining.set(last),
                self._heap.reinsert("pop", last, last),
                self._kept.corners(self._numbers(first), partial(compared, number)),
            )

        def compared(number: Term, box: Box) -> Stmt:
            here = self._kept_count.value
            accepted = block(
                self._kept.add(box, here),
                store(self._rows, (job * self._most + here) * 3 + 2, number),
                self._kept_count.set(here + 1),
            )
            return self._kept.unless_near(box, here, accepted)

        return let("number", self._heap.position(0), popped)

    def _numbers(self, first: Term) -> list[Term]:
        """Least and greatest coordinate along the first axis, then along the second."""
        dtype = _wide(self._boxes.dtype)
        a, b, c, d = (cast(dtype, load(self._boxes, first + n)) for n in range(4))
        if self._attrs.center_point_box:
            return [a - c / 2.0, a + c / 2.0, b - d / 2.0, b + d / 2.0]
        return [minimum(a, c), maximum(a, c), minimum(b, d), maximum(b, d)]

    def _compact(self) -> Stmt:
        """Rows move only towards the front, so none is overwritten before it is read."""
        end = Cell("end_of_rows")

        def move_row(job: Term, at: Term) -> Stmt:
            source = (job * self._most + at) * 3 + 2
            return let("kept_number", load(self._rows, source), partial(written, job))

        def written(job: Term, number: Term) -> Stmt:
            row = end.value * 3
            return block(
                store(self._rows, row, job // self._classes),
                store(self._rows, row + 1, job % self._classes),
                store(self._rows, row + 2, number),
                end.set(end.value + 1),
            )

        def of_job(job: Term) -> Stmt:
            return loop("kept_at", load(self._counts, job), partial(move_row, job))

        body = block(
            end.set(0),
            loop("finished", self._jobs, of_job),
            store(self._counts, self._jobs, end.value),
        )
        return with_memory(body, end)
