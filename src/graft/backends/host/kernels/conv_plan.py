"""Direct convolution in numbers: which inputs each result needs, before any loop is written.

Attributes and extents enter; phases, channels and halos leave. A transposed convolution with
stride s is s ordinary ones per axis, each of which makes every s-th position of the result from its
own share of the kernel: one description serves both, and no product with a zero is computed.
Groups narrower than a vector are computed together, with zeros between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graft.backends.host.group import Algorithm, Group, Winograd
from graft.backends.host.kernel import Stores
from graft.backends.host.kernels import winograd_matrices
from graft.backends.host.storage import Halo, Storage, shape_of
from graft.base.dims import Dim, Unknown, ceildiv, product
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.target.target import Target

TRANSPOSED = "nn.conv2d_transpose"
INTEGER, MIXED = "qnn.conv2d", "mixed.conv2d"
CONVOLUTIONS = ("nn.conv2d", TRANSPOSED, INTEGER, MIXED)

# Zeros between narrow groups may multiply the work by this much, not more.
MOST_WASTE = 4
NARROWEST_SLAB = 8
# Steps between a kernel's rows that are wide for an image of unknown height.
WIDE_DILATION = 4
_PIXELS_OF_WORD = 4  # whose bytes are multiplied together
# Phases of a transposed convolution are code of their own each.
MOST_PHASES = 16


@dataclass(frozen=True, slots=True)
class Phase:
    """Positions of the result along one axis that read their inputs alike.

    Number n of them is `first` + n * `step`, for `count` numbers; it reads the data at
    n * `stride` + `start` + t * `spacing` for each tap t, whose weight is the kernel's element
    `element` + t * `element_step`.
    """

    first: int
    step: int
    count: Dim
    stride: int
    start: int
    spacing: int
    taps: int
    element: int = 0
    element_step: int = 1

    def reads(self, count: int) -> tuple[int, int]:
        """The first and last position of the data that so many of them read."""
        last = (self.taps - 1) * self.spacing
        start = self.start + min(0, last)
        return start, self.start + (count - 1) * self.stride + max(0, last)


def phases(conv: Node, kernel: Sequence[int], axis: int) -> tuple[Phase, ...]:
    """The phases along a spatial axis: one, or one per step of a transposed convolution."""
    attrs, size = conv.attrs, kernel[axis]
    count = shape_of(conv.output)[2 + axis]
    stride, dilation = attrs.strides[axis], attrs.dilation[axis]
    padding = int(attrs.padding[axis])
    if conv.op.name != TRANSPOSED:
        return (Phase(0, 1, count, stride, -padding, dilation, size),)
    result: list[Phase] = []
    common = math.gcd(stride, dilation)
    for first in range(min(stride, count) if isinstance(count, int) else stride):
        # position p of the result takes element k where a position of the data fits it
        place = first + padding
        elements = [k for k in range(size) if (place - k * dilation) % stride == 0]
        element = elements[0] if elements else 0
        start = (place - element * dilation) // stride
        number = ceildiv(count - first, stride)
        assert not isinstance(number, Unknown)
        spacing, step = -(dilation // common), stride // common
        result.append(Phase(first, stride, number, 1, start, spacing, len(elements), element, step))
    return tuple(result)


def flattened(
    group: Group, stores: Stores, conv: Node, weight: Sequence[int]
) -> dict[Value, Storage] | None:
    """Storages under which a convolution without neighbours sees images as one long row each.

    None where it has neighbours, or where an image has a halo, or an operand runs along rows or
    columns alone. Short rows then make no short tiles."""
    shape = shape_of(conv.output)
    pixels = product(shape[2:])
    if not without_neighbours(conv, weight) or isinstance(pixels, Unknown):
        return None
    along_channels = {n.args[1] for n in group.nodes if n is conv or n.op.name == "nn.bias_add"}
    views = dict(stores)
    for value in (*group.reads(), group.output):
        if value in along_channels:
            continue
        literal, outer = group.constants.get(value), group.outer(value)
        extents = literal.array.shape if literal is not None else stores[outer].shape
        if all(extent == 1 for extent in extents[-2:]):
            continue
        if literal is not None or extents[2:] != shape[2:] or any(stores[outer].halo):
            return None
        views[outer] = replace(stores[outer], shape=(*extents[:2], 1, pixels))
    return views


def without_neighbours(conv: Node, weight: Sequence[int]) -> bool:
    """Whether each result reads the pixel at its own place, and no other."""
    plain = {*conv.attrs.strides, *weight[2:]} == {1} and not any(conv.attrs.padding)
    return conv.op.name != TRANSPOSED and plain


def data_in_one_row(conv: Node, weight: Sequence[int], data: Storage) -> Storage | None:
    """The storage under which the data is one long row where other images have a halo.

    Tiles then go on from row to row, and their results are taken apart again."""
    pixels = product(data.shape[2:])
    if not without_neighbours(conv, weight) or any(data.halo) or not isinstance(pixels, int):
        return None
    return replace(data, shape=(*data.shape[:2], 1, pixels))


def flat_phases(image: Storage) -> tuple[tuple[Phase, ...], tuple[Phase, ...]]:
    """The phases of a convolution of such rows."""
    down, across = (Phase(0, 1, count, 1, 0, 1, 1) for count in image.shape[2:])
    return (down,), (across,)


def skips_rows(conv: Node, kernel: Sequence[int]) -> bool:
    """Whether kernel rows outside of the image are left out instead of reading a halo's zeros.

    That pays where there would be many of them, as with wide dilation on small images. Sums of
    bytes count on what stands for zero in a halo, and so do depthwise kernels."""
    dilation: int = conv.attrs.dilation[0]
    extent = shape_of(conv.args[0])[2]
    if conv.op.name != "nn.conv2d" or conv.attrs.groups > 1 or dilation == 1:
        return False
    (down,) = phases(conv, kernel, 0)
    if not isinstance(extent, int) or not isinstance(down.count, int):
        return dilation >= WIDE_DILATION
    low, high = down.reads(down.count)
    return 4 * (max(0, -low) + max(0, high + 1 - extent)) > extent


def computed_rows(conv: Node, kernel: Sequence[int], extent: int, rows: int) -> float:
    """The share of a kernel's rows that is computed for an image of so many rows, and results."""
    if not skips_rows(conv, kernel):
        return 1.0
    dilation: int = conv.attrs.dilation[0]
    starts = [tap * dilation - int(conv.attrs.padding[0]) for tap in range(kernel[0])]
    inside = [max(0, min(rows, extent - start) - max(0, -start)) for start in starts]
    return sum(inside) / max(1, rows * kernel[0])


