"""How a layer is computed by Winograd's algorithm: register tiles, chunks of tiles and shares.

A layer's extents and a machine enter; the schedule leaves, and the cycles that it is predicted to
take beside its products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from graft.backends.host.kernels.tile import balanced
from graft.backends.host.kernels.winograd_matrices import Transforms, transforms
from graft.backends.host.kernels.winograd_vectors import operations
from graft.backends.host.kernels.winograd_weights import weight_bytes
from graft.target.machine import Machine
from graft.target.register_tile import (
    data_cycles,
    most_pixels,
    stream_cycles,
    tile_cycles,
    weight_cycles,
)
from graft.target.target import Target

# Fewer tiles than this would read the transformed weights for too little work.
LEAST_CHUNK = 24
# Jobs that the shares of a chunk are made for, so that threads share evenly, and those that there
# have to be before tiles are put into fewer chunks. A chunk that two threads work on is transformed
# by both.
ENOUGH_JOBS = 16
FEW_JOBS = 8
MANY_TILES = 1 << 10
THREADS = 2  # that chunks are made for
_FLOAT = 4  # bytes

# Of a cache, what stays in it while weights stream past.
_HELD = 0.6
# What comes from the last cache in order is asked for ahead, which hides this share of its time.
_HIDDEN = 0.5
# Loads, multiply-additions and the store that finish a vector of half-transformed weights.
_PANEL = 4.0
# Of the second cache, what panels of finished weights may take.
_PANELS = 0.3
# Weights are finished only where that clearly pays.
_WORTH = 0.9


@dataclass(frozen=True, slots=True)
class WinogradSchedule:
    """What a search may vary: lanes, vectors of a register tile, which are one slab of result
    channels, tiles of a chunk, into how many shares the slabs go, and for how many rows of points
    at a time weights are finished that are half transformed; 0 where they are wholly."""

    lanes: int
    vectors: int
    chunk: int
    shares: int
    half_rows: int

    @property
    def slab(self) -> int:
        return self.lanes * self.vectors


@dataclass(frozen=True, slots=True)
class WinogradExtents:
    """A layer by the extents that matter. `tiles` is None where nobody knows how many there are."""

    points: int
    tiles: int | None
    inputs: int
    outputs: int
    block: int  # result channels that lie together


def default_schedule(target: Target, lanes: int, extents: WinogradExtents) -> WinogradSchedule:
    """The schedule without a search: the cheapest slab, and enough shares to occupy the threads.

    Where nobody knows how many tiles there are, chunks are for many and shares for few."""
    per_block, vectors = extents.block // lanes, extents.outputs // lanes
    widths = [v for v in range(per_block, 2 * per_block + 7, per_block) if vectors % v == 0]
    best = min(widths, key=lambda v: _product_cycles(target, lanes, v, extents))
    chunk = _chunk_of(target, extents, best * lanes)
    chunks = 1 if extents.tiles is None else -(-extents.tiles // chunk)
    slabs = vectors // best
    divisors = [share for share in range(1, slabs + 1) if slabs % share == 0]
    shares = next((one for one in divisors if chunks * one >= ENOUGH_JOBS), slabs)
    half = _weight_reads(target, lanes, extents, chunks)[1]
    rows = _rows_finished(target, extents, best * lanes) if half else 0
    return WinogradSchedule(lanes, best, chunk, shares, rows)


def _rows_finished(target: Target, extents: WinogradExtents, slab: int) -> int:
    """Rows of points whose panels of weights a part of the second cache holds."""
    side, panel = math.isqrt(extents.points), extents.inputs * slab * _FLOAT
    fitting = _PANELS * target.machine.caches[1].size / panel
    return max([n for n in range(1, side + 1) if side % n == 0 and n <= fitting], default=1)


@lru_cache(maxsize=4096)
def _chunk_of(target: Target, extents: WinogradExtents, slab: int) -> int:
    """Tiles of a chunk: as many as make the least of what is beside the products, while there are
    jobs enough and the scratch memory of a thread is no more than twice its share of a cache."""
    machine, slabs = target.machine, extents.outputs // slab
    tiles = MANY_TILES if extents.tiles is None else extents.tiles
    share = max(one.size / one.shared_by for one in machine.caches)
    most = 2 * share / _scratch(extents, slab, 1)
    least: int = max(1, -(-FEW_JOBS // slabs), math.ceil(tiles / most))
    counts = [*range(least, 2 * least + 8), *(least << k for k in range(1, 12))]
    chunks: set[int] = {-(-tiles // n) for n in counts if tiles >= n * LEAST_CHUNK}
    if not chunks:
        return min(tiles, max(LEAST_CHUNK, -(-tiles // least)))
    lanes = min(machine.vector_bits // 32, extents.block)
    return min(
        sorted(chunks, reverse=True),
        key=lambda chunk: _beside_products(target, lanes, extents, slab, chunk),
    )


def _beside_products(
    target: Target, lanes: int, extents: WinogradExtents, slab: int, chunk: int
) -> float:
    """Cycles of transforms, of weights and of what does not stay in the second cache.

    Weights are read once from memory, and again for each further chunk. Tiles that are transformed
    are read again for each slab, from the second cache where it holds them. A chunk that two
    threads share is transformed by both.
    """
    machine = target.machine
    tiles = MANY_TILES if extents.tiles is None else extents.tiles
    chunks, slabs = -(-tiles // chunk), extents.outputs // slab
    matrices = transforms(math.isqrt(extents.points) - 2)
    forward, back = _transform_cycles(machine.with_vectors(32 * lanes), matrices)
    often = max(1.0, THREADS / chunks)
    transformed = tiles * (forward * often * extents.inputs + back * extents.outputs) / lanes
    beyond = 0.0
    if _scratch(extents, slab, chunk) > _HELD * machine.caches[1].size:
        moved = (2 + slabs) * extents.inputs
        if extents.points * chunk * slab * _FLOAT > _HELD / 2 * machine.caches[1].size:
            moved += 3 * extents.outputs
        size = extents.points * tiles * moved * _FLOAT
        beyond = stream_cycles(machine, size, len(machine.caches) - 2) * (1 - _HIDDEN)
    return transformed + beyond + _weight_reads(target, lanes, extents, chunks)[0]


def _weight_reads(
    target: Target, lanes: int, extents: WinogradExtents, chunks: int
) -> tuple[float, bool]:
    """Cycles in which the transformed weights are read, or read half transformed and finished, and
    whether the latter is better. Weights that no cache holds are kept by halves."""
    machine, pairs = target.machine, extents.inputs * extents.outputs
    matrices, last = transforms(math.isqrt(extents.points) - 2), len(machine.caches) - 1

    def read(half: bool) -> float:
        size = weight_bytes(matrices, pairs, half)
        once = again = stream_cycles(machine, size, last)
        if size <= machine.caches[-1].size:
            again = stream_cycles(machine, size, last - 1) * (1 - _HIDDEN)
        return once + (chunks - 1) * again

    vectors = chunks * extents.points * pairs / lanes
    whole, half = read(False), read(True) + _PANEL * vectors / machine.vector_fmas
    fits = weight_bytes(matrices, pairs, half=False) <= machine.caches[-1].size
    return (half, True) if not fits or half < _WORTH * whole else (whole, False)


def _scratch(extents: WinogradExtents, slab: int, chunk: int) -> int:
    """Bytes of a chunk's transformed tiles and of their products for a slab."""
    return extents.points * chunk * (extents.inputs + slab) * _FLOAT


