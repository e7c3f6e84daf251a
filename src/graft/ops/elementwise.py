"""Elementwise arithmetic, comparison and logic, with NumPy broadcasting.

Types in: one dtype for all operands. Types out: that dtype, or bool for predicates. Integers wrap
around; their division truncates toward zero, as in C, and an integer divided by zero, quotient or
remainder, is 0 whatever its width. Floats follow IEEE 754: an infinity or NaN. `clip` takes its
bounds as attributes or as operands; `power` raises numbers of one dtype to exponents of any other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_different, provably_equal
from graft.base.dims import AnyDim, Dim, dim_max, dim_min
from graft.base.dtypes import Array, DType, integer_info
from graft.ir.attrs import Attrs, Number
from graft.ir.op import DTypes, Kind, SymbolicRule, get_op
from graft.ir.types import TensorType
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
from graft.loop.ir import BinaryKind, CompareKind
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops import functions
from graft.ops.pointwise import Scalar, by_scalar, formula, intrinsic, pointwise
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


def _plain(function: Callable[..., Term]) -> Scalar:
    """The scalar expression of an operator without attributes."""
    return lambda _attrs, *operands: function(*operands)


def _sign(_attrs: Any, x: Term) -> Term:
    if x.dtype.is_unsigned_integer:
        return minimum(x, 1)
    zero = Term(constant(0, x.dtype))
    still = zero if x.dtype.is_integer else select(equal(x, 0), zero, x)  # NaN stays NaN
    return select(x > 0, 1, select(x < 0, -1, still))


def _logical_not(_attrs: Any, x: Term) -> Term:
    return x ^ True


def _bitwise_not(_attrs: Any, x: Term) -> Term:
    return x ^ ((1 << x.dtype.bits) - 1 if x.dtype.is_unsigned_integer else -1)


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
    "negative": symbolic_by(lambda _attrs, x: -x),
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


def _compare(kind: CompareKind) -> Scalar:
    return lambda _attrs, x, y: compare(kind, x, y)


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy compares objects, which strings are, to objects."""
    return lambda lhs, rhs: np.asarray(function(lhs, rhs)).astype(bool)


_Row = tuple[str, Scalar, Callable[..., Any] | None, DTypes | None, str]

# Name, scalar expression, NumPy's function (if it has it), operand dtypes, in words.
_UNARY: list[_Row] = [
    ("abs", intrinsic("abs"), np.abs, NUMBERS, "the absolute value"),
    ("negative", _plain(operator.neg), np.negative, NUMBERS, "the number with the other sign"),
    ("sign", _sign, np.sign, NUMBERS, "-1, 0 or 1"),
    ("logical_not", _logical_not, np.logical_not, TRUTH_VALUES, "whether it does not hold"),
    ("bitwise_not", _bitwise_not, np.bitwise_not, INTEGERS, "every bit inverted"),
]

# Functions of floats: intrinsics of loop IR, whose meaning is NumPy's, and functions composed of
# those, beside NumPy's own.
_FUNCTIONS: list[tuple[str, Callable[..., Any] | None, str]] = [
    ("ceil", None, "the next integer above"),
    ("floor", None, "the next integer below"),
    ("round", None, "the nearest integer, the even one of two"),
    ("sqrt", None, "the square root"),
    ("exp", None, "e to the power of x"),
    ("log", None, "the natural logarithm"),
    ("erf", None, "the error function"),
    ("sigmoid", None, "1 / (1 + exp(-x))"),
    ("sin", None, "the sine"),
    ("cos", None, "the cosine"),
    ("tanh", None, "the hyperbolic tangent"),
    ("isnan", None, "whether it is NaN"),
    ("isinf", None, "whether it is infinite"),
    ("tan", np.tan, "the tangent"),
    ("asin", np.arcsin, "the inverse sine"),
    ("acos", np.arccos, "the inverse cosine"),
    ("atan", np.arctan, "the inverse tangent"),
    ("sinh", np.sinh, "the hyperbolic sine"),
    ("cosh", np.cosh, "the hyperbolic cosine"),
    ("asinh", np.arcsinh, "the inverse hyperbolic sine"),
    ("acosh", np.arccosh, "the inverse hyperbolic cosine"),
    ("atanh", np.arctanh, "the inverse hyperbolic tangent"),
]
for _name, _numpy, _summary in _FUNCTIONS:
    _scalar = intrinsic(_name) if _numpy is None else _plain(getattr(functions, _name))
    _UNARY.append((_name, _scalar, _numpy, FLOATS_OR_COMPLEX, _summary))

