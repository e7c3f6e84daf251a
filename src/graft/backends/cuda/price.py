"""What a region takes on the GPU: its plan in, predicted seconds out; no code is made.

Products are predicted by the model that schedules are chosen by (`schedule.py`). Kernels of tensor
expressions take as long as their bytes through memory, or as what one thread reads one after the
other, whichever is longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graft.backends.cuda.attention import KEYS, WARPS, Attention
from graft.backends.cuda.plan import RegionPlan
from graft.backends.cuda.problem import Product
from graft.backends.cuda.schedule import LAUNCH, PROCESSORS, predicted
from graft.llvm.gpu import Kernel
from graft.loop.ir import Buffer, Expr, For, Function, LoopKind, Scope, Stmt
from graft.loop.ranges import Context, constant_upper_bound
from graft.loop.traverse import expressions, loads_in, statements

# By times of 328 products and 160 other kernels of seven networks on an H200, each following
# itself, so that launches overlap: nanoseconds of a kernel of expressions that does next to
# nothing, of a read that others follow, bytes of memory in one, and nanoseconds of attention for
# each tile of keys of a warp and byte of an element.
_LEAST, _READ, _BYTES, _TILE = 900.0, 50.0, 4000.0, 1400.0
_THREADS = 1024  # of a multiprocessor, at work at once
_NOTHING_KNOWN = Context()


def predicted_seconds(plan: RegionPlan) -> float:
    """The launches of a plan one after the other."""
    return sum(_nanoseconds(plan.code[launch.kernel]) for launch in plan.launches) * 1e-9


def _nanoseconds(kernel: Kernel) -> float:
    if isinstance(kernel.problem, Function):
        return _LEAST + max(_reads(kernel.problem, kernel) * _READ, _bytes(kernel.buffers) / _BYTES)
    problem, *others = kernel.problem
    if isinstance(problem, Product):
        return predicted(problem, others[0]) - LAUNCH
    assert isinstance(problem, Attention)
    tiles = math.ceil(problem.keys / (KEYS * WARPS))
    return _LEAST + tiles * _TILE * problem.dtype.numpy.itemsize


def _bytes(buffers: Iterable[Buffer]) -> float:
    counts = (math.prod(map(_most, one.extents)) * one.dtype.numpy.itemsize for one in buffers)
    return float(sum(counts))


def _most(extent: Expr, context: Context = _NOTHING_KNOWN) -> int:
    """What an extent is at most; 1 where nothing says so."""
    return constant_upper_bound(extent, context) or 1


def _reads(function: Function, kernel: Kernel) -> float:
    """What a thread reads of memory, times the waves of blocks that the GPU runs."""
    waves = math.prod(kernel.grid) * kernel.threads / (PROCESSORS * _THREADS)
    return _own_reads(function.body, kernel.threads, _NOTHING_KNOWN) * max(1.0, waves)


def _own_reads(statement: Stmt, threads: int, context: Context) -> int:
    read = loads_in(*expressions(statement))
    count = sum(one.buffer.scope is Scope.ARGUMENT for one in read)
    if not isinstance(statement, For):
        return count + sum(_own_reads(one, threads, context) for one in statements(statement))
    inner = context.loop(statement.var, statement.start, statement.extent)
    inside = count + _own_reads(statement.body, threads, inner)
    if statement.kind in (LoopKind.PARALLEL, LoopKind.VECTOR):
        return inside
    iterations = _most(statement.extent, context)
    return inside * math.ceil(iterations / (threads if statement.kind is LoopKind.THREAD else 1))
