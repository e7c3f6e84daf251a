"""Puts all intermediate tensors of a static graph into one arena.

In goes a graph whose shapes are plain numbers; out comes a plan: an offset for each tensor that has
to live in the arena, such that tensors which are alive at the same time do not overlap. Views share
the memory of what they view. The plan says how large the arena is beside the lower bound, which is
the largest sum of tensors alive at one step: no plan can do with less.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from graft.base.dims import Dim
from graft.base.errors import UnsupportedError
from graft.ir.graph import Graph, Node, Value
from graft.passes.simplify_movement import VIEWS

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Interval:
    """Memory that is needed from one step to another, both included."""

    size: int
    first: int
    last: int

    def overlaps(self, other: Interval) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where tensors live in the arena, and how good the plan is."""

    offsets: dict[Value, int]
    owner: dict[Value, Value]  # a view -> the tensor whose memory it is
    arena_bytes: int
    lower_bound: int

    def __str__(self) -> str:
        ratio = self.arena_bytes / self.lower_bound if self.lower_bound else 1.0
        return f"arena {self.arena_bytes:,} bytes, {ratio:.3f} of the lower bound"


def plan_memory(graph: Graph) -> MemoryPlan:
    """Plan the arena of a graph whose nodes run in order."""
    owner = _owners(graph)
    outside = {owner.get(value, value) for value in (*graph.inputs, *graph.outputs)}
    outside |= {node.output for node in graph.nodes if node.op.name == "constant"}
    intervals = {
        value: interval
        for value, interval in _intervals(graph, owner).items()
        if value not in outside and interval.size
    }
    offsets = place(list(intervals.values()))
    placed = dict(zip(intervals, offsets, strict=True))
    arena = max((placed[v] + i.size for v, i in intervals.items()), default=0)
    return MemoryPlan(placed, owner, arena, lower_bound(intervals.values()))


def _owners(graph: Graph) -> dict[Value, Value]:
    """Each view's tensor: the one at the end of its chain of views."""
    owner: dict[Value, Value] = {}
    for node in graph.nodes:
        if is_view(node):
            source = node.args[0]
            owner[node.output] = owner.get(source, source)
    return owner


def is_view(node: Node) -> bool:
    """Whether the node's result is its operand's memory under another shape."""
    return node.op.name in VIEWS


def _intervals(graph: Graph, owner: dict[Value, Value]) -> dict[Value, Interval]:
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for step, node in enumerate(graph.nodes):
        for value in node.args:
            last[owner.get(value, value)] = step
        for value in node.outputs:
            root = owner.get(value, value)
            first.setdefault(root, step)
            last[root] = step
    return {v: Interval(_aligned_size(v), first[v], last[v]) for v in first}


def _aligned_size(value: Value) -> int:
    size = value.tensor.size * value.dtype.numpy.itemsize
    if not isinstance(size, int):
        raise UnsupportedError(f"the size of %{value.name}, {value.type}, is not known")
    return _rounded(size)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Memory of some size, a number or not, that is needed from one step to another."""

    size: Dim
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Where memory lies: per lifetime a pool of the arena and an offset there, and per pool the
    sizes of which the largest is the pool's. `bound` is what no plan can do without, where it is a
    number."""

    places: tuple[tuple[int, int], ...]
    pools: tuple[tuple[Dim, ...], ...]
    bound: int | None


