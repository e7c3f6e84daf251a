"""Default schedules of several reductions: row by row, each in scratch memory or registers."""

from __future__ import annotations

import math

from graft.backends.host.kernels.expression.loops import (
    MOST_COPIES,
    MOST_TOTALS,
    Directives,
    across_stages,
    lane_stage,
    masked_lanes,
    plain_stage,
    summed_axis,
    vectors_of,
)
from graft.backends.host.kernels.expression.root import Root
from graft.backends.host.kernels.expression.stages import (
    computing_reader,
    extent,
    is_near,
    row_factors,
)
from graft.loop.ir import Const
from graft.loop.nest import short
from graft.loop.regions import axis_extents
from graft.loop.schedule import (
    ComputeAt,
    ComputeWith,
    Mask,
    Split,
    StoreWith,
    Tail,
)
from graft.loop.stages import loads
from graft.loop.tensor import Tensor


class Rows(Root):
    """Several reductions: all of them for a part of the result that needs no other part's."""

    def schedule(self) -> dict[str, Directives]:
        loops, lanes = self.loops, self.lanes(self.result, *self.inner)
        factors = row_factors(self.result, self.inner, self.where)
        rows = self.short_rows(factors, lanes)
        if rows is not None:
            return self.rows_in_lanes(rows, lanes)
        self.whole_axes = {axis for axis, factor in enumerate(factors) if not factor}
        size: dict[int, int] = {}  # what one iteration does of each axis
        for axis, (name, factor) in enumerate(zip(self.axes, factors, strict=True)):
            size[axis] = self.row_size(axis, factor, lanes)
            inside = name
            if size[axis] == 1:
                loops.outer.append(name)
                continue
            if size[axis] < self.extents[axis]:
                outer, inside = loops.split(name, size[axis], self.result.shape[axis])
                loops.outer.append(outer)
            if axis == self.lane_axis:
                whole = Const(size[axis]) if factor else self.result.shape[axis]
                masked = not factor and self.is_masked(self.result)
                width, _ = vectors_of(size[axis], lanes, 1)
                width = masked_lanes(size[axis], lanes) if masked else width
                is_short = isinstance(whole, Const) and size[axis] <= MOST_TOTALS * width
                loops.inner += loops.vectors(inside, width, whole, is_short, masked)
            else:
                loops.inner.append(inside)
        plan = {self.result.name: loops.directives()}
        site = self.site(loops.shared())
        for stage in self.inner:
            reader = computing_reader(stage, (*self.inner, self.result))
            if reader is None:
                plan |= self.row_stage(stage, site, self.box(stage, size), lanes)
            else:
                plan[stage.name] = [*site, ComputeWith(reader), *self.memory_of(stage)]
        return plan

    def memory_of(self, stage: Tensor) -> Directives:
        """Keep what only the result reads last in the result's memory, where that can hold it."""
        same = (stage.dtype, stage.shape) == (self.result.dtype, self.result.shape)
        at = {load.indices for load in loads(self.result) if load.buffer.name == stage.name}
        splits = (one for one in self.loops.splits if isinstance(one, Split))
        overlaps = any(split.tail == "shift_inwards" for split in splits)
        fits = same and at == {self.result.axes} and not overlaps and self.loops.outer
        return [StoreWith(self.result.name)] if fits else []

    def short_rows(self, factors: list[int], lanes: int) -> int | None:
        """The axis whose neighbours are better computed in lanes than a row, which is short."""
        whole = [axis for axis, factor in enumerate(factors) if not factor]
        last = len(self.axes) - 1
        if whole != [last] or last == 0 or factors[last - 1] != 1 or not self.is_known(last):
            return None
        enough = self.extents[last - 1] >= lanes
        is_short = 2 * self.extents[last] <= lanes
        follow = all(self.dimension(one, last - 1) is not None for one in self.inner)
        masked = self.is_masked(self.result, *self.inner)
        fits = enough and is_short and follow and masked and self.is_unrolled(last - 1)
        return last - 1 if fits else None

    def is_unrolled(self, axis: int) -> bool:
        """Whether all loops but the one that follows an axis are few enough copies, in each stage.

        A row of the result may be short where what it reduces is long or unknown."""
        for stage in self.inner:
            lane = self.variable(stage, axis)
            others = [whole for name, whole in axis_extents(stage).items() if name != lane]
            if math.prod(map(extent, others)) > MOST_COPIES:
                return False
        return True

    def rows_in_lanes(self, axis: int, lanes: int) -> dict[str, Directives]:
        """Short rows side by side, a row to a lane: all of it is in registers."""
        loops, last = self.loops, self.axes[-1]
        name = self.axes[axis]
        outer, inner = f"{name}_o", f"{name}_i"
        # A branch decides once for all stages whether there are as many rows as lanes.
        loops.splits = [Split(name, outer, inner, lanes, "branch")]
        loops.outer = [*self.axes[:axis], outer]
        loops.inner = [loops.unroll(last), inner]
        loops.marks.append(Mask(inner))
        plan = {self.result.name: loops.directives()}
        site = self.site(loops.shared())
        for stage in self.inner:
            own = short(self.variable(stage, axis))
            plan[stage.name] = lane_stage(stage, site, own, lanes)
        return plan

    def row_size(self, axis: int, factor: int, lanes: int) -> int:
        """How much of an axis one iteration does; all of it, where it cannot be cut."""
        whole = self.extents[axis]
        if not factor:
            return whole
        size = lanes * self.options.row_chunk if axis == self.lane_axis else 1
        return min(whole, max(factor, size // factor * factor))

    def box(self, stage: Tensor, size: dict[int, int]) -> list[int]:
        """What one iteration of the shared loop needs of a stage."""
        pairs = zip(self.where[stage.name], stage.shape, strict=True)
        return [
            extent(whole) if follows is None else max(1, size[follows.axis] // follows.factor)
            for follows, whole in pairs
        ]

    def row_stage(
        self, stage: Tensor, site: list[ComputeAt], box: list[int], lanes: int
    ) -> dict[str, Directives]:
        wide = [dimension for dimension, count in enumerate(box) if count > 1]
        summed = summed_axis(stage, lanes)
        if summed is not None and not (wide and is_near(stage, stage.axes[wide[-1]].name)):
            masked, several = self.is_masked(stage), self.options.totals
            return across_stages(stage, site, summed, lanes, not wide, masked, several)
        masked = bool(wide) and self.is_whole(stage, wide[-1]) and self.is_masked(stage)
        moves = wide and not masked and self.shifts(stage, wide[-1], lanes)
        tail: Tail = "shift_inwards" if moves else "remainder"
        return {stage.name: plain_stage(stage, site, box, lanes, tail, masked)}

    def shifts(self, stage: Tensor, dimension: int, lanes: int) -> bool:
        """Whether the last vector of a stage's whole axis can be moved back."""
        return self.is_whole(stage, dimension) and self.loops.shifts(lanes, stage.shape[dimension])

    def is_whole(self, stage: Tensor, dimension: int) -> bool:
        """Whether one iteration of the shared loop computes all of a stage's axis."""
        follows = self.where[stage.name][dimension]
        return follows is None or follows.axis in self.whole_axes
