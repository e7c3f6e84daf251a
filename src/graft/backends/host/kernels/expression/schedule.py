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

from graft.backends.host.kernels.expression.loops import (
    Directives,
    plain_stage,
    vectors_of,
)
from graft.backends.host.kernels.expression.root import Caution, Root, is_symbolic
from graft.backends.host.kernels.expression.rows import Rows
from graft.backends.host.kernels.expression.stages import (
    extent,
    kept_stages,
    operand_axis,
    transposed_operands,
)
from graft.backends.host.kernels.expression.tiles import Tiles
from graft.loop.ir import Const
from graft.loop.schedule import (
    CacheWrite,
    Inline,
    Mask,
    Schedule,
    Split,
    Variant,
    Vectorize,
)
from graft.loop.stages import loads, rewrite_stages
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.target.target import Target


class CannotScheduleError(Exception):
    """Why there is no default schedule."""


def default_variants(results: Sequence[Tensor], target: Target) -> list[Variant]:
    """Schedules of the results for ranges of their symbolic extents, the most demanding first."""
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
    if caution is Caution.NONE and is_symbolic(stages):
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
        root = _root(stages[result.name], inner, target, caution)
        for name, directives in root.schedule().items():
            plan[name] = [*plan.get(name, []), *directives]
        needs |= {n: max(least, needs.get(n, 0)) for n, least in root.loops.needs.items()}
    schedule = Schedule.of({name: parts for name, parts in plan.items() if parts})
    return Variant(schedule, tuple(sorted(needs.items())))


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


def _root(result: Tensor, inner: list[Tensor], target: Target, caution: Caution) -> Root:
    """How a result is scheduled: by the reductions inside it."""
    reductions = [stage for stage in inner if isinstance(stage.body, Reduce)]
    if not reductions:
        return Pointwise(result, inner, target, caution)
    tiles = Tiles(result, inner, target, caution)
    if len(reductions) == 1 and tiles.is_tiled(reductions[0]):
        return tiles
    return Rows(result, inner, target, caution)


class Pointwise(Root):
    """No reduction: vectors along the contiguous axis, several in an iteration."""

    def schedule(self) -> dict[str, Directives]:
        """Vectors along the contiguous axis.

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
