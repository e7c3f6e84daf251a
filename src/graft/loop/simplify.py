"""Simplification: expressions and statements in, equal but smaller ones out.

Constants are folded by the interpreter itself, so they cannot disagree with it. Index arithmetic is
put into normal form (see `index`); minima, comparisons, selects and branches that the ranges of
the variables decide disappear; vectors of indices become ramps and broadcasts. Floating-point
arithmetic is changed only where the result is the same bit for bit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graft.base.dims import extreme, floor_divide, index_expr, modulo
from graft.base.dtypes import DType
from graft.base.errors import EvaluationError
from graft.base.polynomials import Polynomial, constant_value, plus, terms_of
from graft.loop.evaluate_expr import compile_expr
from graft.loop.index import FUNCTIONS, expression, index_of, is_index, polynomial
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Select,
    Stmt,
    Store,
    Var,
    While,
)
from graft.loop.ranges import NEGATED, Context, facts
from graft.loop.traverse import (
    block,
    buffers_read,
    buffers_written,
    children,
    map_expr,
    reads_memory,
    substitute_in,
    variables_in,
    with_expressions,
    with_statements,
)
from graft.loop.vectors import simplify_vector

_FOLDABLE = (Binary, Compare, Select, Cast)
EMPTY = Block(())


def simplify(expr: Expr, context: Context | None = None) -> Expr:
    """The expression, simplified given what is known about its variables."""
    if isinstance(expr, (Const, Var)) and expr.lanes == 1:
        return expr
    scope = context or Context()
    return map_expr(lambda node: _node(node, scope), expr)


def _node(expr: Expr, context: Context) -> Expr:
    """A node whose children are simplified already."""
    folded = _folded(expr)
    if folded is not None:
        return folded
    if expr.lanes > 1:
        return simplify_vector(expr, lambda scalar: _node(scalar, context))
    match expr:
        case Binary() if not is_index(expr):
            return _arithmetic(expr)
        case Compare() if not is_index(expr.left):
            return expr
        case Binary() | Compare():
            return _simplify_memoised(expr, context)
        case Select():
            return _select(expr)
        case Cast(dtype, value):
            return value if value.dtype is dtype else expr
        case _:
            return expr


def _simplify_memoised(expr: Binary | Compare, context: Context) -> Expr:
    """Simplified index arithmetic, memoised per context since it takes proofs."""
    simplified = context.simplified.get(expr)
    if simplified is None:
        simplified = (
            _index(expr, context) if isinstance(expr, Binary) else _comparison(expr, context)
        )
        context.simplified[expr] = simplified
    return simplified


def _folded(expr: Expr) -> Const | None:
    """The value, if all operands are constants."""
    if not isinstance(expr, _FOLDABLE) or expr.lanes > 1:
        return None
    if not all(isinstance(child, Const) for child in children(expr)):
        return None
    try:
        with np.errstate(all="ignore"):
            value = compile_expr(expr)({})
    except EvaluationError:  # a division by zero stays where it is
        return None
    if expr.dtype.is_float:
        return Const(float(value), expr.dtype)
    plain = bool(value) if expr.dtype is DType.BOOL else int(value)
    return Const(plain, expr.dtype)


def _index(expr: Binary, context: Context) -> Expr:
    match expr.kind:
        case BinaryKind.ADD | BinaryKind.SUBTRACT | BinaryKind.MULTIPLY:
            return _sum(polynomial(expr), context)
        case BinaryKind.FLOOR_DIVIDE | BinaryKind.FLOOR_MODULO:
            divisor = polynomial(expr.right)
            if not divisor:
                return expr
            divide = floor_divide if expr.kind is BinaryKind.FLOOR_DIVIDE else modulo
            return expression(divide(polynomial(expr.left), divisor, context))
        case BinaryKind.MINIMUM | BinaryKind.MAXIMUM:
            return _extreme(expr, context)
        case _:
            return expr


def _sum(terms: Polynomial, context: Context) -> Expr:
    """A sum, taken into a minimum or maximum where that makes one side a constant."""
    for monomial, count in terms.items():
        if abs(count) != 1 or len(monomial) != 1 or monomial[0].kind not in _OPPOSITE:
            continue
        rest = plus(terms, {monomial: count}, -1)
        if constant_value(rest) is not None:
            continue
        (atom,) = monomial
        totals = [plus(rest, dict(terms_of(side)), count) for side in atom.arguments]
        if any(constant_value(total) is not None for total in totals):
            kind = atom.kind if count > 0 else _OPPOSITE[atom.kind]
            return index_of(extreme(kind, list(map(index_expr, totals)), context))
    return expression(terms)


_OPPOSITE = {"min": "max", "max": "min"}


def _extreme(expr: Binary, context: Context) -> Expr:
    first, second = index_expr(polynomial(expr.left)), index_expr(polynomial(expr.right))
    return index_of(extreme(FUNCTIONS[expr.kind], (first, second), context))


def _arithmetic(expr: Binary) -> Expr:
    """Identities of dtypes other than the index, exact in floating point too."""
    for value, other, at_right in ((expr.right, expr.left, True), (expr.left, expr.right, False)):
        if isinstance(value, Const) and _is_neutral(expr.kind, value, at_right):
            return other
        if isinstance(value, Const) and value.dtype is DType.BOOL:
            absorbing = {BinaryKind.AND: False, BinaryKind.OR: True}.get(expr.kind)
            if absorbing is not None and value.value is absorbing:
                return value
    if expr.left == expr.right and expr.kind in (BinaryKind.AND, BinaryKind.OR):
        return expr.left
    return expr


_NEUTRAL: dict[BinaryKind, tuple[float, bool]] = {  # the value, and whether on either side
    BinaryKind.MULTIPLY: (1, True),
    BinaryKind.DIVIDE: (1, False),
    BinaryKind.SUBTRACT: (0, False),
    BinaryKind.MINIMUM: (float("inf"), True),
    BinaryKind.MAXIMUM: (float("-inf"), True),
    BinaryKind.AND: (True, True),
    BinaryKind.OR: (False, True),
}


def _is_neutral(kind: BinaryKind, const: Const, at_right: bool) -> bool:
    if kind is BinaryKind.ADD:  # in floating point -0.0 + 0.0 is not -0.0
        return const.dtype.is_integer and const.value == 0
    if kind in (BinaryKind.AND, BinaryKind.OR) and const.dtype is not DType.BOOL:
        return False
    if kind is BinaryKind.SUBTRACT and str(const.value) == "-0.0":
        return False
    value, either = _NEUTRAL.get(kind, (float("nan"), True))
    return const.value == value and (either or at_right)


def _comparison(expr: Compare, context: Context) -> Expr:
    for kind, result in ((expr.kind, True), (NEGATED[expr.kind], False)):
        if _surely(kind, expr.left, expr.right, context):
            return Const(result, DType.BOOL)
    return expr


def _surely(kind: CompareKind, left: Expr, right: Expr, context: Context) -> bool:
    if kind is CompareKind.NOT_EQUAL:
        return context.below(left, right) or context.below(right, left)
    return all(map(context.proves, facts(kind, left, right)))


def _select(expr: Select) -> Expr:
    if isinstance(expr.condition, Const):
        return expr.yes if expr.condition.value else expr.no
    return expr.yes if expr.yes == expr.no else expr


def simplify_stmt(stmt: Stmt, context: Context | None = None) -> Stmt:
    """The statement, simplified from the outside in."""
    scope = context or Context()
    if isinstance(stmt, While):  # variables keep their ranges, but facts may not hold again
        body = simplify_stmt(stmt.body, scope)
        return While(simplify(stmt.condition, scope), body)
    stmt = with_expressions(stmt, lambda expr: simplify(expr, scope))
    match stmt:
        case For():
            return _loop(stmt, scope)
        case If():
            return _branch(stmt, scope)
        case Let(var, value, body):
            if isinstance(value, (Const, Var)):
                return simplify_stmt(substitute_in(body, {var.name: value}), scope)
            if var.name not in variables_in(body):
                return simplify_stmt(body, scope)
            bounded = is_index(value) and not reads_memory(value)
            inside = scope.variable(var.name, value, value) if bounded else scope
            return _unless_empty(replace(stmt, body=simplify_stmt(body, inside)))
        case Allocate(buffer, body):
            inner = simplify_stmt(body, scope)
            is_used = buffer in buffers_read(inner) | buffers_written(inner)
            return replace(stmt, body=inner) if is_used else inner
        case Store(buffer, indices, Load(source, source_indices), _) if source == buffer:
            return EMPTY if source_indices == indices else stmt
        case Store(condition=Const(value=holds)):
            return replace(stmt, condition=None) if holds else EMPTY
        case Block():
            parts = [simplify_stmt(statement, scope) for statement in stmt.statements]
            return block(*(part for part in parts if part != EMPTY))
        case _:
            return with_statements(stmt, lambda inner: simplify_stmt(inner, scope))


def _unless_empty(stmt: For | Let) -> Stmt:
    return EMPTY if stmt.body == EMPTY else stmt


def _loop(loop: For, context: Context) -> Stmt:
    if context.at_most(loop.extent, Const(0)):
        return EMPTY
    if loop.extent == Const(1) and loop.kind is not LoopKind.PARALLEL:
        return simplify_stmt(substitute_in(loop.body, {loop.var.name: loop.start}), context)
    inside = context.loop(loop.var, loop.start, loop.extent)
    return _unless_empty(replace(loop, body=simplify_stmt(loop.body, inside)))


def _branch(stmt: If, context: Context) -> Stmt:
    if isinstance(stmt.condition, Const):
        branch = stmt.then if stmt.condition.value else stmt.otherwise
        return EMPTY if branch is None else simplify_stmt(branch, context)
    then = simplify_stmt(stmt.then, context.assume(stmt.condition))
    otherwise = None
    if stmt.otherwise is not None:
        otherwise = simplify_stmt(stmt.otherwise, context.assume(stmt.condition, False))
    if otherwise == EMPTY:
        otherwise = None
    if then == EMPTY and otherwise is None:
        return EMPTY
    if then == otherwise:
        return then
    return If(stmt.condition, then, otherwise)
