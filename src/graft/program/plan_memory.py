"""Memory planning: sizes and lifetimes in, offsets in an arena out.

Memory that is needed at the same time does not overlap. `bound` is the largest sum of sizes alive
at one step, which no plan can do without. Sizes are numbers, or dims where shapes are symbolic.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

import numpy as np

from graft.base.dims import Dim
from graft.program.program import ALIGNMENT

S_co = TypeVar("S_co", bound=Dim, covariant=True)


@dataclass(frozen=True, slots=True)
class Lifetime(Generic[S_co]):
    """Memory of some size that is needed from one step to another, both included."""

    size: S_co
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Where memory lies: per lifetime a pool of the arena and an offset there, and per pool the
    sizes of which the largest is the pool's. `bound` is what no plan can do without, where it is a
    number."""

    offsets: tuple[tuple[int, int], ...]
    pools: tuple[tuple[Dim, ...], ...]
    bound: int | None


def plan_arena(lifetimes: Sequence[Lifetime[Dim]]) -> ArenaPlan:
    """Let memory that is never needed at the same time share an offset.

    Where all sizes are numbers, there is one pool with an offset for each lifetime. Otherwise each
    lies at the beginning of a pool, whose size is the largest that ever does: it is known when the
    symbols have numbers."""
    static = [
        Lifetime(_rounded(lifetime.size), lifetime.first, lifetime.last)
        for lifetime in lifetimes
        if isinstance(lifetime.size, int)
    ]
    if len(static) < len(lifetimes):
        return _pooled(lifetimes)
    if not static:
        return ArenaPlan((), (), 0)
    offsets = assign_offsets(static)
    end = max(offset + one.size for offset, one in zip(offsets, static, strict=True))
    return ArenaPlan(tuple((0, offset) for offset in offsets), ((end,),), fullest(static)[0])


def _pooled(lifetimes: Sequence[Lifetime[Dim]]) -> ArenaPlan:
    """Pools; memory goes to a free one in which something of its size lies already, if it can."""
    pools: list[dict[Dim, None]] = []
    ends: list[int] = []
    offsets = [(0, 0)] * len(lifetimes)
    order = sorted(range(len(lifetimes)), key=lambda n: (lifetimes[n].first, lifetimes[n].last))
    for index in order:
        own = lifetimes[index]
        free = [number for number, end in enumerate(ends) if end < own.first]
        alike = [number for number in free if own.size in pools[number]]
        number = next(iter((*alike, *reversed(free))), len(ends))
        if number == len(ends):
            ends.append(own.last)
            pools.append({})
        ends[number] = own.last
        pools[number][own.size] = None
        offsets[index] = number, 0
    return ArenaPlan(tuple(offsets), tuple(map(tuple, pools)), None)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def fullest(lifetimes: Iterable[Lifetime[int]]) -> tuple[int, int]:
    """The largest sum of sizes alive at one step, and the first such step."""
    changes: dict[int, int] = {}
    for lifetime in lifetimes:
        changes[lifetime.first] = changes.get(lifetime.first, 0) + lifetime.size
        changes[lifetime.last + 1] = changes.get(lifetime.last + 1, 0) - lifetime.size
    alive = largest = when = 0
    for step in sorted(changes):
        alive += changes[step]
        if alive > largest:
            largest, when = alive, step
    return largest, when


_Rank = Callable[[Lifetime[int]], tuple[int, ...]]

# Orders in which tensors are placed; none is best for every graph, and trying all is cheap.
_RANKS: tuple[_Rank, ...] = (
    lambda i: (-i.size, i.first),
    lambda i: (i.first, -i.size),
    lambda i: (i.first - i.last, -i.size),
    lambda i: (-i.size * (i.last - i.first + 1), i.first),
)


# How many pairs of tensors that live at once, and how many tensors, best fit is tried for: it looks
# at all of them. Beyond, memory is handed out step by step, as it is needed.
_MOST_PAIRS = 1 << 22
_MOST_TENSORS = 1 << 14


