"""What a convolution costs, by layout and by algorithm, and the algorithm that costs least.

Estimates in cycles of one core, derived from the machine's numbers. A convolution is summed
directly or by Winograd's algorithm with tiles of some size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graft.backends.host.cost import typical_macs, typical_shape
from graft.backends.host.group import Group, Winograd
from graft.backends.host.kernels.conv_plan import (
    INTEGER,
    MIXED,
    computed_rows,
    halo,
    unfit_extents,
    weight_shape,
)
from graft.backends.host.kernels.conv_schedule import ConvExtents, conv_cycles
from graft.backends.host.kernels.integer_weights import QUAD
from graft.backends.host.kernels.weight_packing import packing_cycles
from graft.backends.host.kernels.winograd_integers import PAIR, is_exact, no_pairs
from graft.backends.host.kernels.winograd_matrices import (
    STRIDES,
    TILES,
    WHOLE_TILES,
    Transforms,
    tiles_along,
    transforms,
    whole_transforms,
)
from graft.backends.host.kernels.winograd_matrices import halo as tiled_halo
from graft.backends.host.kernels.winograd_schedule import (
    WinogradExtents,
    default_schedule,
    winograd_cycles,
)
from graft.backends.host.kernels.words import per_word
from graft.backends.host.storage import BLOCKS, Halo, blocks_for, channel_count, is_image
from graft.base.dims import UNKNOWN
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.rewrite.rule import Refusal
from graft.target.register_tile import stream_cycles
from graft.target.target import Target

_EFFICIENCY = 0.9  # of convolutions, as a share of the machine's peak
_FEW_CHANNELS = 8  # an image of fewer, as networks are given, can be one single block
_LEAST_CHANNELS = 16  # that Winograd's algorithm is worth its transforms for
_FLOAT = 4  # bytes
# Convolutions that Winograd's algorithm is for, and what they are summed in.
_SUMS = {("nn.conv2d", DType.FLOAT32), (INTEGER, DType.INT32)}


def conv_layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """The blocks in which a convolution's data may be read; weights that are data are in rows."""
    data, weight = group.sole_anchor.args[:2]
    if not block or not is_image(group.outer(data)):
        return
    few = channel_count(data) < _FEW_CHANNELS or not blocks_for(data)
    sizes = (*((channel_count(data),) if few else ()), *blocks_for(data))
    for size in sizes:
        yield {weight: (0,), data: (size, *sizes)}


