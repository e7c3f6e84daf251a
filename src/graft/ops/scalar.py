"""Pointwise operators as loop expressions: what one element (or vector of them) is computed by.

The table is what code generators build elementwise kernels and epilogues from. Each entry takes the
operator's attributes and one term per operand and gives the term of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import Term, call, cast, compare, equal, maximum, minimum, select
from graft.loop.ir import CompareKind

Scalar = Callable[..., Term]


def _intrinsic(name: str) -> Scalar:
    return lambda _attrs, x: call(name, x)


def _clip(attrs: Any, x: Term) -> Term:
    low, high = attrs.a_min, attrs.a_max
    bounded = x if low is None else maximum(x, low)
    return bounded if high is None else minimum(bounded, high)


def _leaky_relu(attrs: Any, x: Term) -> Term:
    return select(x < 0, x * attrs.alpha, x)


def _gelu(attrs: Any, x: Term) -> Term:
    if not attrs.approximate:
        return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1.0)
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (call("tanh", inner) + 1.0)


def _power(_attrs: Any, x: Term, y: Term) -> Term:
    return call("pow", x, y)


def _divide(_attrs: Any, x: Term, y: Term) -> Term:
    return x / y


def _compared(kind: CompareKind) -> Scalar:
    return lambda _attrs, x, y: compare(kind, x, y)


SCALARS: dict[str, Scalar] = {
    "add": lambda _attrs, x, y: x + y,
    "subtract": lambda _attrs, x, y: x - y,
    "multiply": lambda _attrs, x, y: x * y,
    "divide": _divide,
    "maximum": lambda _attrs, x, y: maximum(x, y),
    "minimum": lambda _attrs, x, y: minimum(x, y),
    "power": _power,
    "negative": lambda _attrs, x: -x,
    "nn.bias_add": lambda _attrs, x, bias: x + bias,
    "nn.relu": lambda _attrs, x: maximum(x, 0),
    "nn.leaky_relu": _leaky_relu,
    "nn.prelu": lambda _attrs, x, alpha: select(x < 0, x * alpha, x),
    "nn.gelu": _gelu,
    "clip": _clip,
    "where": lambda _attrs, condition, x, y: select(condition, x, y),
    "cast": lambda attrs, x: cast(attrs.dtype, x),
    "equal": lambda _attrs, x, y: equal(x, y),
    "greater": _compared(CompareKind.GREATER),
    "greater_equal": _compared(CompareKind.GREATER_EQUAL),
    "less": _compared(CompareKind.LESS),
    "less_equal": _compared(CompareKind.LESS_EQUAL),
    "logical_and": lambda _attrs, x, y: x & y,
    "logical_or": lambda _attrs, x, y: x | y,
    **{
        name: _intrinsic(name)
        for name in (
            "exp",
            "log",
            "sqrt",
            "erf",
            "tanh",
            "sigmoid",
            "abs",
            "floor",
            "ceil",
            "round",
        )
    },
}


def has_scalar(node: Node) -> bool:
    """Whether the table serves the node; bounds of `clip` have to be attributes."""
    return node.op.name in SCALARS and (node.op.name != "clip" or len(node.inputs) == 1)


# Dtypes for which the table's formulas are what the operators mean.
SCALAR_DTYPES = frozenset({DType.FLOAT32, DType.FLOAT64})
