"""What a 3x3 convolution costs, summed directly or by Winograd's algorithm with tiles of some size.

Extents enter, an estimate in multiply-additions of one vector lane leaves. Only the order of the
estimates matters: they choose the algorithm of each layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.backends.host.kernels.winograd import chunk_of
from graft.backends.host.kernels.winograd_matrices import tiles_along, transforms
from graft.backends.host.kernels.winograd_vectors import operations
from graft.backends.host.kernels.winograd_weights import bytes_read, last_cache
from graft.target.target import Target

_FLOAT = 4  # bytes
_KERNEL = 9  # elements

# Calibrated on layers of 64 to 512 channels and images of 7 to 224 pixels a side, with one and two
# threads. A byte of weights costs this many multiply-additions when it comes from memory, as it
# does the first time in each inference, and that share of them when the last cache still has it.
_BYTE_FROM_MEMORY = 2.0
_SHARE_FROM_CACHE = 0.25
# Loads, stores and additions of the transforms, each beside a multiply-addition.
_TRANSFORM = 1.2
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
    """The cost of a layer with tiles of that side; 0 is direct summation.

    Three things add up. Products: per pair of channels 9 for each pixel, or (tile + 2)² for each
    tile; where the image is no multiple of the tile, whole tiles count. Transforms: per channel and
    tile, so that they weigh the less the more channels there are. Weights: 9 or (tile + 2)² numbers
    per pair of channels are read from memory once, and again for each further chunk of tiles, from
    the last cache if they fit into it. Small images with many channels (512 at 7x7) have too
    little work for the 36 numbers of F(4x4), and use the 16 of F(2x2) or the 9 of direct summation.
    """
    pairs = layer.inputs * layer.outputs
    if tile == 0:
        pixels = layer.batch * layer.rows * layer.columns
        return pairs * _KERNEL * (pixels + _FLOAT * _BYTE_FROM_MEMORY)
    matrices = transforms(tile)
    points = matrices.points
    across, down = tiles_along(layer.columns, tile), tiles_along(layer.rows, tile)
    tiles = layer.batch * across * down
    forward = operations(matrices.data) + 2 * points
    back = operations(matrices.result) + points + tile * tile
    transformed = tiles * (forward * layer.inputs + back * layer.outputs)
    size, half = bytes_read(points, pairs, matrices.side, target)
    chunks = -(-tiles // chunk_of(target, tiles, points * layer.inputs * _FLOAT))
    share = _SHARE_FROM_CACHE if size <= last_cache(target) else 1.0
    read = size * (1 + (chunks - 1) * share) * _BYTE_FROM_MEMORY
    panels = _PANEL * chunks * points * pairs if half else 0.0
    return tiles * points * pairs + _TRANSFORM * transformed + read + panels
