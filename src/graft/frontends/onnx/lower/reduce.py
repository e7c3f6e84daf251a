"""Reductions: axes are an attribute in old opsets, an operand in new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, cast_to, extent
from graft.frontends.onnx.registry import Lowering, lower_as, lowers, lowers_to
from graft.ir.graph import Value

lowers_to("CumSum", "cumsum", "exclusive reverse")
lowers_to("CumProd", "cumprod", "exclusive reverse")


@dataclass(frozen=True)
class _Reduction:
    """The axes of one node, however the model states them."""

    call: Call
    operand: Value | None
    attrs: dict[str, Any]
    idle: bool  # reduces along no axis at all

    def __call__(self, name: str, data: Value, keepdims: bool | None = None) -> Value:
        """Emit a reduction along the axes; `keepdims` overrides the node's."""
        if self.idle:
            return data
        keep = self.keepdims if keepdims is None else keepdims
        return self.call.op(name, data, self.operand, keepdims=keep, **self.attrs)

    @property
    def keepdims(self) -> bool:
        return _keepdims(self.call)


def _keepdims(call: Call) -> bool:
    """Whether reduced dims stay as 1: only if `keepdims` is 1, as in ONNX's shape inference."""
    return call.int("keepdims", 1) == 1


def _reduction(call: Call) -> _Reduction:
    noop = call.int("noop_with_empty_axes", 0) == 1
    operand = call.optional(1)
    length: Any = 0
    if operand is None:
        axes = call.ints("axes", ())
        length = len(axes)
        attrs = {"axes": axes} if axes else {}
    else:
        length = operand.shape[0] if operand.shape else None
        # Only where the length is not known is it left to the operator to ask whether it is 0.
        attrs = {} if isinstance(length, int) else {"noop_with_empty_axes": noop}
    if length == 0:
        return _Reduction(call, None, {}, noop)
    return _Reduction(call, operand, attrs, False)


def _plain(name: str) -> Lowering:
    return lambda call: _reduction(call)(name, call.input(0))


for _onnx_name, _name in (
    ("ReduceSum", "sum"),
    ("ReduceMean", "mean"),
    ("ReduceMax", "max"),
    ("ReduceMin", "min"),
    ("ReduceProd", "prod"),
):
    lowers(_onnx_name)(_plain(_name))


@lowers("ReduceL1")
def _l1(call: Call) -> Value:
    return _reduction(call)("sum", call.op("abs", call.input(0)))


def _sum_of_squares(call: Call) -> Value:
    x = call.input(0)
    return _reduction(call)("sum", call.op("multiply", x, x))


lowers("ReduceSumSquare")(_sum_of_squares)


def _in_floats(call: Call, data: Value, compute: Callable[[Value], Value]) -> Value:
    """Compute roots and logarithms of integers in float64."""
    wide = data if data.dtype.is_float else call.op("cast", data, dtype=DType.FLOAT64)
    return cast_to(call, compute(wide), data.dtype)


@lowers("ReduceL2")
def _l2(call: Call) -> Value:
    return _in_floats(call, _sum_of_squares(call), lambda total: call.op("sqrt", total))


@lowers("ReduceLogSum")
def _log_sum(call: Call) -> Value:
    total = _reduction(call)("sum", call.input(0))
    return _in_floats(call, total, lambda total: call.op("log", total))


@lowers("ReduceLogSumExp")
def _log_sum_exp(call: Call) -> Value:
    reduce = _reduction(call)

    def compute(x: Value) -> Value:
        """Shifted by the maximum, so that no exponential overflows."""
        largest = reduce("max", x, keepdims=True)
        infinite = call.op("isinf", largest)  # infinity minus infinity would be no number
        shift = call.op("where", infinite, call.scalar(0, x), largest)
        total = reduce("sum", call.op("exp", call.op("subtract", x, shift)))
        back = shift if reduce.keepdims else reduce("sum", shift)  # of one element each
        return call.op("add", call.op("log", total), back)

    return _in_floats(call, call.input(0), compute)


@lowers("ArgMax", "ArgMin")
def _arg(call: Call) -> Value:
    name = call.node.op_type.lower()
    attributes = call.attributes(name, "axis select_last_index")
    return call.op(name, call.input(0), keepdims=_keepdims(call), **attributes)


@lowers("Hardmax")
def _hardmax(call: Call) -> Value:
    """The first maximum along the axis; before opset 13 along that and all later axes at once."""
    x = call.input(0)
    if call.opset >= 13:
        return _first_maximum(call, x, call.int("axis", -1))
    (flat,) = lower_as(call, "Flatten", x, axis=call.int("axis", 1))
    result = _first_maximum(call, flat, 1)
    return call.op("reshape", result, call.op("shape_of", x), allowzero=True)


def _first_maximum(call: Call, x: Value, axis: int) -> Value:
    extents = (x.shape or ())[axis : axis + 1 or None]
    searched = x
    if 0 in extents or not all(isinstance(extent, int) for extent in extents):
        # what may be nothing gets something to find
        least = call.constant(-np.inf, x.dtype)
        searched = call.op("nn.pad", x, least, pad_width=(0, 1), axes=(axis,))
    first = call.op("argmax", searched, axis=axis)
    values = call.constant([0, 1], x.dtype)
    return call.op("one_hot", first, values, extent(call, x, axis), axis=axis)
