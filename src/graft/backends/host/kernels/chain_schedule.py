"""Schedules and costs of pointwise and depthwise convolutions in one kernel.

The extents of all enter, and a target; the tiles and the rows of a job leave, and by how many
cycles one kernel is faster than several. Apart, the image between two of them goes to the nearest
level of memory that holds it, and comes back from there, part of it from another core; together, it
stays in the second cache of one. Behind an expansion, threads that begin in the middle of the image
compute rows that their neighbours compute, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from graft.backends.host.cost import typical_shape
from graft.backends.host.group import Group
from graft.backends.host.kernels.conv_cost import conv_cost
from graft.backends.host.kernels.conv_schedule import (
    ENOUGH_JOBS,
    FEW_BANDS,
    ConvExtents,
    ConvSchedule,
    choose_schedule,
    conv_cycles,
)
from graft.backends.host.kernels.depthwise import depthwise_cycles
from graft.backends.host.kernels.image import vector_lanes
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.target.machine import Machine
from graft.target.register_tile import stream_cycles
from graft.target.target import Target

_FLOAT = 4  # bytes
# Share of a cache that a kernel finds what the one before has written in.
_HELD = 0.75
# Vectors of a share of the channels, of which each has to have sums in registers.
_MOST_VECTORS = 8
# Rows that jobs have to be made of where they have all channels.
_LEAST_JOBS = ENOUGH_JOBS // 2


@dataclass(frozen=True, slots=True)
class ExpandSchedule:
    """What a search may vary: the register tile of the expansion, in whose bands jobs go through
    the image, and the rows of the result that a job makes, of a share of the channels that is one
    tile wide."""

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
    def row_bytes(self) -> int:
        """The bytes of a row between the two."""
        return self.expansion.columns * self.channels * _FLOAT

    @property
    def shared_rows(self) -> int:
        """The rows of the expanded image that a row of the result and the next one read."""
        return self.window[0] - self.strides[0]

    def ring_rows(self, rows: int) -> int:
        """The rows of the expanded image that so many rows of the result read."""
        return rows * self.strides[0] + self.shared_rows


def expand_extents(group: Group, block: int, target: Target) -> ExpandExtents:
    """The extents of a pointwise and a depthwise convolution."""
    expand, depthwise = group.anchors
    return expand_extents_of(group, (expand, depthwise), block, target)


def expand_extents_of(
    group: Group, convolutions: tuple[Node, Node], block: int, target: Target
) -> ExpandExtents:
    """The same of two of a group's convolutions."""
    expand, depthwise = convolutions
    lanes = vector_lanes(target, DType.FLOAT32, block)
    taps, strides = _steps(group, depthwise)
    dilation = depthwise.attrs.dilation
    window = (taps[0] - 1) * dilation[0] + 1, (taps[1] - 1) * dilation[1] + 1
    batch, _, rows, columns = typical_shape(depthwise.output)
    image = _row_by_row(expand, block, lanes)
    return ExpandExtents(batch, lanes, image, rows, columns, taps, window, strides)


