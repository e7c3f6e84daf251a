"""Activation functions: the relu family, sigmoid-like gates, softmax.

Those that backends have kernels for become one operator; the others are composed
of elementwise arithmetic, by formulas that neither overflow nor lose NaN.
"""

from __future__ import annotations

import math

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import Lowering, corresponds, lowers
from graft.ir.graph import Value
from graft.ops.reduce import highest, lowest

corresponds("Relu", "nn.relu")
corresponds("LeakyRelu", "nn.leaky_relu", "alpha")
corresponds("PRelu", "nn.prelu")


@lowers("Gelu")
def _gelu(call: Call) -> Value:
    kind = call.string("approximate", "none")
    if kind not in ("none", "tanh"):
        call.fail(f"approximate is '{kind}', neither none nor tanh")
    return call.op("nn.gelu", call.input(0), approximate=kind == "tanh")


def _times(call: Call, x: Value, factor: float) -> Value:
    return x if factor == 1 else call.op("multiply", x, call.scalar(factor, x))


def _exponential_unit(call: Call, x: Value, alpha: float, width: float = 1) -> Value:
    """x where it is not negative, else alpha * (exp(x / width) - 1)."""
    inner = x if width == 1 else call.op("divide", x, call.scalar(width, x))
    grown = call.op("subtract", call.op("exp", inner), call.scalar(1, x))
    is_negative = call.op("less", x, call.scalar(0, x))
    return call.op("where", is_negative, _times(call, grown, alpha), x)


@lowers("Elu")
def _elu(call: Call) -> Value:
    return _exponential_unit(call, call.input(0), call.float("alpha"))


@lowers("Selu")
def _selu(call: Call) -> Value:
    unit = _exponential_unit(call, call.input(0), call.float("alpha"))
    return _times(call, unit, call.float("gamma"))


@lowers("Celu")
def _celu(call: Call) -> Value:
    alpha = call.float("alpha")
    return _exponential_unit(call, call.input(0), alpha, width=alpha)


def _hard_sigmoid_of(call: Call, x: Value, alpha: float, beta: float) -> Value:
    line = call.op("add", _times(call, x, alpha), call.scalar(beta, x))
    return call.op("clip", line, a_min=0, a_max=1)


@lowers("HardSigmoid")
def _hard_sigmoid(call: Call) -> Value:
    alpha, beta = call.float("alpha"), call.float("beta")
    return _hard_sigmoid_of(call, call.input(0), alpha, beta)


@lowers("HardSwish")
def _hard_swish(call: Call) -> Value:
    x = call.input(0)
    return call.op("multiply", x, _hard_sigmoid_of(call, x, 1 / 6, 0.5))


@lowers("Softplus")
def _softplus(call: Call) -> Value:
    """max(x, 0) + log(1 + exp(-|x|)): the exponential never overflows."""
    x = call.input(0)
    decay = call.op("exp", call.op("negative", call.op("abs", x)))
    rest = call.op("log", call.op("add", decay, call.scalar(1, x)))
    return call.op("add", call.op("nn.relu", x), rest)


@lowers("Mish")
def _mish(call: Call) -> Value:
    """x * tanh(softplus(x)), where tanh(log(1 + e)) is n / (n + 2) with n = e * (e + 2).

    From some x on the quotient rounds to 1; the exponential is held there, short of overflow.
    """
    x = call.input(0)
    limit = call.scalar(5 if x.dtype is DType.FLOAT16 else 20, x)
    power = call.op("exp", call.op("minimum", x, limit))
    two = call.scalar(2, x)
    share = call.op("multiply", power, call.op("add", power, two))
    return call.op("multiply", x, call.op("divide", share, call.op("add", share, two)))


@lowers("Softsign")
def _softsign(call: Call) -> Value:
    x = call.input(0)
    return call.op("divide", x, call.op("add", call.op("abs", x), call.scalar(1, x)))


