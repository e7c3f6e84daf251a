"""Recipes of operators that move, cut or reduce: reshape, slice, concatenate, sum and their kin."""

from __future__ import annotations

import math
from typing import Any

from graft.base.dtypes import DType
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.recipes import Call, Fixed, extents, first, recipe
from graft.ir.op import Op
from graft.ir.types import TensorType


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
    if not (fixed and fixed[0] is not None):
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
    operand = fixed[1] if len(fixed) > 1 else None
    indices = operand or TensorType(
        draw.among((DType.INT64, DType.INT32)), draw.shape(draw.between(0, 2))
    )
    extent = extents(data)[axis]
    contents = {}
    if operand is None and extent:
        contents[1] = draw.array(DType.INT64, extents(indices)) % extent
        contents[1] = contents[1].astype(indices.dtype.numpy)
    return Call((data, indices), {"axis": axis}, contents)


@recipe("cast")
def _cast(draw: Draw, op: Op, fixed: Fixed) -> Call:
    target = (DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.INT32, DType.INT64, DType.BOOL)
    return Call((first(draw, fixed),), {"dtype": draw.among(target)})