def conv_cost(group: Group, block: int, target: Target) -> float:
    """Cycles of a convolution that makes such blocks, those of the last block's lanes included."""
    machine, lanes = target.machine, min(block, target.lanes(DType.FLOAT32))
    channels = channel_count(group.node.output)
    padded = -(-channels // block) * block / channels
    rate = machine.with_vectors(32 * lanes).vector_fmas * lanes * 2 * _EFFICIENCY
    anchor = group.anchors[-1]
    speedup = per_word(anchor.args[0].dtype) if anchor.op.name in (INTEGER, MIXED) else 1
    flops = 2.0 * sum(map(typical_macs, group.anchors))
    weight = None if anchor.args[1] in group.constants else weight_shape(group, anchor)
    packing = 0.0 if weight is None else packing_cycles(target, weight, lanes)
    return machine.meeting_cycles + flops * padded / (rate * speedup) + packing


def choose_convolution(group: Group, target: Target) -> Winograd | Refusal:
    """Winograd's algorithm where it is possible and pays, with its cheapest tile."""
    layer = _layer(group)
    if isinstance(layer, Refusal):
        return layer
    tile = min((0, *layer.tiles), key=lambda tile: algorithm_cycles(layer, tile, target))
    return Winograd(tile) if tile else Refusal("direct summation is cheaper")


def _layer(group: Group) -> Layer | Refusal:
    """The convolution's extents, if the algorithm is possible."""
    conv = group.sole_anchor
    shapes = (conv.output.shape, conv.args[0].shape)
    is_known = all(shape is not None and UNKNOWN not in shape for shape in shapes)
    weight = weight_shape(group, conv) if is_known else None
    if weight is None or (conv.op.name, conv.output.dtype) not in _SUMS:
        return Refusal("it is no convolution of float32, or by constant weights of int8")
    outputs, inputs, *taps = weight
    kernel, is_integer = (taps[0], taps[1]), conv.op.name == INTEGER
    if not _is_plain(conv, kernel):
        return Refusal("it has no such kernel, or not such steps")
    tiles: tuple[int, ...] = (WHOLE_TILES if is_integer else TILES)[kernel]
    if is_integer:
        unfit = no_pairs(group, conv)
        if unfit is not None:
            return Refusal(unfit)
        array = group.constants[conv.args[1]].array
        tiles = tuple(n for n in tiles if _is_exact(conv, array, n))
    if (conv.args[0].tensor.shape or ())[1:2] != (inputs,):
        return Refusal("the number of channels is not known to be that of the weights")
    if min(outputs, inputs) < _LEAST_CHANNELS:
        return Refusal("there are too few channels")
    reason = unfit_extents(conv, kernel)
    if reason is not None:
        return Refusal(reason)
    batch, _, rows, columns = typical_shape(conv.output)
    extents = typical_shape(conv.args[0])[2:]
    direct = _pixels_with_halo(extents, halo(conv, kernel))
    border = {tile: _pixels_with_halo(extents, tiled_halo(conv, tile)) - direct for tile in tiles}
    dilation, computed = conv.attrs.dilation, computed_rows(conv, kernel, extents[0], rows)
    stride: int = conv.attrs.strides[0]
    extent = batch, inputs, outputs, rows, columns, kernel, stride, dilation, computed
    return Layer(*extent, border, is_integer, conv.args[1] not in group.constants)


def _is_exact(conv: Node, weight: Array, tile: int) -> bool:
    matrices = whole_transforms(tile, weight.shape[2:])
    return is_exact(matrices, weight, conv.args[0].dtype)


def _pixels_with_halo(extents: Sequence[int], border: Halo) -> int:
    """The pixels of an image with a halo."""
    top, left, bottom, right = border
    return (extents[0] + top + bottom) * (extents[1] + left + right)


def _is_plain(conv: Node, kernel: tuple[int, int]) -> bool:
    attrs = conv.attrs
    down, across = attrs.strides
    strides = STRIDES if conv.op.name != INTEGER else dict.fromkeys(WHOLE_TILES, (1,))
    in_steps = down == across and down in strides.get(kernel, ())
    in_steps = in_steps and (down == 1 or {*attrs.dilation} == {1})
    return bool(attrs.groups == 1 and in_steps)


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
    is_integer: bool = False  # whether it is of bytes
    packs: bool = False  # whether weights are data, to be packed when the model runs

    @property
    def tiles(self) -> tuple[int, ...]:
        """The sides of tiles that are possible."""
        return tuple(self.border)

    def transforms(self, tile: int) -> Transforms:
        if self.is_integer:
            return whole_transforms(tile, self.kernel)
        return transforms(tile, self.kernel, self.stride)

    def packing(self, target: Target, lanes: int, matrices: Transforms | None = None) -> float:
        """Cycles in which weights are packed when the model runs, wholly transformed if at all."""
        weight = (self.outputs, self.inputs, *self.kernel)
        return packing_cycles(target, weight, lanes, matrices) if self.packs else 0.0


def algorithm_cycles(layer: Layer, tile: int, target: Target) -> float:
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
        inputs, block_in = layer.inputs, _block_for(layer.inputs, target)
        if layer.is_integer:
            inputs, block_in = -(-inputs // QUAD), block_in // QUAD
            instructions = target.product_instructions(DType.INT8, lanes)
            slower = replace(machine, vector_fmas=machine.vector_fmas / instructions)
            target = replace(target, machine=slower)
        extents = ConvExtents(
            inputs,
            layer.kernel,
            layer.rows,
            layer.columns,
            outputs // lanes,
            block // lanes,
            unit=math.gcd(inputs, block_in),
            may_split=not layer.is_integer and inputs % 2 == 0,
            stride=layer.stride,
        )
        cycles = layer.batch * conv_cycles(target, lanes, extents) * layer.computed_rows
        return cycles + layer.packing(target, lanes)
    matrices = layer.transforms(tile)
    sides = (matrices.down.out, matrices.across.out)
    axes = zip((layer.rows, layer.columns), sides, layer.dilation, strict=True)
    tiles = layer.batch * math.prod(tiles_along(*axis) for axis in axes)
    together = PAIR if layer.is_integer else 1
    inputs = layer.inputs // together
    may_split = not layer.is_integer and not layer.packs and inputs % 2 == 0
    winograd = WinogradExtents(matrices, tiles, inputs, outputs, block, together, may_split)
    schedule = default_schedule(target, lanes, winograd)
    size = DType.INT8.bits // 8 if layer.is_integer else _FLOAT
    border = layer.batch * layer.border.get(tile, 0) * layer.inputs * size
    filled = stream_cycles(machine, border, len(machine.caches) - 1)
    packing = layer.packing(target, lanes, matrices)
    return winograd_cycles(target, winograd, schedule) + filled + packing


def _block_for(outputs: int, target: Target) -> int:
    """The blocks in which so many channels are computed soonest, lanes of a last one included."""

    def cycles(block: int) -> float:
        lanes = min(target.lanes(DType.FLOAT32), block)
        fmas = target.machine.with_vectors(32 * lanes).vector_fmas
        return -(-outputs // block) * block / lanes / fmas

    return min(BLOCKS, key=cycles)
