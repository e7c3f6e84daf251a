"""Movement: reshaping, transposing, joining, slicing, repeating, padding; gathering, scattering and
finding elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graft.base.dims import AnyDim
from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, allow
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value

lowers_to("Transpose", "transpose", "axes=perm")
lowers_to("Concat", "concatenate", "axis")
lowers_to("Tile", "tile")
# Parameters are attributes in old opsets, operands in new ones.
lowers_to("Unsqueeze", "expand_dims", "axes")
lowers_to("Squeeze", "squeeze", "axes")
lowers_to("Slice", "strided_slice", "begin=starts end=ends axes")


@lowers("Reshape")
def _reshape(call: Call) -> Value:
    shape = call.input(1)
    allowzero = bool(call.int("allowzero", 0))
    target_dims = call.known(shape)
    if (
        target_dims is not None
        and target_dims.dtype == object
        and 0 not in target_dims.reshape(-1).tolist()
    ):
        allowzero = True  # a symbol that is bound to 0 means 0, not "copy"
        extents = _forced_shape(call, call.input(0), target_dims.reshape(-1).tolist())
        if extents is not None:
            return call.op("reshape", call.input(0), shape=extents, allowzero=True)
    return call.op("reshape", call.input(0), shape, allowzero=allowzero)


def _forced_shape(call: Call, data: Value, expected: Sequence[AnyDim]) -> tuple[int, ...] | None:
    """The extents of a shape of which all but one are numbers, if the data leave no choice.

    ONNX Runtime fuses such a shape into one with -1, and takes any extent at run time. A strict
    import leaves it to the run to refuse others."""
    if call.scope.source.leniency.strict:
        return None
    count = data.tensor.size
    fixed = [extent for extent in expected if isinstance(extent, int)]
    rest = math.prod(fixed)
    if not isinstance(count, int) or len(fixed) != len(expected) - 1 or min(fixed, default=1) < 1:
        return None
    if count % rest:
        return None  # no number fits, which the type rule says
    extents = tuple(extent if isinstance(extent, int) else count // rest for extent in expected)
    dim = next(extent for extent in expected if not isinstance(extent, int))
    message = f"{count} elements fill {[*expected]} only if {dim} is {count // rest}"
    allow(call, message, "it is taken for that")
    return extents


@lowers("Split")
def _split(call: Call) -> tuple[Value, ...]:
    data, axis = call.input(0), call.int("axis", 0)
    sizes = call.ints("split", None) if call.opset < 13 else None
    operand, named = call.optional(1), len(call.node.output)
    counted = None if operand is None or not operand.shape else operand.shape[0]
    for parts in (call.int("num_outputs", named), counted, named if sizes is None else len(sizes)):
        if isinstance(parts, int) and parts != named:
            call.fail(f"Split makes {parts} parts, but names {named}")
    sections = 0 if isinstance(counted, int) or sizes is not None else named
    return call.ops("split", data, operand, axis=axis, sizes=sizes, sections=sections)


@lowers("Flatten")
def _flatten(call: Call) -> Value:
    data, axis = call.input(0), call.int("axis", 1)
    if axis in (0, 1):
        return call.op("reshape", data, shape=(1 if axis == 0 else 0, -1))
    rank = None if data.shape is None else len(data.shape)
    if rank is not None and not -rank <= axis <= rank:
        call.fail(f"Flatten at axis {axis} of rank {rank}")
    dims = call.op("shape_of", data)
    halves = [
        call.op("prod", call.op("strided_slice", dims, begin=(begin,), end=(end,)), keepdims=True)
        for begin, end in ((0, axis), (axis, np.iinfo(np.int64).max))
    ]
    # An extent of 0 is meant: it does not ask to copy an axis.
    return call.op("reshape", data, call.op("concatenate", *halves), allowzero=True)


@lowers("Expand")
def _expand(call: Call) -> Value:
    data, shape = call.input(0), call.input(1)
    if shape.shape is not None and len(shape.shape) != 1:
        call.fail(f"the shape is {shape.type}, not a list")
    target_dims = call.known(shape)
    kept = None
    if target_dims is not None and data.shape is not None:
        kept = _kept(data.shape, target_dims.tolist())
    if target_dims is None or kept is None:
        everywhere = call.op("full", call.constant(True), shape)
        return call.op("where", everywhere, data, data)
    rank = call.rank(data)
    if all(kept) and len(kept) == rank:
        return data
    if any(kept):
        dims = _led_by_ones(call, call.op("shape_of", data), len(kept) - rank)
        target = _led_by_ones(call, shape, len(kept) - len(target_dims))
        shape = call.op("where", call.constant(kept), dims, target)
    return call.op("broadcast_to", data, shape)


def _kept(have: Sequence[AnyDim], want: Sequence[AnyDim]) -> list[bool] | None:
    """Per axis of the result, whether the data give its extent; None where that is open."""
    rank = max(len(have), len(want))
    kept = []
    for extent, expected in zip(_from_right(have, rank), _from_right(want, rank), strict=True):
        if expected != 1 and extent not in (1, expected) and not isinstance(expected, int):
            if not isinstance(extent, int):
                return None
            kept.append(True)
        else:
            kept.append(expected == 1)
    return kept


def _from_right(dims: Sequence[AnyDim], rank: int) -> list[AnyDim]:
    return [1] * (rank - len(dims)) + list(dims)


def _led_by_ones(call: Call, dims: Value, count: int) -> Value:
    if not count:
        return dims
    return call.op("concatenate", call.constant(np.ones(count, np.int64)), dims)


lowers_to("DepthToSpace", "depth_to_space", "block_size=blocksize mode")
lowers_to("SpaceToDepth", "space_to_depth", "block_size=blocksize mode")
lowers_to("Trilu", "trilu", "upper")
lowers_to("ReverseSequence", "reverse_sequence", "seq_axis=time_axis batch_axis")


@lowers("Pad")
def _pad(call: Call) -> Value:
    data, mode = call.input(0), call.string("mode", "constant")
    if call.opset < 11:
        fill = call.float("value", 0.0)
        return call.op("nn.pad", data, value=fill, pad_width=call.ints("pads"), mode=mode)
    pads, value, axes = call.input(1), call.optional(2), call.optional(3)
    return call.op("nn.pad", data, value, pads, axes, mode=mode)


@lowers("CenterCropPad")
def _center_crop_pad(call: Call) -> Value:
    """A crop is a negative pad; the larger part of an odd difference is at the end."""
    data, axes = call.input(0), call.ints("axes", None)
    extents = call.op("cast", call.input(1), dtype=DType.INT64)
    dims = call.op("shape_of", data)
    if axes is not None:
        dims = call.op("take", dims, call.constant(axes, DType.INT64))
    growth, shrinkage = call.op("subtract", extents, dims), call.op("subtract", dims, extents)
    before = call.op("subtract", _half(call, growth), _half(call, shrinkage))
    after = call.op("subtract", growth, before)
    pads = call.op("concatenate", before, after)
    return call.op("nn.pad", data, None, pads, axes=axes)


def _half(call: Call, numbers: Value) -> Value:
    """Half of each number, rounded down; 0 for negative ones."""
    positive = call.op("maximum", numbers, call.scalar(0, numbers))
    return call.op("divide", positive, call.scalar(2, numbers))


lowers_to("Gather", "take", "axis")
lowers_to("GatherElements", "gather", "axis")
lowers_to("GatherND", "gather_nd", "batch_dims")
lowers_to("Scatter", "scatter_elements", "axis")
lowers_to("ScatterElements", "scatter_elements", "axis reduction")
lowers_to("ScatterND", "scatter_nd", "reduction")
lowers_to("TensorScatter", "tensor_scatter", "axis mode")


def _whole(call: Call, value: Value) -> Value:
    """ONNX lets counts and positions be floats, which then lose their fraction."""
    return call.op("cast", value, dtype=DType.INT64) if value.dtype.is_float else value


@lowers("OneHot")
def _one_hot(call: Call) -> Value:
    indices, depth = _whole(call, call.input(0)), _whole(call, call.input(1))
    return call.op("one_hot", indices, call.input(2), depth, axis=call.int("axis", -1))


lowers_to("TopK", "topk", "k axis largest sorted")
lowers_to("NonZero", "nonzero")
lowers_to("Unique", "unique", "axis sorted")


@lowers("Compress")
def _compress(call: Call) -> Value:
    """Elements where the condition holds: their positions, then a gather."""
    data = call.input(0)
    axis = call.attribute("axis", None)
    if axis is None:
        data, axis = call.op("reshape", data, shape=(-1,)), 0
    positions = call.op("squeeze", call.op("nonzero", call.input(1)), axes=(0,))
    return call.op("take", data, positions, axis=axis)
