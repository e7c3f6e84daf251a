"""Quantised units as integer arithmetic: a quantisation in, codes, scales, bounds and sums out.

A unit's floats are integers times a scale. Integer code generators compute its sums exactly, and
convert them to codes by one multiplication and one rounding. An `UnsupportedError` refuses units
without such a form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.quantized import ACTIVATIONS
from graft.ir.evaluate import run_op
from graft.ir.graph import Graph, Node, Value
from graft.ops.window import padding_behind

BYTES = (DType.INT8, DType.UINT8)
SIGN = 128  # between signed bytes and unsigned ones
FREE = (-math.inf, math.inf)  # bounds of what nothing clips


def extents(value: Value) -> tuple[int, ...]:
    """A static shape."""
    return tuple(int(str(extent)) for extent in value.tensor.shape or ())


@dataclass(frozen=True, slots=True)
class Coded:
    """Floats as codes, (codes - zero) × scale; several scales lie along `axis`."""

    value: Value
    scale: Array
    zero: Array
    axis: int
    array: Array | None = None  # the codes, where they are constant

    @property
    def step(self) -> float:
        """The only scale of a tensor of bytes."""
        if self.scale.size * self.zero.size > 1 or self.value.dtype not in BYTES:
            raise UnsupportedError(f"%{self.value.name} is not int8 or uint8 with one scale")
        return float(self.scale.reshape(()))

    @property
    def offset(self) -> int:
        """The only zero point, relative to the lowest code."""
        return int(self.zero.reshape(-1)[0]) - int(np.iinfo(self.value.dtype.numpy).min)

    @property
    def shift(self) -> int:
        """The difference between codes and signed bytes of the same floats."""
        return SIGN if self.value.dtype is DType.UINT8 else 0

    @property
    def signed_zero(self) -> int:
        """The only zero point, in signed bytes."""
        return self.offset - SIGN

    @property
    def farthest(self) -> int:
        """The largest distance of a code from the zero point."""
        return max(self.offset, 255 - self.offset)

    @property
    def meaning(self) -> tuple[object, ...]:
        """What codes of bytes mean; codes of equal meaning can be moved without conversion."""
        return self.value.dtype, self.step, self.offset

    def weights(self, axis: int = 0) -> Array:
        """Constants minus their zero point; an error if several scales lie along another axis."""
        if self.array is None:
            raise UnsupportedError(f"%{self.value.name} is not constant")
        if max(self.scale.size, self.zero.size) > 1 and self.axis % self.array.ndim != axis:
            raise UnsupportedError(f"%{self.value.name} has scales along its axis {self.axis}")
        shape = [-1 if one == axis else 1 for one in range(self.array.ndim)]
        return np.asarray(self.array.astype(np.int64) - self.zero.reshape(shape or ()))

    def codes(self, floats: Array) -> Array:
        """Quantise floats, rounding as ONNX does."""
        info = np.iinfo(self.value.dtype.numpy)
        wide = np.rint(floats.astype(np.float64) / self.step) + int(self.zero.reshape(-1)[0])
        return np.asarray(wide.clip(info.min, info.max).astype(np.int64))


def coded(node: Node, graph: Graph) -> Coded:
    """The codes that a (de)quantisation makes or reads."""
    value = node.output if node.op.name == "qnn.quantize" else node.args[0]
    parameters = [graph.constants.get(one) for one in node.args[1:]]
    if None in parameters or node.attrs.block_size:
        raise UnsupportedError("scales are of blocks, or not constant")
    scale, *zero = (parameter.array for parameter in parameters if parameter is not None)
    if not np.all((scale > 0) & (scale < math.inf)):
        raise UnsupportedError("a scale is not positive")
    zeros = zero[0].astype(np.int64) if zero else np.zeros((), np.int64)
    literal = graph.constants.get(value)
    array = None if literal is None else literal.array
    return Coded(value, scale.astype(np.float64), zeros, node.attrs.axis, array)


@dataclass(frozen=True)
class Unit:
    """The unit that a quantisation ends: dequantised operands, an operator, a bias, a tensor added
    to the result, an activation. The operator of an activation alone is its dequantisation."""

    end: Node
    graph: Graph
    broadcasts: bool = False  # whether a tensor of another shape may be added

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The float nodes of the unit, from dequantisations to the end, in order."""
        inside, waiting = {self.end}, [self.end.args[0]]
        while waiting:
            value = waiting.pop()
            producer = self.graph.producers.get(value)
            if producer is None or not value.dtype.is_float:
                raise UnsupportedError(f"%{value.name} is no float that was dequantised")
            if producer.op.name != "constant" and producer not in inside:
                inside.add(producer)
                waiting += () if producer.op.name == "qnn.dequantize" else producer.args
        return tuple(node for node in self.graph.nodes if node in inside)

    @property
    def result(self) -> Value:
        return self.end.output

    @cached_property
    def target(self) -> Coded:
        return coded(self.end, self.graph)

    @cached_property
    def _parts(self) -> tuple[Node, Coded | None, Coded | None, tuple[float, float]]:
        bias, added, bounds, node = None, None, FREE, self._producer(self.end)
        if node.op.name in ACTIVATIONS:
            bounds, node = bounds_of(node), self._producer(node)
        if node.op.name == "add":
            sums = [one for one in node.args if self.graph.producers[one].op.name in _BEFORE_SUMS]
            is_alike = all(one.shape == node.output.shape for one in node.args)
            if len(sums) == 1:
                other = node.args[1 - node.args.index(sums[0])]
                if not (is_alike or self.broadcasts):
                    types = f"{other.type} and {sums[0].type}"
                    raise UnsupportedError(f"a layer and a tensor of another shape: {types}")
                added = self.coded(other)
                node = self.graph.producers[sums[0]]
        if node.op.name == "nn.bias_add":
            layer, rank = self._producer(node), len(extents(node.output))
            if node.attrs.axis % rank != (rank - 1 if layer.op.name == "nn.dense" else 1):
                raise UnsupportedError(f"a bias along the axis {node.attrs.axis} of {rank}")
            bias, node = self.coded(node.args[1]), layer
        return node, bias, added, bounds

    @property
    def operator(self) -> Node:
        return self._parts[0]

    @property
    def bias(self) -> Coded | None:
        """The bias of a layer."""
        return self._parts[1]

    @property
    def added(self) -> Coded | None:
        """The tensor that is added to a layer's result."""
        return self._parts[2]

    @property
    def summands(self) -> list[tuple[Coded, int]]:
        """The tensors that are summed, beside a layer or without one, with their signs; for an
        activation, its operand."""
        if self.added is not None:
            return [(self.added, 1)]
        if self.operator.op.name not in ("add", "subtract", "qnn.dequantize"):
            return []
        signs = (1, -1 if self.operator.op.name == "subtract" else 1)
        return list(zip(self.operands, signs, strict=False))

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of the activation, on floats."""
        return self._parts[3]

    @property
    def limits(self) -> tuple[int, int]:
        """The lowest and the highest code within the activation's bounds."""
        low, high = self.target.codes(np.array(self.bounds)).tolist()
        return min(low, high), high

    @property
    def signed_limits(self) -> tuple[int, int]:
        """The same in signed bytes."""
        low, high = self.limits
        return low - self.target.shift, high - self.target.shift

    def coded(self, value: Value) -> Coded:
        """The codes that a value was dequantised from."""
        node = self.graph.producers.get(value)
        if node is None or node.op.name != "qnn.dequantize":
            raise UnsupportedError(f"%{value.name} is not dequantised right before it is used")
        return coded(node, self.graph)

    @property
    def operands(self) -> list[Coded]:
        """The operands of the operator."""
        alone = self.operator.op.name == "qnn.dequantize"
        return [
            self.coded(one) for one in ((self.operator.output,) if alone else self.operator.args)
        ]

    def _producer(self, node: Node) -> Node:
        return self.graph.producers[node.args[0]]