def read_halo(conv: Node, weight: Sequence[int], algorithm: Algorithm | None) -> Halo:
    """The halo that the kernel of a convolution needs around the image it reads."""
    if isinstance(algorithm, Winograd):
        return winograd_matrices.halo(conv, algorithm.tile)
    return halo(conv, weight[2:])


def halo(conv: Node, kernel: Sequence[int]) -> Halo:
    """The halo that direct summation needs around the image it reads."""
    before, behind = [], []
    for axis in (0, 1):
        extent = shape_of(conv.args[0])[2 + axis]
        if not isinstance(extent, int):
            widths = _halo_of_any(conv, kernel, axis)
            before.append(widths[0])
            behind.append(widths[1])
            continue
        along = (phase for phase in phases(conv, kernel, axis) if phase.taps)
        reads = [phase.reads(phase.count) for phase in along if isinstance(phase.count, int)]
        before.append(max((-low for low, _ in reads), default=0))
        behind.append(max((high + 1 - extent for _, high in reads), default=0))
    top, left, bottom, right = (max(0, width) for width in (*before, *behind))
    right += _read_beyond(conv, kernel)
    return (0, left, 0, right) if skips_rows(conv, kernel) else (top, left, bottom, right)


def words_across(taps: int) -> int:
    """Words of four pixels that hold so many taps."""
    return -(-taps // _PIXELS_OF_WORD)


def _read_beyond(conv: Node, kernel: Sequence[int]) -> int:
    """Pixels behind a window that a depthwise convolution of bytes reads, which takes whole words
    of them (`depthwise_bytes.py`), and multiplies by zero."""
    is_of_bytes = conv.op.name == INTEGER and is_depthwise(conv, shape_of(conv.args[1]))
    if not is_of_bytes or kernel[1] == 1 or conv.attrs.dilation[1] > 1:
        return 0
    return words_across(kernel[1]) * _PIXELS_OF_WORD - kernel[1]


def _halo_of_any(conv: Node, kernel: Sequence[int], axis: int) -> tuple[int, int]:
    """What is read before and behind an image, however large it is."""
    attrs = conv.attrs
    begin, end = int(attrs.padding[axis]), int(attrs.padding[2 + axis])
    if conv.op.name != TRANSPOSED:
        return begin, end
    reach, stride = attrs.dilation[axis] * (kernel[axis] - 1), attrs.strides[axis]
    return -((begin - reach) // stride), (reach - end + attrs.output_padding[axis]) // stride


def unfit_extents(conv: Node, kernel: Sequence[int]) -> str | None:
    """Why a convolution of images whose extents are not known has no kernel for blocks, if so."""
    shape, attrs = shape_of(conv.args[0]), conv.attrs
    for axis in (0, 1):
        if isinstance(shape[2 + axis], int):
            continue
        padding = attrs.padding[axis], attrs.padding[2 + axis]
        if not all(isinstance(width, int) and width >= 0 for width in padding):
            return "the padding depends on extents that are not known"
        reach = attrs.dilation[axis] * (kernel[axis] - 1)
        results = sum(padding) - reach
        if conv.op.name == TRANSPOSED:
            results = reach + 1 + attrs.output_padding[axis] - attrs.strides[axis] - sum(padding)
        if results > 0:
            return "an empty image would have results"
    return None


@dataclass(frozen=True, slots=True)
class Channels:
    """Output channels that are computed together (a slab), and the inputs that they read.

    `count` neighbouring input channels are read for a slab, or fewer where slabs are `mixed`: those
    that a group ends within read the next group's inputs, too. `unit` of them at a time lie within
    one block of the data.
    """

    inputs: int  # of a group
    outputs: int  # of a group
    groups: int
    slab: int
    count: int
    unit: int

    @property
    def mixed(self) -> bool:
        """Whether some slabs have channels of two groups, and others of one."""
        return self.groups > 1 and self.slab % self.outputs > 0 and self.outputs % self.slab > 0

    def start(self, slab: int) -> int:
        """The first input channel that a slab reads."""
        first = slab * self.slab // self.outputs * self.inputs
        return first if self.mixed else min(first, self.groups * self.inputs - self.count)

    @property
    def mean_count(self) -> float:
        """The input channels that a slab reads in the mean."""
        if not self.mixed:
            return self.count
        every = self.outputs * self.groups
        read = (
            (min(first + self.slab, every) - 1) // self.outputs - first // self.outputs + 1
            for first in range(0, every, self.slab)
        )
        return sum(read) * self.inputs / -(-every // self.slab)


def channels_of(
    weight: Sequence[int],
    groups: int,
    block_in: int,
    block_out: int,
    target: Target | None = None,
) -> Channels | None:
    """How to go through the channels; None where zeros would be most of the work.

    The weight is [outputs, inputs of a group, ...]. A narrower slab is taken where it reads less,
    or, on a target, where that is faster: narrow vectors leave wide units half idle.
    """
    inputs, outputs = weight[1], weight[0] // groups
    if groups == 1:
        return Channels(inputs, outputs, 1, block_out, inputs, math.gcd(inputs, block_in))
    slabs = [block_out, NARROWEST_SLAB] if block_out % NARROWEST_SLAB == 0 else [block_out]
    candidates = [_slabs(inputs, outputs, groups, slab, block_in) for slab in slabs]
    best = min(candidates, key=lambda channels: (channels.count, -channels.slab))
    if best.count > MOST_WASTE * inputs:
        return None
    if target is None:
        return best
    return min(candidates, key=lambda channels: (_cycles(channels, target), -channels.slab))


def _cycles(channels: Channels, target: Target) -> float:
    """Cycles of an output channel at one pixel and tap, relative to those of others."""
    lanes = min(channels.slab, target.lanes(DType.FLOAT32))
    fmas = target.machine.with_vectors(32 * lanes).vector_fmas
    return channels.mean_count / (lanes * fmas)


def _slabs(inputs: int, outputs: int, groups: int, slab: int, block_in: int) -> Channels:
    whole = slab % outputs == 0
    firsts = range(0, outputs * groups, slab)
    lasts = (min(first + slab, outputs * groups) - 1 for first in firsts)
    pairs = zip(firsts, lasts, strict=True)
    touched = max(last // outputs - first // outputs + 1 for first, last in pairs)
    count = touched * inputs
    # whole units lie before the inputs of the last slab, too, which may not be full
    before = groups * inputs - count if groups * outputs % slab else 0
    unit = math.gcd(count, before, block_in) if whole else math.gcd(inputs, block_in)
    return Channels(inputs, outputs, groups, slab, count, unit)


def weight_shape(group: Group, conv: Node) -> tuple[int, ...] | None:
    """The shape of a convolution's weights where there may be kernels for blocks: of constants, or
    of data that direct convolution has packed when the model runs (`weight_packing.py`). Of images
    that are constant there are none."""
    image, weight = conv.args[:2]
    if image in group.constants:
        return None
    if weight in group.constants:
        return group.constants[weight].array.shape
    shape = tuple(dim for dim in weight.shape or () if isinstance(dim, int))
    is_float = conv.op.name in ("nn.conv2d", TRANSPOSED) and weight.dtype is DType.FLOAT32
    if not is_float or len(shape) < len(weight.shape or ()) or 0 in shape:
        return None
    return None if is_depthwise(conv, shape) and conv.attrs.groups > 1 else shape


def ordinary_shape(conv: Node, weight: Sequence[int]) -> tuple[int, ...]:
    """The extents of `ordinary_weights`."""
    groups = conv.attrs.groups
    if conv.op.name != TRANSPOSED:
        return tuple(weight)
    return (weight[1] * groups, weight[0] // groups, *weight[2:])


def ordinary_weights(conv: Node, weight: Array) -> Array:
    """Weights as [outputs, inputs of a group, rows, columns], a transposed convolution's too."""
    if conv.op.name != TRANSPOSED:
        return weight
    groups: int = conv.attrs.groups
    inputs, outputs, rows, columns = weight.shape
    split = weight.reshape(groups, inputs // groups, outputs, rows, columns)
    return split.swapaxes(1, 2).reshape(groups * outputs, inputs // groups, rows, columns)


def pack_weights(weight: Array, channels: Channels, block: int) -> Array:
    """[outputs, inputs of a group, rows, columns] as [slab, unit, rows, columns, in, out].

    Channels that the last block lacks have zeros for weights. Slabs that do not make up the blocks
    overlap: the last one ends where they do."""
    outputs, _, rows, columns = weight.shape
    size, begins = channels.slab, _slab_begins(outputs, channels.slab, block)
    slabs = len(begins)
    spread = np.zeros((slabs, size, channels.count, rows, columns), weight.dtype)
    for slab, begin in enumerate(begins):
        for place in range(min(size, outputs - begin)):
            group = (begin + place) // channels.outputs
            first = group * channels.inputs - channels.start(slab)
            spread[slab, place, first : first + channels.inputs] = weight[begin + place]
    split = spread.reshape(
        slabs, size, channels.count // channels.unit, channels.unit, rows, columns
    )
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1))


def beside_each_other(packed: Array, lanes: int) -> Array:
    """[..., in, out] as [..., in / 2, out * 2]: the weights of two inputs for an output are
    neighbours. Of each vector of outputs there are two, the first with those of even numbers."""
    *others, inputs, outputs = packed.shape
    extents = inputs // 2, 2, outputs // lanes, lanes // 2, 2
    pairs = np.einsum("...ipvkc->...ivckp", packed.reshape(*others, *extents))
    return np.ascontiguousarray(pairs).reshape(*others, inputs // 2, outputs * 2)


def pack_starts(starts: Array, channels: Channels, block: int) -> Array:
    """What the sums of [outputs] start from as [slab, out], in the slabs of the weights."""
    size, begins = channels.slab, _slab_begins(len(starts), channels.slab, block)
    whole = np.pad(starts, (0, max(0, begins[-1] + size - len(starts))))
    return np.stack([whole[begin : begin + size] for begin in begins])


def _slab_begins(outputs: int, size: int, block: int) -> list[int]:
    """The first output of each slab."""
    whole = -(-outputs // block) * block
    return [min(first, max(0, whole - size)) for first in range(0, whole, size)]


def is_depthwise(conv: Node, weight: Sequence[Dim]) -> bool:
    """Whether each channel has a kernel of its own and makes one channel."""
    own = conv.attrs.groups == weight[0] == shape_of(conv.args[0])[1] and weight[1] == 1
    return own and conv.op.name != TRANSPOSED


def takes(conv: Node, weight: Sequence[int], block_in: int, block_out: int) -> str | None:
    """Why a convolution is not for the direct template, if it is not."""
    attrs = conv.attrs
    if conv.op.name == TRANSPOSED:
        if math.prod(attrs.strides) > MOST_PHASES:
            return "the transposed convolution has too many phases"
        weight = ordinary_shape(conv, weight)
    elif is_depthwise(conv, weight) and attrs.groups > 1:
        return "the convolution is depthwise"
    if channels_of(weight, attrs.groups, block_in, block_out) is None:
        return "the groups are too narrow for vectors"
    return unfit_extents(conv, weight[2:])
