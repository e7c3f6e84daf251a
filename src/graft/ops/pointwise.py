"""Pointwise operators: an element of the result from one element of each operand.

Such an operator is declared by its *scalar expression*, a function of its attributes and one term
per operand:

    pointwise("nn.relu", "data", lambda _attrs, x: maximum(x, 0), dtypes=REALS)

Everything else follows from it: the type rule (operands of one dtype broadcast), the NumPy meaning,
the tensor expression, the work, and with these native code, fusion and C source. Where NumPy has
the function itself, `numpy` names it, and the meaning does not depend on the expression: the
evaluator is what native code is compared with (decision 0027).

An expression holds for float32, float64 and the integers and truth values that the operator takes.
Narrower numbers are computed with in float32, or in whole bytes, and rounded at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs
from graft.ir.graph import Node
from graft.ir.op import Kind, Meaning, Op, Work, WorkRule, define, get_op, parse_operands, traffic
from graft.ir.types import TensorType, Type
from graft.loop.build import Term, call, cast
from graft.loop.evaluate_expr import evaluate_arrays
from graft.loop.intrinsics import INTRINSICS
from graft.loop.ir import Call, Const, Expr, Var
from graft.loop.ir import Cast as CastExpr
from graft.loop.tensor import Tensor
from graft.loop.traverse import children
from graft.ops import expression as te
from graft.ops.rules import broadcast_type, described, same_type

Scalar = Callable[..., Term]

# Dtypes for which scalar expressions are what the operators mean, without any rounding.
SCALAR_DTYPES = frozenset({DType.FLOAT32, DType.FLOAT64})
# Dtypes that scalar expressions do not take.
_UNUSUAL = frozenset(
    dtype for dtype in DType if dtype.is_complex or dtype is DType.STRING or dtype.bits < 8
) - {DType.BOOL}


def pointwise(
    name: str,
    operands: str,
    scalar: Scalar,
    numpy: Callable[..., Any] | None = None,
    **options: Any,
) -> Op:
    """Define an operator by the expression of an element, a function whose annotation and docstring
    also count; `options` are fields of `Op`, for what does not follow from it."""
    is_unary = len(parse_operands(operands)) == 1
    defaults: dict[str, Any] = {
        **described(scalar),
        "infer": same_type if is_unary else broadcast_type,
        "evaluate": by_scalar(scalar) if numpy is None else by_numpy(numpy),
        "kind": Kind.ELEMENTWISE if is_unary else Kind.BROADCAST,
        "expression": _expression(name),
        "work": _work(name),
    }
    return define(name, operands, scalar=scalar, **{**defaults, **options})


def intrinsic(name: str) -> Scalar:
    """The scalar expression that calls an intrinsic function of loop IR."""
    return lambda _attrs, *operands: call(name, *operands)


def by_numpy(function: Callable[..., Any]) -> Meaning:
    """The meaning that a NumPy function of the operands gives: truth values, or the dtype of the
    first operand."""

    def meaning(_attrs: Any, *operands: Array) -> Array:
        return _rounded(function(*map(widened_array, operands)), operands[0])

    return meaning


def by_scalar(scalar: Scalar) -> Meaning:
    """The same by a scalar expression, evaluated on whole arrays at once."""

    def meaning(attrs: Any, *operands: Array | None) -> Array:
        wide = [None if operand is None else widened_array(operand) for operand in operands]
        dtypes = [None if array is None else dtype_of(array.dtype) for array in wide]
        arrays = {f"x{i}": array for i, array in enumerate(wide) if array is not None}
        result = evaluate_arrays(scalar(attrs, *_variables(dtypes)).expr, arrays)
        return _rounded(result, next(o for o in operands if o is not None))

    return meaning


def _rounded(result: Any, like: Array) -> Array:
    """A result in the dtype that it has to have."""
    array = np.asarray(result)
    return array if array.dtype == bool else array.astype(like.dtype, copy=False)


def widened_array(array: Array) -> Array:
    """The numbers in the dtype that they are computed with in."""
    dtype = dtype_of(array.dtype)
    if te.is_narrow(dtype):
        return array.astype(np.float32)
    if dtype.is_integer and dtype.bits < 8:
        return array.astype(np.uint8 if dtype.is_unsigned_integer else np.int8)
    return array


def element_of(node: Node, operands: Sequence[Term]) -> Term:
    """An element of a pointwise node's result from elements of its operands, unrounded."""
    assert node.op.scalar is not None
    result: Term = node.op.scalar(node.attrs, *operands)
    return result


