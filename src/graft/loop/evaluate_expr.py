"""The meaning of expressions: each becomes a closure that gives its value in an environment.

Part of the interpreter. Scalars of int64 and bool are Python's `int` and `bool`; all other scalars
are NumPy scalars and vectors are NumPy arrays, both of the exact dtype. An index outside its
buffer is an error, never a wrapped-around read. Under a mask, which the environment then holds,
only the lanes that it chooses are read; the others are zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.loop import ir
from graft.loop.intrinsics import INTRINSICS
from graft.loop.vectors import is_mask

Environment = dict[str, Any]
Compiled = Callable[[Environment], Any]
Position = Callable[[Environment], tuple[Any, ...]]

# Python's own operators floor // and % as the IR does; NumPy's do too.
_ARITHMETIC: dict[ir.BinaryKind, Callable[[Any, Any], Any]] = {
    ir.BinaryKind.ADD: operator.add,
    ir.BinaryKind.SUBTRACT: operator.sub,
    ir.BinaryKind.MULTIPLY: operator.mul,
    ir.BinaryKind.DIVIDE: operator.truediv,
    ir.BinaryKind.FLOOR_DIVIDE: operator.floordiv,
    ir.BinaryKind.FLOOR_MODULO: operator.mod,
    ir.BinaryKind.MINIMUM: np.minimum,
    ir.BinaryKind.MAXIMUM: np.maximum,
    ir.BinaryKind.AND: operator.and_,
    ir.BinaryKind.OR: operator.or_,
    ir.BinaryKind.XOR: operator.xor,
    ir.BinaryKind.SHIFT_LEFT: operator.lshift,
    ir.BinaryKind.SHIFT_RIGHT: operator.rshift,
}
_COMPARISONS: dict[ir.CompareKind, Callable[[Any, Any], Any]] = {
    ir.CompareKind.EQUAL: operator.eq,
    ir.CompareKind.NOT_EQUAL: operator.ne,
    ir.CompareKind.LESS: operator.lt,
    ir.CompareKind.LESS_EQUAL: operator.le,
    ir.CompareKind.GREATER: operator.gt,
    ir.CompareKind.GREATER_EQUAL: operator.ge,
}
_PLAIN = (DType.INT64, DType.BOOL)
_DIVISIONS = (ir.BinaryKind.FLOOR_DIVIDE, ir.BinaryKind.FLOOR_MODULO)
_HALF = 1 << 63
_MASK = ""  # where the environment holds the mask; no variable has this name


def compile_expr(expr: ir.Expr, masked: bool = False) -> Compiled:
    """A closure that computes the expression, under the environment's mask if `masked`."""
    match expr:
        case ir.Const():
            return _constant(expr)
        case ir.Var():
            return operator.itemgetter(expr.name)
        case ir.Binary():
            return _binary(expr, masked)
        case ir.Compare():
            compute, plain = _COMPARISONS[expr.kind], expr.lanes == 1
            left, right = compile_expr(expr.left, masked), compile_expr(expr.right, masked)
            if plain:
                return lambda e: bool(compute(left(e), right(e)))
            return lambda e: compute(left(e), right(e))
        case ir.Select():
            return _select(expr, masked)
        case ir.Cast():
            return _cast(expr, masked)
        case ir.Call():
            return _call(expr, masked)
        case ir.Ramp():
            steps = np.arange(expr.lanes, dtype=expr.dtype.numpy) * expr.stride
            base = compile_expr(expr.base, masked)
            return lambda e: base(e) + steps
        case ir.Broadcast():
            value, lanes, dtype = compile_expr(expr.value, masked), expr.lanes, expr.dtype.numpy
            if expr.value.lanes > 1:
                return lambda e: np.resize(value(e), lanes)
            return lambda e: np.full(lanes, value(e), dtype)
        case ir.Load():
            return _load(expr, masked)


def evaluate_arrays(expr: ir.Expr, arrays: Mapping[str, Array]) -> Array:
    """The value of an expression over arrays, which broadcast, in place of scalar variables.

    Integers wrap around, and division by zero gives zero, as in NumPy. Shared subexpressions are
    computed once.
    """
    values: dict[int, Array] = {}

    def value(expr: ir.Expr) -> Array:
        if id(expr) not in values:
            values[id(expr)] = np.asarray(compute(expr))
        return values[id(expr)]

    def compute(expr: ir.Expr) -> Any:
        match expr:
            case ir.Const():
                return np.array(expr.value).astype(expr.dtype.numpy)
            case ir.Var():
                return arrays[expr.name]
            case ir.Binary():
                return _ARITHMETIC[expr.kind](value(expr.left), value(expr.right))
            case ir.Compare():
                return _COMPARISONS[expr.kind](value(expr.left), value(expr.right))
            case ir.Select():
                return np.where(value(expr.condition), value(expr.yes), value(expr.no))
            case ir.Cast():
                return value(expr.value).astype(expr.dtype.numpy)
            case ir.Call():
                result = INTRINSICS[expr.name].meaning(*map(value, expr.arguments))
                return np.asarray(result).astype(expr.dtype.numpy, copy=False)
            case _:
                raise EvaluationError(f"arrays have no {type(expr).__name__}")

    return value(expr)


def _constant(const: ir.Const) -> Compiled:
    value: Any = const.value
    if const.lanes > 1:
        value = np.full(const.lanes, value, const.dtype.numpy)
    elif const.dtype not in _PLAIN:
        value = np.array(value).astype(const.dtype.numpy)[()]
    return lambda e: value


