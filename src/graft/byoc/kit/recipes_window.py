"""Recipes of convolutions and pooling: strided, dilated, grouped, padded on one side or both."""

from __future__ import annotations

from typing import Any

from graft.base.dtypes import DType
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.recipes import Call, Fixed, extents, given, recipe
from graft.ir.op import Op
from graft.ir.types import TensorType

_CONVOLUTIONS = [f"nn.conv{rank}d" for rank in (1, 2, 3)]
_TRANSPOSED = [f"nn.conv{rank}d_transpose" for rank in (1, 2, 3)]
_POOLS = [f"nn.{kind}_pool{rank}d" for kind in ("max", "avg", "lp") for rank in (1, 2, 3)]
_UNPOOLS = [f"nn.max_unpool{rank}d" for rank in (1, 2, 3)]
_INDEXED = [f"nn.max_pool{rank}d_with_indices" for rank in (1, 2, 3)]


def _rank(op: Op) -> int:
    return next(int(one) for one in op.name if one.isdigit())


def _image(draw: Draw, fixed: Fixed, rank: int) -> TensorType:
    existing = given(fixed)
    if existing is not None:
        return existing
    spatial = tuple(draw.extent(13 if rank < 3 else 7) for _ in range(rank))
    batch = draw.among((1, 1, 2, 3))
    channels = draw.among((1, 2, 3, 4, 6, 8, 16))
    return TensorType(draw.dtype(), (0 if draw.empty else batch, channels, *spatial))


def _windows(draw: Draw, rank: int) -> dict[str, Any]:
    """Strides, dilation and padding: mostly plain, often not, sometimes lopsided."""
    attrs: dict[str, Any] = {}
    if draw.chance(0.4):
        attrs["strides"] = tuple(draw.between(1, 3) for _ in range(rank))
    if draw.chance(0.25):
        attrs["dilation"] = tuple(draw.between(1, 3) for _ in range(rank))
    if draw.chance(0.5):
        before = tuple(draw.between(0, 2) for _ in range(rank))
        lopsided = tuple(draw.between(0, 2) for _ in range(rank))
        attrs["padding"] = (*before, *(lopsided if draw.chance(0.4) else before))
    return attrs


def _groups(draw: Draw, channels: int) -> int:
    """How many groups: mostly one, sometimes each channel by itself."""
    divisors = [n for n in range(1, channels + 1) if channels % n == 0] or [1]
    return draw.among((1, 1, 1, channels or 1, draw.among(divisors)))


@recipe(*_CONVOLUTIONS)
def _convolution(draw: Draw, op: Op, fixed: Fixed) -> Call:
    rank = _rank(op)
    data = _image(draw, fixed, rank)
    channels = extents(data)[1]
    groups = _groups(draw, channels)
    kernel = tuple(draw.among((1, 2, 3, 3, 5)) for _ in range(rank))
    filters = groups * draw.among((1, 1, 2, 3, 5))
    weight = TensorType(data.dtype, (filters, channels // groups, *kernel))
    return Call((data, given(fixed, 1) or weight), {**_windows(draw, rank), "groups": groups})


@recipe(*_TRANSPOSED)
def _transposed(draw: Draw, op: Op, fixed: Fixed) -> Call:
    rank = _rank(op)
    data = _image(draw, fixed, rank)
    channels = extents(data)[1]
    groups = _groups(draw, channels)
    kernel = tuple(draw.among((1, 2, 3, 4)) for _ in range(rank))
    weight = TensorType(data.dtype, (channels, draw.among((1, 2, 3)), *kernel))
    attrs = {**_windows(draw, rank), "groups": groups}
    if "strides" in attrs and draw.chance(0.3):
        attrs["output_padding"] = tuple(draw.between(0, step - 1) for step in attrs["strides"])
    return Call((data, weight), attrs)


@recipe(*_POOLS, *_INDEXED)
def _pool(draw: Draw, op: Op, fixed: Fixed) -> Call:
    rank = _rank(op)
    attrs = {**_windows(draw, rank), "ceil_mode": draw.chance(0.25)}
    attrs["pool_size"] = tuple(draw.between(1, 4) for _ in range(rank))
    if "avg" in op.name:
        attrs["count_include_pad"] = draw.chance(0.4)
    if "lp" in op.name:
        attrs["p"] = draw.between(1, 3)
    return Call((_image(draw, fixed, rank),), attrs)


@recipe(*_UNPOOLS)
def _unpool(draw: Draw, op: Op, fixed: Fixed) -> Call:
    rank = _rank(op)
    data = _image(draw, fixed, rank)
    attrs = {**_windows(draw, rank), "pool_size": tuple(draw.between(1, 4) for _ in range(rank))}
    return Call((data, given(fixed, 1) or TensorType(DType.INT64, data.shape)), attrs)