def formula(op: Op, attrs: Any, operands: Sequence[Term | None], dtype: DType) -> Term:
    """A pointwise operator's result in a dtype, from operands of any dtype that has a formula."""
    assert op.scalar is not None
    wide = [None if operand is None else te.widened(operand) for operand in operands]
    return cast(dtype, op.scalar(attrs, *wide))


def _expression(name: str) -> te.Expression:
    """The tensor expression of an operator whose operands broadcast."""

    def expression(attrs: Any, out: te.Out, *inputs: Tensor | None) -> te.Results:
        op, shape, dtype = get_op(name), out.shape, out.dtype
        if not _holds(op, attrs, dtype):
            return te.Unexpressed("exponents that are not held become NaN")

        def element(*indices: Term) -> Term:
            operands = [None if one is None else te.spread(one, indices, shape) for one in inputs]
            return formula(op, attrs, operands, dtype)

        return out.of(element)

    return expression


def _holds(op: Op, attrs: Any, dtype: DType) -> bool:
    """Whether the scalar expression is exact for results of the dtype."""
    return dtype is not DType.FLOAT8E8M0FNU or (op.name == "cast" and attrs.saturate)


def has_scalar(node: Node) -> bool:
    """Whether a node's meaning is its operator's scalar expression.

    Operands that are static forms of attributes (bounds to clip to) do not broadcast, so those have
    to be attributes."""
    present = [i for i, _ in node.op.alternatives if i < len(node.inputs) and node.inputs[i]]
    has_formula = node.op.scalar is not None and not present
    return has_formula and _holds(node.op, node.attrs, node.output.tensor.dtype)


def scalar_of(node: Node) -> Expr | None:
    """The scalar expression of a node over variables `x0`, `x1`, ...; None where it has none that
    processors could compute."""
    unusual = _UNUSUAL.intersection(value.tensor.dtype for value in node.args)
    return node_scalar(node) if has_scalar(node) and not unusual else None


def node_scalar(node: Node) -> Expr:
    """The same of any pointwise node, whether or not its operands broadcast."""
    dtypes = [None if value is None else value.tensor.dtype for value in node.inputs]
    return _formula(node.op, node.attrs, dtypes, node.output.tensor.dtype)


def _formula(op: Op, attrs: Any, dtypes: Sequence[DType | None], dtype: DType) -> Expr:
    return formula(op, attrs, _variables(dtypes), dtype).expr


def _variables(dtypes: Sequence[DType | None]) -> list[Term | None]:
    return [None if dtype is None else Term(Var(f"x{i}", dtype)) for i, dtype in enumerate(dtypes)]


def _work(name: str) -> WorkRule:
    """The work rule: as many operations per element as the scalar expression has."""

    def work(attrs: Any, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
        dtypes = tuple(t.dtype if isinstance(t, TensorType) else None for t in (*ins, *outs))
        size = outs[0].size if isinstance(outs[0], TensorType) else 0
        return Work(0, size * _operations(get_op(name), attrs, dtypes), traffic(ins, outs))

    return work


@lru_cache(maxsize=1 << 12)
def _operations(op: Op, attrs: Attrs, dtypes: tuple[DType, ...]) -> int:
    """Operations per element, at least one; terms that the expression shares count once."""
    if _UNUSUAL.intersection(dtypes):
        return 1
    unique: dict[int, Expr] = {}
    waiting = [_formula(op, attrs, dtypes[:-1], dtypes[-1])]
    while waiting:
        expr = waiting.pop()
        if id(expr) not in unique:
            unique[id(expr)] = expr
            waiting += children(expr)
    return max(1, sum(map(_weight, unique.values())))


def _weight(expr: Expr) -> int:
    if isinstance(expr, Call):
        return INTRINSICS[expr.name].operations
    return 0 if isinstance(expr, Const | Var | CastExpr) else 1


def repetitions(node: Node) -> int:
    """How often a node's expression, written out, has the operand that it has most often."""
    expr = scalar_of(node)
    return 1 if expr is None else max(1, *_occurrences(expr, {}).values())


def _occurrences(expr: Expr, known: dict[int, Counter[str]]) -> Counter[str]:
    """How often each variable occurs; expressions share terms, which are looked at once."""
    if isinstance(expr, Var):
        return Counter((expr.name,))
    if id(expr) not in known:
        total: Counter[str] = Counter()
        for child in children(expr):
            total.update(_occurrences(child, known))
        known[id(expr)] = total
    return known[id(expr)]
