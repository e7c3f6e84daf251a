"""Loop nests in the making, and the nests of stages inside others: parts of default schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graft.backends.host.kernels.expression.stages import (
    extent,
    has_rest,
    is_near,
    least,
    reduction_names,
)
from graft.loop.default_schedule import axis_names
from graft.loop.ir import Binary, BinaryKind, Const, Expr
from graft.loop.nest import short
from graft.loop.regions import axis_extents
from graft.loop.schedule import (
    Combine,
    ComputeAt,
    Directive,
    Factor,
    FactorMasked,
    Fuse,
    Interleave,
    Mask,
    Parallel,
    Reorder,
    Split,
    StoreIn,
    Tail,
    Unroll,
    Vectorize,
)
from graft.loop.simplify import simplify
from graft.loop.tensor import Reduce, Tensor
from graft.target.target import Target

# Fewer neighbours than this are a vector as they are; of more, a power of two is.
SHORT = 4
# More copies of a statement than this are more code than they save time.
MOST_COPIES = 64

# Vectors of totals side by side at most, where there are no more vectors than that.
MOST_TOTALS = 8

Directives = list[Directive]


@dataclass(frozen=True, slots=True)
class ExpressionSchedule:
    """What a search may vary."""

    vectors: int = 2  # of a tile of sums, along the contiguous axis
    rows: int = 8  # of such a tile, at most
    totals: int = 4  # vectors of totals, so that an addition need not wait for the one before
    dot_rows: tuple[int, int] = (2, 4)  # of a tile of sums whose lanes run along what is summed
    chunk: int = 32  # vectors of a contiguous axis that one iteration of the shared loop does
    transposed_chunk: int = 4  # the same where operands are contiguous along another axis
    row_chunk: int = 4  # the same for reductions along another axis
    enough_jobs: int = 16  # iterations of the shared loop that suffice for any number of threads

    @staticmethod
    def of(target: Target) -> ExpressionSchedule:
        """The default for a target: a tile leaves a few registers for what it reads."""
        rows = max(1, min(8, (target.vector_registers - 4) // 2))
        return ExpressionSchedule(rows=rows, totals=max(2, target.machine.accumulators))


@dataclass
class Loops:
    """A result's nest: the loops that become one, those inside it, and those of a tile.

    `needs` are the least values of scalars with which it will do: a tile can be moved back only
    where there is as much as a tile. A careful nest needs nothing.
    """

    careful: bool = False
    needs: dict[str, int] = field(default_factory=dict)
    outer: list[str] = field(default_factory=list)
    serial: list[str] = field(default_factory=list)
    inner: list[str] = field(default_factory=list)
    splits: Directives = field(default_factory=list)
    marks: Directives = field(default_factory=list)

    def split(self, loop: str, factor: int, whole: Expr, masked: bool = False) -> tuple[str, str]:
        """The loop in tiles; the last is masked, or moved back where it would reach too far."""
        outer, inner = f"{loop}_o", f"{loop}_i"
        shifts = not masked and self.shifts(factor, whole)
        tail: Tail = "shift_inwards" if shifts else "guard"
        self.splits.append(Split(loop, outer, inner, factor, tail))
        return outer, inner

    def shifts(self, factor: int, whole: Expr) -> bool:
        """Whether the last tile is moved back, which may need extents to be large enough."""
        if isinstance(whole, Const):
            count = int(whole.value)
            return count % factor != 0 and count > factor
        needed = None if self.careful or not has_rest(whole, factor) else least(whole, factor)
        if needed is None:
            return False
        name, count = needed
        self.needs[name] = max(self.needs.get(name, 0), count)
        return True

    def vectors(
        self, loop: str, lanes: int, whole: Expr, unrolled: bool = False, masked: bool = False
    ) -> list[str]:
        """The loop in vectors, the last of which may be masked: the loops that it becomes."""
        if lanes >= extent(whole) and not masked:
            self.marks.append(Vectorize(loop))
            return [loop]
        outer, inner = self.split(loop, lanes, whole, masked)
        self.marks.append(Mask(inner) if masked else Vectorize(inner))
        self.marks += [Unroll(outer)] if unrolled else []
        return [outer, inner]

    def unroll(self, loop: str) -> str:
        self.marks.append(Unroll(loop))
        return loop

    def shared(self) -> str | None:
        """The name of the loop that the outer ones become."""
        return fused(self.outer)[0]

    def around_tile(self) -> str | None:
        """The innermost loop that is not part of a tile."""
        return self.serial[-1] if self.serial else self.shared()

    def directives(self) -> Directives:
        """Everything in order: splits, the order of loops, the shared loop, lanes and copies."""
        name, fusions = fused(self.outer)
        parallel = [] if name is None else [Parallel(name)]
        order = Reorder((*self.outer, *self.serial, *self.inner))
        return [*self.splits, order, *fusions, *parallel, *self.marks]


def fused(loops: Sequence[str]) -> tuple[str | None, Directives]:
    """One loop of several neighbours."""
    if not loops:
        return None, []
    name, directives = loops[0], Directives()
    for position, loop in enumerate(loops[1:], start=2):
        new = "shared" if position == len(loops) else f"{name}_{loop}"
        directives.append(Fuse(name, loop, new))
        name = new
    return name, directives


def vectors_of(count: int, lanes: int, most: int) -> tuple[int, int]:
    """Lanes and vectors of a tile along an axis."""
    if count <= min(lanes, SHORT):
        return count, 1
    while lanes > count:
        lanes //= 2
    return lanes, min(most, count // lanes)


def even_part(count: int, most: int) -> int:
    """A part of an axis, at most so large, that makes for the least work.

    A tile reads what its rows share, which costs about as much as one or two rows more.
    """
    sizes = range(max(1, min(count, most) // 2), min(count, most) + 1)
    return min(sizes, key=lambda size: -(-count // size) * (size + 1.5))


def summed_axis(stage: Tensor, lanes: int, masked: bool = False) -> str | None:
    """An axis summed over along which all operands are contiguous, and long enough."""
    least = min(lanes, SHORT + 1 if masked else 2 * SHORT)
    if isinstance(stage.body, Reduce):
        for axis, count in reversed(stage.body.axes):
            if extent(count) >= least and is_near(stage, axis.name, 1):
                return axis.name
    return None


def in_registers(site: Sequence[ComputeAt]) -> Directives:
    """A stage that is kept in registers where it is computed inside of a loop."""
    return [*site, *([StoreIn("register")] if site else [])]


def plain_stage(
    stage: Tensor,
    site: Sequence[ComputeAt],
    box: Sequence[int],
    lanes: int,
    tail: Tail = "remainder",
    masked: bool = False,
) -> Directives:
    """A stage without a reduction, or one whose totals are neighbours: vectors of them.

    The box is what is computed of it at a time. Where the last vector is not `masked`, `tail` says
    what becomes of it.
    """
    wide = [dimension for dimension, count in enumerate(box) if count > 1]
    if not wide:
        return in_registers(site)
    names = axis_names(stage)
    name = names[wide[-1]]
    outer, inner = f"{name}_o", f"{name}_i"
    plain = [one for one in names if one != name]
    count = box[wide[-1]]
    width = masked_lanes(count, lanes) if masked else min(lanes, count)
    return [
        *site,
        Split(name, outer, inner, width, "guard" if masked else tail),
        Reorder((*plain, outer, *reduction_names(stage), inner)),
        Mask(inner) if masked else Vectorize(inner),
    ]


def tile_stage(
    stage: Tensor, site: Sequence[ComputeAt], lane: str | None, sizes: Mapping[str, int], lanes: int
) -> Directives:
    """A reduction into a tile of registers, which has these extents along some of its axes."""
    loops = Loops()
    for name, size in sizes.items():
        if name == lane:
            loops.inner += loops.vectors(name, lanes, Const(size), unrolled=True)
        else:
            loops.inner.append(loops.unroll(name))
    copies = math.prod(sizes.values())
    reduced = reduction_names(stage)
    last = list(map(extent, axis_extents(stage).values()))[-1]
    if last <= SHORT and copies // max(lanes, 1) * last <= MOST_COPIES:
        loops.unroll(reduced[-1])
    plain = [name for name in axis_names(stage) if name not in sizes]
    order = Reorder((*plain, *reduced, *loops.inner))
    return [*in_registers(site), *loops.splits, order, *loops.marks]


def across_stages(
    stage: Tensor,
    site: Sequence[ComputeAt],
    summed: str,
    lanes: int,
    keeps_in_registers: bool,
    masked: bool,
    totals_at_once: int,
) -> dict[str, Directives]:
    """A reduction in several vectors of totals, whose lanes are combined in one step.

    Where what is left is `masked`, it is a vector too.
    """
    here: Directives = in_registers(site) if keeps_in_registers else [*site]
    axis, totals = short(summed), f"{stage.name}_dot"
    partial = f"{totals}.partial"
    loops = (*axis_names(stage), *reduction_names(stage))
    count = axis_extents(stage)[summed]
    has_tail = has_rest(count, lanes)
    if masked and isinstance(count, Const) and len(reduction_names(stage)) > 1:
        count, has_tail = Const(-(-int(count.value) // lanes) * lanes), False
    several = totals_of(count, lanes, totals_at_once)
    lane: Directive = Mask("lane") if masked else Vectorize("lane")
    order: Directives = [Reorder((*loops, "lane")), lane]
    stages: dict[str, Directives] = {
        stage.name: [
            FactorMasked(axis, totals, lanes) if masked else Factor(axis, totals, lanes),
            *here,
            Combine("lane"),
        ],
        totals: [Interleave(axis, partial, several), *here, *order],
        partial: [*here, Reorder((*loops, "part", "lane")), Unroll("part"), lane],
    }
    vectors = simplify(Binary(BinaryKind.FLOOR_DIVIDE, count, Const(lanes)))
    if has_rest(vectors, several):
        is_known = isinstance(count, Const)
        stages[f"{partial}.rest"] = stages[partial] if is_known else [*here, *order]
    if several == 1:
        stages[totals] = [*here, *order]
        del stages[partial]
    if has_tail:
        stages[f"{totals}.tail"] = [*here, *order] if masked else here
    return stages


def total_stages(
    stage: Tensor, site: Sequence[ComputeAt], lane: str, lanes: int, parts: int
) -> dict[str, Directives]:
    """A reduction in vectors of totals along an axis of the result, the last of them masked.

    Each of them is several totals, where there are too few to keep a core busy.
    """
    here = in_registers(site)
    counted, vector = f"{lane}_v", f"{lane}_l"
    split = Split(lane, counted, vector, lanes)
    marks: Directives = [Unroll(counted), Mask(vector)]
    plain = [name for name in axis_names(stage) if name != lane]
    loops = (*plain, *reduction_names(stage))
    nest: Directives = [*here, split, Reorder((*loops, counted, vector)), *marks]
    whole = {short(name): n for name, n in axis_extents(stage).items()}
    longest = max(reduction_names(stage), key=lambda axis: extent(whole[axis]))
    if parts < 2 or extent(whole[longest]) < 2 * parts:
        return {stage.name: nest}
    partial = f"{stage.name}_parts"
    order = Reorder((*loops, "part", counted, vector))
    totals: Directives = [*here, split, order, Unroll("part"), *marks]
    stages = {stage.name: [Interleave(longest, partial, parts), *nest], partial: totals}
    count = whole[longest]
    if not isinstance(count, Const):
        stages[f"{partial}.rest"] = nest  # of elements that are not counted there is one total
    elif int(count.value) % parts:
        stages[f"{partial}.rest"] = totals
    return stages


def lane_stage(stage: Tensor, site: Sequence[ComputeAt], lane: str, lanes: int) -> Directives:
    """A stage with an axis in the lanes of one vector, and all other loops unrolled."""
    outer, inner = f"{lane}_o", f"{lane}_i"
    plain = [name for name in axis_names(stage) if name != lane] + reduction_names(stage)
    return [
        *site,
        StoreIn("register"),
        Split(lane, outer, inner, lanes),
        Reorder((outer, *plain, inner)),
        *(Unroll(name) for name in (outer, *plain)),
        Mask(inner),
    ]


def totals_of(count: Expr, lanes: int, several: int) -> int:
    """How many vectors of totals a reduction of so many elements alternates between."""
    if not isinstance(count, Const):
        return several
    vectors = int(count.value) // lanes
    return max(1, vectors) if vectors <= MOST_TOTALS else several


def masked_lanes(count: int, lanes: int) -> int:
    """Lanes of a vector of so many elements, if those beyond its end can be masked."""
    while lanes // 2 >= count and lanes > 1:
        lanes //= 2
    return lanes


def dot_stages(
    stage: Tensor,
    site: Sequence[ComputeAt],
    summed: str,
    lanes: int,
    unrolled: Iterable[str],
) -> dict[str, Directives]:
    """A reduction in as many totals as a vector has lanes, which are then combined."""
    axis, totals = short(summed), f"{stage.name}_dot"
    here = in_registers(site)
    marks: Directives = [Unroll(name) for name in unrolled]
    plain = [name for name in axis_names(stage) if name not in set(unrolled)]
    order = Reorder((*plain, *reduction_names(stage), *unrolled, "lane"))
    combined: Directives = [Factor(axis, totals, lanes), *here, *marks]
    stages: dict[str, Directives] = {
        stage.name: [*combined, *([Unroll("lane")] if site else [])],
        totals: [*here, order, *marks, Vectorize("lane")],
    }
    count = axis_extents(stage)[summed]
    if has_rest(count, lanes):
        stages[f"{totals}.tail"] = [*here, *marks]
    return stages
