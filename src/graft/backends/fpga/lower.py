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
from graft.byoc.formats.integer_units import SIGN, Coded, Unit, extents, fixed_point, layer_sums
from graft.ir.graph import Graph, Value

_FACTOR_BITS = 22  # of factors that tensors are multiplied by before they are added
_DIGIT = 128  # base of such factors, where they differ from channel to channel
_MOST_SUM = (1 << 31) - 1
# Of a block of channels, as STORE reads them: 16 words, of which 7 are not used.
_PARAMETERS = np.dtype(
    [("bias", "<i4", LANES), ("multiplier", "<i4", LANES), ("shift", "i1", LANES), ("", "V112")]
)


@dataclass(frozen=True, slots=True)
class Term:
    """A convolution of a tensor by weights [channels, inputs of a group, height, width]."""

    data: Coded
    weights: Array
    groups: int = 1
    scale: int = 1
    window: tuple[Pair, ...] = ()  # strides, dilation, padding

    @property
    def largest(self) -> Array:
        """What it can come to, without the zero point's share, for each channel."""
        weights = np.abs(self.weights).sum((1, 2, 3)) * abs(self.scale)
        return np.asarray(weights * self.data.farthest)


@dataclass(frozen=True, slots=True)
class Sum:
    """Terms and a bias in steps of `unit`; bias and unit have a number for each channel."""

    terms: tuple[Term, ...]
    unit: Array
    bias: Array | int = 0

    @property
    def largest(self) -> int:
        return int((sum(term.largest for term in self.terms) + np.abs(self.bias)).max())


