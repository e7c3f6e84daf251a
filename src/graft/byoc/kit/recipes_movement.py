"""Recipes of data movement, reductions, operators along an axis, and those of integers alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.recipes import Call, Fixed, extents, first, given, recipe
from graft.ir.op import Op
from graft.ir.types import TensorType

_INTEGERS = (DType.INT32, DType.INT64, DType.INT8, DType.UINT8)
_UNSIGNED = (DType.UINT8, DType.UINT32, DType.UINT64)


@recipe("concatenate")
def _concatenate(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = next((type_ for type_ in fixed if type_ is not None), None)
    data = data or TensorType(draw.dtype(), draw.shape(draw.between(1, 4)))
    shape, rank = extents(data), len(data.shape or ())
    axis = draw.between(-rank, rank - 1) if rank else 0
    operands = list(fixed) or [None] * draw.between(1, 4)
    parts = []
    for operand in operands:
        other = list(shape)
        if rank:
            other[axis] = draw.extent(5)
        parts.append(operand or TensorType(data.dtype, tuple(other)))
    return Call(tuple(parts), {"axis": axis})


@recipe("sum", "mean", "max", "min", "prod")
def _reduce(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed)
    rank = len(data.shape or ())
    axes = draw.shuffled(range(rank))[: draw.between(0, rank)]
    signed = tuple(axis - rank if draw.chance(0.3) else axis for axis in axes)
    if rank == 4 and draw.chance(0.3):
        signed = (2, 3)
    attributes: dict[str, Any] = {"axes": None if draw.chance(0.15) else signed}
    return Call((data,), {**attributes, "keepdims": draw.chance(0.5)})


@recipe("reshape")
def _reshape(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed)
    shape = extents(data)
    size = math.prod(shape)
    cut = draw.between(0, len(shape))
    target = draw.among(
        (
            (size,),
            (math.prod(shape[:cut]), math.prod(shape[cut:])),
            (*shape, 1),
            tuple(reversed(shape)),
            (1, *shape[:cut], 1, *shape[cut:]),
        )
    )
    return Call((data,), {"shape": target, "allowzero": True})


@recipe("expand_dims", "squeeze", "transpose")
def _axes(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed)
    rank = len(data.shape or ())
    if op.name == "transpose":
        return Call((data,), {"axes": tuple(draw.shuffled(range(rank)))})
    if op.name == "expand_dims":
        return Call((data,), {"axes": (draw.between(-rank - 1, rank),)})
    if given(fixed) is None:
        data = TensorType(data.dtype, (*extents(data), 1))
    ones = [axis for axis, extent in enumerate(extents(data)) if extent == 1]
    return Call((data,), {"axes": tuple(ones[: draw.between(1, len(ones))])})


@recipe("layout_transform")
def _layout(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Of images, one way or the other."""
    data = first(draw, fixed, 4)
    layouts = draw.shuffled(("NCHW", "NHWC"))
    return Call((data,), {"src_layout": layouts[0], "dst_layout": layouts[1]})


@recipe("broadcast_to", "tile")
def _repeat(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(1, 4))
    if op.name == "tile":
        return Call((data,), {"reps": tuple(draw.between(1, 3) for _ in data.shape or ())})
    target = tuple(draw.between(2, 4) if extent == 1 else extent for extent in extents(data))
    return Call((data,), {"shape": (draw.between(1, 3), *target)})


@recipe("strided_slice")
def _slice(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(1, 4))
    axes = [axis for axis in range(len(data.shape or ())) if draw.chance(0.6)]
    begin, end, strides = [], [], []
    for axis in axes:
        extent = extents(data)[axis]
        back = draw.chance(0.2)
        begin.append(
            draw.among((-1, extent, extent - 1)) if back else draw.between(-extent, extent)
        )
        end.append(-extent - 1 if back else draw.among((extent, 2**31, draw.between(0, extent))))
        strides.append(-draw.between(1, 2) if back else draw.between(1, 3))
    named = {"begin": begin, "end": end, "strides": strides, "axes": axes}
    return Call((data,), {name: tuple(numbers) for name, numbers in named.items()})


@recipe("split")
def _split(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(1, 4))
    axis = draw.between(0, len(data.shape or ()) - 1)
    extent = extents(data)[axis]
    cut = draw.between(0, extent)
    return Call((data,), {"axis": axis, "sizes": (cut, extent - cut)})


@recipe("nn.pad")
def _pad(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(1, 4))
    rank = len(data.shape or ())
    mode = draw.among(("constant", "constant", "edge", "reflect"))
    widths = tuple(draw.between(0, 2) for _ in range(2 * rank))
    attrs: dict[str, Any] = {"pad_width": widths, "mode": mode}
    if mode == "constant":
        attrs["value"] = draw.among((0, 1.5, -2))
    return Call((data,), attrs)


@recipe("take")
def _take(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(1, 3))
    rank = len(data.shape or ())
    axis = draw.between(-rank, rank - 1)
    indices = given(fixed, 1) or TensorType(
        draw.among((DType.INT64, DType.INT32)), draw.shape(draw.between(0, 2))
    )
    extent = extents(data)[axis]
    contents = {}
    if given(fixed, 1) is None and extent:
        positions = draw.array(DType.INT64, extents(indices)) % extent
        contents[1] = positions.astype(indices.dtype.numpy)
    return Call((data, indices), {"axis": axis}, contents)


