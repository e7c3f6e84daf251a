"""Elementwise arithmetic, comparison and logic, with NumPy broadcasting.

Types in: one dtype for all operands. Types out: that dtype, or bool for predicates. Integers wrap
around; their division truncates toward zero, as in C, and an integer divided by zero, quotient or
remainder, is 0 whatever its width. Floats follow IEEE 754: an infinity or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_different, provably_equal
from graft.base.dims import AnyDim, Dim, dim_max, dim_min
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.op import Kind, Meaning, SymbolicRule, define
from graft.ir.types import TensorType
from graft.ops.rules import (
    broadcast_shapes,
    broadcast_type,
    only,
    predicate_type,
    require,
    same_dtype,
    same_type,
    symbolic_by,
)


def _number(dtype: DType) -> bool:
    return dtype.is_number


def _real(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_integer


def _floating(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_complex


def _is_bool(dtype: DType) -> bool:
    return dtype is DType.BOOL


def _integer(dtype: DType) -> bool:
    return dtype.is_integer


def _anything(_dtype: DType) -> bool:
    return True


_WHAT = {
    _number: "numeric",
    _real: "real",
    _floating: "floating-point",
    _is_bool: "bool",
    _integer: "integer",
    _anything: "any",
}


def wide(function: Callable[..., Any]) -> Meaning:
    """A meaning that keeps the dtype and computes in at least float32, or in whole bytes."""

    def meaning(_attrs: Any, *operands: Array) -> Array:
        dtype = operands[0].dtype
        given = [o.astype(_computed_in(dtype), copy=False) for o in operands]
        return np.asarray(function(*given)).astype(dtype, copy=False)

    return meaning


def _computed_in(dtype: np.dtype[Any]) -> Any:
    """Where NumPy's own arithmetic begins; what is narrower it does in ways of its own."""
    known = dtype_of(dtype)
    if known.is_float and known.bits < 32:
        return np.float32
    if known.is_integer and known.bits < 8:
        return np.uint8 if known.is_unsigned_integer else np.int8
    return dtype


def _sigmoid(x: Array) -> Array:
    decay = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1, decay) / (1 + decay))


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)


# name, function, operand dtypes
_UNARY: list[tuple[str, Callable[[Array], Any], Callable[[DType], bool]]] = [
    ("abs", np.abs, _number),
    ("negative", np.negative, _number),
    ("sign", np.sign, _number),
    ("ceil", np.ceil, _floating),
    ("floor", np.floor, _floating),
    ("round", np.rint, _floating),
    ("sqrt", np.sqrt, _floating),
    ("exp", np.exp, _floating),
    ("log", np.log, _floating),
    ("erf", _erf, _floating),
    ("sigmoid", _sigmoid, _floating),
    ("sin", np.sin, _floating),
    ("cos", np.cos, _floating),
    ("tan", np.tan, _floating),
    ("asin", np.arcsin, _floating),
    ("acos", np.arccos, _floating),
    ("atan", np.arctan, _floating),
    ("sinh", np.sinh, _floating),
    ("cosh", np.cosh, _floating),
    ("tanh", np.tanh, _floating),
    ("asinh", np.arcsinh, _floating),
    ("acosh", np.arccosh, _floating),
    ("atanh", np.arctanh, _floating),
    ("logical_not", np.logical_not, _is_bool),
    ("bitwise_not", np.bitwise_not, _integer),
]

for _name, _function, _allowed in _UNARY:
    define(
        _name,
        "data",
        only(_allowed, _WHAT[_allowed], same_type),
        wide(_function),
        kind=Kind.ELEMENTWISE,
        symbolic=symbolic_by(lambda _attrs, x: -x) if _name == "negative" else None,
    )