_BINARY: list[_Row] = [
    ("add", _plain(operator.add), np.add, NUMBERS, "the sum"),
    ("subtract", _plain(operator.sub), np.subtract, NUMBERS, "the difference"),
    ("multiply", _plain(operator.mul), np.multiply, NUMBERS, "the product"),
    ("divide", _divide, None, NUMBERS, "the quotient; of integers, towards zero"),
    ("floor_mod", _floor_mod, np.mod, REALS, "the remainder with the divisor's sign"),
    ("mod", _mod, np.fmod, REALS, "the remainder with the dividend's sign"),
    ("maximum", _plain(maximum), np.maximum, NUMBERS, "the larger one, NaN if one is"),
    ("minimum", _plain(minimum), np.minimum, NUMBERS, "the smaller one, NaN if one is"),
    ("logical_and", _AND, np.logical_and, TRUTH_VALUES, "whether both hold"),
    ("logical_or", _OR, np.logical_or, TRUTH_VALUES, "whether one holds"),
    ("logical_xor", _XOR, np.logical_xor, TRUTH_VALUES, "whether exactly one holds"),
    ("bitwise_and", _AND, np.bitwise_and, INTEGERS, "bits that both have"),
    ("bitwise_or", _OR, np.bitwise_or, INTEGERS, "bits that one has"),
    ("bitwise_xor", _XOR, np.bitwise_xor, INTEGERS, "bits that exactly one has"),
    ("left_shift", _LEFT, np.left_shift, INTEGERS, "bits moved to the left"),
    ("right_shift", _RIGHT, np.right_shift, INTEGERS, "bits moved to the right"),
]

# Comparisons, of which loop IR has the same.
_COMPARISONS: list[tuple[str, Callable[..., Any], DTypes | None, str]] = [
    ("equal", np.equal, None, "whether both are equal"),
    ("not_equal", np.not_equal, None, "whether they differ"),
    ("greater", np.greater, REALS, "lhs > rhs"),
    ("greater_equal", np.greater_equal, REALS, "lhs >= rhs"),
    ("less", np.less, REALS, "lhs < rhs"),
    ("less_equal", np.less_equal, REALS, "lhs <= rhs"),
]
for _name, _function, _dtypes, _summary in _COMPARISONS:
    _scalar = _compare(CompareKind[_name.upper()])
    _BINARY.append((_name, _scalar, _truth(_function), _dtypes, _summary))

_PREDICATES = frozenset({"isnan", "isinf", *(name for name, *_ in _COMPARISONS)})
_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "equal", "not_equal"})

