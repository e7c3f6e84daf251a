"""Elementwise arithmetic, comparison and logic, with NumPy broadcasting.

Types in: one dtype for all operands. Types out: that dtype, or bool for predicates. Integers wrap
around; their division truncates toward zero, as in C, and an integer divided by zero, quotient or
remainder, is 0 whatever its width. Floats follow IEEE 754: an infinity or NaN.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_different, provably_equal
from graft.base.dims import AnyDim, Dim, dim_max, dim_min
from graft.base.dtypes import Array, DType
from graft.ir.op import DTypes, SymbolicRule
from graft.ir.types import TensorType
from graft.loop.build import Term, binary, cast, compare, constant, equal, maximum, minimum, select
from graft.loop.ir import BinaryKind, CompareKind
from graft.ops import functions
from graft.ops.pointwise import Scalar, intrinsic, pointwise
from graft.ops.rules import (
    FLOATS_OR_COMPLEX,
    INTEGERS,
    NUMBERS,
    REALS,
    TRUTH_VALUES,
    broadcast_shapes,
    predicate_type,
    require,
    same_dtype,
    symbolic_by,
)

# Intrinsic functions of loop IR, whose meaning is NumPy's: name, in words.
_FUNCTIONS = [
    ("ceil", "the next integer above"),
    ("floor", "the next integer below"),
    ("round", "the nearest integer, the even one of two"),
    ("sqrt", "the square root"),
    ("exp", "e to the power of x"),
    ("log", "the natural logarithm"),
    ("erf", "the error function"),
    ("sigmoid", "1 / (1 + exp(-x))"),
    ("sin", "the sine"),
    ("cos", "the cosine"),
    ("tanh", "the hyperbolic tangent"),
]
for _name, _summary in _FUNCTIONS:
    pointwise(_name, "data", intrinsic(_name), dtypes=FLOATS_OR_COMPLEX, summary=_summary)

# Functions composed of those: name, NumPy's function, in words.
_COMPOSED: list[tuple[Callable[[Term], Term], Callable[..., Any], str]] = [
    (functions.tan, np.tan, "the tangent"),
    (functions.asin, np.arcsin, "the inverse sine"),
    (functions.acos, np.arccos, "the inverse cosine"),
    (functions.atan, np.arctan, "the inverse tangent"),
    (functions.sinh, np.sinh, "the hyperbolic sine"),
    (functions.cosh, np.cosh, "the hyperbolic cosine"),
    (functions.asinh, np.arcsinh, "the inverse hyperbolic sine"),
    (functions.acosh, np.arccosh, "the inverse hyperbolic cosine"),
    (functions.atanh, np.arctanh, "the inverse hyperbolic tangent"),
]


def _plain(function: Callable[..., Term]) -> Scalar:
    """The scalar expression of an operator without attributes."""
    return lambda _attrs, *operands: function(*operands)


for _function, _numpy, _summary in _COMPOSED:
    pointwise(
        _function.__name__,
        "data",
        _plain(_function),
        _numpy,
        dtypes=FLOATS_OR_COMPLEX,
        summary=_summary,
    )


def _sign(_attrs: Any, x: Term) -> Term:
    if x.dtype.is_unsigned_integer:
        return minimum(x, 1)
    zero = Term(constant(0, x.dtype))
    still = zero if x.dtype.is_integer else select(equal(x, 0), zero, x)  # NaN stays NaN
    return select(x > 0, 1, select(x < 0, -1, still))


def _bitwise_not(_attrs: Any, x: Term) -> Term:
    return x ^ ((1 << x.dtype.bits) - 1 if x.dtype.is_unsigned_integer else -1)


# name, scalar expression, NumPy's function, operand dtypes, in words
_UNARY: list[tuple[str, Scalar, Callable[..., Any], DTypes, str]] = [
    ("abs", intrinsic("abs"), np.abs, NUMBERS, "the absolute value"),
    ("negative", _plain(operator.neg), np.negative, NUMBERS, "the number with the other sign"),
    ("sign", _sign, np.sign, NUMBERS, "-1, 0 or 1"),
    (
        "logical_not",
        lambda _attrs, x: x ^ True,
        np.logical_not,
        TRUTH_VALUES,
        "whether it does not hold",
    ),
    ("bitwise_not", _bitwise_not, np.bitwise_not, INTEGERS, "every bit inverted"),
]

for _name, _scalar, _numpy, _dtypes, _summary in _UNARY:
    pointwise(
        _name,
        "data",
        _scalar,
        _numpy,
        dtypes=_dtypes,
        symbolic=symbolic_by(lambda _attrs, x: -x) if _name == "negative" else None,
        summary=_summary,
    )


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


def _quotient(x: Term, y: Term) -> Term:
    """Integers divided, rounded towards zero; by zero it is zero."""
    floor = x // y
    if x.dtype.is_unsigned_integer:
        return floor
    inexact = _not_equal(x % y, 0) & _not_equal(x < 0, y < 0)
    return floor + cast(x.dtype, inexact)


def _not_equal(x: Term, y: Term | float) -> Term:
    return compare(CompareKind.NOT_EQUAL, x, y)


def _divide(_attrs: Any, x: Term, y: Term) -> Term:
    return _quotient(x, y) if x.dtype.is_integer else x / y


def _floor_mod(_attrs: Any, x: Term, y: Term) -> Term:
    return functions.floor_remainder(x, y) if x.dtype.is_float else x % y


def _mod(_attrs: Any, x: Term, y: Term) -> Term:
    if x.dtype.is_float:
        return functions.remainder(x, y)
    return select(equal(y, 0), 0, x - _quotient(x, y) * y)


def _shift(kind: BinaryKind) -> Scalar:
    return lambda _attrs, x, y: binary(kind, x, y)


_LEFT, _RIGHT = _shift(BinaryKind.SHIFT_LEFT), _shift(BinaryKind.SHIFT_RIGHT)
_AND, _OR, _XOR = map(_plain, (operator.and_, operator.or_, operator.xor))

# name, scalar expression, NumPy's function (if it has it), operand dtypes, commutative, in words
_BINARY: list[tuple[str, Scalar, Callable[..., Any] | None, DTypes, bool, str]] = [
    ("add", _plain(operator.add), np.add, NUMBERS, True, "the sum"),
    ("subtract", _plain(operator.sub), np.subtract, NUMBERS, False, "the difference"),
    ("multiply", _plain(operator.mul), np.multiply, NUMBERS, True, "the product"),
    ("divide", _divide, None, NUMBERS, False, "the quotient; of integers, towards zero"),
    ("floor_mod", _floor_mod, np.mod, REALS, False, "the remainder with the divisor's sign"),
    ("mod", _mod, np.fmod, REALS, False, "the remainder with the dividend's sign"),
    ("maximum", _plain(maximum), np.maximum, NUMBERS, True, "the larger one, NaN if one is"),
    ("minimum", _plain(minimum), np.minimum, NUMBERS, True, "the smaller one, NaN if one is"),
    ("logical_and", _AND, np.logical_and, TRUTH_VALUES, True, "whether both hold"),
    ("logical_or", _OR, np.logical_or, TRUTH_VALUES, True, "whether one holds"),
    ("logical_xor", _XOR, np.logical_xor, TRUTH_VALUES, True, "whether exactly one holds"),
    ("bitwise_and", _AND, np.bitwise_and, INTEGERS, True, "bits that both have"),
    ("bitwise_or", _OR, np.bitwise_or, INTEGERS, True, "bits that one has"),
    ("bitwise_xor", _XOR, np.bitwise_xor, INTEGERS, True, "bits that exactly one has"),
    ("left_shift", _LEFT, np.left_shift, INTEGERS, False, "bits moved to the left"),
    ("right_shift", _RIGHT, np.right_shift, INTEGERS, False, "bits moved to the right"),
]

for _name, _scalar, _optional, _dtypes, _commutative, _summary in _BINARY:
    pointwise(
        _name,
        "lhs rhs",
        _scalar,
        _optional,
        dtypes=_dtypes,
        commutative=_commutative,
        symbolic=_ON_DIMS.get(_name),
        summary=_summary,
    )

# Comparisons, of which loop IR has the same: name, NumPy's function, operand dtypes, in words
_COMPARISONS: list[tuple[str, Callable[..., Any], DTypes | None, str]] = [
    ("equal", np.equal, None, "whether both are equal"),
    ("not_equal", np.not_equal, None, "whether they differ"),
    ("greater", np.greater, REALS, "lhs > rhs"),
    ("greater_equal", np.greater_equal, REALS, "lhs >= rhs"),
    ("less", np.less, REALS, "lhs < rhs"),
    ("less_equal", np.less_equal, REALS, "lhs <= rhs"),
]


def _compared(kind: CompareKind) -> Scalar:
    return lambda _attrs, x, y: compare(kind, x, y)


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy compares objects, which strings are, to objects."""
    return lambda lhs, rhs: np.asarray(function(lhs, rhs)).astype(bool)


for _name, _numpy, _takes, _summary in _COMPARISONS:
    pointwise(
        _name,
        "lhs rhs",
        _compared(CompareKind[_name.upper()]),
        _truth(_numpy),
        infer=predicate_type,
        dtypes=_takes,
        commutative=_takes is None,
        symbolic=_ON_DIMS.get(_name),
        summary=_summary,
    )

for _name, _what in (("isnan", "NaN"), ("isinf", "infinite")):
    pointwise(
        _name,
        "data",
        intrinsic(_name),
        infer=predicate_type,
        dtypes=FLOATS_OR_COMPLEX,
        summary=f"whether it is {_what}",
    )


def _where_type(_attrs: Any, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    require(condition.dtype is DType.BOOL, f"the condition is {condition.dtype}, not bool")
    return TensorType(same_dtype(x, y), broadcast_shapes(condition.shape, x.shape, y.shape))


def _where(_attrs: Any, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition.astype(bool), x, y)


pointwise(
    "where",
    "condition x y",
    lambda _attrs, condition, x, y: select(condition, x, y),
    infer=_where_type,
    evaluate=_where,
    symbolic=symbolic_by(_where),
    summary="elements of x where the condition holds, of y elsewhere; all three broadcast",
)
