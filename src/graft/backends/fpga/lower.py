"""Regions as layers: quantised units of the graph IR in, sums of integer products out.

A unit means round((Σ scale × convolution(data - zero) + bias) / scale) + zero. Here that is

    acc  = Σ SCALE × convolution(data)          on the array; padding is the zero point of the data
    byte = requantise(acc + bias)               where bias makes up for the zero points as well

with acc in `steps`: for each channel, the real number that 1 stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

import numpy as np

from graft.backends.fpga.runtime import LANES, Tensor
from graft.backends.fpga.schedule import Layer, Pair, Product
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import SIGN, Coded, Unit, extents, fixed_point, layer_sums
from graft.ir.graph import Graph, Value

_BASE = 2 * SIGN  # of weights and factors that are no bytes, of which each digit is a product
_FACTOR_BITS = 22  # of factors that tensors are multiplied by before they are added
_REFINED_BITS = 14  # by which a layer's sums are finer at most where a tensor is added
_MOST_SCALE, _MOST_SUM = (1 << 23) - 1, (1 << 31) - _BASE  # as factors are rounded


@dataclass(frozen=True, slots=True)
class Sum:
    """Products by integers of any size, and a bias: the sum of a channel is in steps of its own,
    and at most `largest`, zero points aside."""

    products: list[Product]
    steps: Array
    bias: Array
    largest: float


class Lowering:
    """A region's layers; its tensors lie at the bottom of memory, its constants behind them."""

    def __init__(self, region: Graph) -> None:
        self.tensors, self.layers = dict[Value, Tensor](), list[Layer]()
        self.constants, self.words = bytearray(), 0  # of all memory
        ends = [node for node in region.nodes if node.op.name == "qnn.quantize"]
        for value in (*region.inputs, *(node.output for node in ends)):
            self.tensors[value] = _tensor(value, self.words)
            self.words += self.tensors[value].words
        for node in region.nodes:
            if node.op.name == "layout_transform":  # inside, every tensor is in blocks
                self.tensors[node.output] = self.tensors[node.args[0]]
            elif node.op.name == "qnn.quantize":
                self.layers.append(self._layer(Unit(node, region, broadcasts=True)))

    def _layer(self, unit: Unit) -> Layer:
        whole, result = self._products(unit), self.tensors[unit.result]
        if unit.summands:
            whole = self._with_tensors(whole, unit)
        if whole.largest > _MOST_SUM:
            raise UnsupportedError(f"sums of up to {whole.largest:,.0f} overflow 32 bits")
        products = tuple(digit for product in whole.products for digit in self._digits(product))
        parameters = self._requantisation(whole, unit.target.step)
        return Layer(products, parameters, result, (unit.target.signed_zero, *unit.signed_limits))

    def _products(self, unit: Unit) -> Sum:
        """A convolution. Dense layers have images of single pixels; a mean is a depthwise
        convolution with ones, and requantisation divides. Tensors alone are added to nothing."""
        node, shape = unit.operator, extents(unit.operator.output)
        if node.op.name in ("add", "subtract", "qnn.dequantize"):
            steps = np.full(self.tensors[unit.result].channels, max(c.step for c in unit.operands))
            return Sum([], steps, np.zeros(len(steps), np.int64), 0)
        sums, attrs = layer_sums(unit, wide=True), node.attrs
        data, weights = self._data(sums.data), sums.weights
        if shape != extents(unit.result):
            raise UnsupportedError(f"what a layer makes is broadcast, {shape} to another shape")
        if (node.op.name == "nn.dense" and len(shape) == 4) or (len(shape) < 4 and data.images > 1):
            raise UnsupportedError(f"the array makes no rows of images: {shape}")
        is_window = node.op.name in ("nn.conv2d", "nn.avg_pool2d")
        window = (attrs.strides, attrs.dilation, attrs.padding[:2]) if is_window else ()
        taps = weights.reshape((*weights.shape, 1, 1)[:4])  # of dense layers: one
        product = Product(data, sums.data.signed_zero, taps, 1, *window)
        return Sum([product], sums.steps, sums.bias, sums.largest)

    def _with_tensors(self, whole: Sum, unit: Unit) -> Sum:
        """A sum and tensors, each times a factor. The sum is refined by as many bits as it has room
        for, so that factors are whole."""
        pairs = [(one, sign * one.step / whole.steps) for one, sign in unit.summands]
        largest = whole.largest + sum(np.abs(by).max() * one.farthest for one, by in pairs)
        room = math.floor(math.log2(_MOST_SUM / largest))
        finer = 1 << (min(max(room, 0), _REFINED_BITS) if whole.products else _FACTOR_BITS)
        products = [replace(one, scale=finer) for one in whole.products]
        products += [self._scaled(one, by * finer, unit.result) for one, by in pairs]
        return Sum(products, whole.steps / finer, whole.bias * finer, largest * finer)

    def _scaled(self, data: Coded, factors: Array, result: Value) -> Product:
        """A tensor times a factor for each channel of the result, to which it is broadcast."""
        own, whole, shape = self._data(data), self.tensors[result], extents(data.value)
        sizes = zip(astuple(own)[2:], astuple(whole)[2:], strict=True)
        is_aligned = len(shape) == 4 or len(extents(result)) < 4 or math.prod(shape) == 1
        if not is_aligned or any(size not in (1, most) for size, most in sizes):
            raise UnsupportedError(f"no {data.value.type} is broadcast to {result.type}")
        weights = np.rint(factors).astype(np.int64)[:, None, None, None]
        scale = 1 if np.ptp(weights) or not weights.any() else int(weights[0, 0, 0, 0])
        strides = (int(own.height == whole.height), int(own.width == whole.width))
        return Product(own, data.signed_zero, weights // scale, scale, strides)

    def _digits(self, product: Product) -> Iterator[Product]:
        """A product by integers as products by bytes, with the weights of these in memory."""
        if abs(product.scale) > _MOST_SCALE:
            raise UnsupportedError(f"the array does not multiply by {product.scale:,}")
        digits = (product.weights + SIGN) % _BASE - SIGN
        yield replace(product, tiles=tuple(self._tiles(digits, product.data.channels)))
        rest = (product.weights - digits) // _BASE
        if rest.any():
            yield from self._digits(replace(product, weights=rest, scale=product.scale * _BASE))

    def _tiles(self, weights: Array, channels: int) -> Iterator[tuple[int, Pair]]:
        """Where the weights of each block of the result are, as [block, tap, input channel,
        channel], and of which blocks of input channels."""
        outputs, inputs, *kernel = weights.shape
        # The first input channel of each channel; those of one group share theirs.
        begins = np.arange(outputs) // (outputs * inputs // channels) * inputs
        for first in range(0, outputs, LANES):
            own = begins[first : first + LANES]
            start = int(own[0]) // LANES
            count = -(-(int(own[-1]) + inputs) // LANES) - start
            dense = np.zeros((count * LANES, *kernel, LANES), np.int8)
            for lane, begin in enumerate(own - start * LANES):
                dense[begin : begin + inputs, ..., lane] = weights[first + lane]
            ordered = np.moveaxis(dense.reshape(count, LANES, *kernel, LANES), 1, 3)
            yield self._kept(ordered), (start, count)

    def _requantisation(self, whole: Sum, scale: float) -> int:
        """The address of what STORE reads: of each block biases, multipliers and shifts."""
        zeros = sum(one.weights.sum((1, 2, 3)) * one.scale * one.zero for one in whole.products)
        numbers = np.stack([whole.bias - zeros, *fixed_point(whole.steps / scale)])
        padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % LANES))).reshape(3, -1, LANES)
        columns = zip(padded, ("<i4", "<i4", "i1"), strict=True)  # biases are modulo 2**32
        blocks = [column.astype(dtype).view(np.uint8) for column, dtype in columns]
        return self._kept(np.concatenate(blocks, axis=1))

    def _data(self, data: Coded) -> Tensor:
        """Where the operand of a unit is on the chip."""
        if data.array is not None and data.value not in self.tensors:
            tensor = _tensor(data.value, 0)
            blocks = np.zeros(tensor.words * LANES, data.array.dtype)
            blocks[tensor.places(data.array.shape)] = data.array
            self.tensors[data.value] = replace(tensor, address=self._kept(blocks))
        return self.tensors[data.value]

    def _kept(self, array: Array) -> int:
        """The address of a constant."""
        self.constants += array.tobytes()
        self.words += array.nbytes // LANES
        return self.words - array.nbytes // LANES


def _tensor(value: Value, address: int) -> Tensor:
    """Images as they are; of other tensors the last axis is that of the channels."""
    shape, signed = extents(value) or (1,), value.dtype is DType.INT8
    if len(shape) < 4:
        return Tensor(address, signed, 1, shape[-1], math.prod(shape[:-1]), 1)
    images, channels, height, width, *lanes = shape  # the last of NCHW16c, at the border
    return Tensor(address, signed, images, channels * math.prod(lanes), height, width)