for _operands, _rows in (("data", _UNARY), ("lhs rhs", _BINARY)):
    for _name, _scalar, _numpy, _dtypes, _summary in _rows:
        pointwise(
            _name,
            _operands,
            _scalar,
            _numpy,
            dtypes=_dtypes,
            commutative=_name in _COMMUTATIVE or _scalar in (_AND, _OR, _XOR),
            symbolic=_ON_DIMS.get(_name),
            summary=_summary,
            **({"infer": predicate_type} if _name in _PREDICATES else {}),
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


@dataclass(frozen=True, slots=True)
class ClipAttrs(Attrs):
    a_min: Number | None = None
    a_max: Number | None = None

    @property
    def low(self) -> float:
        """The lower bound of floats where no operand gives it; infinite: there is none."""
        return -math.inf if self.a_min is None else float(self.a_min)

    @property
    def high(self) -> float:
        """The upper bound, as `low`."""
        return math.inf if self.a_max is None else float(self.a_max)


def _clip_type(
    attrs: ClipAttrs, data: TensorType, a_min: TensorType | None, a_max: TensorType | None
) -> TensorType:
    same_dtype(data, a_min, a_max)
    for bound in (a_min, a_max):
        scalar = bound is None or not provably_different(bound.size, 1)
        require(scalar, "a bound is not one number")
    return data


def _clip(attrs: ClipAttrs, x: Term, low: Term | None = None, high: Term | None = None) -> Term:
    if low is None and attrs.a_min is not None:
        low = _bound(attrs.a_min, x.dtype)
    if high is None and attrs.a_max is not None:
        high = _bound(attrs.a_max, x.dtype)
    bounded = x if low is None else maximum(x, low)
    return bounded if high is None else minimum(bounded, high)


def clip_bound(value: Number, dtype: DType) -> Array:
    """A bound of `clip` as a number of the dtype: fractions are cut off for integers, and what is
    beyond their range is its end; beyond that of floats it is infinity, no bound."""
    if not dtype.is_float:
        info = integer_info(dtype.numpy)
        value = min(max(value, int(info.min)), int(info.max))
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(dtype.numpy)


def _bound(value: Number, dtype: DType) -> Term:
    number = clip_bound(value, dtype)
    return Term(constant(float(number) if dtype.is_float else int(number), dtype))


def _clip_arrays(attrs: ClipAttrs, data: Array, *bounds: Array | None) -> Array:
    scalars = (None if bound is None else bound.reshape(()) for bound in bounds)
    return np.asarray(by_scalar(_clip)(attrs, data, *scalars))


def _clip_dims(attrs: ClipAttrs, data: Array, a_min: Any = None, a_max: Any = None) -> Array:
    low: Any = attrs.a_min if a_min is None else a_min.reshape(())[()]
    high: Any = attrs.a_max if a_max is None else a_max.reshape(())[()]
    result = np.empty_like(data)
    for index, dim in np.ndenumerate(data):
        raised = dim if low is None else dim_max(dim, low)
        result[index] = raised if high is None else dim_min(raised, high)
    return result


def _clip_expression(
    attrs: ClipAttrs, out: te.Out, data: Tensor, *bounds: Tensor | None
) -> te.Results:
    """Bounds are attributes or tensors of one element and any rank."""

    def element(*indices: Term) -> Term:
        limits = [None if bound is None else te.single(bound) for bound in bounds]
        operands = [te.read(data, indices), *limits]
        return formula(get_op("clip"), attrs, operands, out.dtype)

    return out.of(element)


pointwise(
    "clip",
    "data a_min? a_max?",
    _clip,
    infer=_clip_type,
    evaluate=_clip_arrays,
    expression=_clip_expression,
    attrs=ClipAttrs,
    kind=Kind.ELEMENTWISE,
    dtypes=REALS,
    symbolic=symbolic_by(_clip_dims),
    summary="elements no smaller than a_min and no larger than a_max",
)


def _power_type(_attrs: Attrs, lhs: TensorType, rhs: TensorType) -> TensorType:
    return TensorType(lhs.dtype, broadcast_shapes(lhs.shape, rhs.shape))


def _power(_attrs: Attrs, x: Term, y: Term) -> Term:
    """lhs to the power of rhs, in the dtype of lhs."""
    if x.dtype.is_integer and y.dtype.is_integer:
        return cast(x.dtype, _integer_power(x, y))
    single_precision = all(side.dtype.is_float and side.dtype.bits <= 32 for side in (x, y))
    wide = DType.FLOAT32 if single_precision else DType.FLOAT64
    return cast(x.dtype, call("pow", cast(wide, x), cast(wide, y)))


def _integer_power(x: Term, y: Term) -> Term:
    """Exact, wrapping around; a negative exponent gives the quotient truncated to an integer."""
    if y.dtype is DType.UINT64:
        # What int64 does not hold becomes an exponent with the same result: the powers of an odd
        # number repeat after 2**62, those of an even one are 0 from 64 on.
        y = select(y > 2**63 - 1, (y & (2**62 - 1)) | 2**62, y)
    base, exponent = (cast(DType.INT64, side) for side in (x, y))
    power = call("pow", base, maximum(exponent, 0))
    # a uint64 beyond int64 is not 1, and its powers wrap around alike
    is_odd = equal(exponent & 1, 1)
    inverse = select(equal(base, 1), 1, 0)
    if x.dtype.is_signed_integer:
        inverse = select(equal(base, -1), select(is_odd, -1, 1), inverse)
    return power if y.dtype.is_unsigned_integer else select(exponent < 0, inverse, power)


pointwise("power", "lhs rhs", _power, infer=_power_type, dtypes=REALS)
