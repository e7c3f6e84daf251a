"""Regions as layers: quantised units of the graph IR in, sums of integer products out.

A unit means round((Σ scale × convolution(data - zero) + bias) / scale) + zero. Here that is

    acc  = Σ SCALE × convolution(data)          on the array; padding is the zero point of the data
    byte = requantise(acc + bias)               where bias makes up for the zero points as well

with acc in steps of `unit`: for each channel, the real number that 1 stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from graft.backends.fpga.runtime import LANES, blocked
from graft.backends.fpga.schedule import Layer, Pair, Product, Tensor
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.quantized import ACTIVATIONS
from graft.ir.graph import Graph, Node, Value

_SHIFT = 128  # from uint8 to int8
_FACTOR_BITS = 22  # of factors that tensors are multiplied by before they are added
_DIGIT = 128  # base of such factors, where they differ from channel to channel
_MOST_SHIFT = 62
_MOST_SUM = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Data:
    """A tensor, and what its bytes stand for as signed ones."""

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
    window: tuple[Pair, ...] = ()  # kernel, strides, dilation, padding

    @property
    def largest(self) -> Array:
        """What it can come to, without the zero point's share, for each channel."""
        farthest = max(_SHIFT + self.data.zero, _SHIFT - 1 - self.data.zero)
        return np.asarray(np.abs(self.weights).sum((1, 2, 3)) * abs(self.scale) * farthest)


@dataclass(frozen=True, slots=True)
class Sum:
    """Terms and a bias in steps of `unit`; bias and unit have a number for each channel."""

    terms: tuple[Term, ...]
    unit: Array
    bias: Array | float = 0.0

    @property
    def largest(self) -> int:
        return int((sum(term.largest for term in self.terms) + np.abs(self.bias)).max())


