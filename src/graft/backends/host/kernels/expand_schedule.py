"""Schedule and cost of a pointwise and a depthwise convolution in one kernel.

The extents of both enter, and a target; the tile, the rows and the channels of a job leave, and by
how many cycles one kernel is faster than two. Apart, the expanded image goes to the nearest level
of memory that holds it, and comes back from there; together, it stays in the second cache, but
threads that begin in the middle of the image compute rows that their neighbours compute, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from graft.backends.host.cost import typical_shape
from graft.backends.host.group import Group
from graft.backends.host.kernels import conv_schedule
from graft.backends.host.kernels.conv_cost import conv_cost, conv_layouts
from graft.backends.host.kernels.conv_schedule import (
    ENOUGH_JOBS,
    ConvExtents,
    ConvSchedule,
    conv_cycles,
)
from graft.backends.host.kernels.image import vector_lanes
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.target.machine import Machine
from graft.target.register_tile import RETRIED_LOADS, stream_cycles
from graft.target.target import Target

_FLOAT = 4  # bytes
# Share of a cache that a kernel finds what the one before has written in.
_HELD = 0.75
# Vectors of a share of the channels, of which each has to have sums in registers.
_MOST_VECTORS = 8
# Threads that the kernel has to be faster on: each computes some rows again.
_THREADS = 8


@dataclass(frozen=True, slots=True)
class ExpandSchedule:
    """What a search may vary: the register tile of the expansion, and the rows of the result that a
    job makes."""

    tile: ConvSchedule
    rows: int


@dataclass(frozen=True, slots=True)
class ExpandExtents:
    """Two convolutions by the extents that matter."""

    batch: int
    lanes: int
    expansion: ConvExtents  # of one image
    rows: int  # of the result
    columns: int
    taps: tuple[int, int]  # of the depthwise convolution
    window: tuple[int, int]  # pixels from its first tap to its last
    strides: tuple[int, int]

    @property
    def channels(self) -> int:
        """The channels of all blocks."""
        return self.expansion.vectors * self.lanes

    @property
    def shared_rows(self) -> int:
        """The rows of the expanded image that a row of the result and the next one read."""
        return self.window[0] - self.strides[0]

    def ring_rows(self, rows: int) -> int:
        """The rows of the expanded image that so many rows of the result read."""
        return rows * self.strides[0] + self.shared_rows


def extents_of(group: Group, block: int, target: Target) -> ExpandExtents:
    """The extents of a group of the two."""
    expand, depthwise = group.anchors
    batch, channels, height, width = typical_shape(expand.output)
    lanes = vector_lanes(target, DType.FLOAT32, block)
    depth, vectors = typical_shape(expand.args[0])[1], -(-channels // block) * block // lanes
    # more than a row at a time would not fit the ring
    expansion = ConvExtents(
        depth, (1, 1), height, width, vectors, block // lanes, is_static=False, may_overlap=True
    )
    down, across = group.constants[depthwise.args[1]].array.shape[2:]
    steps = depthwise.attrs.dilation
    window = (down - 1) * steps[0] + 1, (across - 1) * steps[1] + 1
    rows, columns = typical_shape(depthwise.output)[2:]
    strides = depthwise.attrs.strides[0], depthwise.attrs.strides[1]
    return ExpandExtents(batch, lanes, expansion, rows, columns, (down, across), window, strides)


def choose_schedule(target: Target, extents: ExpandExtents) -> ExpandSchedule:
    """The cheapest tile, and as many rows as the first cache holds and leave enough jobs."""
    near, image = _with_all_cached(target), extents.expansion
    share = min(_shares(image), key=lambda share: _expansion_cycles(near, extents, share))
    tile = conv_schedule.choose_schedule(near, extents.lanes, replace(image, vectors=share))
    held = target.cache_bytes[0] // (image.columns * share * extents.lanes * _FLOAT)
    jobs = extents.batch * extents.rows * -(-image.vectors // share)
    counts = range(1, min(extents.rows, jobs // ENOUGH_JOBS) + 1)
    rows = max((count for count in counts if extents.ring_rows(count) <= held), default=1)
    rows = -(-extents.rows // -(-extents.rows // rows))  # the last job's all but as many
    return ExpandSchedule(replace(tile, rows_first=True), rows)


def expand_layouts(group: Group, block: int) -> Iterable[Mapping[Value, tuple[int, ...]]]:
    """The blocks in which the data of the first convolution may be read."""
    parts = group.parts
    return () if parts is None else conv_layouts(parts[0], block)


def expand_cost(group: Group, block: int, target: Target) -> float:
    """Cycles of both convolutions, less those that one kernel saves."""
    extents = extents_of(group, block, target)
    return conv_cost(group, block, target) - saved_cycles(target, extents)


def saved_cycles(target: Target, extents: ExpandExtents) -> float:
    """Cycles by which one kernel is faster than two, which meet once more."""
    machine = target.machine.with_vectors(32 * extents.lanes)
    image, rows = extents.expansion, extents.batch * extents.expansion.rows
    level = _level(machine, extents)
    whole = replace(image, rows=rows)
    flat = replace(image, rows=1, columns=rows * image.columns)
    apart = min(conv_cycles(target, extents.lanes, one) for one in (whole, flat))
    apart += _depthwise_cycles(machine, extents, level)
    near = _with_all_cached(target)
    together = min(_expansion_cycles(near, extents, share) for share in _shares(image))
    return apart - together - _depthwise_cycles(machine, extents, 0)


def _shares(image: ConvExtents) -> range:
    """The vectors that a share of the channels may have: those of some blocks."""
    block = image.per_block
    return range(block, min(max(block, _MOST_VECTORS), image.vectors) + 1, block)


def _expansion_cycles(target: Target, extents: ExpandExtents, share: int) -> float:
    """Cycles in which threads expand all images, share by share of so many vectors."""
    image, shares = extents.expansion, -(-extents.expansion.vectors // share)
    again = _THREADS * extents.shared_rows / (extents.batch * image.rows * shares)
    one = conv_cycles(target, extents.lanes, replace(image, vectors=share))
    return extents.batch * shares * one * (1 + again)


def _level(machine: Machine, extents: ExpandExtents) -> int:
    """The level, counted from the second cache on, that holds the expanded image while the
    depthwise convolution writes its result."""
    image = extents.expansion
    pixels = image.rows * image.columns + extents.rows * extents.columns
    size = extents.batch * pixels * extents.channels * _FLOAT
    held = (n for n, cache in enumerate(machine.caches[1:]) if size <= _HELD * cache.size)
    return next(held, len(machine.caches) - 1)


def _with_all_cached(target: Target) -> Target:
    """The target, if its second cache held everything."""
    first, second, *others = target.machine.caches
    size = max(cache.size for cache in target.machine.caches) << 10
    caches = (first, replace(second, size=size), *others)
    return replace(target, machine=replace(target.machine, caches=caches))


def _depthwise_cycles(machine: Machine, extents: ExpandExtents, level: int) -> float:
    """Cycles of the depthwise convolution if the expanded image comes from that level of memory,
    counted from the second cache on.

    A row of the kernel loads each pixel once for all sums of a tile, of which there are many."""
    down, across = extents.taps
    arithmetic = down * across / machine.vector_fmas
    loads = down * extents.strides[1] / machine.vector_loads
    pixels = extents.strides[0] * extents.strides[1]
    incoming = stream_cycles(machine, pixels * extents.lanes * _FLOAT, level)
    near = RETRIED_LOADS * loads + incoming
    if machine.fills_beside_loads:
        near = max(loads, incoming)
    results = extents.batch * extents.rows * extents.columns * extents.expansion.vectors
    return results * (max(arithmetic, near) + 1 / machine.vector_stores)