def _wrapped(value: int) -> int:
    """An int64 result as the machine keeps it."""
    return value if -_HALF <= value < _HALF else (value + _HALF) % (2 * _HALF) - _HALF


def _load(load: ir.Load, masked: bool) -> Compiled:
    name, lanes = load.buffer.name, load.lanes
    position = indices_of(load.buffer, load.indices, masked)
    if lanes == 1 and load.dtype in _PLAIN:
        return lambda e: e[name][position(e)].item()
    if lanes == 1 or not masked or load.buffer.scope is ir.Scope.REGISTER:
        return lambda e: e[name][position(e)]
    indices = [compile_expr(index, masked) for index in load.indices]

    def read(environment: Environment) -> Any:
        mask = environment[_MASK]
        if len(mask) != lanes:
            return environment[name][position(environment)]
        values = np.zeros(lanes, load.dtype.numpy)
        rows = [index(environment) for index in indices]
        values[mask] = environment[name][masked_indices(name, environment[name].shape, rows, mask)]
        return values

    return read


def masked_indices(
    name: str, shape: tuple[int, ...], indices: Sequence[Any], mask: Any
) -> tuple[Any, ...]:
    """The indices of the active lanes of a vector access, checked against the extents."""
    rows = tuple([np.broadcast_to(index, mask.shape)[mask] for index in indices])
    for row, extent in zip(rows, shape, strict=True):
        if ((row < 0) | (row >= extent)).any():
            raise EvaluationError(f"an access to '{name}' is out of bounds: {row} of {extent}")
    return rows


def under(mask: Any, compiled: Compiled, environment: Environment) -> Any:
    """The value under a mask, combined with the mask in effect."""
    outer = environment.get(_MASK)
    environment[_MASK] = mask if outer is None or outer.shape != mask.shape else mask & outer
    value = compiled(environment)
    if outer is None:
        del environment[_MASK]
    else:
        environment[_MASK] = outer
    return value


def _binary(expr: ir.Binary, masked: bool) -> Compiled:
    left, right = compile_expr(expr.left, masked), compile_expr(expr.right, masked)
    compute = _ARITHMETIC[expr.kind]
    if expr.kind in _DIVISIONS and not expr.dtype.is_float:
        right = _nonzero(right, masked)
    if expr.lanes == 1 and expr.dtype is DType.INT64:
        if expr.kind is ir.BinaryKind.MINIMUM:
            return lambda e: min(left(e), right(e))
        if expr.kind is ir.BinaryKind.MAXIMUM:
            return lambda e: max(left(e), right(e))
        return lambda e: _wrapped(compute(left(e), right(e)))
    if expr.lanes == 1 and expr.dtype is DType.BOOL:
        return lambda e: bool(compute(left(e), right(e)))
    return lambda e: compute(left(e), right(e))


def _nonzero(divisor: Compiled, masked: bool) -> Compiled:
    def checked(environment: Environment) -> Any:
        value = divisor(environment)
        mask = environment[_MASK] if masked else None
        counts = value[mask] if mask is not None and np.shape(value) == mask.shape else value
        if not np.all(counts):
            raise EvaluationError("an integer is divided by zero")
        return value

    return checked


def _select(expr: ir.Select, masked: bool) -> Compiled:
    if is_mask(expr.condition):
        return _masked_select(expr, masked)
    condition, yes, no = (compile_expr(e, masked) for e in (expr.condition, expr.yes, expr.no))
    if expr.lanes == 1:

        def choose(environment: Environment) -> Any:
            one, other = yes(environment), no(environment)
            return one if condition(environment) else other

        return choose
    return lambda e: np.where(condition(e), yes(e), no(e))


def _masked_select(expr: ir.Select, masked: bool) -> Compiled:
    condition = compile_expr(expr.condition, masked)
    yes, no = compile_expr(expr.yes, masked=True), compile_expr(expr.no, masked=True)

    def choose(environment: Environment) -> Any:
        mask = condition(environment)
        one, other = under(mask, yes, environment), under(~mask, no, environment)
        return np.where(mask, one, other)

    return choose


def _cast(expr: ir.Cast, masked: bool) -> Compiled:
    value, target, lanes = compile_expr(expr.value, masked), expr.dtype, expr.lanes
    if lanes == 1 and target in _PLAIN:
        return lambda e: np.asarray(value(e)).astype(target.numpy).item()
    return lambda e: np.asarray(value(e)).astype(target.numpy)[()]


def _call(expr: ir.Call, masked: bool) -> Compiled:
    if expr.name not in INTRINSICS:
        raise EvaluationError(f"no intrinsic is called '{expr.name}'")
    meaning = INTRINSICS[expr.name].meaning
    arguments = [compile_expr(argument, masked) for argument in expr.arguments]
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


def indices_of(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], masked: bool = False) -> Position:
    """A closure that gives the position of an access, checked against the buffer's extents."""
    name, compiled = buffer.name, [compile_expr(index, masked) for index in indices]

    def position(environment: Environment) -> tuple[Any, ...]:
        values = tuple([index(environment) for index in compiled])
        shape = environment[name].shape
        for index, extent in zip(values, shape, strict=True):
            ends = (index, index) if isinstance(index, int) else (index.min(), index.max())
            if ends[0] < 0 or ends[1] >= extent:
                shown = ", ".join(map(str, values))
                message = f"'{name}[{shown}]' is out of bounds: the shape is {list(shape)}"
                raise EvaluationError(message)
        return values

    return position
