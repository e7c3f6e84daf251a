"""Layers and pools as HVX kernels, in the table of `units.py` once this is imported."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.backends.hexagon.hvx import (
    VECTOR,
    WORDS,
    Border,
    Codes,
    Operand8,
    Window,
    border_kernel,
    product_kernel,
    window_kernel,
)
from graft.backends.hexagon.units import LOWER, scaled_sums, storage_of
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import Coded, LayerSums, Unit, extents, layer_sums
from graft.byoc.formats.storage import Storage
from graft.ops.window import WindowAttrs

if TYPE_CHECKING:
    from graft.backends.hexagon.plan import Planner

_WORD = 4  # bytes


@LOWER.entry("nn.conv2d")
def _convolution(planner: Planner, unit: Unit) -> None:
    attrs, sums, result = unit.operator.attrs, layer_sums(unit), storage_of(unit.result)
    (outputs, inputs, *kernel), (_, channels, *_) = sums.weights.shape, extents(sums.data.value)
    counts = list(result.shape[2:])
    if attrs.groups == 1:
        wide = -(-channels // _WORD) * _WORD
        name, window = _windows(planner, sums.data, attrs, counts, kernel, wide)
        filled = np.zeros((outputs, *kernel, wide), np.int8)
        filled[..., :channels] = sums.weights.transpose(0, 2, 3, 1)
        _multiply(planner, unit, sums, name, _in_words(window, wide), filled, result)
        return
    if attrs.groups != channels or outputs != channels or inputs != 1:
        raise UnsupportedError("groups of several channels")
    name, window = _windows(planner, sums.data, attrs, counts, kernel, channels)
    numbers, codes, added = _numbers(unit, sums, VECTOR)
    made = window_kernel(window, channels, codes, is_weighted=True, added=added)
    by_tap = sums.weights.reshape(channels, -1).T.astype(np.int8)
    constants = [planner.constant(one) for one in (by_tap, *numbers)]
    planner.step(made, (name, *constants, *_more(planner, unit, result)))


@LOWER.entry("nn.dense")
def _dense(planner: Planner, unit: Unit) -> None:
    """Rows as pixels of one image."""
    sums = layer_sums(unit)
    (*leading, inputs), data = extents(sums.data.value), sums.data
    rows, wide = math.prod(leading), -(-inputs // _WORD) * _WORD
    plain = Storage.row_major(data.value.dtype, extents(data.value))
    border = Border((1, 1, rows, inputs), (0, 0, 0, 0), wide)
    name = _unsigned(planner, planner.require(data.value, plain), data, border)
    filled = np.zeros((len(sums.weights), 1, 1, wide), np.int8)
    filled[:, 0, 0, :inputs] = sums.weights
    window = Window((1, 1, rows), (0, 0, wide), (1, 1), (0, 0))
    result = Storage.row_major(unit.result.dtype, extents(unit.result))
    _multiply(planner, unit, sums, name, _in_words(window, wide), filled, result)


def _multiply(
    planner: Planner,
    unit: Unit,
    sums: LayerSums,
    data: str,
    window: Window,
    weights: Array,  # OHWI, of whole words
    result: Storage,
) -> None:
    """The step of a product."""
    outputs, depth = len(weights), weights[0].size // _WORD
    padded = -(-outputs // WORDS) * WORDS
    words = np.zeros((padded, depth, _WORD), np.int8)
    words[:outputs] = weights.reshape(outputs, depth, _WORD)
    blocks = [words[start : start + VECTOR] for start in range(0, padded, VECTOR)]
    packed = np.concatenate([block.transpose(1, 0, 2).ravel() for block in blocks])
    numbers, codes, added = _numbers(unit, sums, WORDS)
    kernel = product_kernel(window, depth // math.prod(window.taps), outputs, codes, added)
    names = [planner.constant(one) for one in (packed, *numbers)]
    planner.step(kernel, (data, *names, *_more(planner, unit, result)))


def _more(planner: Planner, unit: Unit, result: Storage) -> list[str]:
    """The buffers behind a layer's constants: what is added, and the result."""
    added = () if unit.added is None else (unit.added.value,)
    stored = (Storage(one.dtype, result.shape, result.order) for one in added)
    names = [planner.require(*pair) for pair in zip(added, stored, strict=True)]
    return [*names, planner.make(unit.result, result)]


def _numbers(
    unit: Unit, sums: LayerSums, multiple: int
) -> tuple[list[Array], Codes, Operand8 | None]:
    """Bias, in which the zero point of the data is, and multipliers of channels, up to a multiple
    of these; then how sums become codes, and what is added before."""
    codes, multiplier, added = scaled_sums(unit, sums.steps / unit.target.step, sums.largest)
    # Sums of unsigned codes may wrap around on their way: what they come to does not.
    each = sums.weights.reshape(len(sums.weights), -1)
    bias = (sums.bias - each.sum(1) * sums.data.offset).astype(np.int32)
    return [_filled(one, multiple) for one in (bias, multiplier)], codes, added


