"""How a layer is computed by Winograd's algorithm: register tiles, chunks of tiles and shares.

A layer's extents and a machine enter; the schedule leaves, and the cycles that it is predicted to
take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from graft.backends.host.kernels.conv_schedule import depth_block, sums_of_channel
from graft.backends.host.kernels.tile import balanced
from graft.backends.host.kernels.winograd_matrices import Transforms
from graft.backends.host.kernels.winograd_vectors import operations
from graft.backends.host.kernels.winograd_weights import weight_bytes
from graft.base.dtypes import DType
from graft.target.register_tile import (
    data_cycles,
    most_pixels,
    resume_cycles,
    stream_cycles,
    tile_cycles,
    weight_cycles,
)
from graft.target.target import Target

# Fewer tiles than this would read the transformed weights for too little work.
LEAST_CHUNK = 8
# Jobs that the shares of a chunk are made for, so that threads share evenly, and those that there
# have to be before tiles are put into fewer chunks. A chunk that two threads work on is transformed
# by both.
ENOUGH_JOBS = 16
FEW_JOBS = 8
MANY_TILES = 1 << 10
_FLOAT = 4  # bytes

# Of a cache, what stays in it while weights stream past.
_HELD = 0.6
# What transforms read and write beyond the second cache goes on beside them for this share.
_HIDDEN = 0.5
# What finishing a vector of half-transformed weights takes beside its multiply-adds, in their time.
_FINISH = 1.0
# Of the second cache, what panels of finished weights may take.
_PANELS = 0.3


@dataclass(frozen=True, slots=True)
class WinogradSchedule:
    """What a search may vary: lanes, vectors of a register tile, which are one slab of result
    channels, tiles of a chunk, into how many shares the slabs go, for how many rows of points at a
    time weights are finished that are half transformed (0 where they are wholly), how many input
    channels all tiles of a chunk do before the next ones (0: all), and the sums of each channel
    (`tile.py`)."""

    lanes: int
    vectors: int
    chunk: int
    shares: int
    half_rows: int
    depth_block: int = 0
    split: int = 1

    @property
    def slab(self) -> int:
        return self.lanes * self.vectors


@dataclass(frozen=True, slots=True)
class WinogradExtents:
    """A layer by the extents that matter. `tiles` is None where nobody knows how many there are."""

    matrices: Transforms
    tiles: int | None
    inputs: int
    outputs: int
    block: int  # result channels that lie together
    together: int = 1  # channels of an input: several where it is a word of narrow numbers
    may_split: bool = False  # whether inputs may be taken in pairs

    @property
    def points(self) -> int:
        return self.matrices.points


@lru_cache(maxsize=4096)
def default_schedule(target: Target, lanes: int, extents: WinogradExtents) -> WinogradSchedule:
    """The schedule without a search: the one that takes the fewest cycles.

    Where nobody knows how many tiles there are, chunks are for many and shares for few. Sums are
    split where those of direct convolutions are, which then are not kept for another block of the
    depth: they are added as a tile ends."""
    per_block, vectors = extents.block // lanes, extents.outputs // lanes
    widths = [v for v in range(per_block, 2 * per_block + 7, per_block) if vectors % v == 0]

    def schedule(width: int, chunk: int, rows: int, block: int, split: int) -> WinogradSchedule:
        shares = _shares(extents, vectors // width, chunk)
        return WinogradSchedule(lanes, width, chunk, shares, rows, block, split)

    def depths(width: int) -> set[tuple[int, int]]:
        """Blocks of the depth, and sums of each channel."""
        splits = sums_of_channel(target, width, extents.may_split)
        block = depth_block(target, width * lanes, extents.inputs)
        return {(block, 1), *((0, split) for split in splits)}

    candidates = (
        schedule(width, chunk, rows, *depth)
        for width in widths
        for chunk in _chunks(target, extents, width * lanes)
        for rows in _rows_finished(target, extents, width * lanes)
        for depth in depths(width)
    )
    return min(candidates, key=lambda one: winograd_cycles(target, extents, one))


def _shares(extents: WinogradExtents, slabs: int, chunk: int) -> int:
    """Shares of the slabs that occupy the threads."""
    chunks = 1 if extents.tiles is None else -(-extents.tiles // chunk)
    divisors = [share for share in range(1, slabs + 1) if slabs % share == 0]
    return next((one for one in divisors if chunks * one >= ENOUGH_JOBS), slabs)


def _rows_finished(target: Target, extents: WinogradExtents, slab: int) -> list[int]:
    """Rows of points whose panels of weights a part of the second cache holds, and 0, for weights
    that are wholly transformed, where a cache holds these."""
    machine, matrices = target.machine, extents.matrices
    if extents.together > 1:
        return [0]
    side = matrices.down.side
    panel, pairs = extents.inputs * slab * _FLOAT, extents.inputs * extents.outputs
    fitting = _PANELS * machine.caches[1].size / panel
    rows = max([n for n in range(1, side + 1) if side % n == 0 and n <= fitting], default=1)
    whole, half = (weight_bytes(matrices, pairs, half) for half in (False, True))
    if half >= whole:
        return [0]
    return [0, rows] if whole <= machine.caches[-1].size else [rows]


def _chunks(target: Target, extents: WinogradExtents, slab: int) -> list[int]:
    """Sizes of chunks, the largest first, with jobs enough and no more scratch memory for a thread
    than twice its share of a cache."""
    machine, slabs = target.machine, extents.outputs // slab
    tiles = MANY_TILES if extents.tiles is None else extents.tiles
    share = max(one.size / one.shared_by for one in machine.caches)
    most = 2 * share / _scratch(extents, slab, 1)
    least: int = max(1, -(-FEW_JOBS // slabs), math.ceil(tiles / most))
    counts = [*range(least, 2 * least + 8), *(least << k for k in range(1, 12))]
    chunks: set[int] = {-(-tiles // n) for n in counts if tiles >= n * LEAST_CHUNK}
    return sorted(chunks, reverse=True) or [min(tiles, max(LEAST_CHUNK, -(-tiles // least)))]


def winograd_cycles(target: Target, extents: WinogradExtents, schedule: WinogradSchedule) -> float:
    """Cycles of a layer: of transforms, of weights that are finished, and of products."""
    machine, chunk, slab = target.machine, schedule.chunk, schedule.slab
    tiles = MANY_TILES if extents.tiles is None else extents.tiles
    chunks = -(-tiles // chunk)
    forward, back = _transform_cycles(target, schedule.lanes, extents.matrices)
    forward *= tiles * extents.inputs * extents.together / schedule.lanes
    total = tiles * back * extents.outputs / schedule.lanes
    if schedule.half_rows:
        pairs = extents.inputs * extents.outputs / schedule.lanes
        each = extents.matrices.down.taps + _FINISH
        total += each * chunks * extents.points * pairs / machine.vector_fmas
    if _held(extents, schedule) > _HELD * machine.caches[1].size:
        moved = 2 * extents.inputs
        if extents.points * chunk * slab * _FLOAT > _HELD / 2 * machine.caches[1].size:
            moved += 3 * extents.outputs
        size = extents.points * tiles * moved * _FLOAT
        total += stream_cycles(machine, size, len(machine.caches) - 2) * (1 - _HIDDEN)
    total += _product_cycles(target, extents, schedule)
    if extents.tiles is None:
        return total + forward
    return _shared_cycles(machine.team, total, forward, chunks, schedule.shares)


def _shared_cycles(threads: int, total: float, forward: float, chunks: int, shares: int) -> float:
    """Cycles of all threads until the slowest one is done. Each has an equal range of the jobs, and
    transforms every chunk that it has a share of."""
    jobs, slowest = chunks * shares, 0.0
    for thread in range(threads):
        first, end = jobs * thread // threads, jobs * (thread + 1) // threads
        seen = (end - 1) // shares - first // shares + 1 if end > first else 0
        slowest = max(slowest, (end - first) / jobs * total + seen / chunks * forward)
    return threads * slowest


def _product_cycles(target: Target, extents: WinogradExtents, schedule: WinogradSchedule) -> float:
    """Cycles of the products of all tiles and channels.

    What they read from beyond the second cache is asked for ahead, evenly over all of them."""
    machine, inputs = target.machine.with_vectors(32 * schedule.lanes), extents.inputs
    if extents.together > 1:
        instructions = target.product_instructions(DType.INT16, schedule.lanes)
        machine = replace(machine, vector_fmas=machine.vector_fmas / instructions)
    chunk, vectors, split = schedule.chunk, schedule.vectors, schedule.split
    tiles = MANY_TILES if extents.tiles is None else extents.tiles
    sizes = balanced(chunk, most_pixels(target.vector_registers, vectors * split))
    iterations = sum(count for _, count in sizes)
    often = extents.points * -(-tiles // chunk) * (extents.outputs // schedule.slab)
    panel = schedule.slab * _FLOAT
    weights = weight_cycles(machine, panel, panel * inputs)
    resumed = inputs // (schedule.depth_block or inputs) - 1
    if schedule.depth_block:
        weights = 0.0
    weights = max(weights, stream_cycles(machine, panel, 0) / iterations)
    far = _far_cycles(target, extents, schedule) / (often * iterations * inputs)
    total = 0.0
    for size, count in sizes:
        incoming = weights + data_cycles(machine, size * _FLOAT)
        cycles = tile_cycles(machine, size, vectors, inputs, incoming, far, split)
        total += count * (cycles + resumed * resume_cycles(machine, size, vectors))
    return total * often


def _far_cycles(target: Target, extents: WinogradExtents, schedule: WinogradSchedule) -> float:
    """Cycles in which the operands of the products come to the second cache.

    Weights are read once from memory, and again for each further chunk. Where memory is faster than
    the caches of other cores, threads have no last cache in common, and each reads all weights of
    its first chunk from memory. Tiles that are transformed are read again for each slab, where the
    second cache does not hold them."""
    machine, last = target.machine, len(target.machine.caches) - 1
    tiles = MANY_TILES if extents.tiles is None else extents.tiles
    chunks, slabs = -(-tiles // schedule.chunk), extents.outputs // schedule.slab
    pairs, is_half = extents.inputs * extents.outputs, schedule.half_rows > 0
    size = weight_bytes(extents.matrices, pairs, is_half)
    again = last - 1 if size <= machine.caches[-1].size else last
    is_apart = machine.crossing_bytes_per_cycle < machine.memory_bytes_per_cycle
    first = min(chunks, machine.team) if is_apart else 1
    total = stream_cycles(machine, first * size, last)
    total += stream_cycles(machine, (chunks - first) * size, again)
    if _held(extents, schedule) > _HELD * machine.caches[1].size:
        read = extents.points * tiles * slabs * extents.inputs * _FLOAT
        total += stream_cycles(machine, read, last - 1)
    return total


def _held(extents: WinogradExtents, schedule: WinogradSchedule) -> int:
    """Bytes that the second cache has to hold: a chunk's, and weights that are finished, with those
    that they are made of."""
    panel = extents.inputs * schedule.slab * _FLOAT
    panels = schedule.half_rows and schedule.half_rows + 2 * extents.matrices.down.taps
    return _scratch(extents, schedule.slab, schedule.chunk) + panels * panel


def _scratch(extents: WinogradExtents, slab: int, chunk: int) -> int:
    """Bytes of a chunk's transformed tiles and of their products for a slab."""
    return extents.points * chunk * (extents.inputs + slab) * _FLOAT


def _transform_cycles(target: Target, lanes: int, matrices: Transforms) -> tuple[float, float]:
    """Cycles in which one vector of a tile is transformed, and transformed back.

    Between the transforms of columns and rows, what registers do not hold goes through memory."""
    machine, down, across = target.machine.with_vectors(32 * lanes), matrices.down, matrices.across
    points, results = matrices.points, down.out * across.out
    load, store = 1 / machine.vector_loads, 1 / machine.vector_stores
    summed = operations(down.data, across.data), operations(down.result, across.result)
    held = target.vector_registers
    halves = down.side * across.side, down.out * across.side
    spills = [max(0, half - held) * (load + store) for half in halves]
    forward = summed[0] / machine.vector_fmas + points * (load + store) + spills[0]
    back = summed[1] / machine.vector_fmas + points * load + results * store + spills[1]
    return forward, back
