"""The meaning of expressions: each becomes a closure that gives its value in an environment.

Part of the interpreter. Scalars of int64 and bool are Python's `int` and `bool`; all other scalars
are NumPy scalars and vectors are NumPy arrays, both of the exact dtype. An index outside its
buffer is an error, never a wrapped-around read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.base.errors import EvaluationError
from graft.loop.intrinsics import INTRINSICS
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    Load,
    Ramp,
    Select,
    Var,
)

Environment = dict[str, Any]
Compiled = Callable[[Environment], Any]
Position = Callable[[Environment], tuple[Any, ...]]

# Python's own operators floor // and % as the IR does; NumPy's do too.
_ARITHMETIC: dict[BinaryKind, Callable[[Any, Any], Any]] = {
    BinaryKind.ADD: operator.add,
    BinaryKind.SUBTRACT: operator.sub,
    BinaryKind.MULTIPLY: operator.mul,
    BinaryKind.DIVIDE: operator.truediv,
    BinaryKind.FLOOR_DIVIDE: operator.floordiv,
    BinaryKind.FLOOR_MODULO: operator.mod,
    BinaryKind.MINIMUM: np.minimum,
    BinaryKind.MAXIMUM: np.maximum,
    BinaryKind.AND: operator.and_,
    BinaryKind.OR: operator.or_,
    BinaryKind.XOR: operator.xor,
    BinaryKind.SHIFT_LEFT: operator.lshift,
    BinaryKind.SHIFT_RIGHT: operator.rshift,
}
_COMPARISONS: dict[CompareKind, Callable[[Any, Any], Any]] = {
    CompareKind.EQUAL: operator.eq,
    CompareKind.NOT_EQUAL: operator.ne,
    CompareKind.LESS: operator.lt,
    CompareKind.LESS_EQUAL: operator.le,
    CompareKind.GREATER: operator.gt,
    CompareKind.GREATER_EQUAL: operator.ge,
}
_PLAIN = (DType.INT64, DType.BOOL)
_DIVISIONS = (BinaryKind.FLOOR_DIVIDE, BinaryKind.FLOOR_MODULO)
_HALF = 1 << 63


def compile_expr(expr: Expr) -> Compiled:
    """A closure that computes the expression."""
    match expr:
        case Const():
            return _constant(expr)
        case Var():
            return operator.itemgetter(expr.name)
        case Binary():
            return _binary(expr)
        case Compare():
            compute, plain = _COMPARISONS[expr.kind], expr.lanes == 1
            left, right = compile_expr(expr.left), compile_expr(expr.right)
            if plain:
                return lambda e: bool(compute(left(e), right(e)))
            return lambda e: compute(left(e), right(e))
        case Select():
            return _select(expr)
        case Cast():
            return _cast(expr)
        case Call():
            return _call(expr)
        case Ramp():
            steps = np.arange(expr.lanes, dtype=expr.dtype.numpy) * expr.stride
            base = compile_expr(expr.base)
            return lambda e: base(e) + steps
        case Broadcast():
            value, lanes, dtype = compile_expr(expr.value), expr.lanes, expr.dtype.numpy
            return lambda e: np.full(lanes, value(e), dtype)
        case Load():
            name, position = expr.buffer.name, indices_of(expr.buffer, expr.indices)
            if expr.lanes == 1 and expr.dtype in _PLAIN:
                return lambda e: e[name][position(e)].item()
            return lambda e: e[name][position(e)]


def _constant(const: Const) -> Compiled:
    value: Any = const.value
    if const.lanes > 1:
        value = np.full(const.lanes, value, const.dtype.numpy)
    elif const.dtype not in _PLAIN:
        value = np.array(value).astype(const.dtype.numpy)[()]
    return lambda e: value


def _wrapped(value: int) -> int:
    """An int64 result as the machine keeps it."""
    return value if -_HALF <= value < _HALF else (value + _HALF) % (2 * _HALF) - _HALF


def _binary(expr: Binary) -> Compiled:
    left, right, compute = compile_expr(expr.left), compile_expr(expr.right), _ARITHMETIC[expr.kind]
    if expr.kind in _DIVISIONS and not expr.dtype.is_float:
        right = _nonzero(right)
    if expr.lanes == 1 and expr.dtype is DType.INT64:
        if expr.kind is BinaryKind.MINIMUM:
            return lambda e: min(left(e), right(e))
        if expr.kind is BinaryKind.MAXIMUM:
            return lambda e: max(left(e), right(e))
        return lambda e: _wrapped(compute(left(e), right(e)))
    if expr.lanes == 1 and expr.dtype is DType.BOOL:
        return lambda e: bool(compute(left(e), right(e)))
    return lambda e: compute(left(e), right(e))


def _nonzero(divisor: Compiled) -> Compiled:
    def checked(environment: Environment) -> Any:
        value = divisor(environment)
        if not np.all(value):
            raise EvaluationError("an integer is divided by zero")
        return value

    return checked


def _select(expr: Select) -> Compiled:
    condition, yes, no = map(compile_expr, (expr.condition, expr.yes, expr.no))
    if expr.lanes == 1:

        def choose(environment: Environment) -> Any:
            one, other = yes(environment), no(environment)
            return one if condition(environment) else other

        return choose
    return lambda e: np.where(condition(e), yes(e), no(e))


def _cast(expr: Cast) -> Compiled:
    value, target, lanes = compile_expr(expr.value), expr.dtype, expr.lanes
    if lanes == 1 and target in _PLAIN:
        return lambda e: np.asarray(value(e)).astype(target.numpy).item()
    return lambda e: np.asarray(value(e)).astype(target.numpy)[()]


def _call(expr: Call) -> Compiled:
    if expr.name not in INTRINSICS:
        raise EvaluationError(f"no intrinsic is called '{expr.name}'")
    meaning = INTRINSICS[expr.name].meaning
    arguments = [compile_expr(argument) for argument in expr.arguments]
    dtype, plain = expr.dtype.numpy.type, expr.lanes == 1 and expr.dtype in _PLAIN
    if not plain and all(argument.dtype not in _PLAIN for argument in expr.arguments):

        def run_quickly(environment: Environment) -> Any:
            result = meaning(*[argument(environment) for argument in arguments])
            return result if result.dtype == dtype else result.astype(dtype)

        return run_quickly
    kinds = [argument.dtype.numpy for argument in expr.arguments]

    def run(environment: Environment) -> Any:
        pairs = zip(arguments, kinds, strict=True)
        result = np.asarray(meaning(*[np.asarray(a(environment), kind)[()] for a, kind in pairs]))
        return result.astype(dtype).item() if plain else result.astype(dtype)[()]

    return run


def indices_of(buffer: Buffer, indices: tuple[Expr, ...]) -> Position:
    """A closure that gives the position of an access, checked against the buffer's extents."""
    name, compiled = buffer.name, [compile_expr(index) for index in indices]
    scalar = all(index.lanes == 1 for index in indices)

    def fail(position: tuple[Any, ...], shape: tuple[int, ...]) -> EvaluationError:
        shown = ", ".join(str(index) for index in position)
        return EvaluationError(f"'{name}[{shown}]' is out of bounds: the shape is {list(shape)}")

    def of_scalars(environment: Environment) -> tuple[Any, ...]:
        position = tuple([index(environment) for index in compiled])
        shape = environment[name].shape
        for index, extent in zip(position, shape, strict=True):
            if not 0 <= index < extent:
                raise fail(position, shape)
        return position

    def of_vectors(environment: Environment) -> tuple[Any, ...]:
        position = tuple([index(environment) for index in compiled])
        shape = environment[name].shape
        for index, extent in zip(position, shape, strict=True):
            if isinstance(index, int):
                if not 0 <= index < extent:
                    raise fail(position, shape)
            elif index.min() < 0 or index.max() >= extent:
                raise fail(position, shape)
        return position

    return of_scalars if scalar else of_vectors