def assign_offsets(lifetimes: Sequence[Lifetime[int]]) -> list[int]:
    """The offsets of the order that needs the smallest arena."""
    if len(lifetimes) > _MOST_TENSORS or _pairs(lifetimes) > _MOST_PAIRS:
        return _step_by_step(lifetimes)
    bound, _ = fullest(lifetimes)
    best: list[int] = []
    smallest: int | None = None
    for rank in _RANKS:
        offsets = _best_fit(lifetimes, rank)
        arena = max((o + i.size for o, i in zip(offsets, lifetimes, strict=True)), default=0)
        if smallest is None or arena < smallest:
            best, smallest = offsets, arena
        if smallest == bound:
            break
    return best


def _pairs(lifetimes: Sequence[Lifetime[int]]) -> int:
    """How many pairs of tensors are alive at one step at least."""
    firsts = sorted(lifetime.first for lifetime in lifetimes)
    lasts = sorted(lifetime.last for lifetime in lifetimes)
    return sum(number - bisect_left(lasts, first) for number, first in enumerate(firsts))


def _best_fit(lifetimes: Sequence[Lifetime[int]], rank: _Rank) -> list[int]:
    """Place each tensor into the tightest gap among those alive with it, or behind them all."""
    order = sorted(range(len(lifetimes)), key=lambda index: rank(lifetimes[index]))
    firsts = np.array([lifetimes[index].first for index in order], np.int64)
    lasts = np.array([lifetimes[index].last for index in order], np.int64)
    offsets = [0] * len(lifetimes)
    for number, index in enumerate(order):
        lifetime = lifetimes[index]
        alive = (firsts[:number] <= lifetime.last) & (lasts[:number] >= lifetime.first)
        others = [order[other] for other in np.flatnonzero(alive)]
        intervals = sorted(
            (offsets[other], offsets[other] + lifetimes[other].size) for other in others
        )
        offsets[index] = _tightest_gap(intervals, lifetime.size)
    return offsets


def _step_by_step(lifetimes: Sequence[Lifetime[int]]) -> list[int]:
    """Hand memory out in the order of steps: the smallest block that is large enough, or new."""
    order = sorted(range(len(lifetimes)), key=lambda index: lifetimes[index].first)
    offsets = [0] * len(lifetimes)
    alive: list[tuple[int, int, int]] = []  # last step, offset, size
    free = _FreeBlocks()
    for index in order:
        lifetime = lifetimes[index]
        while alive and alive[0][0] < lifetime.first:
            _, offset, size = heappop(alive)
            free.add(offset, size)
        offsets[index] = free.take(lifetime.size)
        heappush(alive, (lifetime.last, offsets[index], lifetime.size))
    return offsets


class _FreeBlocks:
    """The unused parts of an arena that grows; neighbours are one."""

    def __init__(self) -> None:
        self._end = 0  # of the arena
        self._sizes: dict[int, int] = {}  # by offset
        self._offsets: dict[int, int] = {}  # by end
        self._by_size: list[tuple[int, int]] = []  # size, offset; sorted

    def add(self, offset: int, size: int) -> None:
        """Give memory back."""
        if not size:
            return
        if offset in self._offsets:
            offset, before = self._offsets[offset], offset
            size += self._remove(offset, before - offset)
        if offset + size in self._sizes:
            size += self._remove(offset + size, self._sizes[offset + size])
        self._sizes[offset], self._offsets[offset + size] = size, offset
        insort(self._by_size, (size, offset))

    def take(self, size: int) -> int:
        """The offset of a block."""
        number = bisect_left(self._by_size, (size, 0))
        if number == len(self._by_size):  # what is free at the end can grow
            start = self._offsets.get(self._end, self._end)
            if start < self._end:
                self._remove(start, self._end - start)
            self._end = start + size
            return start
        free_bytes, offset = self._by_size[number]
        self._remove(offset, free_bytes)
        self.add(offset + size, free_bytes - size)
        return offset

    def _remove(self, offset: int, size: int) -> int:
        del self._sizes[offset], self._offsets[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        return size


def _tightest_gap(intervals: Sequence[tuple[int, int]], size: int) -> int:
    best, best_gap, end = -1, -1, 0
    for start, stop in intervals:
        gap = start - end
        if gap >= size and (best < 0 or gap < best_gap):
            best, best_gap = end, gap
        end = max(end, stop)
    return end if best < 0 else best
