"""Nodes as products for tensor cores: convolutions, dense layers and matrix products in, the
problem and the operands that it needs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from graft.backends.cuda.problem import CHUNK, Product, Window
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.storage import CHANNELS_LAST, Storage
from graft.ir.graph import Node, Value

MOST_GRID_ROWS = 65535  # blocks along the second axis of a grid


def shape_of(value: Value) -> tuple[int, ...]:
    """A shape, which has to be known."""
    shape = value.tensor.shape
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        raise UnsupportedError(f"%{value.name} is {value.type}, not a tensor of static shape")
    return tuple(int(dim) for dim in shape if isinstance(dim, int))


@dataclass(frozen=True, slots=True)
class Operands:
    """A product's problem, and what it reads: values with the storage they have to be in; a
    constant B is packed already. `order` is how the result's axes lie in memory."""

    product: Product
    a: tuple[Value, Storage]
    b: tuple[Value, Storage] | Array
    order: tuple[int, ...]


def _tensor_core_weights(array: Array, dtype: DType) -> Array:
    """Weights as tensor cores multiply them: float32 is rounded to 10 bits behind the point."""
    if dtype is not DType.FLOAT32:
        return array.astype(dtype.numpy)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    finite = np.isfinite(array)
    return np.where(finite, rounded.view(np.float32), array).astype(np.float32)


def _padding(extent: int, dtype: DType) -> int:
    """Elements that make a row whole chunks."""
    return -extent % (CHUNK // dtype.numpy.itemsize)


Literals = Mapping[Value, Array]


def _convolution(node: Node, dtype: DType, literals: Literals) -> Operands | None:
    (data, weight), attrs = node.args, node.attrs
    (images, channels, height, width), shape = shape_of(data), shape_of(weight)
    groups, per_group = attrs.groups, shape[1]
    pad = _padding(channels, dtype)
    aligned = not _padding(per_group, dtype)
    if weight not in literals or (groups > 1 and (pad or not aligned or shape[0] % groups)):
        return None
    if groups > 1 and per_group < 16:  # mostly padding for tensor cores
        return None
    _, outputs, out_height, out_width = shape_of(node.output)
    top, left = (int(pad_) for pad_ in attrs.padding[:2])
    window = Window(
        *(images, height, width, per_group + pad, channels + pad, out_height, out_width),
        *((shape[2], shape[3]), tuple(attrs.strides), (top, left), tuple(attrs.dilation)),
    )
    packed = np.pad(literals[weight].transpose(0, 2, 3, 1), [(0, 0)] * 3 + [(0, pad)])
    matrix = _tensor_core_weights(packed.reshape(outputs, -1), dtype)
    each, depth = outputs // groups, matrix.shape[1]
    product = Product(
        window,
        each,
        dtype,
        depth,
        groups,
        (per_group if groups > 1 else 0, each * depth),
        True,
        by_columns=True,
    )
    return Operands(
        product, (data, Storage(dtype, shape_of(data), CHANNELS_LAST, pad)), matrix, CHANNELS_LAST
    )


def _dense(node: Node, dtype: DType, literals: Literals) -> Operands | None:
    data, weight = node.args
    shape, (units, depth) = shape_of(data), shape_of(weight)
    pad = _padding(depth, dtype)
    window = _matrix(math.prod(shape[:-1]), depth + pad)
    order = tuple(range(len(shape)))
    b: tuple[Value, Storage] | Array
    if weight in literals:
        b = _tensor_core_weights(np.pad(literals[weight], [(0, 0), (0, pad)]), dtype)
    else:
        b = weight, Storage(dtype, (units, depth), (0, 1), pad)
    product = Product(window, units, dtype, depth + pad, is_constant=weight in literals)
    return Operands(product, (data, Storage(dtype, shape, order, pad)), b, order)


def _matrix(rows: int, depth: int) -> Window:
    return Window(1, 1, rows, depth, depth, 1, rows)


def _batch_matmul(node: Node, dtype: DType, literals: Literals) -> Operands | None:
    (left, right), attrs = node.args, node.attrs
    (*batch, _, _), (*other, _, _) = shape_of(left), shape_of(right)
    rank, count = len(batch), math.prod(batch)
    if batch != other or not batch:
        return None
    keep, swap = tuple(range(rank + 2)), (*range(rank), rank + 1, rank)
    orders = swap if attrs.transpose_a else keep, keep if attrs.transpose_b else swap
    (*_, rows, depth) = (shape_of(left)[axis] for axis in orders[0])
    (*_, columns, _) = (shape_of(right)[axis] for axis in orders[1])
    pad = _padding(depth, dtype)
    operands = [
        (value, Storage(dtype, shape_of(value), order, pad))
        for value, order in zip((left, right), orders, strict=True)
    ]
    steps = rows * (depth + pad), columns * (depth + pad)
    product = Product(
        _matrix(rows, depth + pad), columns, dtype, depth + pad, count, steps, is_constant=False
    )
    return Operands(product, operands[0], operands[1], keep)


_PRODUCTS: dict[str, Callable[[Node, DType, Literals], Operands | None]] = {
    "nn.conv2d": _convolution,
    "nn.dense": _dense,
    "nn.batch_matmul": _batch_matmul,
}


def product_of(node: Node, dtype: DType, literals: Literals) -> Operands | None:
    """A node as a product for tensor cores, if it is one."""
    lower = _PRODUCTS.get(node.op.name)
    is_fit = node.args and node.args[0].dtype is DType.FLOAT32 and 0 not in shape_of(node.output)
    operands = lower(node, dtype, literals) if lower is not None and is_fit else None
    return operands if operands is not None and _is_addressable(operands.product) else None


def _is_addressable(product: Product) -> bool:
    """Whether a kernel can count the bytes of its operands, and its results, in 32 bits."""
    window, (a_step, _) = product.window, product.steps
    image = window.images * window.height * window.width * window.pixel
    largest = max(image, a_step * product.batch, product.b_elements) * product.size
    results = product.rows * product.columns * product.batch
    return max(largest, results) < 1 << 31 and product.batch <= MOST_GRID_ROWS