@lowers("ThresholdedRelu")
def _thresholded_relu(call: Call) -> Value:
    x = call.input(0)
    is_above = call.op("greater", x, call.scalar(call.float("alpha", 1.0), x))
    return call.op("where", is_above, x, call.scalar(0, x))


def swish(call: Call, x: Value, alpha: float = 1) -> Value:
    """x * sigmoid(alpha * x)."""
    return call.op("multiply", x, call.op("sigmoid", _times(call, x, alpha)))


@lowers("Swish")
def _swish(call: Call) -> Value:
    return swish(call, call.input(0), call.float("alpha"))


@lowers("SwiGLU")
def _swiglu(call: Call) -> Value:
    return call.op("multiply", swish(call, call.input(0), call.float("alpha")), call.input(1))


@lowers("Shrink")
def _shrink(call: Call) -> Value:
    x = call.input(0)
    threshold, bias = call.float("lambd"), call.float("bias")
    if _whole(x) and not (math.isfinite(threshold) and abs(bias) <= highest(x.dtype.numpy)):
        call.fail(f"lambd={threshold:g} and bias={bias:g} do not fit data of {x.dtype}")
    zero = call.scalar(0, x)
    above = call.op("where", _is_above(call, x, threshold), _shifted(call, x, -bias), zero)
    return call.op("where", _is_below(call, x, -threshold), _shifted(call, x, bias), above)


def _is_above(call: Call, x: Value, limit: float) -> Value:
    return call.op("greater", x, _bound(call, x, math.floor(limit) if _whole(x) else limit))


def _is_below(call: Call, x: Value, limit: float) -> Value:
    if _whole(x) and limit <= lowest(x.dtype.numpy):
        return call.constant(np.array(False))
    return call.op("less", x, _bound(call, x, math.ceil(limit) if _whole(x) else limit))


def _whole(x: Value) -> bool:
    return x.dtype.is_integer


def _bound(call: Call, x: Value, limit: float) -> Value:
    """A threshold in x's dtype; for an integer dtype, the nearest one that it has."""
    if _whole(x):
        least, most = lowest(x.dtype.numpy), highest(x.dtype.numpy)
        return call.scalar(min(max(int(limit), least), most), x)
    return call.scalar(limit, x)


def _shifted(call: Call, x: Value, by: float) -> Value:
    """x + by, in floating point where x is of integers and `by` is no whole number."""
    if not _whole(x):
        return call.op("add", x, call.scalar(by, x))
    if by == int(by):
        name = "add" if by >= 0 else "subtract"
        return call.op(name, x, call.scalar(abs(int(by)), x))
    wide = call.op("cast", x, dtype=DType.FLOAT64)
    return call.op("cast", call.op("add", wide, call.scalar(by, wide)), dtype=x.dtype)


def _along_axis(name: str) -> Lowering:
    """Softmax and its logarithm; before opset 13 over all axes from `axis` on, taken as one."""

    def lower(call: Call) -> Value:
        x = call.input(0)
        axis = call.int("axis", -1 if call.opset >= 13 else 1)
        if call.opset >= 13 or axis == -1:
            return call.op(name, x, axis=axis)
        rank = call.rank(x)
        if not -rank <= axis < rank:
            call.fail(f"axis {axis} is out of range for rank {rank}")
        axis %= rank
        if axis == rank - 1:
            return call.op(name, x, axis=axis)
        shape = call.op("shape_of", x)
        outer = call.op("strided_slice", shape, begin=[0], end=[axis], axes=[0], strides=[1])
        inner = call.op("strided_slice", shape, begin=[axis], end=[rank], axes=[0], strides=[1])
        flat_shape = call.op("concatenate", outer, call.op("prod", inner, keepdims=True), axis=0)
        flat = call.op("reshape", x, flat_shape, allowzero=True)
        return call.op("reshape", call.op(name, flat, axis=-1), shape, allowzero=True)

    return lower


lowers("Softmax")(_along_axis("nn.softmax"))
lowers("LogSoftmax")(_along_axis("nn.log_softmax"))