def _filled(numbers: Array, multiple: int) -> Array:
    """Numbers of channels, and zeros up to a multiple."""
    return np.pad(numbers, (0, -len(numbers) % multiple))


def _windows(
    planner: Planner,
    data: Coded,
    attrs: Any,  # of a convolution or a pool
    counts: list[int],
    kernel: list[int],
    wide: int,
    fill: int | None = None,
) -> tuple[str, Window]:
    """Unsigned images with all that windows reach, `wide` channels each, and the windows there."""
    (images, channels, *image), (rows, columns), after = extents(data.value), counts, list[int]()
    for axis, count in enumerate(counts):
        last = (count - 1) * attrs.strides[axis] + attrs.dilation[axis] * (kernel[axis] - 1)
        after.append(max(0, last + 1 - image[axis] - attrs.padding[axis]))
    pads = (attrs.padding[0], attrs.padding[1], after[0], after[1])
    border = Border((images, image[0], image[1], channels), pads, wide)
    name = planner.require(data.value, storage_of(data.value))
    name = _unsigned(planner, name, data, border, fill)
    _, height, width, _ = border.extents
    line = width * wide
    steps = (height * line, attrs.strides[0] * line, attrs.strides[1] * wide)
    reach = (attrs.dilation[0] * line, attrs.dilation[1] * wide)
    if kernel == [1, 1] and steps == (rows * line, columns * wide, wide):  # pixels in one row
        return name, Window((1, 1, images * rows * columns), (0, 0, wide), (1, 1), (0, 0))
    return name, Window((images, rows, columns), steps, (kernel[0], kernel[1]), reach)


def _in_words(window: Window, wide: int) -> Window:
    """A window of bytes as one of words; columns that are neighbours are read in one run."""
    down, across = window.taps
    taps = (down, 1 if window.reach[1] == wide else across)
    images, rows, columns = (step // _WORD for step in window.steps)
    reach = (window.reach[0] // _WORD, window.reach[1] // _WORD)
    return Window(window.result, (images, rows, columns), taps, reach)


def _unsigned(
    planner: Planner, name: str, data: Coded, border: Border, fill: int | None = None
) -> str:
    """Codes as unsigned bytes with a border around, of the zero point unless `fill` says else."""
    dtype = data.value.dtype
    if dtype is DType.UINT8 and border.extents == border.shape:
        return name
    fill = data.offset if fill is None else fill
    staged = planner.own(math.prod(border.extents))
    planner.step(border_kernel(border, dtype, fill), (name, staged))
    return staged


@LOWER.entry("nn.max_pool2d", "nn.avg_pool2d", "mean")
def _pool(planner: Planner, unit: Unit) -> None:
    core, (data,), is_max = unit.operator, unit.operands, unit.operator.op.name == "nn.max_pool2d"
    attrs, shape = core.attrs, extents(data.value)
    if len(shape) != 4:
        raise UnsupportedError("no image")
    (_, channels, *image), counts = shape, [1, 1]
    if core.op.name == "mean":
        if sorted(axis % 4 for axis in attrs.axes or ()) != [2, 3]:
            raise UnsupportedError("a mean over other axes than those of an image")
        kernel, attrs = image, WindowAttrs((1, 1), (0, 0, 0, 0), (1, 1))
    else:
        kernel, counts = list(attrs.pool_size), list(extents(core.output)[2:])
        if is_max and not _touches_image(attrs, counts, kernel, image):
            raise UnsupportedError("a window lies on nothing but padding")
    name, window = _windows(planner, data, attrs, counts, kernel, channels, 0 if is_max else None)
    is_padded = window.steps[0] not in (0, math.prod(image) * channels)
    if is_padded and not (is_max or (attrs.count_include_pad and not attrs.ceil_mode)):
        raise UnsupportedError("means that do not count padding")
    count = 1 if is_max else math.prod(kernel)
    factors = np.full(channels, data.step / unit.target.step / count)
    codes, multiplier, _ = scaled_sums(unit, factors, 255 * count)
    bias = np.full(channels, -data.offset * count, np.int32)
    made = window_kernel(window, channels, codes, is_max=is_max)
    constants = [planner.constant(_filled(one, VECTOR)) for one in (bias, multiplier)]
    planner.step(made, (name, *constants, planner.make(unit.result, storage_of(unit.result))))


def _touches_image(attrs: Any, counts: list[int], kernel: list[int], image: list[int]) -> bool:
    """Whether no window lies on nothing but padding, of which the largest is minus infinity."""
    first = all(pad < taps for pad, taps in zip(attrs.padding, kernel, strict=False))
    ends = zip(counts, attrs.strides, attrs.padding, image, strict=False)
    last = all((count - 1) * stride - pad < extent for count, stride, pad, extent in ends)
    return first and last and (set(attrs.dilation) == {1} or not any(attrs.padding))
