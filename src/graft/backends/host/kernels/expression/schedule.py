"""The default schedule of tensor expressions: as data, from the expressions and the target alone.

What only moves elements or computes them one by one is written out where it is read. What is left
of a result is its last loop nest and the stages inside it. One reduction becomes a tile of sums in
registers, with vector lanes along the result's contiguous axis, or, where that is not how its
operands lie in memory, along the axis it sums over. Several reductions are computed row by row, in
scratch memory. Outer loops are one loop that the threads share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from graft.backends.host.kernels.expression.loops import (
    MOST_TOTALS,
    SHORT,
    Directives,
    ExpressionSchedule,
    Loops,
    across_stages,
    dot_stages,
    even_part,
    is_combined,
    masked_lanes,
    plain_stage,
    summed_axis,
    tile_stage,
    total_stages,
    vectors_of,
)
from graft.backends.host.kernels.expression.stages import (
    Places,
    axis_names,
    depends_on,
    extent,
    is_near,
    kept_stages,
    operand_axis,
    places,
    row_factors,
    shares,
    transposed_operands,
)
from graft.loop.ir import Const
from graft.loop.nest import short
from graft.loop.regions import axis_extents
from graft.loop.schedule import (
    CacheWrite,
    ComputeAt,
    Inline,
    Mask,
    Schedule,
    Split,
    Tail,
    Unroll,
    Variant,
    Vectorize,
)
from graft.loop.stages import loads, rewrite_stages
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.target.target import Target

# Rows of a tile where there may not be many.
FEW = 2
# More lanes than this are more code than they save time.
MOST_LANES = 32


class Caution(Enum):
    """What a schedule relies on: extents that are not known may be smaller than its tiles."""

    NONE = 0  # all of them fill tiles
    ROWS = 1  # rows are a few
    ROW = 2  # or one
    VECTORS = 3  # a contiguous axis fills one vector
    LANES = 4  # or half of one
    SHORT = 5  # or a short one
    ALL = 6

    def narrowed(self, lanes: int) -> int:
        """Lanes of vectors along an axis that may not be long."""
        few = {Caution.VECTORS: lanes, Caution.LANES: lanes // 2}.get(self, SHORT)
        return max(min(few, lanes), min(SHORT, lanes))


class CannotScheduleError(Exception):
    """Why there is no default schedule."""


def default_variants(results: Sequence[Tensor], target: Target) -> list[Variant]:
    """How to compute the results, by how large extents turn out to be that are not known."""
    variants: list[Variant] = []
    for caution in Caution:
        variant = _variant(results, target, caution)
        if variant not in variants:
            variants.append(variant)
        if not variant.needs:
            break
    return variants


def _variant(results: Sequence[Tensor], target: Target, caution: Caution) -> Variant:
    """A schedule for the results, which share no stage but what is written out."""
    needs: dict[str, int] = {}
    plan: dict[str, Directives] = {}
    tensors = in_order(results)
    kept = kept_stages(tensors, results)
    for tensor in tensors:
        if tensor.body is not None and tensor.name not in kept:
            plan[tensor.name] = [Inline()]
    for result in results:
        if isinstance(result.body, Reduce):
            plan[result.name] = [CacheWrite(f"{result.name}_acc")]
    names = {result.name for result in results}
    stages = rewrite_stages(tensors, names, Schedule.of(plan))
    if caution is Caution.NONE and _is_symbolic(stages):
        for result in results:
            packs = transposed_operands(
                stages[result.name], _inner_stages(stages, result.name, names)
            )
            plan |= {stage: [*plan.get(stage, []), pack] for stage, pack in packs.items()}
        stages = rewrite_stages(tensors, names, Schedule.of(plan))
    claimed: set[str] = set()
    for result in results:
        inner = _inner_stages(stages, result.name, names)
        shared = claimed & {stage.name for stage in inner}
        if shared:
            raise CannotScheduleError(f"several results need '{min(shared)}'")
        claimed |= {stage.name for stage in inner}
        root = _Root(stages[result.name], inner, target, caution)
        for name, directives in root.schedule().items():
            plan[name] = [*plan.get(name, []), *directives]
        needs |= {n: max(least, needs.get(n, 0)) for n, least in root.loops.needs.items()}
    schedule = Schedule.of({name: parts for name, parts in plan.items() if parts})
    return Variant(schedule, tuple(sorted(needs.items())))


def _is_symbolic(stages: dict[str, Tensor]) -> bool:
    """Whether some extent is known only at run time."""
    computed = (stage for stage in stages.values() if stage.body is not None)
    extents = (one for stage in computed for one in axis_extents(stage).values())
    return not all(isinstance(one, Const) for one in extents)


def _inner_stages(stages: dict[str, Tensor], result: str, results: set[str]) -> list[Tensor]:
    """The stages that a result needs, other results apart, each after what it reads."""
    names = {result}
    for name in reversed(stages):
        if name in names:
            names |= {load.buffer.name for load in loads(stages[name])} - results
    return [
        tensor
        for name, tensor in stages.items()
        if name in names - {result} and tensor.body is not None
    ]


class _Root:
    """Schedules one result and the stages inside it."""

    def __init__(
        self, result: Tensor, inner: list[Tensor], target: Target, caution: Caution
    ) -> None:
        self.result, self.inner, self.target = result, inner, target
        self.caution = caution
        self.options = ExpressionSchedule.of(target)
        self.axes = axis_names(result)
        self.extents = [extent(one) for one in result.shape]
        self.where: Places = places(result, inner)
        self.wide = [axis for axis, count in enumerate(self.extents) if count > 1]
        self.lane_axis = self.wide[-1] if self.wide else None
        self.is_symbolic = _is_symbolic({one.name: one for one in (result, *inner)})
        self.whole_axes: set[int] = set()  # of the result, that one iteration does all of
        self.loops = Loops(careful=caution is Caution.ALL)

    def schedule(self) -> dict[str, Directives]:
        """Directives for the result and each stage."""
        reductions = [stage for stage in self.inner if isinstance(stage.body, Reduce)]
        if not reductions:
            return self.pointwise()
        if len(reductions) == 1 and self.is_tiled(reductions[0]):
            return self.tiled(reductions[0])
        return self.by_rows()

    def lanes(self, *tensors: Tensor) -> int:
        """Lanes that vectors of everything the stages touch can have."""
        dtypes = {tensor.dtype for tensor in tensors}
        dtypes |= {load.dtype for tensor in tensors for load in loads(tensor)}
        return min(MOST_LANES, *(self.target.lanes(dtype) for dtype in dtypes))

    def is_masked(self, *tensors: Tensor) -> bool:
        """Whether vectors of all that the stages touch can be masked by the machine."""
        dtypes = {tensor.dtype for tensor in tensors}
        dtypes |= {load.dtype for tensor in tensors for load in loads(tensor)}
        return all(map(self.target.has_masks, dtypes))

    def is_tiled(self, stage: Tensor) -> bool:
        """Whether a reduction has an element for each of the result's, at the same place."""
        followed = [one.axis for one in self.where[stage.name] if one and one.factor == 1]
        return bool(self.axes) and all(axis in followed for axis in self.wide)

    def is_known(self, axis: int) -> bool:
        """Whether an axis of the result has a number for an extent."""
        return isinstance(self.result.shape[axis], Const)

    def site(self, loop: str | None) -> list[ComputeAt]:
        return [] if loop is None else [ComputeAt(self.result.name, loop)]

    def dimension(self, stage: Tensor, axis: int) -> int | None:
        """A stage's dimension that follows an axis of the result."""
        pairs = enumerate(self.where[stage.name])
        return next((d for d, one in pairs if one is not None and one.axis == axis), None)

    def variable(self, stage: Tensor, axis: int | None) -> str:
        """What that dimension is called in the stage's expressions; nothing if there is none."""
        dimension = None if axis is None else self.dimension(stage, axis)
        return "" if dimension is None else stage.axes[dimension].name

    def pointwise(self) -> dict[str, Directives]:
        """No reduction: vectors along the contiguous axis, several in an iteration.

        Where operands are contiguous along another axis, that one is iterated over inside of a
        short chunk of the contiguous axis, so that each cache line is used up while it is there."""
        loops, lane = self.loops, self.lane_axis
        across = None if self.inner else operand_axis(self.result, self.wide)
        loops.outer = [name for axis, name in enumerate(self.axes) if axis not in (lane, across)]
        lanes = self.lanes(self.result, *self.inner)
        if lane is not None:
            chunk = self.options.chunk if across is None else self.options.transposed_chunk
            if across is not None:  # lanes are read one by one, so that none should be read twice
                count = self.extents[lane]
                lanes = min(lanes, max(lanes // 2, 1), key=lambda n: -(-count // n) * n)
            lanes = self.in_chunks(lane, lanes, chunk)
        if across is not None and loops.outer:
            loops.serial.insert(0, self.axes[across])
        elif across is not None:  # the threads have nothing else to share
            loops.outer.append(self.axes[across])
        plan = {self.result.name: loops.directives()}
        site = self.site(loops.around_tile())
        for stage in self.inner:
            box = [
                1 if follows is not None and follows.axis != lane else min(extent(whole), lanes)
                for follows, whole in zip(self.where[stage.name], stage.shape, strict=True)
            ]
            plan[stage.name] = plain_stage(stage, site, box, lanes)
        return plan

    def in_chunks(self, lane: int, lanes: int, vectors: int) -> int:
        """An axis in chunks of some vectors: lanes of a vector."""
        loops, name, whole = self.loops, self.axes[lane], self.result.shape[lane]
        if not isinstance(whole, Const):
            masked = self.is_masked(self.result, *self.inner)
            counted, vector = loops.split(name, lanes, whole, masked)
            loops.marks.append(Mask(vector) if masked else Vectorize(vector))
            loops.serial, loops.inner = [counted], [vector]
            others = [axis for axis in self.wide if axis != lane and self.is_known(axis)]
            if math.prod(self.extents[axis] for axis in others) < self.options.enough_jobs:
                outer, vector_index = f"{counted}_o", f"{counted}_i"
                loops.splits.append(Split(counted, outer, vector_index, vectors))
                loops.outer.append(outer)
                loops.serial = [vector_index]
            return lanes
        count, chunk = self.extents[lane], lanes * vectors
        if count >= 2 * chunk:  # chunks of one size, so that the last one repeats little
            chunk = lanes * -(-count // (lanes * -(-count // chunk)))
            outer, name = loops.split(name, chunk, whole)
            loops.outer.append(outer)
            count = chunk
        lanes, _ = vectors_of(count, lanes, 1)
        *loops.serial, vector = loops.vectors(name, lanes, Const(count))
        loops.inner = [vector]
        return lanes

    def tiled(self, stage: Tensor) -> dict[str, Directives]:
        """One reduction with as many elements as the result."""
        lanes = self.lanes(stage, self.result)
        along = self.variable(stage, self.lane_axis)
        is_near_lane = bool(along) and is_near(stage, along)
        summed = summed_axis(stage, lanes, self.is_masked(stage))
        if is_near_lane or summed is None:
            return self.tile_of_vectors_or_totals(stage, lanes)
        if is_combined(stage) and not self.shares_reads(stage, summed):
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
        assert isinstance(stage.body, Reduce)
        count = next(extent(n) for variable, n in stage.body.axes if variable.name == summed)
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
        name = self.variable(stage, lane).rpartition("@")[2]
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
        # Rows of tiles last: the vectors that they share are then still in the nearest cache.
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

    def by_rows(self) -> dict[str, Directives]:
        """Several reductions: all of them for a part of the result that needs no other part's."""
        loops, lanes = self.loops, self.lanes(self.result, *self.inner)
        factors = row_factors(self.result, self.inner, self.where)
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
                width, _ = vectors_of(size[axis], lanes, 1)
                whole = Const(size[axis]) if factor else self.result.shape[axis]
                short = isinstance(whole, Const) and size[axis] <= MOST_TOTALS * width
                loops.inner += loops.vectors(inside, width, whole, unrolled=short)
            else:
                loops.inner.append(inside)
        plan = {self.result.name: loops.directives()}
        site = self.site(loops.shared())
        for stage in self.inner:
            plan |= self.row_stage(stage, site, self.box(stage, size), lanes)
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
            if is_combined(stage):
                masked = self.is_masked(stage)
                several = self.options.totals
                return across_stages(stage, site, summed, lanes, not wide, masked, several)
            return dot_stages(stage, site, summed, lanes, in_registers=not wide)
        moves = wide and self.shifts(stage, wide[-1], lanes)
        tail: Tail = "shift_inwards" if moves else "remainder"
        return {stage.name: plain_stage(stage, site, box, lanes, tail)}

    def shifts(self, stage: Tensor, dimension: int, lanes: int) -> bool:
        """Whether the last vector of a stage's whole axis can be moved back."""
        whole = stage.shape[dimension]
        follows = self.where[stage.name][dimension]
        is_whole = follows is None or follows.axis in self.whole_axes
        return is_whole and self.loops.shifts(lanes, whole)
