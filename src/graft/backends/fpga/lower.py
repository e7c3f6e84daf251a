"""Regions as layers: quantised units of the graph IR in, sums of integer products out.

A unit means round((Σ scale × convolution(data - zero) + bias) / scale) + zero. Here that is

    acc  = Σ SCALE × convolution(data)          on the array; padding is the zero point of the data
    byte = requantise(acc + bias)               where bias makes up for the zero points as well

with acc in steps of `unit`: for each channel, the real number that 1 stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graft.backends.fpga.runtime import LANES, blocked
from graft.backends.fpga.schedule import Layer, Pair, Product, Tensor
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.quantized import ACTIVATIONS
from graft.ir.graph import Graph, Node, Value

_SHIFT = 128  # from uint8 to int8
_FACTOR_BITS = 20  # of factors that tensors are multiplied by before they are added
_DIGIT = 128  # base of such factors, where they differ from channel to channel
_MOST_SHIFT = 62
_MOST_SUM = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Data:
    """A tensor and what its bytes, as signed ones, stand for."""

    tensor: Tensor
    scale: float
    zero: int


@dataclass(frozen=True, slots=True)
class Term:
    """A convolution of a tensor by weights [channels, inputs of a group, height, width]."""

    data: Data
    weights: Array
    groups: int = 1
    scale: int = 1
    kernel: Pair = (1, 1)
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair = (0, 0)

    @property
    def largest(self) -> Array:
        """What it can come to, without the zero point's share, for each channel."""
        farthest = max(_SHIFT + self.data.zero, _SHIFT - 1 - self.data.zero)
        return np.abs(self.weights).sum((1, 2, 3)) * abs(self.scale) * farthest


@dataclass(frozen=True, slots=True)
class Sum:
    """Terms and a bias in steps of `unit`; bias and unit have a number for each channel."""

    terms: tuple[Term, ...]
    unit: Array
    bias: Array

    @property
    def largest(self) -> int:
        return int((sum(term.largest for term in self.terms) + np.abs(self.bias)).max())