def _row_by_row(conv: Node, block: int, lanes: int) -> ConvExtents:
    """The extents of a pointwise convolution that makes such blocks, row by row."""
    _, channels, rows, columns = typical_shape(conv.output)
    depth, vectors = typical_shape(conv.args[0])[1], -(-channels // block) * block // lanes
    per_block, may_split = block // lanes, depth % 2 == 0
    row = (depth, (1, 1), rows, columns, vectors, per_block)
    return ConvExtents(*row, tile_rows=1, may_overlap=True, may_split=may_split)


def _steps(group: Group, conv: Node) -> tuple[tuple[int, int], tuple[int, int]]:
    """Taps and strides of a convolution."""
    down, across = group.constants[conv.args[1]].array.shape[2:]
    return (down, across), (conv.attrs.strides[0], conv.attrs.strides[1])


def choose_expand_schedule(target: Target, extents: ExpandExtents) -> ExpandSchedule:
    """The cheapest tile, and as many rows as the first cache holds and leave enough jobs."""
    near, image = _with_all_cached(target), extents.expansion
    share = min(_shares(image), key=lambda share: _expansion_cycles(near, extents, share))
    rows = _job_rows(target, extents, share)
    tile = choose_schedule(near, extents.lanes, _share_of(extents, share, rows))
    _, bands = _bands(target, extents, share)
    return ExpandSchedule(replace(tile, bands=bands), rows)


def _bands(target: Target, extents: ExpandExtents, share: int) -> tuple[float, int]:
    """The bands of rows that jobs go through, all shares of each before the next, and the cycles
    that they cost.

    Each computes the rows again that windows of the band before it cover, too. But where a band is
    one thread's, the next kernel, whose threads work on bands, finds all channels of it in its
    cache; of one that several share, most of them are in others' caches."""
    machine, near = target.machine, _with_all_cached(target)
    strips = -(-extents.rows // _job_rows(target, extents, share))
    expanded = _expansion_cycles(near, extents, share)
    again = expanded * extents.shared_rows / extents.expansion.rows
    size = extents.batch * extents.rows * extents.columns * extents.channels * _FLOAT

    def cycles(bands: int) -> float:
        others = max(0.0, 1 - bands / machine.team)
        return again * (bands - 1) + size * others / machine.crossing_bytes_per_cycle

    return min((cycles(bands), bands) for bands in (1, *FEW_BANDS) if bands <= strips)


def _job_rows(target: Target, extents: ExpandExtents, share: int) -> int:
    """The rows of the result that a job makes of a share of so many vectors."""
    jobs = extents.batch * extents.rows * -(-extents.expansion.vectors // share)
    rows = _rows_held(target, extents, share, min(extents.rows, jobs // ENOUGH_JOBS))
    return -(-extents.rows // -(-extents.rows // rows))  # the last job's all but as many


def _rows_held(target: Target, extents: ExpandExtents, share: int, most: int) -> int:
    """Of `most` rows of the result, those whose windows the first cache holds at a time."""
    row = extents.expansion.columns * share * extents.lanes * _FLOAT
    most_rows = target.cache_bytes[0] // row
    counts = (count for count in range(1, most + 1) if extents.ring_rows(count) <= most_rows)
    return max(counts, default=1)


def _share_of(extents: ExpandExtents, share: int, rows: int) -> ConvExtents:
    """The expansion of a share of the channels, for so many rows of the result at a time; shares
    ask for one another's weights."""
    together = rows * extents.strides[0]
    return replace(extents.expansion, vectors=share, tile_rows=together, asked_for=True)


def expand_cost(group: Group, block: int, target: Target) -> float:
    """Cycles of both convolutions, less those that one kernel saves."""
    extents = expand_extents(group, block, target)
    return conv_cost(group, block, target) - expand_saving(target, extents)


def expand_saving(target: Target, extents: ExpandExtents) -> float:
    """Cycles by which one kernel is faster than two, which meet once more."""
    shares, near = _shares(extents.expansion), _with_all_cached(target)
    share = min(shares, key=lambda share: _expansion_cycles(near, extents, share))
    cycles, _ = _bands(target, extents, share)
    return _ring_saving(target, extents) - cycles


def _ring_saving(target: Target, extents: ExpandExtents) -> float:
    """Cycles that two kernels take longer than one with a ring between the convolutions."""
    machine = target.machine.with_vectors(32 * extents.lanes)
    image, rows = extents.expansion, extents.batch * extents.expansion.rows
    pixels = image.rows * image.columns + extents.rows * extents.columns
    level = _level(machine, extents.batch * pixels * extents.channels * _FLOAT)
    whole = replace(image, rows=rows)
    flat = replace(image, rows=1, columns=rows * image.columns)
    apart = min(conv_cycles(target, extents.lanes, one) for one in (whole, flat))
    apart += _depthwise(machine, extents, level) + _crossing(machine, rows * extents.row_bytes)
    near = _with_all_cached(target)
    together = min(_expansion_cycles(near, extents, share) for share in _shares(image))
    return apart - together - _depthwise(machine, extents, 0)


def _crossing(machine: Machine, size: int) -> float:
    """Cycles in which threads wait for an image that others have had lines of in their caches: its
    memory was another image's before it is written, and windows reach into others' rows when it is
    read. Images between the kernels of MobileNet-v2 at 14 x 14 and 56 x 56 cost two threads of a
    Zen 5, each with a last cache of its own, 0.3 cycles a byte; this gives 0.2."""
    return 4 * size * (1 - 1 / machine.team) / machine.crossing_bytes_per_cycle


def _shares(image: ConvExtents) -> range:
    """The vectors that a share of the channels may have: those of some blocks."""
    block = image.per_block
    return range(block, min(max(block, _MOST_VECTORS), image.vectors) + 1, block)


def _expansion_cycles(
    target: Target, extents: ExpandExtents, share: int, in_rows: bool = False
) -> float:
    """Cycles in which threads expand all images, share by share of so many vectors; `in_rows` where
    jobs are rows of all shares."""
    image, shares = extents.expansion, -(-extents.expansion.vectors // share)
    fresh_rows = extents.batch * image.rows * (1 if in_rows else shares)
    again = (target.machine.team - 1) * extents.shared_rows / fresh_rows
    rows = (_step_rows if in_rows else _job_rows)(target, extents, share)
    one = conv_cycles(target, extents.lanes, _share_of(extents, share, rows))
    return extents.batch * shares * one * (1 + again)


def _depthwise(machine: Machine, extents: ExpandExtents, level: int) -> float:
    """Cycles of the depthwise convolution if the expanded image comes from that level."""
    results = extents.batch * extents.rows * extents.columns * extents.expansion.vectors
    steps = extents.taps, extents.strides
    return results * depthwise_cycles(machine, extents.lanes, *steps, level)


def _with_all_cached(target: Target) -> Target:
    """The target, if its second cache held everything."""
    first, second, *others = target.machine.caches
    size = max(cache.size for cache in target.machine.caches) << 10
    caches = (first, replace(second, size=size), *others)
    return replace(target, machine=replace(target.machine, caches=caches))


def _level(machine: Machine, size: float) -> int:
    """The level, counted from the second cache on, that holds so many bytes from the kernel that
    writes them to the one that reads them."""
    levels = (n for n, cache in enumerate(machine.caches[1:]) if size <= _HELD * cache.size)
    return next(levels, len(machine.caches) - 1)


@dataclass(frozen=True, slots=True)
class ProjectSchedule:
    """What a search may vary: the register tile of the projection, and the rows of a job."""

    tile: ConvSchedule
    rows: int


@dataclass(frozen=True, slots=True)
class ProjectExtents:
    """A depthwise convolution and the pointwise one behind it by the extents that matter."""

    batch: int
    lanes: int
    projection: ConvExtents  # of one image
    taps: tuple[int, int]  # of the depthwise convolution
    strides: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row between the two."""
        return self.projection.columns * self.projection.depth * _FLOAT


def project_extents(group: Group, block: int, target: Target) -> ProjectExtents:
    """The extents of a depthwise and a pointwise convolution."""
    depthwise, project = group.anchors
    return project_extents_of(group, (depthwise, project), block, target)


def project_extents_of(
    group: Group, convolutions: tuple[Node, Node], block: int, target: Target
) -> ProjectExtents:
    """The same of two of a group's convolutions."""
    depthwise, project = convolutions
    lanes = vector_lanes(target, DType.FLOAT32, block)
    batch, projection = typical_shape(project.output)[0], _row_by_row(project, block, lanes)
    return ProjectExtents(batch, lanes, projection, *_steps(group, depthwise))


def choose_project_schedule(target: Target, extents: ProjectExtents) -> ProjectSchedule:
    """The cheapest tile, and as many rows as leave enough jobs and room in the second cache."""
    image = extents.projection
    tile = choose_schedule(_with_all_cached(target), extents.lanes, image)
    cached_rows = target.cache_bytes[1] // 4 // extents.row_bytes
    rows = max(1, min(cached_rows, extents.batch * image.rows // ENOUGH_JOBS, image.rows))
    rows = -(-image.rows // -(-image.rows // rows))
    return ProjectSchedule(replace(tile, bands=0), rows)


def project_cost(group: Group, block: int, target: Target) -> float:
    """Cycles of both convolutions, less those that one kernel saves. Its jobs are rows: where there
    are few, most threads would have none."""
    extents = project_extents(group, block, target)
    if extents.batch * extents.projection.rows < _LEAST_JOBS:
        return math.inf
    apart = sum(conv_cost(part, block, target) for part in group.parts or ())
    return apart - target.machine.meeting_cycles - project_saving(target, extents)


def project_saving(target: Target, extents: ProjectExtents) -> float:
    """Cycles by which one kernel is faster than two, which meet once more."""
    machine, image = target.machine.with_vectors(32 * extents.lanes), extents.projection
    rows = extents.batch * image.rows
    size = rows * extents.row_bytes
    level = _level(machine, size * (1 + extents.strides[0] * extents.strides[1]))
    whole = replace(image, rows=rows)
    flat = replace(image, rows=1, columns=rows * image.columns)
    apart = min(conv_cycles(target, extents.lanes, one) for one in (whole, flat))
    together = conv_cycles(_with_all_cached(target), extents.lanes, whole)
    saved = apart - together + _crossing(machine, size)
    if not level:
        return saved
    vectors = size / (extents.lanes * _FLOAT)
    steps = extents.taps, extents.strides
    deep = vectors * depthwise_cycles(machine, extents.lanes, *steps, level)
    written, read = (stream_cycles(machine, times * size, level) for times in (2, 1))
    return saved + _exposed_cycles(machine, deep, written) + _exposed_cycles(machine, apart, read)


def _exposed_cycles(machine: Machine, busy: float, transfer: float) -> float:
    """The cycles of a transfer that are not hidden behind so many of other work."""
    return max(0.0, transfer - busy) if machine.fills_beside_loads else transfer


@dataclass(frozen=True, slots=True)
class InvertedSchedule:
    """What a search may vary: the register tiles of expansion and projection, the rows of the
    result that a job makes, and those for which it expands and filters a share of the channels, one
    tile wide, before it goes on to the next ones of that share."""

    expansion: ConvSchedule
    projection: ConvSchedule
    rows: int
    step: int


@dataclass(frozen=True, slots=True)
class InvertedExtents:
    """An expansion, a depthwise convolution and a projection by the extents that matter."""

    expand: ExpandExtents
    project: ProjectExtents

    def bytes_of(self, rows: int, step: int) -> int:
        """What a thread holds between the three for so many rows of the result."""
        return self.expand.ring_rows(step) * self.expand.row_bytes + rows * self.project.row_bytes


def inverted_extents(group: Group, block: int, target: Target) -> InvertedExtents:
    """The extents of all three."""
    expand, depthwise, project = group.anchors
    return InvertedExtents(
        expand_extents_of(group, (expand, depthwise), block, target),
        project_extents_of(group, (depthwise, project), block, target),
    )


def choose_inverted_schedule(target: Target, extents: InvertedExtents) -> InvertedSchedule:
    """The cheapest tiles, and as many rows as the second cache holds and leave enough jobs; of a
    share of the channels, as many rows at a time as the first one holds."""
    near, expand, project = _with_all_cached(target), extents.expand, extents.project
    share = min(
        _shares(expand.expansion),
        key=lambda share: _expansion_cycles(near, expand, share, in_rows=True),
    )
    step = _step_rows(target, expand, share)
    expansion = choose_schedule(near, expand.lanes, _share_of(expand, share, step))
    projection = choose_schedule(near, project.lanes, project.projection)
    rows = _most_rows(expand)
    while rows > 1 and extents.bytes_of(rows, min(step, rows)) > target.cache_bytes[1] / 2:
        rows -= 1
    rows = -(-expand.rows // -(-expand.rows // rows))
    tiles = replace(expansion, bands=0), replace(projection, bands=0)
    return InvertedSchedule(*tiles, rows, min(step, rows))


def _most_rows(extents: ExpandExtents) -> int:
    """The rows of a job that has all channels, where each thread is to have some jobs."""
    return max(1, extents.batch * extents.rows // _LEAST_JOBS)


def _step_rows(target: Target, extents: ExpandExtents, share: int) -> int:
    """Of those, the rows for which a share of so many vectors is expanded at a time."""
    return _rows_held(target, extents, share, _most_rows(extents))


def inverted_cost(group: Group, block: int, target: Target) -> float:
    """Cycles of all three convolutions, less those that one kernel saves. Its jobs are rows, of
    which each thread should have some."""
    extents = inverted_extents(group, block, target)
    if extents.expand.batch * extents.expand.rows < 2 * target.machine.team:
        return math.inf
    apart = sum(conv_cost(part, block, target) for part in group.parts or ())
    return apart - 2 * target.machine.meeting_cycles - inverted_saving(target, extents)


def inverted_saving(target: Target, extents: InvertedExtents) -> float:
    """Cycles by which one kernel is faster than three, which meet twice more: those of both pairs,
    but for the rows that threads compute again."""
    expand, near = extents.expand, _with_all_cached(target)
    by_share, by_row = (
        min(_expansion_cycles(near, expand, share, in_rows) for share in _shares(expand.expansion))
        for in_rows in (False, True)
    )
    pairs = _ring_saving(target, expand) + project_saving(target, extents.project)
    return pairs - (by_row - by_share)
