"""Pooling by windows, over everything, and of regions; and its partial inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, cast_to
from graft.frontends.onnx.lower.window import Window, padded_at_run_time, window_of
from graft.frontends.onnx.registry import Lowering, lowers, lowers_to
from graft.ir.graph import Value
from graft.ops.reduce import lowest

lowers_to("MaxRoiPool", "vision.roi_pool", "pooled_size=pooled_shape spatial_scale")


def _pool_attributes(call: Call, window: Window) -> dict[str, Any]:
    """Automatic "same" padding has no room for one more window, so rounding up is left out."""
    ceil_mode = call.int("ceil_mode", 0) and not window.auto_pad.startswith("SAME")
    return {"pool_size": window.kernel, "ceil_mode": bool(ceil_mode), **window.attributes}


@lowers("MaxPool")
def _max_pool(call: Call) -> tuple[Value, ...]:
    data = call.input(0)
    window = window_of(call, data)
    attributes = _pool_attributes(call, window)
    if not (data.dtype.is_float or data.dtype.is_integer):
        call.fail(f"MaxPool of {data.dtype} elements")
    if not call.has_output(1):
        data = padded_at_run_time(call, data, window, lowest(data.dtype.numpy))
        return (call.op(f"nn.max_pool{window.rank}d", data, **attributes),)
    if window.padding is None:
        call.unsupported(
            "MaxPool with indices and auto_pad wants to know the data's extents",
            "give the model's inputs a shape, or pads instead of auto_pad",
        )
    column_major = bool(call.int("storage_order", 0))
    name = f"nn.max_pool{window.rank}d_with_indices"
    return call.ops(name, data, column_major=column_major, **attributes)


@lowers("AveragePool")
def _average_pool(call: Call) -> Value:
    data = call.input(0)
    window = window_of(call, data)
    counted = bool(call.int("count_include_pad", 0))
    attributes = {"count_include_pad": counted, **_pool_attributes(call, window)}

    def pooled(value: Value) -> Value:
        padded = padded_at_run_time(call, value, window)
        return call.op(f"nn.avg_pool{window.rank}d", padded, **attributes)

    if counted or window.padding is not None:
        return pooled(data)
    # Padding that is added beforehand was averaged too: divide by its share.
    ones = call.op("full", call.scalar(1, data), call.op("shape_of", data))
    return call.op("divide", pooled(data), pooled(ones))


@lowers("LpPool")
def _lp_pool(call: Call) -> Value:
    data = call.input(0)
    window = window_of(call, data)
    attributes = {"p": call.int("p", 2), **_pool_attributes(call, window)}
    data = padded_at_run_time(call, data, window)
    return call.op(f"nn.lp_pool{window.rank}d", data, **attributes)


def _global(reduce: Callable[[Call, Value, tuple[int, ...]], Value]) -> Lowering:
    """A pool over all spatial axes, of which there may be none."""

    def lower(call: Call) -> Value:
        data = call.input(0)
        return reduce(call, data, tuple(range(2, call.rank(data))))

    return lower


def _global_by(name: str) -> Lowering:
    def reduce(call: Call, data: Value, axes: tuple[int, ...]) -> Value:
        return call.op(name, data, axes=axes, keepdims=True) if axes else data

    return _global(reduce)


lowers("GlobalAveragePool")(_global_by("mean"))
lowers("GlobalMaxPool")(_global_by("max"))


def _global_norm(call: Call, data: Value, axes: tuple[int, ...]) -> Value:
    """Powers of narrow floats overflow long before their sum's root does."""
    p = call.int("p", 2)
    size = call.op("abs", data)
    if not axes:
        return size
    wide = size if data.dtype.bits >= 32 else cast_to(call, size, DType.FLOAT32)
    powers = call.op("power", wide, call.scalar(p, wide))
    total = call.op("sum", powers, axes=axes, keepdims=True)
    root = call.op("power", total, call.scalar(1 / p, wide))
    return cast_to(call, root, data.dtype)


lowers("GlobalLpPool")(_global(_global_norm))


@lowers("MaxUnpool")
def _max_unpool(call: Call) -> Value:
    """Indices count positions in the smallest shape; a larger one is filled up with zeros."""
    data, indices, shape = call.input(0), call.input(1), call.optional(2)
    window = window_of(call, data)
    name = f"nn.max_unpool{window.rank}d"
    result = call.op(name, data, indices, pool_size=window.kernel, **window.attributes)
    if shape is None:
        return result
    missing = call.op("subtract", shape, call.op("shape_of", result))
    none = call.constant(np.zeros(window.rank + 2, np.int64))
    widths = call.op("concatenate", none, missing, axis=0)
    return call.op("nn.pad", result, None, widths)
