"""Default schedules of one reduction with as many elements as its result: tiles in registers.

Sums of products share what they read, so a tile has rows and vectors; where nothing is shared, it
is as many vectors of totals as keep a core busy. Lanes run along the result's contiguous axis, or,
where that is not how operands lie in memory, along the axis that is summed over.
"""

from __future__ import annotations

import math

from graft.backends.host.kernels.expression.loops import (
    MOST_TOTALS,
    Directives,
    across_stages,
    dot_stages,
    even_part,
    masked_lanes,
    plain_stage,
    summed_axis,
    tile_stage,
    total_stages,
    vectors_of,
)
from graft.backends.host.kernels.expression.root import Caution, Root
from graft.backends.host.kernels.expression.stages import (
    depends_on,
    extent,
    is_near,
    shares,
)
from graft.loop.default_schedule import axis_names
from graft.loop.ir import Const
from graft.loop.nest import short
from graft.loop.regions import axis_extents
from graft.loop.schedule import (
    Mask,
    Split,
    Unroll,
)
from graft.loop.tensor import Reduce, Tensor

# Rows of a tile where there may not be many.
FEW = 2


class Tiles(Root):
    """One reduction with as many elements as the result."""

    def schedule(self) -> dict[str, Directives]:
        stage = next(one for one in self.inner if isinstance(one.body, Reduce))
        lanes = self.lanes(stage, self.result)
        along = self.variable(stage, self.lane_axis)
        is_near_lane = bool(along) and is_near(stage, along)
        summed = summed_axis(stage, lanes, self.is_masked(stage))
        if is_near_lane or summed is None:
            return self.tile_of_vectors_or_totals(stage, lanes)
        if not self.shares_reads(stage, summed):
            return self.totals_of_rows(stage, summed, lanes)
        if summed_axis(stage, lanes) is not None:
            return self.tile_of_dots(stage, summed, lanes)
        return self.tile_of_vectors_or_totals(stage, lanes)

    def tile_of_vectors_or_totals(self, stage: Tensor, lanes: int) -> dict[str, Directives]:
        """Lanes along the contiguous axis, with or without rows that share what is read."""
        lane, is_masked = self.lane_axis, self.is_masked(stage, self.result)
        is_plain = is_masked and len(self.inner) == 1
        if lane is None or not (is_plain and self.is_known(lane)) or self.has_rows(stage, lane):
            return self.tile_of_vectors(stage, lanes)
        return self.tile_of_totals(stage, lane, lanes)

    def shares_reads(self, stage: Tensor, summed: str) -> bool:
        """Whether neighbouring elements of a reduction read something in common."""
        names = (self.variable(stage, axis) for axis in self.wide)
        return any(name and shares(stage, name, summed) for name in names)

    def totals_of_rows(self, stage: Tensor, summed: str, lanes: int) -> dict[str, Directives]:
        """Lanes along what is summed, one element of the result after the other."""
        self.loops.outer = list(self.axes)
        plan = {self.result.name: self.loops.directives()}
        site = self.site(self.loops.shared())
        count = extent(axis_extents(stage)[summed])
        masked = self.is_masked(stage)
        lanes = masked_lanes(count, lanes) if masked else vectors_of(count, lanes, 1)[0]
        copies = {
            copy.name: plain_stage(copy, site, [extent(one) for one in copy.shape], lanes)
            for copy in self.inner
            if copy is not stage
        }
        several = self.options.totals
        return plan | copies | across_stages(stage, site, summed, lanes, True, masked, several)

    def tile_of_totals(self, stage: Tensor, lane: int, lanes: int) -> dict[str, Directives]:
        """Vectors of totals along the contiguous axis; no two elements share what they read.

        The last vector is masked, and the last tile of several has as few vectors as will do.
        """
        loops, count = self.loops, self.extents[lane]
        loops.outer = [name for axis, name in enumerate(self.axes) if axis != lane]
        jobs = math.prod(n for axis, n in enumerate(self.extents) if axis != lane)
        lanes = masked_lanes(count, lanes)
        loop, tile = self.axes[lane], self.options.totals
        if -(-count // lanes) > (MOST_TOTALS if jobs >= self.options.enough_jobs else tile):
            outer, inner = f"{loop}_o", f"{loop}_i"
            loops.splits.append(Split(loop, outer, inner, tile * lanes, "branch"))
            loops.outer.append(outer)
            loop = inner
        counted, vector = f"{loop}_v", f"{loop}_l"
        loops.splits.append(Split(loop, counted, vector, lanes))
        loops.inner = [counted, vector]
        loops.marks += [Unroll(counted), Mask(vector)]
        plan = {self.result.name: loops.directives()}
        site = self.site(loops.around_tile())
        vectors = min(tile, -(-count // lanes))
        own = short(self.variable(stage, lane))
        return plan | total_stages(stage, site, own, lanes, self.options.totals // vectors)

    def tile_of_vectors(self, stage: Tensor, lanes: int) -> dict[str, Directives]:
        """Lanes along the contiguous axis, rows along one that shares what is read."""
        lane, tile = self.lane_axis, dict[int, int]()
        if lane is not None and (self.caution is not Caution.ALL or self.is_known(lane)):
            lanes, vectors = vectors_of(self.extents[lane], lanes, self.options.vectors)
            if self.caution.value >= Caution.VECTORS.value and not self.is_known(lane):
                lanes, vectors = self.caution.narrowed(lanes), 1
            tile[lane] = lanes * vectors
            rows = self.row_axis(stage, lane)
            most = self.options.rows * self.options.vectors // vectors
            if rows is not None and not self.is_known(rows) and self.caution is not Caution.NONE:
                most = FEW if self.caution is Caution.ROWS else 1
            if rows is not None and most > 1:
                tile[rows] = even_part(self.extents[rows], min(most, 12))
        sizes: dict[str, int] = {}
        for axis, size in sorted(tile.items()):
            outer, inside = self.loops.split(self.axes[axis], size, self.result.shape[axis])
            self.axes[axis] = outer
            if axis == lane:
                self.loops.inner += self.loops.vectors(inside, lanes, Const(size), unrolled=True)
            else:
                self.loops.inner.append(self.loops.unroll(inside))
            dimension = self.dimension(stage, axis)
            if dimension is not None:
                sizes[axis_names(stage)[dimension]] = size
        name = short(self.variable(stage, lane))
        plan = self.around_tiles(stage, tile, lanes)
        site = self.site(self.loops.around_tile())
        return {**plan, stage.name: tile_stage(stage, site, name, sizes, lanes)}

    def has_rows(self, stage: Tensor, lane: int) -> bool:
        """Whether the elements along some axis share what they read."""
        return self.row_axis(stage, lane) is not None

    def row_axis(self, stage: Tensor, lane: int) -> int | None:
        """The axis whose neighbours share most of what they read, if any do."""
        along = self.variable(stage, lane)
        scores = {
            axis: shares(stage, self.variable(stage, axis), along)
            for axis in self.wide
            if axis != lane and self.variable(stage, axis)
        }
        best = max(scores, key=lambda axis: scores[axis], default=None)
        return best if best is not None and scores[best] else None

    def around_tiles(
        self, stage: Tensor, tile: dict[int, int], lanes: int
    ) -> dict[str, Directives]:
        """Loops over tiles. Those that need the same copies of operands are inside the shared one,
        where enough is left to share without them."""
        copies = [one for one in self.inner if one is not stage]
        every = range(len(self.axes))
        needed = depends_on(copies, stage, self.where) if copies else set(every)
        jobs = math.prod(-(-self.extents[axis] // tile.get(axis, 1)) for axis in needed)
        if jobs < self.options.enough_jobs:
            needed = set(every)
        # Rows of tiles last: the vectors that they share are then still in L1.
        order = sorted(every, key=lambda axis: axis in tile and axis != self.lane_axis)
        self.loops.outer = [self.axes[axis] for axis in order if axis in needed]
        self.loops.serial = [self.axes[axis] for axis in order if axis not in needed]
        site = self.site(self.loops.shared())
        plan = {self.result.name: self.loops.directives()}
        for copy in copies:
            box = [extent(one) for one in copy.shape]
            plan[copy.name] = plain_stage(copy, site, box, lanes)
        return plan

    def tile_of_dots(self, stage: Tensor, summed: str, lanes: int) -> dict[str, Directives]:
        """Lanes along what is summed, rows and columns along the last two axes."""
        unrolled: list[str] = []
        tile: dict[int, int] = {}
        for axis, most in zip(reversed(self.wide), reversed(self.options.dot_rows), strict=False):
            if self.caution is not Caution.NONE and not self.is_known(axis):
                continue
            tile[axis] = even_part(self.extents[axis], most)
            whole = self.result.shape[axis]
            outer, inside = self.loops.split(self.axes[axis], tile[axis], whole)
            self.axes[axis] = outer
            self.loops.inner.insert(0, self.loops.unroll(inside))
            unrolled.append(axis_names(stage)[self.dimension(stage, axis) or 0])
        plan = self.around_tiles(stage, tile, lanes)
        site = self.site(self.loops.around_tile())
        return {**plan, **dot_stages(stage, site, summed, lanes, unrolled)}