class Lowering:
    """A region's layers; its tensors lie at the bottom of memory, its constants behind them."""

    def __init__(self, region: Graph) -> None:
        self.tensors, self.layers = dict[Value, Tensor](), list[Layer]()
        self.constants = bytearray()
        self._base = 0  # the address of the constants
        ends = [node for node in region.nodes if node.op.name == "qnn.quantize"]
        for value in (*region.inputs, *(node.output for node in ends)):
            self.tensors[value] = _tensor(value, self._base)
            self._base += self.tensors[value].words
        for node in region.nodes:
            if node.op.name == "layout_transform":  # inside, every tensor is in blocks
                self.tensors[node.output] = self.tensors[node.args[0]]
            elif node.op.name == "qnn.quantize":
                self.layers.append(self._layer(Unit(node, region)))

    @property
    def words(self) -> int:
        return self._base + len(self.constants) // LANES

    def _layer(self, unit: Unit) -> Layer:
        whole = _sum(unit)
        if whole.largest > _MOST_SUM:
            raise UnsupportedError(f"sums of up to {whole.largest:,} overflow 32 bits")
        products = tuple(self._product(term) for term in whole.terms)
        parameters = self._requantisation(whole, unit.target.step)
        form = (unit.target.signed_zero, *unit.signed_limits)
        return Layer(products, parameters, self.tensors[unit.result], form)

    def _product(self, term: Term) -> Product:
        """A term with its weights in memory, as [block, tap, input channel, channel] of a block."""
        outputs, inputs, *kernel = term.weights.shape
        # The first input channel of each channel; those of one group share theirs.
        begins = np.arange(outputs) // (outputs // term.groups) * inputs
        tiles = []
        for first in range(0, outputs, LANES):
            own = begins[first : first + LANES]
            start = int(own[0]) // LANES
            count = -(-(int(own[-1]) + inputs) // LANES) - start
            dense = np.zeros((count * LANES, *kernel, LANES), np.int8)
            for lane, begin in enumerate(own - start * LANES):
                dense[begin : begin + inputs, ..., lane] = term.weights[first + lane]
            ordered = np.moveaxis(dense.reshape(count, LANES, *kernel, LANES), 1, 3)
            tiles.append((self._kept(ordered), (start, count)))
        data, zero, taps = self._data(term.data), term.data.signed_zero, (kernel[0], kernel[1])
        return Product(data, zero, tuple(tiles), term.scale, taps, *term.window)

    def _requantisation(self, whole: Sum, scale: float) -> int:
        """The address of the parameters of all channels."""
        zeros = sum(t.weights.sum((1, 2, 3)) * t.scale * t.data.signed_zero for t in whole.terms)
        bias = np.asarray(whole.bias - zeros).astype("<i4")  # modulo 2**32
        blocks = np.zeros(-(-len(bias) // LANES), _PARAMETERS)
        multipliers, shifts = fixed_point(whole.unit / scale)
        for name, numbers in (("bias", bias), ("multiplier", multipliers), ("shift", shifts)):
            blocks[name] = np.pad(numbers, (0, -len(bias) % LANES)).reshape(-1, LANES)
        return self._kept(blocks)

    def _kept(self, array: Array) -> int:
        """The address of a constant."""
        address = self.words
        self.constants += array.tobytes()
        return address

    def _data(self, data: Coded) -> Tensor:
        """Where the operand of a unit is on the chip."""
        if data.array is not None and data.value not in self.tensors:
            self.tensors[data.value] = _tensor(data.value, self.words)
            self._kept(blocked(np.ascontiguousarray(data.array)))
        return self.tensors[data.value]


def _sum(unit: Unit) -> Sum:
    """What a unit adds up before it is quantised."""
    if unit.operator.op.name in ("add", "subtract"):
        return _addition(unit)
    layer = _layer(unit)
    return layer if unit.added is None else _with_residual(layer, unit.added)


def _layer(unit: Unit) -> Sum:
    """A convolution. Dense layers have images of single pixels; a mean is a depthwise convolution
    with ones, and requantisation divides."""
    node, sums = unit.operator, layer_sums(unit)
    attrs, weights, groups, window = node.attrs, sums.weights, 1, tuple[Pair, ...]()
    if node.op.name == "nn.conv2d":
        groups, window = attrs.groups, (attrs.strides, attrs.dilation, attrs.padding[:2])
    elif node.op.name == "mean":
        groups = len(weights)
        if extents(node.args[0])[0] > 1 and not attrs.keepdims:
            raise UnsupportedError("means of several images without keepdims")
    elif len(extents(node.output)) == 4:
        raise UnsupportedError("a dense layer along the rows of images")
    else:
        weights = weights[..., None, None]
    return Sum((Term(sums.data, weights, groups, 1, window),), sums.steps, sums.bias)


def _addition(unit: Unit) -> Sum:
    """Two tensors, each times a factor."""
    pair, shape = unit.operands, extents(unit.result)
    if any(extents(one.value) != shape for one in pair):
        raise UnsupportedError("tensors of different shapes are not broadcast")
    step = max(one.step for one in pair) / (1 << _FACTOR_BITS)
    channels = shape[1] if len(shape) == 4 else shape[-1] if shape else 1
    ones = np.ones((channels, 1, 1, 1), np.int64)
    left, right = (Term(one, ones, channels, round(one.step / step)) for one in pair)
    if unit.operator.op.name == "subtract":
        right = replace(right, scale=-right.scale)
    return Sum((left, right), np.full(channels, step))


def _with_residual(layer: Sum, other: Coded) -> Sum:
    """A layer and a tensor behind it. The sum is refined by as many bits as it has room for, so
    that the tensor's factors, which differ by channel, are whole; their digits are weights."""
    factors = other.step / layer.unit
    room = _MOST_SUM / (layer.largest + 2 * SIGN * factors.max())
    bits = min(max(math.floor(math.log2(room)), 0), _FACTOR_BITS)
    refined = tuple(replace(term, scale=term.scale << bits) for term in layer.terms)
    terms = (*refined, *_scaled(other, factors * (1 << bits)))
    return Sum(terms, layer.unit / (1 << bits), layer.bias * (1 << bits))


def _scaled(data: Coded, factors: Array) -> Iterator[Term]:
    """A tensor times a number for each channel, to `_FACTOR_BITS` bits of the largest."""
    coarse = max(math.ceil(math.log2(factors.max())) - _FACTOR_BITS, 0)
    rest, scale = np.rint(factors / (1 << coarse)).astype(np.int64), 1 << coarse
    while rest.any():
        digits = (rest + _DIGIT // 2) % _DIGIT - _DIGIT // 2
        yield Term(data, digits[:, None, None, None], len(factors), scale)
        rest, scale = (rest - digits) // _DIGIT, scale * _DIGIT


def _tensor(value: Value, address: int) -> Tensor:
    """Images as they are; of other tensors the last axis is that of the channels."""
    shape = extents(value) or (1,)
    signed = value.dtype is DType.INT8
    if len(shape) < 4:
        return Tensor(address, 1, shape[-1], math.prod(shape[:-1]), 1, signed)
    images, channels, height, width, *lanes = shape  # the last of NCHW16c, at the border
    return Tensor(address, images, channels * math.prod(lanes), height, width, signed)
