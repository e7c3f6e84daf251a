"""What a convolution costs, summed directly or by Winograd's algorithm with tiles of some size.

Extents enter, an estimate in cycles of one core leaves, derived from the machine's numbers. The
estimates choose the algorithm of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from graft.backends.host.kernels.conv_schedule import ConvExtents, conv_cycles
from graft.backends.host.kernels.winograd_matrices import tiles_along, transforms
from graft.backends.host.kernels.winograd_schedule import (
    WinogradExtents,
    default_schedule,
    winograd_cycles,
)
from graft.backends.host.storage import BLOCKS
from graft.base.dtypes import DType
from graft.target.register_tile import stream_cycles
from graft.target.target import Target

_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution, by its kernel and the extents of its result that matter."""

    batch: int
    inputs: int
    outputs: int
    rows: int
    columns: int
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    dilation: tuple[int, int] = (1, 1)
    computed_rows: float = 1.0  # share of the kernel's rows that direct summation looks at
    border: Mapping[int, int] = field(default_factory=dict)  # pixels that tiles of a side read more


def cost(layer: Layer, tile: int, target: Target) -> float:
    """The cycles of a layer with tiles of that side; 0 is direct summation.

    Four things add up. Products: per pair of channels, with 3x3 taps, 9 for each pixel, or
    (tile + 2)² for each tile, more with a stride; where the image is no multiple of the tile, whole
    tiles count, and zeros are written to the memory around the image. Transforms: per channel and
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
            layer.kernel,
            layer.rows,
            layer.columns,
            outputs // lanes,
            block // lanes,
        )
        return layer.batch * conv_cycles(target, lanes, extents) * layer.computed_rows
    matrices = transforms(tile, layer.kernel, layer.stride)
    sides = (matrices.down.out, matrices.across.out)
    axes = zip((layer.rows, layer.columns), sides, layer.dilation, strict=True)
    tiles = layer.batch * math.prod(tiles_along(*axis) for axis in axes)
    winograd = WinogradExtents(matrices, tiles, layer.inputs, outputs, block)
    schedule = default_schedule(target, lanes, winograd)
    border = layer.batch * layer.border.get(tile, 0) * layer.inputs * _FLOAT
    filled = stream_cycles(machine, border, len(machine.caches) - 1)
    return winograd_cycles(target, winograd, schedule) + filled


def _block_for(outputs: int, target: Target) -> int:
    """The blocks in which so many channels are computed soonest, lanes of a last one included."""

    def cycles(block: int) -> float:
        lanes = min(target.lanes(DType.FLOAT32), block)
        fmas = target.machine.with_vectors(32 * lanes).vector_fmas
        return -(-outputs // block) * block / lanes / fmas

    return min(BLOCKS, key=cycles)
