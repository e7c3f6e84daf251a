"""Emitters of reductions, running totals, softmaxes, extremes, and normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.fuzzing.elementwise import is_exact
from benchmarks.fuzzing.emitters import emits
from benchmarks.fuzzing.sketch import FLOATS, INTEGERS, Sketch, Value

_SINGLE = ("float32", "float16")  # statistics are float32 by default, whatever the data are
_WIDE = ("float32", "float64", "float16", "int32", "int64")


def axis_of(s: Sketch, value: Value) -> int:
    """An axis, counted from either end."""
    axis = s.draw.between(0, value.rank - 1)
    return axis - value.rank if s.draw.chance(0.4) else axis


def has_axes(value: Value) -> bool:
    return value.rank > 0


@emits("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")
@emits("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
def reduction(s: Sketch, op: str) -> None:
    extreme = op in ("ReduceMax", "ReduceMin")
    # Where integers are rounded on the way to a mean, a root or a logarithm is left open.
    whole = op in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare")
    value = s.operand((*_WIDE, "int8", "uint8") if extreme else _WIDE if whole else FLOATS)
    if op == "ReduceLogSum":
        value = (s.add("Abs", [value], rounds=False) or [value])[0]
    count = s.draw.between(0, value.rank)
    if any(0 in array.shape for array in value.arrays):
        return  # ONNX Runtime keeps axes that are empty, whether they are reduced or not
    if op == "ReduceProd" and not value.is_float and _overflows(value):
        return  # what becomes of it is left open
    axes = s.draw.shuffled(range(value.rank))[:count]
    axes = [axis - value.rank if s.draw.chance(0.3) else axis for axis in axes]
    attributes: dict[str, Any] = {"keepdims": s.draw.among((None, 0, 1))}
    inputs: list[Value | None] = [value]
    if op == "ReduceSum" or s.opset >= 18:
        if axes or s.draw.chance(0.3):
            inputs.append(s.constant(np.array(axes, np.int64)))
        attributes["noop_with_empty_axes"] = s.draw.among((None, 0, 1))
    elif axes:
        attributes["axes"] = axes
    s.add(op, inputs, rounds=not extreme, **attributes)


def _overflows(value: Value) -> bool:
    """Whether the product of all numbers may be too large for int32."""
    sizes = [np.maximum(np.abs(array.astype(np.float64)), 1) for array in value.arrays]
    return any(np.log2(array).sum() > 30 for array in sizes)


@emits("ArgMax", "ArgMin")
def extreme_position(s: Sketch, op: str) -> None:
    value = s.operand(_WIDE, lambda one: one.exact and one.rank > 0)
    if value.rank and not any(0 in array.shape for array in value.arrays):  # nothing has no largest
        last = s.draw.among((None, 0, 1))
        keep = s.draw.among((None, 0, 1))
        s.add(
            op, [value], jumps=True, axis=axis_of(s, value), keepdims=keep, select_last_index=last
        )


@emits("CumSum")
def running_total(s: Sketch, op: str) -> None:
    value = s.operand(("float32", "float64", "int32", "int64"), has_axes)
    if value.rank:
        axis = s.constant(np.array(axis_of(s, value), s.draw.among(("int32", "int64"))))
        flags: dict[str, Any] = {
            "exclusive": s.draw.among((None, 1)),
            "reverse": s.draw.among((None, 1)),
        }
        s.add(op, [value, axis], **flags)


@emits("Softmax", "LogSoftmax")
def softmax(s: Sketch, op: str) -> None:
    value = s.operand(FLOATS, has_axes)
    if value.rank:
        s.add(op, [value], axis=axis_of(s, value) if s.draw.chance(0.8) else None)


@emits("Hardmax")
def hardmax(s: Sketch, op: str) -> None:
    value = s.operand(FLOATS, lambda one: one.exact and one.rank > 0)
    if value.rank:
        s.add(op, [value], jumps=True, axis=axis_of(s, value))


@emits("TopK")
def largest_ones(s: Sketch, op: str) -> None:
    value = s.operand(_WIDE, lambda one: one.exact and one.rank > 0)
    if not value.rank:
        return
    axis = axis_of(s, value)
    count = s.draw.between(0, min(array.shape[axis] for array in value.arrays))
    s.add(
        op,
        [value, s.constant(np.array([count], np.int64))],
        outputs=2,
        jumps=True,
        rounds=False,
        axis=axis,
        largest=s.draw.among((None, 0, 1)),
        sorted=1,
    )


def _channels(s: Sketch, value: Value, axis: int = 1, positive: bool = False) -> Value:
    """A constant with one number for each channel."""
    array = s.number_array(value.dtype, (value.shape[axis],))
    return s.constant((np.abs(array) + 0.25 if positive else array).astype(value.dtype))


def image(s: Sketch, low: int = 3, high: int = 5, dtypes: tuple[str, ...] = FLOATS) -> Value:
    """An operand with channels, whose number is known."""
    rank = s.draw.among([rank for rank in (3, 4, 4, 4, 5) if low <= rank <= high])
    found = s.find(lambda one: one.dtype in dtypes and low <= one.rank <= high and not one.moves(1))
    if found is not None and s.draw.chance(0.7):
        return found
    shape = list(s.shape(rank))
    shape[1] = s.draw.extent(9)
    dtype = "float32" if s.draw.chance(0.6) and "float32" in dtypes else s.draw.among(dtypes)
    return s.fresh(dtype, tuple(shape))


@emits("BatchNormalization")
def batch_normalization(s: Sketch, op: str) -> None:
    value = image(s, low=2)
    parts = [_channels(s, value) for _ in range(3)]
    s.add(
        op, [value, *parts, _channels(s, value, positive=True)], epsilon=s.draw.among((None, 0.1))
    )


@emits("InstanceNormalization")
def instance_normalization(s: Sketch, op: str) -> None:
    value = image(s)
    if all(array.size for array in value.arrays):  # ONNX Runtime crashes on empty ones
        s.add(op, [value, _channels(s, value), _channels(s, value)], epsilon=0.01)


@emits("LayerNormalization", since=17)
def layer_normalization(s: Sketch, op: str) -> None:
    value = s.operand(_SINGLE, lambda one: one.rank > 0)
    if not value.rank:
        return
    axis = axis_of(s, value)
    rest = value.shape[axis % value.rank :]
    if any(value.moves(one) for one in range(axis % value.rank, value.rank)):
        return
    scale, bias = (s.fresh(value.dtype, rest) for _ in range(2))
    s.add(op, [value, scale, *s.draw.among(([bias], []))], axis=axis, epsilon=0.01)


@emits("GroupNormalization", since=21)
def group_normalization(s: Sketch, op: str) -> None:
    value = image(s, dtypes=_SINGLE)
    groups = [n for n in range(1, value.shape[1] + 1) if value.shape[1] % n == 0]
    if groups:
        parts = [_channels(s, value), _channels(s, value)]
        s.add(op, [value, *parts], num_groups=s.draw.among(groups), epsilon=0.01)


@emits("LpNormalization")
def p_normalization(s: Sketch, op: str) -> None:
    value = s.operand(("float32", "float64"), has_axes)
    if value.rank:
        s.add(op, [value], axis=axis_of(s, value), p=s.draw.among((1, 2)))


@emits("LRN")
def local_response(s: Sketch, op: str) -> None:
    value = image(s, low=4, high=4, dtypes=("float32",))
    s.add(op, [value], size=s.draw.among((1, 3, 5)), alpha=0.01, bias=s.draw.among((1.0, 2.0)))


@emits("MeanVarianceNormalization")
def mean_variance(s: Sketch, op: str) -> None:
    value = s.operand(("float32",), lambda one: one.rank == 4, rank=4)
    # Where all numbers are the same ONNX has a zero, and ONNX Runtime divides by zero.
    if all(array.size and array.var((0, 2, 3)).min() > 0.01 for array in value.arrays):
        s.add(op, [value], axes=[0, 2, 3])


@emits("Unique")
def distinct(s: Sketch, op: str) -> None:
    value = s.operand(("float32", "int64"), is_exact)
    axis = None if s.draw.chance(0.5) or not value.rank else axis_of(s, value)
    if axis is not None and not all(array.size for array in value.arrays):
        return  # slices without elements end ONNX Runtime's process
    outputs = s.draw.between(1, 4)
    s.add(op, [value], outputs=outputs, jumps=True, rounds=False, axis=axis, sorted=1)


@emits("NonZero")
def nonzero(s: Sketch, op: str) -> None:
    # Of a scalar ONNX wants no row of positions, and ONNX Runtime gives one.
    value = s.operand((*INTEGERS, "bool", "float32"), lambda one: one.exact and one.rank > 0)
    if value.rank:
        s.add(op, [value], jumps=True)
