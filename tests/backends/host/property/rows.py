"""Samples for the templates on row-major tensors that compute."""

from __future__ import annotations

import math

import numpy as np
from tests.backends.host.property.pointwise import (
    MOST_BOUND,
    combined,
    exact,
    narrowed,
    other_operand,
    smooth,
    tail,
)
from tests.backends.host.property.sketch import Info, Sample, Shape, Sketch

from graft.backends.host.storage import static_shape
from graft.ir.graph import Value

FLOATS = ("float32", "float32", "float64")
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal")


def _shape(s: Sketch, rank: int, small: int, large: int) -> Shape:
    extents = (s.extent(small, large) for _ in range(rank))
    return tuple(1 if s.chance(20) else extent for extent in extents)


def _axis(s: Sketch, value: Value) -> int | None:
    rank = len(static_shape(value))
    return s.number(-rank, rank - 1) if rank else None


def draw_dense(s: Sketch) -> Sample:
    s.dtype = s.pick(FLOATS)
    leading = _shape(s, s.number(1, 3), 3, 7)
    inputs, units = s.extent(9, 300), s.extent(20, 150)
    data = s.input((*leading, inputs))
    weight = s.constant(s.array((units, inputs)))
    bound = 7 * inputs**0.5
    value = s("nn.dense", data, weight, bound=bound, error=8 * inputs + 8 * bound)
    return s.finished(tail(s, value, axis=-1))


def draw_batch_matmul(s: Sketch) -> Sample:
    s.dtype = s.pick(FLOATS)
    rows, depth, columns = s.extent(7, 40), s.extent(9, 130), s.extent(20, 90)
    batch = _shape(s, s.number(0, 2), 2, 3)
    turned = [s.chance(40), s.chance(40)]
    operands = []
    for matrix, over in zip(((rows, depth), (depth, columns)), turned, strict=True):
        kept = narrowed(s, batch) if s.chance(40) else batch
        operands.append(s.input((*kept, *(reversed(matrix) if over else matrix))))
    bound = 7 * depth**0.5
    attrs = {"transpose_a": turned[0], "transpose_b": turned[1]}
    value = s("nn.batch_matmul", *operands, bound=bound, error=8 * depth + 8 * bound, **attrs)
    return s.finished(tail(s, value))


def draw_attention(s: Sketch) -> Sample:
    s.dtype = s.pick(FLOATS)
    batch, shared, times = s.extent(2, 3), s.extent(2, 3), s.pick((1, 1, 2, 3))
    queries, keys = s.extent(7, 70), s.extent(5, 45)
    size, values = s.extent(4, 40), s.extent(7, 70)
    operands: list[Value | None] = [
        s.input((batch, shared * times, queries, size)),
        s.input((batch, shared, keys, size)),
        s.input((batch, shared, keys, values)),
    ]
    scale = s.pick((None, None, 0.25, 1.5))
    attrs: dict[str, object] = {"scale": scale, "softcap": s.pick((0.0, 0.0, 2.0))}
    if s.chance(40):
        attrs["causal"], attrs["offset"] = s.chance(60), s.number(-2, 4)
        attrs["left_window"], attrs["right_window"] = s.number(-1, 4), s.number(-1, 4)
    if s.chance(40):
        shape = narrowed(s, (batch, shared * times, queries, keys))
        operands.append(s.given(_mask(s, shape)))
    score = 4 * size * (1 / math.sqrt(size) if scale is None else scale)
    value = s("nn.attention", *operands, bound=2.0, error=64 * (score + size + keys), **attrs)
    return s.finished(tail(s, value))


def _mask(s: Sketch, shape: Shape) -> np.ndarray:
    mask = s.array(shape)
    if s.chance(50):
        return mask > -0.5
    mask[mask > 1.2] = -np.inf
    return mask


def draw_softmax(s: Sketch) -> Sample:
    s.dtype = s.pick(FLOATS)
    shape = (*_shape(s, s.number(0, 3), 3, 7), s.extent(40, 1200))
    data = s.array(shape) * s.pick((1, 20))
    op = s.pick(("nn.softmax", "nn.log_softmax"))
    bound = 80 + math.log(shape[-1])
    error = 8 * bound + 4 * shape[-1] ** 0.5
    axis = s.pick((-1, len(shape) - 1))
    return s.finished(s(op, s.given(data), bound=bound, error=error, axis=axis))


def draw_layer_norm(s: Sketch) -> Sample:
    s.dtype = s.pick(FLOATS)
    normalised = _shape(s, s.number(1, 2), 6, 30)
    if s.chance(40):
        normalised = (s.extent(40, 900),)
    shape = (*_shape(s, s.number(0, 3), 3, 5), *normalised)
    data = s.array(shape)
    data.reshape(-1, math.prod(normalised))[:, ::2] += 4  # so that no variance is tiny
    parameters = [s.operand(normalised) if s.chance(60) else None for _ in range(2)]
    op = s.pick(("nn.layer_norm", "nn.rms_norm"))
    operands = [s.given(data), *parameters[: 2 if op == "nn.layer_norm" else 1]]
    attrs = {"axis": -len(normalised), "epsilon": s.pick((1e-5, 1e-2))}
    error = 64.0 * (8 + math.prod(normalised) ** 0.5)
    return s.finished(s(op, *operands, bound=100.0, error=error, **attrs))