def plan_arena(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Put memory that is never needed at the same time into the same place.

    Where all sizes are numbers, that is one pool with an offset for each. Otherwise each lies at
    the beginning of a pool, which is as large as the largest that ever does: numbers for symbols
    decide then."""
    sizes = [one.size for one in lifetimes]
    if not lifetimes:
        return ArenaPlan((), (), 0)
    if all(isinstance(size, int) for size in sizes):
        intervals = [
            Interval(_rounded(one.size), one.first, one.last)
            for one in lifetimes
            if isinstance(one.size, int)
        ]
        offsets = place(intervals)
        ends = (offset + one.size for offset, one in zip(offsets, intervals, strict=True))
        places = tuple((0, offset) for offset in offsets)
        return ArenaPlan(places, ((max(ends),),), lower_bound(intervals))
    return _pooled(lifetimes)


def _pooled(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Shelves; memory goes to a free one on which something of its size lies already, if it can."""
    pools: list[dict[Dim, None]] = []
    ends: list[int] = []
    places = [(0, 0)] * len(lifetimes)
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
        places[index] = number, 0
    return ArenaPlan(tuple(places), tuple(map(tuple, pools)), None)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def lower_bound(intervals: Iterable[Interval]) -> int:
    """The largest sum of sizes alive at one step."""
    return fullest(intervals)[0]


def fullest(intervals: Iterable[Interval]) -> tuple[int, int]:
    """The largest sum of sizes alive at one step, and the first such step."""
    changes: dict[int, int] = {}
    for interval in intervals:
        changes[interval.first] = changes.get(interval.first, 0) + interval.size
        changes[interval.last + 1] = changes.get(interval.last + 1, 0) - interval.size
    alive = largest = when = 0
    for step in sorted(changes):
        alive += changes[step]
        if alive > largest:
            largest, when = alive, step
    return largest, when


_Rank = Callable[[Interval], tuple[int, ...]]

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


def place(intervals: Sequence[Interval]) -> list[int]:
    """The offsets of the order that needs the smallest arena."""
    if len(intervals) > _MOST_TENSORS or _pairs(intervals) > _MOST_PAIRS:
        return _step_by_step(intervals)
    bound = lower_bound(intervals)
    best: list[int] = []
    smallest: int | None = None
    for rank in _RANKS:
        offsets = _best_fit(intervals, rank)
        arena = max((o + i.size for o, i in zip(offsets, intervals, strict=True)), default=0)
        if smallest is None or arena < smallest:
            best, smallest = offsets, arena
        if smallest == bound:
            break
    return best


def _pairs(intervals: Sequence[Interval]) -> int:
    """How many pairs of tensors are alive at one step at least."""
    firsts = sorted(interval.first for interval in intervals)
    lasts = sorted(interval.last for interval in intervals)
    return sum(number - bisect_left(lasts, first) for number, first in enumerate(firsts))


def _best_fit(intervals: Sequence[Interval], rank: _Rank) -> list[int]:
    """Place each tensor into the tightest gap among those alive with it, or behind them all."""
    order = sorted(range(len(intervals)), key=lambda index: rank(intervals[index]))
    firsts = np.array([intervals[index].first for index in order], np.int64)
    lasts = np.array([intervals[index].last for index in order], np.int64)
    offsets = [0] * len(intervals)
    for number, index in enumerate(order):
        interval = intervals[index]
        alive = (firsts[:number] <= interval.last) & (lasts[:number] >= interval.first)
        others = [order[other] for other in np.flatnonzero(alive)]
        taken = sorted((offsets[other], offsets[other] + intervals[other].size) for other in others)
        offsets[index] = _tightest_gap(taken, interval.size)
    return offsets


def _step_by_step(intervals: Sequence[Interval]) -> list[int]:
    """Hand memory out in the order of steps: the smallest block that is large enough, or new."""
    order = sorted(range(len(intervals)), key=lambda index: intervals[index].first)
    offsets = [0] * len(intervals)
    alive: list[tuple[int, int, int]] = []  # last step, offset, size
    free = _FreeBlocks()
    for index in order:
        interval = intervals[index]
        while alive and alive[0][0] < interval.first:
            _, offset, size = heappop(alive)
            free.add(offset, size)
        offsets[index] = free.take(interval.size)
        heappush(alive, (interval.last, offsets[index], interval.size))
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
        found, offset = self._by_size[number]
        self._remove(offset, found)
        self.add(offset + size, found - size)
        return offset

    def _remove(self, offset: int, size: int) -> int:
        del self._sizes[offset], self._offsets[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        return size


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    best, best_gap, end = -1, -1, 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best < 0 or gap < best_gap):
            best, best_gap = end, gap
        end = max(end, stop)
    return end if best < 0 else best