_BEFORE_SUMS = ("nn.conv2d", "nn.dense", "nn.conv2d_transpose", "nn.bias_add")


def bounds_of(activation: Node) -> tuple[float, float]:
    """The bounds of a ReLU or a clip."""
    if len(activation.args) > 1:
        raise UnsupportedError("the bounds of a clip are operands")
    if activation.op.name == "nn.relu":
        return 0.0, math.inf
    low, high = activation.attrs.a_min, activation.attrs.a_max
    return -math.inf if low is None else low, math.inf if high is None else high


@dataclass(frozen=True, slots=True)
class LayerSums:
    """The sums of a layer: weights × (data - zero) + bias, in units of each channel's step."""

    data: Coded
    weights: Array  # without their zero point
    steps: Array
    bias: Array

    @property
    def largest(self) -> int:
        """The largest magnitude of a sum."""
        return int((self.magnitudes * self.data.farthest + np.abs(self.bias)).max())

    @property
    def magnitudes(self) -> Array:
        """Per channel, the sum of the absolute weights."""
        return np.asarray(np.abs(self.weights).reshape(len(self.weights), -1).sum(1))


def layer_sums(unit: Unit, wide: bool = False) -> LayerSums:
    """The sums of a unit with constant weights, channels of the result first; weights minus their
    zero point are signed bytes, unless they may be `wide`. Means, pools whose padding counts, and
    transposed convolutions of one group are such layers."""
    if unit.operator.op.name == "mean":
        return window_sums(unit, _image(unit.operator))
    if unit.operator.op.name == "nn.avg_pool2d":
        return window_sums(unit, _counted_window(unit.operator))
    data, kernel = unit.operands
    axis = 1 if unit.operator.op.name == "nn.conv2d_transpose" else 0
    weights = np.moveaxis(kernel.weights(axis), axis, 0)
    if not wide and (weights.min() < -SIGN or weights.max() >= SIGN):
        extremes = f"{weights.min()} to {weights.max()}"
        raise UnsupportedError(f"weights minus their zero point are {extremes}, and not int8")
    steps = np.broadcast_to(data.step * kernel.scale.reshape(-1), len(weights))
    bias = np.zeros(len(weights))
    if unit.bias is not None:
        bias = np.rint(unit.bias.weights() * unit.bias.scale.reshape(-1) / steps)
    sums = LayerSums(data, weights, steps, bias.astype(np.int64))
    if sums.largest >= 1 << 31:
        raise UnsupportedError(f"sums of up to {sums.largest:,} overflow 32 bits")
    return sums


