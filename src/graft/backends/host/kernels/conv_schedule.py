"""The schedule of a direct convolution, derived from the machine.

A layer's extents enter, and a target; the register tile and the order of the loops leave. Every
tile that fits the registers is priced by `target.register_tile`, with the remainders that the
image's rows and columns leave, and the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graft.backends.host.kernels.tile import balanced
from graft.target.machine import LINE_BYTES, TYPICAL_CORES, Machine
from graft.target.register_tile import (
    EXPOSED,
    data_cycles,
    most_pixels,
    resume_cycles,
    stream_cycles,
    tile_cycles,
    weight_cycles,
)
from graft.target.target import Target

_FLOAT = 4  # bytes
_MOST_VECTORS = 8
# Jobs that there should at least be for the threads to share evenly.
ENOUGH_JOBS = 32
# Bands where each reads or computes something again: as many as threads that are often there.
FEW_BANDS = (2, 4)
# Of a band, to ask for the next weights meanwhile.
_LEAST_TILES = 4
# Vectors, rows, columns, blocks of the depth and sums of each channel.
_Tile = tuple[int, int, int, int, int]
# Each size of a tile is code of its own, which takes time to compile and room in caches.
_VARIANT = 0.01


@dataclass(frozen=True, slots=True)
class ConvSchedule:
    """What a search may vary.

    A tile is `rows` x `columns` pixels times `vectors` vectors of `lanes` channels; a
    channel has `split` sums, each of every so many-th input (`tile.py`). Jobs go through
    the image in `bands` of rows, and for each through one slab of channels after the other; 0 are
    as many bands as there are rows of tiles. A job does all its tiles for `depth_block` input
    channels before it goes on to the next ones, so that the first cache holds their weights; 0
    where each tile goes through all at once.
    """

    lanes: int
    vectors: int
    rows: int
    columns: int
    depth_block: int = 0
    bands: int = 1
    split: int = 1

    @property
    def slab(self) -> int:
        """The channels of a tile."""
        return self.lanes * self.vectors


@dataclass(frozen=True, slots=True)
class ConvExtents:
    """A convolution by the extents that matter: typical ones where they are not known."""

    depth: int  # input channels (or fours of them) that a result is summed over
    taps: tuple[int, int]
    rows: int  # of one phase
    columns: int
    vectors: int  # of all result channels that read the same inputs
    per_block: int  # vectors of a block
    tile_rows: int | None = None  # that a tile may span, if not all
    may_overlap: bool = False  # whether the last slab may share channels with the one before
    unit: int = 0  # channels that blocks of the depth are multiples of; 0: there may be none
    asked_for: bool = False  # whether even the first slab's weights have been asked for ahead
    may_split: bool = False  # whether inputs may be taken in pairs
    stride: int = 1  # pixels of the data between those of neighbouring columns

    @property
    def steps(self) -> int:
        """Multiply-adds of each sum."""
        return self.depth * self.taps[0] * self.taps[1]


def choose_schedule(target: Target, lanes: int, extents: ConvExtents) -> ConvSchedule:
    """The cheapest schedule by the machine's numbers."""
    best = min(
        _tiles(target, lanes, extents),
        key=lambda tile: _cycles(target, lanes, extents, tile),
    )
    vectors, rows, columns, block, split = best
    bands = _bands(target, lanes, extents, best)
    return ConvSchedule(lanes, vectors, rows, columns, block, bands, split)