def draw_reduce(s: Sketch) -> Sample:
    s.dtype, s.special = s.pick(FLOATS), s.chance(40)
    shape = _shape(s, s.number(1, 4), 5, 9)
    if s.chance(50):
        shape = (*shape[:2], s.extent(40, 300))
    value = s.input(shape)
    if s.chance(40):
        value = tail(s, value, axis=_axis(s, value), most=3)
    op = s.pick(("sum", "mean", "prod", "max", "min"))
    if op == "prod":  # of numbers that do not run away
        error = s.info[value].error
        value = s("clip", value, bound=1.0, error=error, a_min=-1.0, a_max=1.0)
    axes = s.pick((None, [axis for axis in range(len(shape)) if s.chance(50)]))
    if axes and s.chance(30):
        axes = [axis - len(shape) for axis in reversed(axes)]
    attrs = {"keepdims": s.chance(50), "noop_with_empty_axes": s.chance(50)}
    value = s(op, value, axes=axes, **attrs, **_reduced(s, op, value, shape))
    return s.finished(tail(s, value, axis=_axis(s, value)))


def _reduced(s: Sketch, op: str, value: Value, shape: Shape) -> dict[str, float]:
    info, terms = s.info[value], math.prod(shape)
    if op in ("max", "min"):
        return {"bound": info.bound, "error": info.error}
    grown = 1 if op in ("mean", "prod") else terms
    bound = info.bound * grown
    # whatever the order, partial sums are no larger than all terms together
    error = terms * info.error / (terms if op == "mean" else 1) + 4 * terms**0.5 * bound + bound
    return {"bound": bound, "error": error}


def draw_rows(s: Sketch) -> Sample:
    s.special = s.chance(50)
    s.dtype = s.pick((*FLOATS, "int32", "int64", "bool"))
    shape = _shape(s, s.number(0, 4), 6, 9)
    if s.chance(30):
        shape = (*shape[:2], s.extent(60, 3000))
    value = _one_of_shape(s, shape)
    for _ in range(s.number(1, 4)):
        value = _any_node(s, value)
    return s.finished(value)


def _one_of_shape(s: Sketch, shape: Shape) -> Value:
    """A pointwise node of that shape, at times of operands that are broadcast to it together."""
    if s.dtype == "bool":
        pair = [s.operand(shape), s.input(shape)]
        return s(s.pick(("logical_and", "logical_or")), *pair, bound=1, error=0)
    if s.chance(30) and len(shape) > 1:
        one, two = s.input((*shape[:-1], 1)), s.operand(shape[-1:])
        return s("maximum", one, two, bound=2.0, error=0.0)
    return s("negative", s.input(shape), bound=2.0, error=0.0)


def _any_node(s: Sketch, value: Value) -> Value:
    """One node more, or a few, of whatever the dtype allows."""
    info, dtype = s.info[value], value.dtype
    if info.bound > MOST_BOUND:
        return s("minimum", value, s.operand((), dtype.value), bound=info.bound, error=info.error)
    if dtype.value == "bool":
        return _from_truth(s, value)
    if not info.error and s.chance(30):
        return _compared(s, value)
    if not dtype.is_float:
        return _on_integers(s, value)
    if s.chance(40):
        return _function(s, value, info)
    if s.chance(20):  # an operand that is computed in the group
        return combined(s, value, s.pick((exact, smooth))(s, other_operand(s, value)))
    return tail(s, value, axis=_axis(s, value), most=2)


def _from_truth(s: Sketch, value: Value) -> Value:
    shape = static_shape(value)
    if s.chance(50):
        other = s.operand(narrowed(s, shape), "bool")
        return s(s.pick(("logical_and", "logical_or")), value, other, bound=1, error=0)
    if s.chance(50):
        dtype = s.pick(("float32", "float64", "int32", "int64"))
        return s("cast", value, bound=1, error=0, dtype=dtype)
    s.dtype = "float32"
    pair = [s.operand(narrowed(s, shape)) for _ in range(2)]
    return s("where", value, *pair, bound=2, error=0)


def _compared(s: Sketch, value: Value) -> Value:
    other = s.operand(narrowed(s, static_shape(value)), value.dtype.value)
    return s(s.pick(COMPARISONS), value, other, bound=1, error=0)


def _on_integers(s: Sketch, value: Value) -> Value:
    bound = s.info[value].bound
    if s.chance(20):
        dtype = s.pick(("int32", "int64", "float32", "float64"))
        return s("cast", value, bound=bound, error=0, dtype=dtype)
    if s.chance(20):
        return s("negative", value, bound=bound, error=0)
    other = s.operand(narrowed(s, static_shape(value)), value.dtype.value)
    name = s.pick(("add", "subtract", "multiply", "maximum", "minimum"))
    return s(name, value, other, bound=2 * bound + 2, error=0)


def _function(s: Sketch, value: Value, info: Info) -> Value:
    """Functions whose operand has to be tamed first, or exact."""
    if not info.error and s.chance(50):
        return s(s.pick(("floor", "ceil", "round", "sign")), value, bound=info.bound + 1, error=0)
    if s.chance(30):  # no steeper than 1
        name = s.pick(("sin", "cos", "atan", "asinh"))
        return s(name, value, bound=info.bound, error=info.error + 8 * (info.bound + 1))
    if s.chance(30) and not info.error:
        low = s("abs", value, bound=info.bound, error=0)
        return s("sqrt", low, bound=info.bound + 1, error=info.bound + 1)
    value = s("clip", value, bound=3.0, error=info.error, a_min=-3.0, a_max=3.0)
    if s.chance(50):
        return s("exp", value, bound=21.0, error=21 * (info.error + 4))
    grown = s("exp", value, bound=21.0, error=21 * (info.error + 4))
    if s.chance(50):  # back from where the slope is at most 20
        return s("log", grown, bound=4.0, error=21 * 21 * (info.error + 8))
    exponent = s.constant(np.asarray(s.pick((0.5, 2.0, -1.0)), value.dtype.numpy))
    return s("power", grown, exponent, bound=450.0, error=450 * 21 * (info.error + 16))
