"""Pointwise operators as loop expressions: what one element (or vector of them) is computed by.

The table is what code generators build elementwise kernels and epilogues from. Each entry takes the
operator's attributes and one term per operand and gives the term of the result. It holds for
float32, float64 and the integers and truth values that the operator takes; `formula` widens smaller
floats to float32 and rounds what comes out, as the reference does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import (
    Term,
    binary,
    call,
    cast,
    compare,
    constant,
    equal,
    maximum,
    minimum,
    select,
)
from graft.loop.ir import BinaryKind, CompareKind, Expr, Var
from graft.loop.traverse import children
from graft.ops.cast import LARGEST
from graft.ops.scalar_functions import FUNCTIONS, floor_remainder, remainder

Scalar = Callable[..., Term]


def is_narrow(dtype: DType) -> bool:
    """Whether numbers of the dtype are computed with in float32."""
    return dtype.is_float and dtype.bits < 32


def widened(value: Term) -> Term:
    """The value in the dtype that it is computed with in."""
    return cast(DType.FLOAT32, value) if is_narrow(value.dtype) else value


def _intrinsic(name: str) -> Scalar:
    return lambda _attrs, x: call(name, x)


def _not_equal(x: Term, y: Term | float) -> Term:
    return compare(CompareKind.NOT_EQUAL, x, y)


def _sign(_attrs: Any, x: Term) -> Term:
    if x.dtype.is_unsigned_integer:
        return minimum(x, 1)
    zero = Term(constant(0, x.dtype))
    still = zero if x.dtype.is_integer else select(equal(x, 0), zero, x)  # NaN stays NaN
    return select(x > 0, 1, select(x < 0, -1, still))


def _bound(value: Any, dtype: DType) -> Term:
    """An attribute as a number of the dtype; what integers cannot hold of it is cut off."""
    number = np.asarray(value).astype(dtype.numpy)
    return Term(constant(float(number) if dtype.is_float else int(number), dtype))


def _clip(attrs: Any, x: Term, low: Term | None = None, high: Term | None = None) -> Term:
    if low is None and attrs.a_min is not None:
        low = _bound(attrs.a_min, x.dtype)
    if high is None and attrs.a_max is not None:
        high = _bound(attrs.a_max, x.dtype)
    bounded = x if low is None else maximum(x, low)
    return bounded if high is None else minimum(bounded, high)


def _leaky_relu(attrs: Any, x: Term) -> Term:
    return select(x < 0, x * attrs.alpha, x)


def _gelu(attrs: Any, x: Term) -> Term:
    if not attrs.approximate:
        return call("gelu", x)
    # (1 + tanh(y)) / 2 is the sigmoid of 2 y
    return x * call("sigmoid", (x + x * x * x * 0.044715) * (2 * math.sqrt(2 / math.pi)))


def _power(_attrs: Any, x: Term, y: Term) -> Term:
    if x.dtype.is_integer and y.dtype.is_integer:
        return cast(x.dtype, _integer_power(x, y))
    single = all(side.dtype.is_float and side.dtype.bits <= 32 for side in (x, y))
    wide = DType.FLOAT32 if single else DType.FLOAT64
    return cast(x.dtype, call("pow", cast(wide, x), cast(wide, y)))


def _integer_power(x: Term, y: Term) -> Term:
    """Exact, wrapping around; a negative exponent gives the quotient truncated to an integer."""
    base, exponent = (cast(DType.INT64, side) for side in (x, y))
    power = call("pow", base, maximum(exponent, 0))
    # a uint64 beyond int64 is not 1, and its powers wrap around alike
    is_odd = equal(exponent & 1, 1)
    inverse = select(equal(base, 1), 1, 0)
    if x.dtype.is_signed_integer:
        inverse = select(equal(base, -1), select(is_odd, -1, 1), inverse)
    return power if y.dtype.is_unsigned_integer else select(exponent < 0, inverse, power)


def _quotient(x: Term, y: Term) -> Term:
    """Integers divided, rounded towards zero; by zero it is zero."""
    floor = x // y
    if x.dtype.is_unsigned_integer:
        return floor
    inexact = _not_equal(x % y, 0) & _not_equal(x < 0, y < 0)
    return floor + cast(x.dtype, inexact)


def _divide(_attrs: Any, x: Term, y: Term) -> Term:
    return x / y if x.dtype.is_float else _quotient(x, y)


def _floor_mod(_attrs: Any, x: Term, y: Term) -> Term:
    return floor_remainder(x, y) if x.dtype.is_float else x % y


def _mod(_attrs: Any, x: Term, y: Term) -> Term:
    if x.dtype.is_float:
        return remainder(x, y)
    return select(equal(y, 0), 0, x - _quotient(x, y) * y)


def _bitwise_not(_attrs: Any, x: Term) -> Term:
    return x ^ ((1 << x.dtype.bits) - 1 if x.dtype.is_unsigned_integer else -1)


# The powers of two that an exponent of eight bits holds.
_POWERS = 2.0**-127, 2.0**127


def _to_power(attrs: Any, x: Term) -> Term:
    """The power of two next to a number in a direction, as float8_e8m0fnu; saturated."""
    wide = x if x.dtype is DType.FLOAT64 else cast(DType.FLOAT32, x)
    held = minimum(maximum(wide, _POWERS[0]), _POWERS[1])
    near = cast(wide.dtype, cast(attrs.dtype, held))
    match attrs.round_mode:
        case "up":
            found = select(near < held, near * 2.0, near)
        case "down":
            found = select(near > held, near * 0.5, near)
        case _:
            found = select(held >= near * 1.5, near * 2.0, near)
    return cast(attrs.dtype, select(wide < 0.0, float("nan"), found))


def _cast(attrs: Any, x: Term) -> Term:
    """Into float8 types, what is too large becomes the largest number unless that is unwanted."""
    if attrs.dtype is DType.FLOAT8E8M0FNU:
        return _to_power(attrs, x)
    largest = LARGEST.get(attrs.dtype)
    if largest is None or not attrs.saturate:
        return cast(attrs.dtype, x)
    wide = x if x.dtype in (DType.FLOAT32, DType.FLOAT64) else cast(DType.FLOAT32, x)
    return cast(attrs.dtype, minimum(maximum(wide, -largest), largest))


def _compared(kind: CompareKind) -> Scalar:
    return lambda _attrs, x, y: compare(kind, x, y)


SCALARS: dict[str, Scalar] = {
    "add": lambda _attrs, x, y: x + y,
    "subtract": lambda _attrs, x, y: x - y,
    "multiply": lambda _attrs, x, y: x * y,
    "divide": _divide,
    "floor_mod": _floor_mod,
    "mod": _mod,
    "maximum": lambda _attrs, x, y: maximum(x, y),
    "minimum": lambda _attrs, x, y: minimum(x, y),
    "power": _power,
    "negative": lambda _attrs, x: -x,
    "sign": _sign,
    "nn.bias_add": lambda _attrs, x, bias: x + bias,
    "nn.relu": lambda _attrs, x: maximum(x, 0),
    "nn.leaky_relu": _leaky_relu,
    "nn.prelu": lambda _attrs, x, alpha: select(x < 0, x * alpha, x),
    "nn.gelu": _gelu,
    "clip": _clip,
    "where": lambda _attrs, condition, x, y: select(condition, x, y),
    "cast": _cast,
    "equal": lambda _attrs, x, y: equal(x, y),
    "not_equal": _compared(CompareKind.NOT_EQUAL),
    "greater": _compared(CompareKind.GREATER),
    "greater_equal": _compared(CompareKind.GREATER_EQUAL),
    "less": _compared(CompareKind.LESS),
    "less_equal": _compared(CompareKind.LESS_EQUAL),
    "logical_and": lambda _attrs, x, y: x & y,
    "logical_or": lambda _attrs, x, y: x | y,
    "logical_xor": lambda _attrs, x, y: x ^ y,
    "logical_not": lambda _attrs, x: x ^ True,
    "bitwise_and": lambda _attrs, x, y: x & y,
    "bitwise_or": lambda _attrs, x, y: x | y,
    "bitwise_xor": lambda _attrs, x, y: x ^ y,
    "bitwise_not": _bitwise_not,
    "left_shift": lambda _attrs, x, y: binary(BinaryKind.SHIFT_LEFT, x, y),
    "right_shift": lambda _attrs, x, y: binary(BinaryKind.SHIFT_RIGHT, x, y),
    **{name: lambda _attrs, x, _f=function: _f(x) for name, function in FUNCTIONS.items()},
    **{
        name: _intrinsic(name)
        for name in (
            "exp",
            "log",
            "sqrt",
            "erf",
            "tanh",
            "sigmoid",
            "sin",
            "cos",
            "abs",
            "floor",
            "ceil",
            "round",
            "isnan",
            "isinf",
        )
    },
}


def formula(name: str, attrs: Any, operands: Sequence[Term | None], dtype: DType) -> Term:
    """The operator's result in a dtype, its operands being of any dtype that has a formula."""
    wide = [None if operand is None else widened(operand) for operand in operands]
    return cast(dtype, SCALARS[name](attrs, *wide))