def _bands(target: Target, lanes: int, extents: ConvExtents, tile: _Tile) -> int:
    """Into how many bands the rows are cut.

    Where the second cache holds the weights, all slabs of a row are done before the next row. Where
    it holds the data too, slabs may come first as well: while one is multiplied by all data, the
    next one's weights are asked for, which the layers before have driven out. That pays on cores
    that wait for bursts from beyond the second cache; Zen 4 takes up to 3 % longer for it.

    Otherwise weights are read once for each band. Several threads then read all weights, each for
    its band, instead of all data, each for its slabs. Of the data the other threads have written
    most, so that bands pay where there is more of these to wait for than of the weights."""
    machine = target.machine
    weights = lanes * _FLOAT * extents.vectors * extents.steps
    data = extents.rows * extents.columns * extents.depth * _FLOAT
    capacity = target.cache_bytes[1] / 2
    if weights <= capacity and (machine.fills_beside_loads or data > capacity):
        return 0
    again = 0.0 if weights <= capacity else _waited_for(machine, weights)
    if again >= data / machine.crossing_bytes_per_cycle:
        return 1
    _, rows, columns, *_ = tile
    tiles = -(-extents.rows // rows) * -(-extents.columns // columns)
    return max((bands for bands in FEW_BANDS if bands * _LEAST_TILES <= tiles), default=1)


def _waited_for(machine: Machine, weights: float) -> float:
    """Cycles of reading weights from beyond the second cache that asking ahead does not hide."""
    level = next((n for n, one in enumerate(machine.caches[2:], 1) if weights <= one.size / 2), -1)
    return EXPOSED * stream_cycles(machine, weights, level)


def conv_cycles(target: Target, lanes: int, extents: ConvExtents) -> float:
    """Cycles that the cheapest schedule takes for an image."""
    return min(_cycles(target, lanes, extents, tile) for tile in _tiles(target, lanes, extents))


def segments_of(machine: Machine, jobs: int, most: int | None, is_blocked: bool) -> int:
    """Into how many parts each of so many jobs is cut, for the threads to share evenly. Where the
    depth is in blocks, all tiles of a part read a block's weights from the first cache: then parts
    are no more than there are threads."""
    enough = max(TYPICAL_CORES, machine.team) if is_blocked else ENOUGH_JOBS
    parts = -(-enough // jobs)
    return max(1, parts if most is None else min(parts, most))


def _tiles(target: Target, lanes: int, extents: ConvExtents) -> Iterator[_Tile]:
    """All tiles worth a thought: of one row, or of several whole ones. Where parts of a row have
    fewer sums than the multiply-adds need, of several rows' parts, too."""
    needed = target.machine.with_vectors(32 * lanes).accumulators
    for vectors in range(1, min(_MOST_VECTORS, extents.vectors) + 1):
        if vectors % extents.per_block and extents.per_block % vectors:
            continue
        if extents.vectors % vectors and not extents.may_overlap:
            continue
        for split in sums_of_channel(target, vectors, extents.may_split):
            most = most_pixels(target.vector_registers, vectors * split)
            least = min(width for width, _ in balanced(extents.columns, most))
            is_short = least * vectors * split < needed
            for rows in range(1, min(most, extents.rows, extents.tile_rows or most) + 1):
                columns = min(extents.columns, most // rows)
                if rows == 1 or columns == extents.columns or is_short:
                    yield vectors, rows, columns, 0, split
                    taps = extents.taps[0] * extents.taps[1]
                    block = depth_block(target, lanes * vectors * taps, extents.depth, extents.unit)
                    if block:
                        yield vectors, rows, columns, block, split


def sums_of_channel(target: Target, vectors: int, may_split: bool) -> tuple[int, ...]:
    """Into how many sums those of a channel may be split.

    They are in tiles of one vector, in which elements are loaded most, and where loads are tried
    again (Intel's servers): other cores load as many elements as they multiply, and what splitting
    would save them has not been measured."""
    is_bound = vectors == 1 and not target.machine.fills_beside_loads
    return (1, 2) if may_split and is_bound else (1,)


def depth_block(target: Target, weights: int, depth: int, unit: int = 1) -> int:
    """The largest part of the depth, a multiple of a unit, whose weights the first cache holds; 0
    where it holds all, or there is none. Each step of the depth has so many weights."""
    most = target.cache_bytes[0] // 2 // (weights * _FLOAT)
    if not unit or most >= depth:
        return 0
    return max((size for size in range(unit, most + 1, unit) if depth % size == 0), default=0)


def _cycles(target: Target, lanes: int, extents: ConvExtents, tile: _Tile) -> float:
    """Cycles of all result channels of an image. Where a burst from beyond the second cache is
    waited for, the first tile waits for its weights, which no tile before has asked for."""
    vectors, rows, columns, block, split = tile
    machine, steps = target.machine.with_vectors(32 * lanes), extents.steps
    weights = vectors * lanes * _FLOAT
    written = _written_cycles(machine, extents, lanes)
    slabs = -(-extents.vectors // vectors)
    every = -(-extents.rows // rows) * -(-extents.columns // columns) * slabs * steps
    last = len(machine.caches) - 1
    ahead = stream_cycles(machine, slabs * weights * steps, last) / max(1, every)
    # from one tile to the next: its data, and its share of the next slab's weights
    pixels = (rows + extents.taps[0] - 1) * (columns + extents.taps[1] - 1)
    beside = pixels * extents.depth * _FLOAT + weights * steps * steps * slabs / max(1, every)
    incoming_weights = weight_cycles(machine, weights, weights * steps, beside)
    resumed = extents.depth // (block or extents.depth) - 1
    share = 1.0  # of a job's tiles that weights come from beyond the first cache for
    asking = 0.0  # cycles of loads in a step that ask for the next block's weights
    if block:
        lines, across = -(-extents.rows // rows), -(-extents.columns // columns)
        together = across / segments_of(machine, lines * slabs, extents.columns // columns, True)
        incoming_weights, share = stream_cycles(machine, weights, 0), min(1.0, 1 / together)
        if machine.fills_beside_loads:
            incoming_weights, share = incoming_weights * share, 1.0
        else:
            asking = weights / LINE_BYTES * share / machine.vector_loads
    total, variants = 0.0, 0
    for height, lines in balanced(extents.rows, rows):
        for width, count in balanced(extents.columns, columns):
            pixels = height * width
            # neighbouring kernel columns read the same data, which the first cache has by then,
            # unless strides are as long as the kernel
            data = pixels * _FLOAT * min(1.0, extents.stride / extents.taps[1])
            near = data_cycles(machine, data) + written * pixels * vectors / steps
            near += asking
            cycles = resumed * resume_cycles(machine, pixels, vectors * split)
            for part, incoming in ((share, near + incoming_weights), (1 - share, near)):
                each = tile_cycles(machine, pixels, vectors, steps, incoming, ahead, split)
                cycles += part * each
            total += lines * count * cycles
            variants += 1
    cycles = total * slabs * (1 + _VARIANT * (variants - 1))
    if extents.asked_for or machine.fills_beside_loads:
        return cycles
    first = weights * (block or extents.depth) * steps // extents.depth
    return cycles + max(0.0, stream_cycles(machine, first, last) - cycles * steps / max(1, every))


def _written_cycles(machine: Machine, extents: ConvExtents, lanes: int) -> float:
    """Cycles in which a vector of the result goes beyond the second cache, where that does not hold
    the result; its line comes from there before it is written."""
    vector = lanes * _FLOAT
    size = extents.rows * extents.columns * extents.vectors * vector
    if size <= machine.caches[1].size / 2:
        return 0.0
    level = next((n for n, one in enumerate(machine.caches[2:], 1) if size <= one.size), 1)
    return stream_cycles(machine, 2 * vector, level)