class Lowering:
    """A region's layers; its tensors lie at the bottom of memory, its constants behind them."""

    def __init__(self, region: Graph) -> None:
        self.tensors, self.layers = dict[Value, Tensor](), list[Layer]()
        self.constants = bytearray()
        self._producers = region.producers
        self._arrays = {n.output: n.attrs.value.array for n in region.nodes if not n.inputs}
        self._base = 0  # the address of the constants
        results = (node.output for node in region.nodes if node.op.name == "qnn.quantize")
        for value in (*region.inputs, *results):
            self.tensors[value] = _tensor(value, self._base)
            self._base += self.tensors[value].words
        for node in region.nodes:
            if node.op.name == "layout_transform":  # inside, every tensor is in blocks
                self.tensors[node.output] = self.tensors[node.args[0]]
            elif node.op.name == "qnn.quantize":
                self.layers.append(self._layer(node))

    @property
    def words(self) -> int:
        return self._base + len(self.constants) // LANES

    def _layer(self, node: Node) -> Layer:
        scale, zero = self._parameters(node)
        low, high, maker = None, None, self._producers[node.args[0]]
        if maker.op.name in ACTIVATIONS:
            is_relu = maker.op.name == "nn.relu"
            low, high = (0.0, None) if is_relu else (maker.attrs.a_min, maker.attrs.a_max)
            maker = self._producers[maker.args[0]]
        whole = self._sum(maker)
        if whole.largest > _MOST_SUM:
            raise UnsupportedError(f"sums of up to {whole.largest:,} overflow 32 bits")
        bounds = (-math.inf if low is None else low, math.inf if high is None else high)
        codes = np.rint(np.array(bounds) / scale) + zero
        lowest, highest = codes.clip(-_SHIFT, _SHIFT - 1).astype(int).tolist()
        products = tuple(self._product(term) for term in whole.terms)
        form = (int(zero), min(lowest, highest), highest)
        parameters = self._requantisation(whole, float(scale))
        return Layer(products, parameters, self.tensors[node.output], form)

    def _sum(self, node: Node) -> Sum:
        if node.op.name == "nn.bias_add":
            inner = self._sum(self._producers[node.args[0]])
            array, scale = self._constant(node.args[1])
            rank = len(node.output.shape or ())
            if node.attrs.axis % rank != (1 if rank == 4 else rank - 1):
                raise UnsupportedError(f"a bias along the axis {node.attrs.axis} of {rank}")
            return replace(inner, bias=np.rint(array * scale / inner.unit))
        if node.op.name in ("add", "subtract"):
            return self._addition(node)
        return self._mean(node) if node.op.name == "mean" else self._convolution(node)

    def _convolution(self, node: Node) -> Sum:
        data, (array, scale) = self._data(node.args[0]), self._constant(node.args[1])
        if node.op.name == "nn.dense" and len(node.output.shape or ()) == 4:
            raise UnsupportedError("a dense layer along the rows of images")
        if array.min() < -_SHIFT or array.max() >= _SHIFT:
            found = f"{array.min()} to {array.max()}"
            raise UnsupportedError(f"weights minus their zero point are {found}, and not int8")
        term = Term(data, array.reshape(*array.shape, *(1,) * (4 - array.ndim)))
        if node.op.name == "nn.conv2d":
            attrs = node.attrs
            window = (array.shape[2:], attrs.strides, attrs.dilation, attrs.padding[:2])
            term = Term(data, array, attrs.groups, 1, window)
        return Sum((term,), np.broadcast_to(data.scale * scale, len(array)))

    def _mean(self, node: Node) -> Sum:
        """A depthwise convolution with ones; requantisation divides."""
        data, axes, rank = self._data(node.args[0]), node.attrs.axes, len(node.args[0].shape or ())
        tensor = data.tensor
        if rank != 4 or {axis % rank for axis in axes or ()} != {2, 3}:
            raise UnsupportedError(f"a mean over the axes {axes}, which are not an image's")
        if tensor.images > 1 and not node.attrs.keepdims:
            raise UnsupportedError("means of several images without keepdims")
        kernel, channels = (tensor.height, tensor.width), tensor.channels
        term = Term(data, np.ones((channels, 1, *kernel), np.int64), channels, 1, (kernel,))
        return Sum((term,), np.full(channels, data.scale / math.prod(kernel)))

    def _addition(self, node: Node) -> Sum:
        """Two tensors, or what a layer makes and a tensor."""
        if any(value.shape != node.output.shape for value in node.args):
            raise UnsupportedError("tensors of different shapes are not broadcast")
        makers = [self._producers[value] for value in node.args]
        layers = [maker for maker in makers if maker.op.name != "qnn.dequantize"]
        if layers:
            other = node.args[1 - makers.index(layers[0])]
            return _with_residual(self._sum(layers[0]), self._data(other))
        left, right = (self._data(value) for value in node.args)
        unit = max(left.scale, right.scale) / (1 << _FACTOR_BITS)
        sign, channels = 1 if node.op.name == "add" else -1, left.tensor.channels
        factors = (round(left.scale / unit), sign * round(right.scale / unit))
        ones = np.ones((channels, 1, 1, 1), np.int64)
        pairs = zip((left, right), factors, strict=True)
        terms = tuple(Term(data, ones, channels, factor) for data, factor in pairs)
        return Sum(terms, np.full(channels, unit))

    def _product(self, term: Term) -> Product:
        """A term with its weights in memory, as [block, tap, input channel, channel] of a block."""
        outputs, inputs, *kernel = term.weights.shape
        size = outputs // term.groups  # channels that share inputs
        tiles = []
        for first in range(0, outputs, LANES):
            last = min(first + LANES, outputs) - 1
            start = first // size * inputs // LANES
            count = -(-(last // size + 1) * inputs // LANES) - start
            dense = np.zeros((count * LANES, *kernel, LANES), np.int8)
            for channel in range(first, last + 1):
                begin = channel // size * inputs - start * LANES
                dense[begin : begin + inputs, ..., channel - first] = term.weights[channel]
            ordered = np.moveaxis(dense.reshape(count, LANES, *kernel, LANES), 1, 3)
            tiles.append((self._kept(ordered), (start, count)))
        return Product(term.data.tensor, term.data.zero, tuple(tiles), term.scale, *term.window)

    def _requantisation(self, whole: Sum, scale: float) -> int:
        """The address of biases, multipliers and shifts, 16 words for 16 channels."""
        zeros = sum(t.weights.sum((1, 2, 3)) * t.scale * t.data.zero for t in whole.terms)
        bias = np.asarray(whole.bias).astype(np.int64) - zeros
        blocks = -(-len(bias) // LANES)
        words = np.zeros((blocks, LANES, LANES), np.uint8)
        multipliers, shifts = fixed_point(whole.unit / scale)
        for numbers, rows, dtype in ((bias, 0, "<i4"), (multipliers, 4, "<i4"), (shifts, 8, "i1")):
            padded = np.zeros(blocks * LANES, dtype)
            padded[: len(bias)] = numbers.astype(dtype)  # of biases, modulo 2**32
            octets = padded.view(np.uint8).reshape(blocks, -1, LANES)
            words[:, rows : rows + octets.shape[1]] = octets
        return self._kept(words)

    def _kept(self, array: Array) -> int:
        """The address of a constant."""
        address = self.words
        self.constants += array.tobytes()
        return address

    def _data(self, value: Value) -> Data:
        """What the dequantised operand of a unit is on the chip."""
        node = self._producers[value]
        (scale, zero), data = self._parameters(node), node.args[0]
        if data in self._arrays:
            self.tensors[data] = _tensor(data, self.words)
            self._kept(blocked(np.ascontiguousarray(self._arrays[data])))
        return Data(self.tensors[data], float(scale), int(zero))

    def _constant(self, value: Value) -> tuple[Array, Array]:
        """Integers without their zero point, and their scale, one or one for each channel."""
        node = self._producers[value]
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
        if getattr(node.attrs, "block_size", 0) or not np.all((scale > 0) & (scale < math.inf)):
            raise UnsupportedError("scales are of blocks, or not positive")
        if is_constant:
            return scale, zero.astype(np.int64)
        if coded.dtype not in (DType.INT8, DType.UINT8) or scale.size * zero.size > 1:
            raise UnsupportedError(f"%{coded.name} is not int8 or uint8 with one scale")
        shift = _SHIFT if coded.dtype is DType.UINT8 else 0
        return scale.reshape(()), zero.reshape(()).astype(np.int64) - shift


def _with_residual(layer: Sum, other: Data) -> Sum:
    """A layer and a tensor behind it. The sum is refined by as many bits as it has room for, so
    that the tensor's factors, which differ by channel, are whole; their digits are weights."""
    factors = other.scale / layer.unit
    room = _MOST_SUM / (layer.largest + 2 * _SHIFT * factors.max())
    bits = min(max(math.floor(math.log2(room)), 0), _FACTOR_BITS)
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
    if shifts.min() < 0:
        raise UnsupportedError(f"sums cannot be multiplied by {factors.max():.3g}")
    excess = np.clip(shifts - _MOST_SHIFT, 0, 31)  # what is so small only ever gives zero
    return multipliers >> excess, np.minimum(shifts, _MOST_SHIFT)


def _tensor(value: Value, address: int) -> Tensor:
    """Images as they are; of other tensors the last axis is that of the channels."""
    shape = [int(str(extent)) for extent in value.tensor.shape or (1,)]
    signed = value.dtype is DType.INT8
    if len(shape) < 4:
        return Tensor(address, 1, shape[-1], math.prod(shape[:-1]), 1, signed)
    images, channels, height, width, *lanes = shape  # the last of NCHW16c, at the border
    return Tensor(address, images, channels * math.prod(lanes), height, width, signed)