def has_scalar(node: Node) -> bool:
    """Whether the table serves the node, whose bounds, if it clips, have to be attributes."""
    if node.op.name == "cast" and node.attrs.dtype is DType.FLOAT8E8M0FNU:
        return bool(node.attrs.saturate)
    return node.op.name in SCALARS and (node.op.name != "clip" or len(node.inputs) == 1)


def repetitions(node: Node) -> int:
    """How often a node's formula, written out, has the operand that it has most often.

    What has no formula of numbers that processors know has it once."""
    operands = [None if v is None else v.tensor.dtype for v in node.inputs if has_scalar(node)]
    if not operands or any(dtype in _UNUSUAL for dtype in operands):
        return 1
    terms = [
        None if dtype is None else Term(Var(f"x{position}", dtype))
        for position, dtype in enumerate(operands)
    ]
    expr = formula(node.op.name, node.attrs, terms, node.output.tensor.dtype).expr
    return max(1, *_occurrences(expr, {}).values())


def _occurrences(expr: Expr, known: dict[int, Counter[str]]) -> Counter[str]:
    """How often each variable occurs; formulas share terms, which are looked at once."""
    if isinstance(expr, Var):
        return Counter((expr.name,))
    if id(expr) not in known:
        total: Counter[str] = Counter()
        for child in children(expr):
            total.update(_occurrences(child, known))
        known[id(expr)] = total
    return known[id(expr)]


# Dtypes that formulas do not take.
_UNUSUAL = frozenset(
    dtype for dtype in DType if dtype.is_complex or dtype is DType.STRING or dtype.bits < 8
) - {DType.BOOL}
# Dtypes for which the table's formulas are what the operators mean.
SCALAR_DTYPES = frozenset({DType.FLOAT32, DType.FLOAT64})