class Lowering:
    """A region's layers; its tensors lie at the bottom of memory, its constants behind them."""

    def __init__(self, region: Graph) -> None:
        self.region, self.tensors, self.layers = region, dict[Value, Tensor](), list[Layer]()
        self.constants = bytearray()
        self.base = 0  # the address of the constants
        self._arrays = {n.output: n.attrs.value.array for n in region.nodes if not n.inputs}
        units = [node for node in region.nodes if node.op.name == "qnn.quantize"]
        for value in (*region.inputs, *(node.output for node in units)):
            self.tensors[value] = tensor = _tensor(value, self.base)
            self.base += tensor.words
        for node in region.nodes:
            if node.op.name == "layout_transform":  # inside, every tensor is in blocks
                self.tensors[node.output] = self.tensors[node.args[0]]
            elif node.op.name == "qnn.quantize":
                self.layers.append(self._layer(node))

    @property
    def words(self) -> int:
        return self.base + len(self.constants) // LANES

    def _layer(self, node: Node) -> Layer:
        scale, zero = self._parameters(node)
        low, high = None, None
        maker = self._producer(node.args[0])
        if maker.op.name in ACTIVATIONS:
            is_relu = maker.op.name == "nn.relu"
            low, high = (0.0, None) if is_relu else (maker.attrs.a_min, maker.attrs.a_max)
            maker = self._producer(maker.args[0])
        whole = self._sum(maker)
        if whole.largest > _MOST_SUM:
            raise UnsupportedError(f"sums of up to {whole.largest:,} overflow 32 bits")
        lowest = -_SHIFT if low is None else _code(low, float(scale), int(zero))
        highest = _SHIFT - 1 if high is None else _code(high, float(scale), int(zero))
        result, form = self.tensors[node.output], (int(zero), min(lowest, highest), highest)
        products = tuple(self._product(term) for term in whole.terms)
        return Layer(products, self._requantisation(whole, float(scale)), result, form)

    def _sum(self, node: Node) -> Sum:
        name = node.op.name
        if name == "nn.bias_add":
            inner = self._sum(self._producer(node.args[0]))
            array, scale = self._constant(node.args[1])
            return replace(inner, bias=np.rint(array * scale / inner.unit))
        if name in ("add", "subtract"):
            return self._addition(node)
        return self._mean(node) if name in ("mean", "nn.avg_pool2d") else self._convolution(node)

    def _convolution(self, node: Node) -> Sum:
        data, (array, scale) = self._data(node.args[0]), self._constant(node.args[1])
        if array.min() < -_SHIFT or array.max() >= _SHIFT:
            found = f"{array.min()} to {array.max()}"
            raise UnsupportedError(f"weights minus their zero point are {found}, and not int8")
        unit = np.broadcast_to(data.scale * scale, len(array))
        if node.op.name == "nn.conv2d":
            term = Term(data, array, node.attrs.groups, **_window(node.attrs, array.shape[2:]))
        else:
            term = Term(data, array[:, :, None, None])
        return Sum((term,), unit, np.zeros(len(array)))

    def _mean(self, node: Node) -> Sum:
        """A depthwise convolution with ones; requantisation divides."""
        data, attrs = self._data(node.args[0]), node.attrs
        tensor, rank = data.tensor, len(node.args[0].shape or ())
        window: dict[str, Any] = {"kernel": (tensor.height, tensor.width)}
        if node.op.name == "nn.avg_pool2d":
            if attrs.ceil_mode or (any(attrs.padding) and not attrs.count_include_pad):
                raise UnsupportedError("its windows are not all of one size")
            window = _window(attrs, attrs.pool_size)
        elif rank != 4 or {axis % rank for axis in attrs.axes or ()} != {2, 3}:
            raise UnsupportedError(f"a mean over the axes {attrs.axes}, which are not an image's")
        elif tensor.images > 1 and not attrs.keepdims:
            raise UnsupportedError("means of several images without keepdims")
        channels = tensor.channels
        ones = np.ones((channels, 1, *window["kernel"]), np.int64)
        unit = np.full(channels, data.scale / math.prod(window["kernel"]))
        return Sum((Term(data, ones, channels, **window),), unit, np.zeros(channels))

    def _addition(self, node: Node) -> Sum:
        """Two tensors, or what a layer makes and a tensor."""
        if any(value.shape != node.output.shape for value in node.args):
            raise UnsupportedError("tensors of different shapes are not broadcast")
        names = [self._producer(value).op.name for value in node.args]
        if set(names) != {"qnn.dequantize"}:
            side = names.index("qnn.dequantize")
            layer = self._sum(self._producer(node.args[1 - side]))
            return _with_residual(layer, self._data(node.args[side]))
        left, right = (self._data(value) for value in node.args)
        unit = max(left.scale, right.scale) / (1 << _FACTOR_BITS)
        sign = 1 if node.op.name == "add" else -1
        factors = (round(left.scale / unit), sign * round(right.scale / unit))
        channels = left.tensor.channels
        ones = np.ones((channels, 1, 1, 1), np.int64)
        pairs = zip((left, right), factors, strict=True)
        terms = tuple(Term(data, ones, channels, factor) for data, factor in pairs)
        return Sum(terms, np.full(channels, unit), np.zeros(channels))

    def _product(self, term: Term) -> Product:
        """A term with its weights in memory, as tiles [block, tap, input channel, channel]."""
        outputs, inputs, *kernel = term.weights.shape
        size = outputs // term.groups  # channels that share inputs
        addresses, spans = [], []
        for first in range(0, outputs, LANES):
            last = min(first + LANES, outputs) - 1
            start = first // size * inputs // LANES
            count = -(-(last // size + 1) * inputs // LANES) - start
            tiles = np.zeros((count * LANES, *kernel, LANES), np.int8)
            for channel in range(first, last + 1):
                begin = channel // size * inputs - start * LANES
                tiles[begin : begin + inputs, ..., channel - first] = term.weights[channel]
            ordered = np.moveaxis(tiles.reshape(count, LANES, *kernel, LANES), 1, 3)
            addresses.append(self._kept(ordered))
            spans.append((start, count))
        window = (term.kernel, term.strides, term.dilation, term.padding)
        data = term.data
        return Product(data.tensor, data.zero, tuple(addresses), tuple(spans), term.scale, *window)

    def _requantisation(self, whole: Sum, scale: float) -> int:
        """The address of bias, multiplier and shift of each channel, 16 words for 16 of them."""
        bias = whole.bias.astype(np.int64)
        for term in whole.terms:
            bias = bias - term.weights.sum((1, 2, 3)) * term.scale * term.data.zero
        multipliers, shifts = fixed_point(whole.unit / scale)
        blocks = -(-len(bias) // LANES)
        words = np.zeros((blocks, LANES, LANES), np.uint8)
        rows = zip((bias, multipliers, shifts), ((0, 4), (4, 8), (8, 9)), "iib", strict=True)
        for numbers, (begin, end), dtype in rows:
            padded = np.zeros(blocks * LANES, dtype)
            padded[: len(bias)] = numbers.astype(np.int64).astype(dtype)  # modulo 2**32
            words[:, begin:end] = padded.view(np.uint8).reshape(blocks, -1, LANES)
        return self._kept(words)

    def _kept(self, array: Array) -> int:
        """The address of a constant."""
        address = self.words
        self.constants += array.tobytes()
        return address

    def _producer(self, value: Value) -> Node:
        node = self.region.producers.get(value)
        if node is None:
            raise UnsupportedError(f"%{value.name} is no part of a quantised unit")
        return node

    def _data(self, value: Value) -> Data:
        """What the float operand of a unit is on the chip."""
        node = self._producer(value)
        (scale, zero), data = self._parameters(node), node.args[0]
        if data in self._arrays:
            tensor = _tensor(data, self.words)
            self._kept(blocked(np.ascontiguousarray(self._arrays[data])))
            self.tensors[data] = tensor
        return Data(self.tensors[data], float(scale), int(zero))

    def _constant(self, value: Value) -> tuple[Array, Array]:
        """Integers without their zero point, and their scale, one or one for each channel."""
        node = self._producer(value)
        scale, zero = self._parameters(node, is_constant=True)
        array = self._arrays[node.args[0]].astype(np.int64)
        if max(scale.size, zero.size) > 1 and node.attrs.axis % array.ndim != 0:
            raise UnsupportedError(f"weights have scales along their axis {node.attrs.axis}")
        return array - zero.reshape(-1, *(1,) * (array.ndim - 1)), scale.reshape(-1)

    def _parameters(self, node: Node, is_constant: bool = False) -> tuple[Array, Array]:
        """Scale and zero point; of data one each, and the latter of signed bytes."""
        coded = node.output if node.op.name == "qnn.quantize" else node.args[0]
        scale = self._arrays[node.args[1]].astype(np.float64)
        zero = self._arrays[node.args[2]] if len(node.args) > 2 else np.zeros((), np.int8)
        zero = zero.astype(np.int64)
        if getattr(node.attrs, "block_size", 0) or not np.all((scale > 0) & (scale < math.inf)):
            raise UnsupportedError("scales are of blocks, or not positive")
        if is_constant:
            return scale, zero
        if coded.dtype not in (DType.INT8, DType.UINT8):
            raise UnsupportedError(f"%{coded.name} is {coded.dtype}, and not int8 or uint8")
        if scale.size > 1 or zero.size > 1:
            raise UnsupportedError(f"%{coded.name} has scales of its own for channels of data")
        shift = _SHIFT if coded.dtype is DType.UINT8 else 0
        return scale.reshape(()), zero.reshape(()) - shift


def _with_residual(layer: Sum, other: Data) -> Sum:
    """A layer and a tensor behind it. The sum is refined by as many bits as it has room for, so
    that the tensor's factors, which differ by channel, are whole; their digits are weights."""
    factors = other.scale / layer.unit
    room = _MOST_SUM / (layer.largest + 2 * _SHIFT * factors.max())
    bits = max(min(int(math.log2(room)), _FACTOR_BITS), 0) if room >= 1 else 0
    refined = tuple(replace(term, scale=term.scale << bits) for term in layer.terms)
    terms = (*refined, *_scaled(other, factors * (1 << bits)))
    return Sum(terms, layer.unit / (1 << bits), layer.bias * (1 << bits))


def _scaled(data: Data, factors: Array) -> Iterator[Term]:
    """A tensor times a number for each channel, to `_FACTOR_BITS` bits of the largest."""
    coarse = max(math.ceil(math.log2(factors.max())) - _FACTOR_BITS, 0)
    rest, scale = np.rint(factors / (1 << coarse)).astype(np.int64), 1 << coarse
    while rest.any():
        digits = (rest + _DIGIT // 2) % _DIGIT - _DIGIT // 2
        yield Term(data, digits[:, None, None, None], len(factors), scale)
        rest, scale = (rest - digits) // _DIGIT, scale * _DIGIT


def fixed_point(factors: Array) -> tuple[Array, Array]:
    """Multipliers of 31 bits, and by how many bits products are shifted to the right."""
    fractions, exponents = np.frexp(factors)
    multipliers = np.rint(np.ldexp(fractions, 31)).astype(np.int64)
    shifts = 31 - exponents.astype(np.int64)
    carried = multipliers == 1 << 31
    multipliers, shifts = np.where(carried, multipliers >> 1, multipliers), shifts - carried
    excess = np.clip(shifts - _MOST_SHIFT, 0, 31)  # what is so small only ever gives zero
    if shifts.min() < 0:
        raise UnsupportedError(f"sums cannot be multiplied by {factors.max():.3g}")
    return multipliers >> excess, np.minimum(shifts, _MOST_SHIFT)


def _code(number: float, scale: float, zero: int) -> int:
    """The signed byte that stands for a number."""
    return int(np.clip(np.rint(number / scale) + zero, -_SHIFT, _SHIFT - 1))


def _window(attrs: Any, kernel: Sequence[int]) -> dict[str, Any]:
    if min(attrs.padding) < 0:
        raise UnsupportedError("its padding is negative")
    pairs = {"kernel": kernel, "strides": attrs.strides, "dilation": attrs.dilation}
    return {name: tuple(pair) for name, pair in (*pairs.items(), ("padding", attrs.padding[:2]))}


def _tensor(value: Value, address: int) -> Tensor:
    """Images as they are; of other tensors the last axis is that of the channels."""
    shape = [int(str(extent)) for extent in value.tensor.shape or ()]
    signed = value.dtype is DType.INT8
    if len(shape) == 5:  # NCHW16c, at the border
        images, blocks, height, width, lanes = shape
        return Tensor(address, images, blocks * lanes, height, width, signed)
    if len(shape) == 4:
        return Tensor(address, *shape, signed)
    return Tensor(address, 1, shape[-1] if shape else 1, math.prod(shape[:-1]), 1, signed)
