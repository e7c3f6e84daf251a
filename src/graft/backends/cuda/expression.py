"""Kernels of tensor expressions: whatever has an expression, scheduled for blocks and threads.

Two schedules. *Elements*: each thread computes a vector of neighbouring elements of the result,
with the reductions behind them in registers. *Rows*: a block computes a row of the result; its
threads share each reduction along the row, by sums of their own in shared memory (softmax, layer
normalisation). Everything that is no reduction is computed where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graft.llvm.gpu import Kernel, loop_kernel
from graft.loop.default_schedule import axis_names, element_count, fuse_axes, inline_stages
from graft.loop.errors import LoopError
from graft.loop.ir import Const, Expr, Load
from graft.loop.lower import lower
from graft.loop.schedule import (
    CacheWrite,
    Combine,
    ComputeAt,
    Directive,
    Factor,
    Parallel,
    Schedule,
    Split,
    StoreIn,
    Thread,
    Unroll,
    Vectorize,
)
from graft.loop.tensor import Reduce, Tensor
from graft.loop.traverse import variables, walk_expr

_THREADS = 128  # of a block that computes elements
_BUSY = 1 << 15  # threads that keep a GPU busy enough to give each of them a whole vector
_LANES = (8, 4, 2)
_LONG_ROW, _MANY_ROWS = 64, 1 << 15  # what is worth a block of its own, and what is not
_ROW_THREADS = range(64, 257, 4)
_UNROLLED = 16  # terms of a sum that are asked for before the first is there


def expression_kernel(arguments: Sequence[Tensor], result: Tensor) -> Kernel:
    """The kernel that computes a result from its arguments, all as they lie in memory."""
    inlined, written = inline_stages(arguments, result)
    reductions = [one for one in written.values() if isinstance(one.body, Reduce)]
    job = _Job((*arguments, result), written[result.name], reductions, inlined)
    if reductions and all(_is_along_rows(reduction, job.result) for reduction in reductions):
        return _rows(job)
    lasting = _extent(result, -1) if result.shape else 1
    for lanes in _LANES:
        if lasting % lanes == 0 and element_count(result) // lanes >= _BUSY:
            try:
                return _elements(job, lanes)
            except LoopError:  # a reduction that cannot be had in lanes
                continue
    return _elements(job, 1)


@dataclass(frozen=True, slots=True)
class _Job:
    """What a schedule is made for: `arguments` with the result last, and the stages that are left
    when all others are computed where they are read."""

    arguments: tuple[Tensor, ...]
    result: Tensor
    reductions: Sequence[Tensor]
    inlined: dict[str, list[Directive]]

    def kernel(self, stages: dict[str, list[Directive]], threads: int, blocks: int) -> Kernel:
        schedule = Schedule.of({**self.inlined, **stages})
        return loop_kernel(lower("kernel", self.arguments, schedule), threads, blocks)


def _extent(tensor: Tensor, axis: int) -> int:
    extent = tensor.shape[axis]
    assert isinstance(extent, Const)
    return int(extent.value)


def _elements(job: _Job, lanes: int) -> Kernel:
    result, axes, directives = job.result, axis_names(job.result), list[Directive]()
    if lanes > 1:
        directives += [Split(axes[-1], "outer", "lane", lanes), Vectorize("lane")]
        axes[-1] = "outer"
    fused = fuse_axes(axes, directives)
    directives.append(Parallel(fused))
    stages: dict[str, list[Directive]] = {result.name: directives}
    for reduction in job.reductions:
        stages[reduction.name] = [ComputeAt(result.name, fused), StoreIn("register")]
        lane = _lane_axis(reduction, result) if lanes > 1 else None
        if lane is not None:
            stages[reduction.name].append(Vectorize(lane))
    blocks = math.ceil(element_count(result) / lanes / _THREADS)
    return job.kernel(stages, _THREADS, blocks)


def _lane_axis(reduction: Tensor, result: Tensor) -> str | None:
    """The axis of a reduction along which neighbouring results need its elements, if any."""
    last = result.axes[-1].name
    for part in walk_expr(result.body if isinstance(result.body, Expr) else Const(0)):
        if isinstance(part, Load) and part.buffer.name == reduction.name:
            for axis, index in zip(axis_names(reduction), part.indices, strict=True):
                if last in variables(index):
                    return axis
    return None


def _is_along_rows(reduction: Tensor, result: Tensor) -> bool:
    """Whether few long sums are asked for, each of neighbours in memory."""
    assert isinstance(reduction.body, Reduce)
    axis, rows = reduction.body.axes[-1][0], element_count(reduction)
    leading = element_count(result) // (_extent(result, -1) if result.shape else 1)
    reads = [part for part in walk_expr(reduction.body.body) if isinstance(part, Load)]
    near = any(part.indices and part.indices[-1] == axis for part in reads)
    is_long = _reduced_extent(reduction) >= _LONG_ROW
    return is_long and near and rows <= _MANY_ROWS and rows in (leading, element_count(result))


def _rows(job: _Job) -> Kernel:
    result, axes, directives = job.result, axis_names(job.result), list[Directive]()
    extents = [_reduced_extent(reduction) for reduction in job.reductions]
    # A thread adds up its share one by one, then every thread the shares of all, four at a time.
    threads = min(
        _ROW_THREADS,
        key=lambda lanes: sum(n // lanes * 4 + n % lanes * 4 + lanes // 4 for n in extents),
    )
    rows = element_count(job.reductions[0])
    has_columns = rows < element_count(result)
    fused = fuse_axes(axes[:-1] if has_columns else axes, directives)
    directives.append(Parallel(fused))
    if has_columns:
        directives.append(Thread(axes[-1]))
    stages: dict[str, list[Directive]] = {result.name: directives}
    here = ComputeAt(result.name, fused)
    for reduction in job.reductions:
        assert isinstance(reduction.body, Reduce)
        axis, totals = reduction.body.axes[-1][0].name.rpartition("@")[2], f"{reduction.name}.parts"
        shares: list[Directive] = [
            Factor(axis, totals, threads),
            here,
            StoreIn("register"),
            Combine("lane"),
        ]
        stages[reduction.name] = shares
        stages[totals] = [CacheWrite(f"{totals}.own"), Thread("lane"), here, StoreIn("shared")]
        stages[f"{totals}.own"] = [ComputeAt(totals, "lane"), StoreIn("register")]
        if _reduced_extent(reduction) // threads <= _UNROLLED:
            stages[f"{totals}.own"].append(Unroll(axis))
        if _reduced_extent(reduction) % threads:
            stages[f"{totals}.tail"] = [here, StoreIn("register")]
    return job.kernel(stages, threads, rows)


def _reduced_extent(reduction: Tensor) -> int:
    assert isinstance(reduction.body, Reduce)
    extent = reduction.body.axes[-1][1]
    assert isinstance(extent, Const)
    return int(extent.value)
