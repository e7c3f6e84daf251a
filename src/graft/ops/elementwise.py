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


# name, function, operand dtypes, in words
_UNARY: list[tuple[str, Callable[[Array], Any], Callable[[DType], bool], str]] = [
    ("abs", np.abs, _number, "the absolute value"),
    ("negative", np.negative, _number, "the number with the other sign"),
    ("sign", np.sign, _number, "-1, 0 or 1"),
    ("ceil", np.ceil, _floating, "the next integer above"),
    ("floor", np.floor, _floating, "the next integer below"),
    ("round", np.rint, _floating, "the nearest integer, the even one of two"),
    ("sqrt", np.sqrt, _floating, "the square root"),
    ("exp", np.exp, _floating, "e to the power of x"),
    ("log", np.log, _floating, "the natural logarithm"),
    ("erf", _erf, _floating, "the error function"),
    ("sigmoid", _sigmoid, _floating, "1 / (1 + exp(-x))"),
    ("sin", np.sin, _floating, "the sine"),
    ("cos", np.cos, _floating, "the cosine"),
    ("tan", np.tan, _floating, "the tangent"),
    ("asin", np.arcsin, _floating, "the inverse sine"),
    ("acos", np.arccos, _floating, "the inverse cosine"),
    ("atan", np.arctan, _floating, "the inverse tangent"),
    ("sinh", np.sinh, _floating, "the hyperbolic sine"),
    ("cosh", np.cosh, _floating, "the hyperbolic cosine"),
    ("tanh", np.tanh, _floating, "the hyperbolic tangent"),
    ("asinh", np.arcsinh, _floating, "the inverse hyperbolic sine"),
    ("acosh", np.arccosh, _floating, "the inverse hyperbolic cosine"),
    ("atanh", np.arctanh, _floating, "the inverse hyperbolic tangent"),
    ("logical_not", np.logical_not, _is_bool, "whether it does not hold"),
    ("bitwise_not", np.bitwise_not, _integer, "every bit inverted"),
]

for _name, _function, _allowed, _summary in _UNARY:
    define(
        _name,
        "data",
        only(_allowed, _WHAT[_allowed], same_type),
        wide(_function),
        kind=Kind.ELEMENTWISE,
        symbolic=symbolic_by(lambda _attrs, x: -x) if _name == "negative" else None,
        summary=_summary,
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

# name, function, operand dtypes, commutative, in words
_BINARY: list[tuple[str, Callable[..., Any], Callable[[DType], bool], bool, str]] = [
    ("add", np.add, _number, True, "the sum"),
    ("subtract", np.subtract, _number, False, "the difference"),
    ("multiply", np.multiply, _number, True, "the product"),
    ("divide", _divide, _number, False, "the quotient; of integers, towards zero"),
    ("floor_mod", np.mod, _real, False, "the remainder with the divisor's sign"),
    ("mod", np.fmod, _real, False, "the remainder with the dividend's sign"),
    ("maximum", np.maximum, _number, True, "the larger one, NaN if one is"),
    ("minimum", np.minimum, _number, True, "the smaller one, NaN if one is"),
    ("logical_and", np.logical_and, _is_bool, True, "whether both hold"),
    ("logical_or", np.logical_or, _is_bool, True, "whether one holds"),
    ("logical_xor", np.logical_xor, _is_bool, True, "whether exactly one holds"),
    ("bitwise_and", np.bitwise_and, _integer, True, "bits that both have"),
    ("bitwise_or", np.bitwise_or, _integer, True, "bits that one has"),
    ("bitwise_xor", np.bitwise_xor, _integer, True, "bits that exactly one has"),
    ("left_shift", np.left_shift, _integer, False, "bits moved to the left"),
    ("right_shift", np.right_shift, _integer, False, "bits moved to the right"),
]

for _name, _function, _allowed, _commutative, _summary in _BINARY:
    define(
        _name,
        "lhs rhs",
        only(_allowed, _WHAT[_allowed], broadcast_type),
        wide(_function),
        kind=Kind.BROADCAST,
        commutative=_commutative,
        symbolic=_ON_DIMS.get(_name),
        summary=_summary,
    )


def predicate(function: Callable[..., Any]) -> Meaning:
    """A meaning whose result is bool."""
    return lambda _attrs, *operands: np.asarray(function(*operands)).astype(bool)


# name, function, operand dtypes, commutative, in words
_COMPARE: list[tuple[str, Callable[..., Any], Callable[[DType], bool], bool, str]] = [
    ("equal", np.equal, _anything, True, "whether both are equal"),
    ("not_equal", np.not_equal, _anything, True, "whether they differ"),
    ("greater", np.greater, _real, False, "lhs > rhs"),
    ("greater_equal", np.greater_equal, _real, False, "lhs >= rhs"),
    ("less", np.less, _real, False, "lhs < rhs"),
    ("less_equal", np.less_equal, _real, False, "lhs <= rhs"),
]

for _name, _function, _allowed, _commutative, _summary in _COMPARE:
    define(
        _name,
        "lhs rhs",
        only(_allowed, _WHAT[_allowed], predicate_type),
        predicate(_function),
        kind=Kind.BROADCAST,
        commutative=_commutative,
        symbolic=_ON_DIMS.get(_name),
        summary=_summary,
    )

for _name, _function, _what in (("isnan", np.isnan, "NaN"), ("isinf", np.isinf, "infinite")):
    define(
        _name,
        "data",
        only(_floating, _WHAT[_floating], predicate_type),
        predicate(_function),
        kind=Kind.ELEMENTWISE,
        summary=f"whether it is {_what}",
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
    summary="elements of x where the condition holds, of y elsewhere; all three broadcast",
)