def _transform_cycles(machine: Machine, matrices: Transforms) -> tuple[float, float]:
    """Cycles in which one vector of a tile is transformed, and transformed back."""
    points, results = matrices.points, matrices.out * matrices.out
    load, store = 1 / machine.vector_loads, 1 / machine.vector_stores
    forward = operations(matrices.data) / machine.vector_fmas + points * (load + store)
    back = operations(matrices.result) / machine.vector_fmas + points * load + results * store
    return forward, back


def winograd_cycles(target: Target, lanes: int, vectors: int, extents: WinogradExtents) -> float:
    """Cycles of a layer with so many vectors in a register tile."""
    slab = vectors * lanes
    beside = _beside_products(target, lanes, extents, slab, _chunk_of(target, extents, slab))
    return beside + _product_cycles(target, lanes, vectors, extents)


def _product_cycles(target: Target, lanes: int, vectors: int, extents: WinogradExtents) -> float:
    """Cycles of the products of all tiles and channels, with so many vectors in a register tile."""
    machine, inputs = target.machine.with_vectors(32 * lanes), extents.inputs
    tiles = MANY_TILES if extents.tiles is None else extents.tiles
    chunk = _chunk_of(target, extents, vectors * lanes)
    panel = vectors * lanes * _FLOAT
    weights = weight_cycles(machine, panel, panel * inputs)
    total = 0.0
    for size, count in balanced(chunk, most_pixels(target.vector_registers, vectors)):
        data = data_cycles(machine, size * _FLOAT)
        total += count * tile_cycles(machine, size, vectors, inputs, weights + data)
    return total * extents.points * -(-tiles // chunk) * (extents.outputs // (vectors * lanes))