def window_sums(unit: Unit, window: Sequence[int]) -> LayerSums:
    """The sums of a unit that takes means over windows of images: a depthwise convolution with
    ones, whose step includes the division."""
    (data,) = unit.operands
    channels = extents(data.value)[1]
    steps = np.full(channels, data.step / math.prod(window))
    ones, none = np.ones((channels, 1, *window), np.int64), np.zeros(channels, np.int64)
    return LayerSums(data, ones, steps, none)


def counts_alike(pool: Node) -> bool:
    """Whether all means of a pool over images have the same number of elements: there is no
    padding, or it counts."""
    attrs, size, counts = pool.attrs, extents(pool.args[0])[2:], extents(pool.output)[2:]
    pads = (*attrs.padding[:2], *padding_behind(attrs, size, attrs.pool_size, counts))
    return max(pads) <= 0 or (attrs.count_include_pad and not attrs.ceil_mode)


def _counted_window(pool: Node) -> tuple[int, ...]:
    """The window of a pool that divides by its size everywhere."""
    if not counts_alike(pool):
        raise UnsupportedError("means that do not count padding")
    return tuple(pool.attrs.pool_size)


def _image(mean: Node) -> tuple[int, ...]:
    """The extents of the image that is averaged."""
    shape, axes = extents(mean.args[0]), mean.attrs.axes
    if len(shape) != 4 or {axis % 4 for axis in axes or ()} != {2, 3}:
        raise UnsupportedError(f"a mean over the axes {axes}, which are not an image's")
    return shape[2:]


def looked_up(unit: Unit) -> tuple[Coded, Array]:
    """For a unit that is a function of single elements of one tensor: that tensor, and the result
    codes of all 256 codes, by evaluating the operators."""
    graph = unit.graph
    arrays: dict[Value, Array] = {
        value: one.array.reshape(())
        for value, one in graph.constants.items()
        if one.array.size == 1
    }
    data = [n for n in unit.nodes if n.op.name == "qnn.dequantize" and n.args[0] not in arrays]
    if len(data) != 1:
        raise UnsupportedError("a table has one operand")
    source = coded(data[0], graph)
    if source.value.dtype not in BYTES:
        raise UnsupportedError("a table has an entry for each of 256 codes")
    info, shape = np.iinfo(source.value.dtype.numpy), extents(source.value)
    arrays[source.value] = np.arange(info.min, info.max + 1).astype(source.value.dtype.numpy)
    for node in unit.nodes:
        is_number = all(arrays[one].ndim == 0 for one in node.args if one in arrays)
        is_simple = node.op.kind.is_pointwise and (is_number or extents(node.output) == shape)
        if not is_simple or not set(node.args) <= set(arrays):
            raise UnsupportedError(f"{node.op.name} is no function of single elements")
        with np.errstate(all="ignore"):
            (result,) = run_op(node.op, node.attrs, [arrays[one] for one in node.args])
        arrays[node.output] = np.asarray(result)
    return source, arrays[unit.result]


_MOST_SHIFT = 62  # bits that a requantisation shifts by


def fixed_point(factors: Array, fewest: int = 0) -> tuple[Array, Array]:
    """Multipliers of 31 bits, and right shifts of at least `fewest` bits."""
    fractions, exponents = np.frexp(np.asarray(factors, np.float64))
    multipliers = np.rint(np.ldexp(fractions, 31)).astype(np.int64)
    shifts = 31 - exponents.astype(np.int64)
    carried = multipliers == 1 << 31
    multipliers, shifts = np.where(carried, multipliers >> 1, multipliers), shifts - carried
    if shifts.min() < fewest:
        raise UnsupportedError(f"sums cannot be multiplied by {np.max(factors):.3g}")
    excess = np.clip(shifts - _MOST_SHIFT, 0, 31)  # what is so small only ever gives zero
    return multipliers >> excess, np.minimum(shifts, _MOST_SHIFT)
