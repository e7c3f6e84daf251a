"""Products and what follows them as operation graphs of cuDNN: nodes in, a description as JSON out.

A description has `tensors` (extents, strides in elements, element type, and the number of the
buffer that holds it; None for a value that stays inside) and `operations` on them, by number.
`library.py` makes cuDNN's descriptors of it where there is a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graft.backends.cuda.operands import Operands, shape_of
from graft.backends.cuda.problem import Product, Window
from graft.base.dtypes import DType
from graft.byoc.formats.storage import CHANNELS_LAST, Storage
from graft.ir.graph import Node, Value

# Modes of pointwise operations, as cuDNN numbers them.
_BINARY = {"add": 0, "multiply": 1, "minimum": 2, "maximum": 3, "divide": 6, "subtract": 9}
_UNARY = {"nn.relu": 100, "tanh": 101, "sigmoid": 102, "nn.gelu": 104, "nn.leaky_relu": 100}
_CLIP, _GELU_BY_TANH = 100, 107

Locate = Callable[[Value, tuple[int, ...] | None], tuple[str, Storage]]


class CudnnProducts:
    """A `ProductLibrary` of `cuda.plan`: convolutions and matrix products by cuDNN."""

    name = "cudnn"

    def call(
        self, operands: Operands, nodes: Sequence[Node], result: Storage, locate: Locate
    ) -> tuple[Mapping[str, Any], tuple[str, ...]] | None:
        """A product and the nodes behind it; None where one of them is no operation of cuDNN's."""
        product, anchor = operands.product, nodes[0]
        if any(shape_of(node.output) != shape_of(anchor.output) for node in nodes):
            return None
        graph = _Graph(anchor, product, result, locate)
        graph.product(anchor.output if len(nodes) > 1 else None)
        for node in nodes[1:]:
            if not graph.pointwise(node, is_last=node is nodes[-1]):
                return None
        return graph.description(), tuple(graph.names)


