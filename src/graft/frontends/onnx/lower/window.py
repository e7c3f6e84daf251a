"""What the lowerings of convolution and pooling share: spatial ranks, strides, automatic padding.

Padding that `auto_pad` derives from extents becomes an attribute over dims where the graph's inputs
bind them. Where extents depend on data, an `nn.pad` whose widths are computed at run time precedes
the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, ceildiv, dim_max, symbols_of
from graft.frontends.onnx.call import Call
from graft.ir.attrs import Ints
from graft.ir.graph import Value
from graft.ops.window import RANKS, reach

_AUTO_PAD = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")

# Larger ones would overflow where padding is computed at run time.
_LARGEST_SPAN = 1 << 48


@dataclass(frozen=True)
class Window:
    """A node's window; `padding` is None where only the data at run time decide it."""

    rank: int
    kernel: tuple[AnyDim, ...]
    strides: Ints
    dilation: Ints
    auto_pad: str
    padding: tuple[AnyDim, ...] | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """What Graft's operators call strides, padding and dilation."""
        padding = (0,) * (2 * self.rank) if self.padding is None else self.padding
        return {"strides": self.strides, "padding": padding, "dilation": self.dilation}

    def span(self, axis: int) -> AnyDim:
        """How many elements the window spans."""
        return reach(self.kernel[axis], self.dilation[axis])


def spatial_rank(call: Call, *values: Value) -> int:
    """The number of spatial axes, from the first operand of known rank or the kernel's shape."""
    ranks = [len(value.shape) - 2 for value in values if value.shape is not None]
    if not ranks and call.ints("kernel_shape", ()):
        ranks = [len(call.ints("kernel_shape"))]
    rank = ranks[0] if ranks else call.rank(values[0]) - 2
    if rank not in RANKS:
        call.unsupported(f"{call.node.op_type} has {rank} spatial axes; 1 to 3 are supported")
    return rank


def window_of(call: Call, data: Value, weight: Value | None = None) -> Window:
    """The window of a node, with the padding if it is known at import."""
    bare = window_without_padding(call, data, weight)
    padding = _padding(call, data, bare)
    return replace(bare, padding=padding) if _bound(call, padding) else bare


def window_without_padding(call: Call, data: Value, weight: Value | None = None) -> Window:
    """The window of a node, with `auto_pad` as it is written."""
    rank = spatial_rank(call, *((data,) if weight is None else (data, weight)))
    auto_pad = call.string("auto_pad", "NOTSET") or "NOTSET"
    if auto_pad not in _AUTO_PAD:
        call.fail(f"auto_pad is '{auto_pad}', none of {', '.join(_AUTO_PAD)}")
    kernel = _kernel(call, rank, weight)
    strides = call.ints("strides", ()) or (1,) * rank  # an empty list is as good as none
    dilation = call.ints("dilations", ()) or (1,) * rank
    for name, listed in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilation)):
        if len(listed) != rank:
            call.fail(f"{name} has {len(listed)} entries, not {rank}")
    if any(step < 1 for step in (*strides, *dilation)):
        call.fail(f"strides {list(strides)} or dilations {list(dilation)} are not positive")
    if any(isinstance(extent, int) and extent < 1 for extent in kernel):
        call.fail(f"the window {list(kernel)} is empty")
    return Window(rank, kernel, strides, dilation, auto_pad)


def _kernel(call: Call, rank: int, weight: Value | None) -> tuple[AnyDim, ...]:
    if weight is None:
        return tuple(call.ints("kernel_shape"))
    declared = call.ints("kernel_shape", ())
    if weight.shape is None:
        return declared or (UNKNOWN,) * rank
    kernel = weight.shape[2:]
    differs = declared and all(isinstance(dim, int) for dim in kernel) and declared != kernel
    if differs:
        call.fail(f"kernel_shape is {list(declared)}, but the weight's is {list(kernel)}")
    return declared or kernel


def _padding(call: Call, data: Value, window: Window) -> tuple[AnyDim, ...]:
    """Padding before, then behind each spatial axis."""
    if window.auto_pad == "NOTSET":
        return call.ints("pads", ()) or (0,) * (2 * window.rank)
    if window.auto_pad == "VALID":
        return (0,) * (2 * window.rank)
    extents = (UNKNOWN,) * window.rank if data.shape is None else data.shape[2:]
    totals = [_same_total(window, axis, extents[axis]) for axis in range(window.rank)]
    begins, ends = split_padding(totals, window.auto_pad)
    return (*begins, *ends)


def _same_total(window: Window, axis: int, extent: AnyDim) -> AnyDim:
    """What is added to an axis so that the result has an extent for every stride begun."""
    stride, span = window.strides[axis], window.span(axis)
    if stride == 1:
        return span - 1
    total = (ceildiv(extent, stride) - 1) * stride + span - extent
    return total if isinstance(span, int) and span >= stride else dim_max(total, 0)


def split_padding(totals: Sequence[AnyDim], auto_pad: str) -> tuple[list[AnyDim], list[AnyDim]]:
    """Halves to put before and behind; the odd one goes behind for SAME_UPPER, else before."""
    smaller = [total // 2 for total in totals]
    larger = [total - half for total, half in zip(totals, smaller, strict=True)]
    return (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)


def _bound(call: Call, dims: Sequence[AnyDim]) -> bool:
    """Whether the graph's inputs decide all the dims."""
    if all(isinstance(dim, int) for dim in dims):
        return True
    builder = call.scope.builder
    return all(dim is not UNKNOWN and builder.binds(symbols_of(dim)) for dim in dims)


def padded_at_run_time(call: Call, data: Value, window: Window, fill: Any = 0) -> Value:
    """The data, padded at run time where `auto_pad` depends on extents that are data."""
    if window.padding is not None:
        return data
    reaches = (window.span(axis) for axis in range(window.rank))
    spans = [span for span in reaches if isinstance(span, int)]
    if len(spans) < window.rank:
        call.unsupported(f"auto_pad of {call.node.op_type} wants to know the kernel's extents")
    if max(spans) > _LARGEST_SPAN:
        call.fail(f"no window spans {max(spans)} elements")
    strides = _int64(call, window.strides)
    shape = call.op("shape_of", data)
    extents = call.op("strided_slice", shape, begin=(2,), end=(2 + window.rank,), axes=(0,))
    # The same arithmetic as in `_same_total`, for all axes at once.
    rounded_up = call.op("add", extents, _int64(call, [stride - 1 for stride in window.strides]))
    begins = call.op("multiply", call.op("divide", rounded_up, strides), strides)
    beyond = [span - s for span, s in zip(spans, window.strides, strict=True)]
    missing = call.op("subtract", call.op("add", begins, _int64(call, beyond)), extents)
    total = call.op("maximum", missing, _int64(call, 0))
    smaller = call.op("divide", total, _int64(call, 2))
    larger = call.op("subtract", total, smaller)
    begin, end = (smaller, larger) if window.auto_pad == "SAME_UPPER" else (larger, smaller)
    none = _int64(call, (0, 0))
    widths = call.op("concatenate", none, begin, none, end, axis=0)
    filling = fill if isinstance(fill, Value) else call.scalar(fill, data)
    return call.op("nn.pad", data, filling, widths)


def _int64(call: Call, numbers: Any) -> Value:
    return call.constant(np.asarray(numbers, dtype=np.int64))
