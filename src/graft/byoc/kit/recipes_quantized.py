"""Recipes of quantisation and of layers of narrow integers: whole ranges, zero points, scales per
channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.recipes import RECIPES, Call, Fixed, extents, given, recipe
from graft.ir.op import Op
from graft.ir.types import TensorType
from graft.ops.mixed import HALVES, NIBBLES

_BYTES = (DType.INT8, DType.UINT8)


@recipe("qnn.dequantize", "qnn.quantize")
def _quantization(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """A scale and a zero point for everything, or one for each index of the first axes."""
    operand = given(fixed)
    narrow, largest = draw.among(_BYTES), 1
    if op.name == "qnn.dequantize":
        data = operand or TensorType(narrow, draw.shape(draw.among((1, 2, 4))))
        narrow = data.dtype
    else:
        data = operand or TensorType(DType.FLOAT32, draw.shape(draw.among((1, 2, 4))))
        largest = 1 if operand is None else draw.among((1, 30, 1000))  # sums of products are large
    shape = extents(data)
    per_channel = bool(shape) and not draw.plain and draw.chance(0.3)
    axis = draw.between(0, min(len(shape), 2) - 1)
    own = (shape[axis],) if per_channel else ()
    scale = np.abs(draw.array(DType.FLOAT32, own)) * np.float32(0.05) + np.float32(0.01)
    centred = narrow.bits > 8 or draw.chance(0.5)
    zero = np.zeros(own, narrow.numpy) if centred else draw.array(narrow, own)
    contents: dict[int, Array] = {1: scale * np.float32(largest), 2: zero}
    count = len(fixed) or draw.among((2, 3, 3))
    types = (data, TensorType(DType.FLOAT32, own), TensorType(narrow, own))
    attrs: dict[str, Any] = {"dtype": narrow} if op.name == "qnn.quantize" else {}
    attrs |= {"axis": axis} if per_channel and axis != 1 else {}
    operands = {position: array for position, array in contents.items() if position < count}
    return Call(types[:count], attrs, operands)


@recipe("qnn.conv1d", "qnn.conv2d", "qnn.conv3d", "qnn.dense")
def _layer(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """The layer of that name on floats, with bytes instead, and a zero point of the data."""
    data = given(fixed)
    plain = RECIPES.get(op.name.replace("qnn.", "nn."))(draw, op, [data] if data else [])
    shapes = [extents(type_) for type_ in plain.operands if type_ is not None]
    byte = data.dtype if data is not None else draw.among(_BYTES)
    types = (TensorType(byte, shapes[0]), TensorType(DType.INT8, shapes[1]), TensorType(byte, ()))
    count = len(fixed) or draw.among((2, 3))
    return Call(types[:count], plain.attrs, {2: draw.array(byte, ())} if count > 2 else {})


@recipe("mixed.conv1d", "mixed.conv2d", "mixed.conv3d", "mixed.dense")
def _mixed_layer(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """The layer of that name on float32, by weights of 16 bits, on data of these or of float32."""
    data = given(fixed)
    plain = RECIPES.get(op.name.replace("mixed.", "nn."))(draw, op, [data] if data else [])
    shapes = [extents(type_) for type_ in plain.operands if type_ is not None]
    half = data.dtype if data is not None and data.dtype in HALVES else draw.among(HALVES)
    dtype = data.dtype if data is not None else draw.among((half, DType.FLOAT32))
    return Call((TensorType(dtype, shapes[0]), TensorType(half, shapes[1])), plain.attrs, {})


@recipe("mixed.block_dense")
def _block_dense(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """A dense layer whose weights are codes of 4 bits, with a scale for each block of inputs."""
    block, blocks, units = draw.among((16, 32, 64)), draw.between(1, 3), draw.between(1, 33)
    data = TensorType(DType.FLOAT32, (draw.between(1, 5), block * blocks))
    own = (units, blocks)
    scale = TensorType(draw.among((DType.FLOAT32, DType.FLOAT16)), own)
    codes = TensorType(draw.among(NIBBLES), (units, block * blocks))
    types = (data, codes, scale, TensorType(DType.UINT8, own))
    count = len(fixed) or draw.among((3, 4))
    zeros = {3: draw.array(DType.UINT8, own) % 16} if count > 3 else {}
    return Call(types[:count], {"block_size": block}, zeros)


@recipe("qnn.saturate")
def _saturate(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Floats to the nearest codes, with or without an offset."""
    data = given(fixed) or TensorType(DType.FLOAT32, draw.shape(draw.among((1, 2, 4))))
    types = (data, TensorType(DType.FLOAT32, ()))
    count = len(fixed) or draw.among((1, 2))
    offset = {1: np.rint(draw.array(DType.FLOAT32, ()) * 50)} if count > 1 else {}
    return Call(types[:count], {"dtype": draw.among(_BYTES)}, offset)


@recipe("qnn.resize")
def _resize(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """An image of bytes, interpolated."""
    shape = draw.extent(3), draw.among((3, 16, 20)), draw.between(1, 9), draw.between(1, 9)
    plain = RECIPES.get("resize")(draw, op, [TensorType(draw.among(_BYTES), shape)])
    data = given(fixed) or plain.operands[0]
    return Call((data,), {**plain.attrs, "method": draw.among(("linear", "cubic"))})


@recipe("qnn.attention")
def _attention(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Heads that may share keys and values, with or without a mask; scores may be rounded, once
    or twice, and results divided by the sums of codes."""
    batch, shared, per_key = draw.between(1, 2), draw.between(1, 2), draw.between(1, 2)
    queries, keys, size = draw.between(1, 7), draw.between(1, 9), draw.between(1, 17)
    byte = draw.among(_BYTES)
    mask = TensorType(DType.FLOAT32, (batch, 1, queries, keys))
    types = (
        TensorType(byte, (batch, shared * per_key, queries, size)),
        TensorType(byte, (batch, shared, keys, size)),
        TensorType(byte, (batch, shared, keys, draw.between(1, 17))),
        mask,
    )
    zero_points = tuple(int(draw.array(byte, ())) for _ in range(3))
    attrs: dict[str, Any] = {"scale": 0.0005, "step": 1 / 255, "zero_points": zero_points}
    attrs["divided"] = draw.between(0, 1) == 1
    rounded = draw.between(0, 2)
    if rounded:
        first, again = (0.0031, 0.05, -128.0, 127.0), (1.13, 0.04, -90.0, 165.0)
        attrs |= {"scale": 0.04, "roundings": first + again * (rounded - 1)}
        attrs["masked"] = draw.between(0, rounded)
    return Call(types[: len(fixed) or draw.among((3, 4))], attrs)