class _Graph:
    """An operation graph while it is described; buffers 0 and 1 are the product's operands."""

    def __init__(self, anchor: Node, product: Product, result: Storage, locate: Locate) -> None:
        self._product, self._result, self._locate = product, result, locate
        self._is_image = anchor.op.name == "nn.conv2d"
        self._shape = shape_of(anchor.output)
        self.names: list[str] = []
        self._tensors: list[dict[str, Any]] = []
        self._operations: list[dict[str, Any]] = []
        self._numbers: dict[Value, int] = {}

    def description(self) -> dict[str, Any]:
        """All of it; the result is the last buffer."""
        last = len(self.names) + 2
        tensors = [
            {**tensor, "buffer": last if tensor["buffer"] == _RESULT else tensor["buffer"]}
            for tensor in self._tensors
        ]
        return {"tensors": tensors, "operations": self._operations}

    def _tensor(
        self, extents: Sequence[int], strides: Sequence[int], dtype: DType, buffer: int | None
    ) -> int:
        described = {"extents": [*extents], "strides": [*strides], "dtype": dtype.value}
        self._tensors.append({**described, "buffer": buffer})
        return len(self._tensors) - 1

    def _output(self, value: Value | None) -> int:
        """The tensor of an operation's results: the whole graph's, or a value that stays inside,
        which is computed with in float32."""
        dtype = self._result.dtype if value is None else DType.FLOAT32
        number = self._tensor(*self._layout(), dtype, _RESULT if value is None else None)
        if value is not None:
            self._numbers[value] = number
        return number

    def _layout(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides of the results."""
        if self._is_image:
            return self._shape, strides_of(self._result)
        rows, columns = self._product.rows, self._product.columns
        return (self._product.batch, rows, columns), (rows * columns, columns, 1)

    def product(self, value: Value | None) -> None:
        """The first operation; `value` is what it makes unless that is the result."""
        operation = self._convolution() if self._is_image else self._matrix_product()
        self._operations.append({**operation, "result": self._output(value)})

    def _convolution(self) -> dict[str, Any]:
        product, window, dtype = self._product, self._product.window, self._product.dtype
        depth, rows, columns = window.channels, *window.kernel
        step = window.pixel
        data = self._tensor(
            (window.images, step, window.height, window.width),
            (window.height * window.width * step, 1, window.width * step, step),
            dtype,
            0,
        )
        weights = self._tensor(
            (product.columns * product.batch, depth, rows, columns),
            (rows * columns * depth, 1, columns * depth, depth),
            dtype,
            1,
        )
        return {
            "kind": "convolution",
            "operands": [data, weights],
            "before": [*window.padding],
            "after": _padding_after(window),
            "strides": [*window.strides],
            "dilation": [*window.dilation],
        }

    def _matrix_product(self) -> dict[str, Any]:
        product, dtype = self._product, self._product.dtype
        batch, rows, columns, depth = product.batch, product.rows, product.columns, product.depth
        steps = product.steps[0] or rows * depth, product.steps[1] or columns * product.lead
        left = self._tensor((batch, rows, depth), (steps[0], depth, 1), dtype, 0)
        right = self._tensor((batch, depth, columns), (steps[1], 1, product.lead), dtype, 1)
        return {"kind": "product", "operands": [left, right]}

    def pointwise(self, node: Node, is_last: bool) -> bool:
        """Append an operation on elements, if cuDNN has it."""
        mode = _mode(node)
        if mode is None:
            return False
        operands = [self._operand(node, value) for value in node.args]
        if any(number is None for number in operands):
            return False
        if node.op.commutative:  # the first operand must not be broadcast
            operands.sort(key=lambda number: self._tensors[number or 0]["buffer"] is not None)
        result = self._output(None if is_last else node.output)
        self._operations.append(
            {"kind": "pointwise", "operands": operands, "result": result, **mode}
        )
        return True

    def _operand(self, node: Node, value: Value) -> int | None:
        """What a node reads: a value of the graph's own, or a tensor in memory that is broadcast
        along whole axes."""
        if value in self._numbers:
            return self._numbers[value]
        shape, axis = shape_of(value), getattr(node.attrs, "axis", -1)
        if node.op.name == "nn.bias_add":
            shape = tuple(shape[0] if n == axis % len(self._shape) else 1 for n in range(4))
            shape = shape[: len(self._shape)]
        # Engines that fuse take images with the channels of a pixel side by side alone.
        is_whole = self._is_image and shape == self._shape
        name, storage = self._locate(value, CHANNELS_LAST if is_whole else None)
        layout = self._broadcast((1,) * (len(self._shape) - len(shape)) + shape, storage)
        if layout is None:
            return None
        self.names.append(name)
        number = self._tensor(*layout, storage.dtype, len(self.names) + 1)
        self._numbers[value] = number
        return number

    def _broadcast(
        self, shape: tuple[int, ...], storage: Storage
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Extents and strides of an operand of that shape, aligned with the results."""
        (extents, _), large = self._layout(), [n for n, extent in enumerate(shape) if extent > 1]
        if shape == self._shape and storage.shape == shape:
            if self._is_image:
                return shape, strides_of(storage)
            return self._layout() if storage.is_row_major else None
        axis, channels = (1, extents[1]) if self._is_image else (len(shape) - 1, extents[-1])
        if large not in ([], [axis]):
            return None
        count = channels if large else 1
        position = 1 if self._is_image else 2
        ones = tuple(count if n == position else 1 for n in range(len(extents)))
        return ones, tuple(1 if n == position else count for n in range(len(extents)))


_RESULT = -1  # stands for the last buffer until all are known


def strides_of(storage: Storage) -> tuple[int, ...]:
    """Distances of neighbours along each axis, in elements."""
    steps, step = dict[int, int](), 1
    for axis, extent in zip(reversed(storage.order), reversed(storage.extents), strict=True):
        steps[axis], step = step, step * extent
    return tuple(steps[axis] for axis in range(len(storage.order)))


def _padding_after(window: Window) -> list[int]:
    """What has to follow the image for the last window to be whole."""
    sizes = (window.height, window.width), (window.out_height, window.out_width)
    ends = (
        (out - 1) * step + gap * (kernel - 1) + 1 - size - before
        for size, out, step, gap, kernel, before in zip(
            *sizes, window.strides, window.dilation, window.kernel, window.padding, strict=True
        )
    )
    return [max(0, end) for end in ends]


def _mode(node: Node) -> dict[str, Any] | None:
    """The mode and settings of a node as a pointwise operation."""
    name, attrs = node.op.name, node.attrs
    if name == "nn.bias_add":
        return {"mode": _BINARY["add"]}
    if name in _BINARY:
        return {"mode": _BINARY[name]}
    if len(node.inputs) != 1:
        return None
    if name == "clip":
        least, most = attrs.a_min, attrs.a_max
        bounds = -math.inf if least is None else least, math.inf if most is None else most
        if bounds[0] == -math.inf:
            return None  # a lower bound is what cuDNN's rectifier begins with
        return {"mode": _CLIP, "lower": float(bounds[0]), "upper": float(min(bounds[1], 3e38))}
    if name not in _UNARY:
        return None
    if getattr(attrs, "approximate", False):
        return {"mode": _GELU_BY_TANH}
    settings = {"slope": float(attrs.alpha)} if name == "nn.leaky_relu" else {}
    return {"mode": _UNARY[name], **settings}