def _divide(a: Array, b: Array) -> Any:
    if not np.issubdtype(a.dtype, np.integer):
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    inexact = (np.remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return quotient + inexact.astype(a.dtype)


def _on_dims(function: Callable[..., Any]) -> SymbolicRule:
    """Follow symbolic dims through arithmetic, element by element."""
    lifted = np.frompyfunc(function, 2, 1)
    return symbolic_by(lambda _attrs, a, b: np.asarray(lifted(a, b), dtype=object))


def _quotient_of_dims(a: Dim, b: Dim) -> AnyDim:
    """Truncation is floor where neither side can be negative, and above zero for a number."""
    if dim_max(b, 0) != b:
        raise TypeError("sign unknown")
    if dim_max(a, 0) == a:
        return a // b
    if not isinstance(b, int) or b == 0:
        raise TypeError("sign unknown")
    return dim_max(a // b, 0) - dim_max(-a, 0) // b


def _same_dims(a: Dim, b: Dim) -> bool:
    if provably_equal(a, b):
        return True
    if provably_different(a, b):
        return False
    raise TypeError("undecided")


_ON_DIMS: dict[str, SymbolicRule] = {
    "add": _on_dims(lambda a, b: a + b),
    "subtract": _on_dims(lambda a, b: a - b),
    "multiply": _on_dims(lambda a, b: a * b),
    "divide": _on_dims(_quotient_of_dims),
    "floor_mod": _on_dims(lambda a, b: a % b),
    "maximum": _on_dims(dim_max),
    "minimum": _on_dims(dim_min),
    "equal": symbolic_by(
        lambda _attrs, a, b: np.asarray(np.frompyfunc(_same_dims, 2, 1)(a, b)).astype(bool)
    ),
}

# name, function, operand dtypes, commutative
_BINARY: list[tuple[str, Callable[..., Any], Callable[[DType], bool], bool]] = [
    ("add", np.add, _number, True),
    ("subtract", np.subtract, _number, False),
    ("multiply", np.multiply, _number, True),
    ("divide", _divide, _number, False),
    ("floor_mod", np.mod, _real, False),
    ("mod", np.fmod, _real, False),
    ("maximum", np.maximum, _number, True),
    ("minimum", np.minimum, _number, True),
    ("logical_and", np.logical_and, _is_bool, True),
    ("logical_or", np.logical_or, _is_bool, True),
    ("logical_xor", np.logical_xor, _is_bool, True),
    ("bitwise_and", np.bitwise_and, _integer, True),
    ("bitwise_or", np.bitwise_or, _integer, True),
    ("bitwise_xor", np.bitwise_xor, _integer, True),
    ("left_shift", np.left_shift, _integer, False),
    ("right_shift", np.right_shift, _integer, False),
]

for _name, _function, _allowed, _commutative in _BINARY:
    define(
        _name,
        "lhs rhs",
        only(_allowed, _WHAT[_allowed], broadcast_type),
        wide(_function),
        kind=Kind.BROADCAST,
        commutative=_commutative,
        symbolic=_ON_DIMS.get(_name),
    )


def predicate(function: Callable[..., Any]) -> Meaning:
    """A meaning whose result is bool."""
    return lambda _attrs, *operands: np.asarray(function(*operands)).astype(bool)


# name, function, operand dtypes, commutative
_COMPARE: list[tuple[str, Callable[..., Any], Callable[[DType], bool], bool]] = [
    ("equal", np.equal, _anything, True),
    ("not_equal", np.not_equal, _anything, True),
    ("greater", np.greater, _real, False),
    ("greater_equal", np.greater_equal, _real, False),
    ("less", np.less, _real, False),
    ("less_equal", np.less_equal, _real, False),
]

for _name, _function, _allowed, _commutative in _COMPARE:
    define(
        _name,
        "lhs rhs",
        only(_allowed, _WHAT[_allowed], predicate_type),
        predicate(_function),
        kind=Kind.BROADCAST,
        commutative=_commutative,
        symbolic=_ON_DIMS.get(_name),
    )

for _name, _function in (("isnan", np.isnan), ("isinf", np.isinf)):
    define(
        _name,
        "data",
        only(_floating, _WHAT[_floating], predicate_type),
        predicate(_function),
        kind=Kind.ELEMENTWISE,
    )


def _where_type(_attrs: Any, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    require(condition.dtype is DType.BOOL, f"the condition is {condition.dtype}, not bool")
    return TensorType(same_dtype(x, y), broadcast_shapes(condition.shape, x.shape, y.shape))


def _where(_attrs: Any, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition.astype(bool), x, y)


define(
    "where",
    "condition x y",
    _where_type,
    _where,
    kind=Kind.BROADCAST,
    symbolic=symbolic_by(_where),
)
