"""Layers and pools as HVX kernels, in the table of `units.py` once this is imported."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.backends.hexagon.hvx import (
    Border,
    Window,
    border_kernel,
    product_kernel,
    window_kernel,
)
from graft.backends.hexagon.kernel import VECTOR, WORDS
from graft.backends.hexagon.units import (
    Coded,
    NoIntegerFormError,
    Unit,
    lowers,
    shape_of,
    storage_of,
)
from graft.base.dtypes import Array, DType
from graft.byoc.formats.storage import Storage
from graft.ir.graph import Node
from graft.ops.window import WindowAttrs

if TYPE_CHECKING:
    from graft.backends.hexagon.plan import Planner

_SIGN = 128  # between signed codes and the unsigned ones that `vrmpy` multiplies
_WORD = 4  # bytes


@lowers("nn.conv2d")
def _convolution(planner: Planner, unit: Unit) -> None:
    core, _, _ = unit.stripped()
    data, attrs = unit.coded(core.args[0]), core.attrs
    weights = _weights(unit, core, shape_of(core.output)[1])
    (_, channels, *_), (outputs, inputs, *kernel) = shape_of(data.value), weights.shape
    counts = list(shape_of(core.output)[2:])
    sums = _Sums(unit, data, weights)
    if attrs.groups == 1:
        wide = -(-channels // _WORD) * _WORD
        name, window = _windows(planner, data, attrs, counts, kernel, wide)
        filled = np.zeros((outputs, *kernel, wide), np.int8)
        filled[..., :channels] = weights.transpose(0, 2, 3, 1)
        sums.multiply(planner, name, _in_words(window, wide), filled, storage_of(unit.result))
        return
    if attrs.groups != channels or outputs != channels or inputs != 1:
        raise NoIntegerFormError
    name, window = _windows(planner, data, attrs, counts, kernel, channels)
    made = window_kernel(window, channels, sums.codes, is_weighted=True)
    by_tap = weights.reshape(channels, -1).T.astype(np.int8)
    numbers = (_filled(one, VECTOR) for one in (sums.bias, sums.multiplier))
    constants = [planner.constant(one) for one in (by_tap, *numbers)]
    planner.step(made, (name, *constants, planner.make(unit.result, storage_of(unit.result))))


@lowers("nn.dense")
def _dense(planner: Planner, unit: Unit) -> None:
    """Rows as pixels of one image."""
    core, _, _ = unit.stripped()
    data = unit.coded(core.args[0])
    *leading, inputs = shape_of(data.value)
    rows, wide = math.prod(leading), -(-inputs // _WORD) * _WORD
    weights = _weights(unit, core, shape_of(core.output)[-1])
    plain = Storage.row_major(data.value.dtype, shape_of(data.value))
    border = Border((1, 1, rows, inputs), (0, 0, 0, 0), wide)
    name = _unsigned(planner, planner.require(data.value, plain), data, border)
    filled = np.zeros((len(weights), 1, 1, wide), np.int8)
    filled[:, 0, 0, :inputs] = weights
    window = Window((1, 1, rows), (0, 0, wide), (1, 1), (0, 0))
    sums = _Sums(unit, data, weights)
    result = Storage.row_major(unit.result.dtype, shape_of(unit.result))
    sums.multiply(planner, name, _in_words(window, wide), filled, result)


class _Sums:
    """What is known of the sums of a layer: codes and multipliers, and the bias in their steps, in
    which the zero point of the data is."""

    def __init__(self, unit: Unit, data: Coded, weights: Array) -> None:
        self.unit, (scale, zero), (core, bias, bounds) = unit, data.single, unit.stripped()
        known = unit.coded(core.args[1]).scale.reshape(-1)
        steps, added = np.broadcast_to(scale * known, len(weights)), np.zeros(len(weights))
        if bias is not None:
            codes = unit.graph.constants[bias.value].array
            added = np.rint((codes - bias.zero) * bias.scale / steps)
        each, info = weights.reshape(len(weights), -1), np.iinfo(data.value.dtype.numpy)
        most = np.abs(each).sum(1) * max(info.max - zero, zero - info.min) + np.abs(added)
        factor = steps / unit.target.single[0]
        self.codes, self.multiplier = unit.codes(factor, int(most.max()), bounds)
        # Sums of unsigned codes may wrap around on their way: what they come to does not.
        unsigned = added - each.sum(1) * (zero - info.min)
        self.bias = unsigned.astype(np.int64).astype(np.int32)

    def multiply(
        self, planner: Planner, data: str, window: Window, weights: Array, result: Storage
    ) -> None:
        """The step of a product; weights are OHWI, of whole words."""
        outputs, depth = len(weights), weights[0].size // _WORD
        run = depth // math.prod(window.taps)
        padded = -(-outputs // WORDS) * WORDS
        words = np.zeros((padded, depth, _WORD), np.int8)
        words[:outputs] = weights.reshape(outputs, depth, _WORD)
        blocks = [words[start : start + VECTOR] for start in range(0, padded, VECTOR)]
        packed = np.concatenate([block.transpose(1, 0, 2).ravel() for block in blocks])
        kernel = product_kernel(window, run, outputs, self.codes)
        numbers = (_filled(one, WORDS) for one in (self.bias, self.multiplier))
        names = [planner.constant(one) for one in (packed, *numbers)]
        planner.step(kernel, (data, *names, planner.make(self.unit.result, result)))


def _filled(numbers: Array, multiple: int) -> Array:
    """Numbers of channels, and zeros up to a multiple."""
    return np.pad(numbers, (0, -len(numbers) % multiple))


def _weights(unit: Unit, core: Node, outputs: int) -> Array:
    """Constant weights without their zero point, if bytes hold them."""
    coded = unit.coded(core.args[1])
    held = unit.graph.constants.get(coded.value)
    along = coded.scale.size == 1 or coded.axis % len(shape_of(coded.value)) == 0
    if held is None or not along or len(set(coded.zero.flat)) > 1:
        raise NoIntegerFormError
    weights: Array = held.array.astype(np.int64) - int(coded.zero.flat[0])
    if weights.min() < -_SIGN or weights.max() >= _SIGN or len(weights) != outputs:
        raise NoIntegerFormError
    return weights


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
    (images, channels, *extents), (rows, columns), after = shape_of(data.value), counts, list[int]()
    for axis, count in enumerate(counts):
        last = (count - 1) * attrs.strides[axis] + attrs.dilation[axis] * (kernel[axis] - 1)
        after.append(max(0, last + 1 - extents[axis] - attrs.padding[axis]))
    pads = (attrs.padding[0], attrs.padding[1], after[0], after[1])
    border = Border((images, extents[0], extents[1], channels), pads, wide)
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
    dtype, zero = data.value.dtype, data.single[1]
    if dtype is DType.UINT8 and border.extents == border.shape:
        return name
    fill = zero - int(np.iinfo(dtype.numpy).min) if fill is None else fill
    staged = planner.own(math.prod(border.extents))
    planner.step(border_kernel(border, dtype, fill), (name, staged))
    return staged


@lowers("nn.max_pool2d", "nn.avg_pool2d", "mean")
def _pool(planner: Planner, unit: Unit) -> None:
    core, _, bounds = unit.stripped()
    data, attrs, is_max = unit.coded(core.args[0]), core.attrs, core.op.name == "nn.max_pool2d"
    if len(shape_of(data.value)) != 4:
        raise NoIntegerFormError
    _, channels, *extents = shape_of(data.value)
    if core.op.name == "mean":
        if sorted(axis % 4 for axis in attrs.axes or ()) != [2, 3]:
            raise NoIntegerFormError
        kernel, counts, attrs = extents, [1, 1], WindowAttrs((1, 1), (0, 0, 0, 0), (1, 1))
    else:
        kernel, counts = list(attrs.pool_size), list(shape_of(core.output)[2:])
        if is_max and not _touches_image(attrs, counts, kernel, extents):
            raise NoIntegerFormError
    name, window = _windows(planner, data, attrs, counts, kernel, channels, 0 if is_max else None)
    is_padded = window.steps[0] not in (0, math.prod(extents) * channels)
    if is_padded and not (is_max or (attrs.count_include_pad and not attrs.ceil_mode)):
        raise NoIntegerFormError
    count = 1 if is_max else math.prod(kernel)
    codes, multiplier = unit.codes(
        np.full(channels, unit.scale_to(data) / count), 255 * count, bounds
    )
    zero = data.single[1] - int(np.iinfo(data.value.dtype.numpy).min)
    bias = np.full(channels, -zero * count, np.int32)
    made = window_kernel(window, channels, codes, is_max=is_max)
    constants = [planner.constant(_filled(one, VECTOR)) for one in (bias, multiplier)]
    planner.step(made, (name, *constants, planner.make(unit.result, storage_of(unit.result))))


def _touches_image(attrs: Any, counts: list[int], kernel: list[int], extents: list[int]) -> bool:
    """Whether no window lies on nothing but padding, of which the largest is minus infinity."""
    first = all(pad < taps for pad, taps in zip(attrs.padding, kernel, strict=False))
    ends = zip(counts, attrs.strides, attrs.padding, extents, strict=False)
    last = all((count - 1) * stride - pad < extent for count, stride, pad, extent in ends)
    return first and last and (set(attrs.dilation) == {1} or not any(attrs.padding))