@recipe("cast")
def _cast(draw: Draw, op: Op, fixed: Fixed) -> Call:
    target = (DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.INT32, DType.INT64, DType.BOOL)
    return Call((first(draw, fixed),), {"dtype": draw.among(target)})


@recipe("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "left_shift", "right_shift")
def _integers(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Of one type; shifts by less than its width."""
    operand = [*fixed, None, None][: len(op.operands)]
    dtypes = _UNSIGNED if "shift" in op.name else _INTEGERS
    data = next((one for one in operand if one is not None), None)
    data = data or TensorType(draw.among(dtypes), draw.shape())
    contents = {}
    if "shift" in op.name and operand[1] is None:
        contents[1] = (draw.array(DType.INT64, extents(data)) % 8).astype(data.dtype.numpy)
    return Call(tuple(one or data for one in operand), {}, contents)


@recipe("argmax", "argmin", "cumsum", "cumprod", "nn.lp_normalize")
def _along(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(1, 4))
    rank = len(data.shape or ())
    axis = draw.between(-rank, rank - 1)
    if op.name.startswith("arg"):
        flags = {"keepdims": draw.chance(0.5), "select_last_index": draw.chance(0.3)}
        return Call((data,), {"axis": axis, **flags})
    if op.name == "nn.lp_normalize":
        return Call((data,), {"axis": axis, "p": draw.between(1, 2)})
    totals = {"exclusive": draw.chance(0.3), "reverse": draw.chance(0.3)}
    return Call((data,), {"axis": axis, **totals})


@recipe("topk")
def _topk(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(1, 3))
    rank = len(data.shape or ())
    axis = draw.between(-rank, rank - 1)
    count = draw.between(0, extents(data)[axis])
    return Call((data,), {"k": count, "axis": axis, "largest": draw.chance(0.5)})


@recipe("gather")
def _gather(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Indices of the data's rank, inside of it."""
    data = first(draw, fixed, draw.between(1, 3))
    shape = list(extents(data))
    axis = draw.between(0, len(shape) - 1)
    extent, shape[axis] = shape[axis], draw.extent(5)
    indices = draw.array(DType.INT64, tuple(shape)) % max(extent, 1)
    return Call((data, _type_of(indices)), {"axis": axis}, {1: indices})


@recipe("scatter_elements")
def _scatter(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Indices inside of the data, each once: in which order they are written is not said."""
    data = first(draw, fixed, draw.between(1, 3))
    shape = list(extents(data))
    axis = draw.between(0, len(shape) - 1)
    positions = draw.shuffled(range(shape[axis]))[: draw.between(1, shape[axis])]
    shape[axis] = len(positions)
    column = [1] * len(shape)
    column[axis] = len(positions)
    indices = np.broadcast_to(np.array(positions, np.int64).reshape(column), shape)
    updates = TensorType(data.dtype, tuple(shape))
    return Call((data, _type_of(indices), updates), {"axis": axis}, {1: indices})


@recipe("one_hot")
def _one_hot(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Of indices from both ends, some outside."""
    indices = draw.array(DType.INT64, draw.shape(draw.between(0, 3)))
    values = draw.array(draw.dtype(), (2,))
    depth = draw.extent(9)
    return Call((_type_of(indices), _type_of(values)), {"depth": depth, "axis": -1}, {1: values})


@recipe("depth_to_space", "space_to_depth")
def _blocks(draw: Draw, op: Op, fixed: Fixed) -> Call:
    block = draw.between(1, 3)
    batch, depth, height, width = draw.extent(3), draw.extent(4), draw.extent(5), draw.extent(5)
    shape = (batch, depth * block**2, height, width)
    attrs: dict[str, Any] = {"block_size": block}
    if op.name == "space_to_depth":
        shape = (batch, depth, height * block, width * block)
    else:
        attrs["mode"] = draw.among(("DCR", "CRD"))
    return Call((given(fixed) or TensorType(draw.dtype(), shape),), attrs)


@recipe("trilu")
def _trilu(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(2, 4))
    return Call((data,), {"k": draw.between(-3, 3), "upper": draw.chance(0.5)})


@recipe("nn.rms_norm", "nn.group_norm")
def _norm(draw: Draw, op: Op, fixed: Fixed) -> Call:
    if op.name == "nn.rms_norm":
        data = first(draw, fixed, draw.among((2, 3)))
        return Call((data, TensorType(data.dtype, extents(data)[-1:])), {"axis": -1})
    groups = draw.between(1, 4)
    shape = (draw.extent(3), groups * draw.between(1, 4), *draw.shape(2))
    data = given(fixed) or TensorType(draw.dtype(), shape)
    channels = TensorType(data.dtype, extents(data)[1:2])
    return Call((data, channels, channels), {"num_groups": groups})


@recipe("reverse_sequence")
def _reverse(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.between(2, 3))
    time, batch = extents(data)[:2]
    lengths = draw.array(DType.INT64, (batch,)) % (time + 1)
    return Call((data, _type_of(lengths)), {}, {1: lengths})


def _type_of(array: Array) -> TensorType:
    return TensorType(dtype_of(array.dtype), array.shape)
