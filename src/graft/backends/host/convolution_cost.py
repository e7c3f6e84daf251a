"""What a 3x3 convolution costs, summed directly or by Winograd's algorithm with tiles of some size.

Extents enter, an estimate in cycles of one core leaves, derived from the machine's numbers. The
estimates choose the algorithm of each layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.backends.host.kernels.conv_schedule import ConvExtents, conv_cycles
from graft.backends.host.kernels.winograd import (
    WinogradExtents,
    chunk_of,
    default_schedule,
    product_cycles,
)
from graft.backends.host.kernels.winograd_matrices import Transforms, tiles_along, transforms
from graft.backends.host.kernels.winograd_vectors import operations
from graft.backends.host.kernels.winograd_weights import bytes_read
from graft.backends.host.storage import BLOCKS
from graft.base.dtypes import DType
from graft.target.machine import Machine
from graft.target.register_tile import stream_cycles
from graft.target.target import Target

_FLOAT = 4  # bytes
_TAPS = 3

# Transformed weights that a further chunk reads come from the last cache. Asking ahead for them
# hides this share of the time that takes.
_HIDDEN = 0.5
# Loads, multiply-additions and the store that finish a vector of half-transformed weights.
_PANEL = 4.0


@dataclass(frozen=True, slots=True)
class Layer:
    """A 3x3 convolution with stride 1, by the extents that matter."""

    batch: int
    inputs: int
    outputs: int
    rows: int
    columns: int


def cost(layer: Layer, tile: int, target: Target) -> float:
    """The cycles of a layer with tiles of that side; 0 is direct summation.

    Three things add up. Products: per pair of channels 9 for each pixel, or (tile + 2)² for each
    tile; where the image is no multiple of the tile, whole tiles count. Transforms: per channel and
    tile, so that they weigh the less the more channels there are. Weights: 9 or (tile + 2)² numbers
    per pair of channels are read from memory once, and again for each further chunk of tiles, from
    the last cache if they fit into it. Small images with many channels (512 at 7x7) have too
    little work for the 36 numbers of F(4x4), and use the 16 of F(2x2) or the 9 of direct summation.
    """
    machine = target.machine
    block = _block_for(layer.outputs, target)
    lanes = min(target.lanes(DType.FLOAT32), block)
    outputs = -(-layer.outputs // block) * block
    if tile == 0:
        extents = ConvExtents(
            layer.inputs,
            (_TAPS, _TAPS),
            layer.rows,
            layer.columns,
            outputs // lanes,
            block // lanes,
        )
        size = _TAPS * _TAPS * layer.inputs * layer.outputs * _FLOAT
        summed = layer.batch * conv_cycles(target, lanes, extents)
        return summed + stream_cycles(machine, size, len(machine.caches) - 1)
    matrices = transforms(tile)
    across, down = tiles_along(layer.columns, tile), tiles_along(layer.rows, tile)
    tiles = layer.batch * across * down
    winograd = WinogradExtents(matrices.points, tiles, layer.inputs, outputs, block)
    schedule = default_schedule(target, lanes, winograd)
    chunks = -(-tiles // chunk_of(target, winograd, schedule.slab))
    forward, back = transform_cycles(machine.with_vectors(32 * lanes), matrices)
    transformed = tiles * (forward * layer.inputs + back * outputs) / lanes
    products = product_cycles(target, lanes, schedule.vectors, winograd)
    return products + transformed + _weights(layer, matrices, chunks, lanes, target)


def _block_for(outputs: int, target: Target) -> int:
    """The blocks in which so many channels are computed soonest, lanes of a last one included."""

    def cycles(block: int) -> float:
        lanes = min(target.lanes(DType.FLOAT32), block)
        fmas = target.machine.with_vectors(32 * lanes).vector_fmas
        return -(-outputs // block) * block / lanes / fmas

    return min(BLOCKS, key=cycles)


def transform_cycles(machine: Machine, matrices: Transforms) -> tuple[float, float]:
    """Cycles in which one vector of a tile is transformed, and transformed back."""
    points, results = matrices.points, matrices.out * matrices.out
    load, store = 1 / machine.vector_loads, 1 / machine.vector_stores
    forward = operations(matrices.data) / machine.vector_fmas + points * (load + store)
    back = operations(matrices.result) / machine.vector_fmas + points * load + results * store
    return forward, back


def _weights(layer: Layer, matrices: Transforms, chunks: int, lanes: int, target: Target) -> float:
    """Cycles in which the transformed weights are read, and made where they are kept by halves."""
    machine, pairs = target.machine, layer.inputs * layer.outputs
    size, half = bytes_read(matrices.points, pairs, matrices.side, target)
    last = len(machine.caches) - 1
    once = again = stream_cycles(machine, size, last)
    if size <= machine.caches[-1].size:
        again = stream_cycles(machine, size, last - 1) * (1 - _HIDDEN)
    panels = (
        _PANEL * chunks * matrices.points * pairs / lanes / machine.vector_fmas if half else 0.0
    )
    return once + (chunks - 1) * again + panels
