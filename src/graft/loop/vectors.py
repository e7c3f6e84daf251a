"""The algebra of lanes: vectors of indices as ramps and broadcasts wherever they are.

Vector expressions with simplified operands enter; equal ones in which work common to all lanes is
done once, and in which accesses show as contiguous, leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graft.loop.intrinsics import ACROSS, INTRINSICS
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Ramp,
    Select,
    Var,
)
from graft.loop.traverse import children, walk_expr, with_children

Scalar = Callable[[Expr], Expr]  # simplifies a scalar node


def scalar_of(expr: Expr) -> Expr | None:
    """The scalar that all lanes are, if that can be seen."""
    match expr:
        case Broadcast(value, _) if value.lanes == 1:
            return value
        case Const(value, dtype, lanes) if lanes > 1:
            return Const(value, dtype)
        case Ramp(base, 0, _):
            return base
        case _:
            return None


def combine_lanes(kind: BinaryKind, vector: Expr) -> Expr:
    """All lanes combined into one; a scalar is left alone."""
    return vector if vector.lanes == 1 else Call(ACROSS[kind], (vector,), vector.dtype)


def broadcast(value: Expr, lanes: int) -> Expr:
    """The value in that many lanes; a constant carries its lanes itself."""
    if isinstance(value, Const):
        return Const(value.value, value.dtype, lanes)
    return Broadcast(value, lanes)


def is_mask(condition: Expr) -> bool:
    """Whether the condition is a vector that depends on indices only, not on data.

    A select by a mask guards its operands: only active lanes are read from memory.
    """
    parts = walk_expr(condition)
    return condition.lanes > 1 and not any(
        isinstance(part, Load) or (isinstance(part, Var) and part.lanes > 1) for part in parts
    )


def simplify_vector(expr: Expr, scalar: Scalar) -> Expr:
    """A vector node with simplified operands, simplified."""
    if isinstance(expr, Broadcast):
        return broadcast(expr.value, expr.lanes)
    across = isinstance(expr, Call) and INTRINSICS[expr.name].across
    if isinstance(expr, (Binary, Compare, Select, Cast, Call)) and not across:
        uniform = [scalar_of(child) for child in children(expr)]
        scalars = tuple(part for part in uniform if part is not None)
        if len(scalars) == len(uniform):
            return broadcast(scalar(with_children(expr, scalars)), expr.lanes)
    if isinstance(expr, Select):
        condition = scalar_of(expr.condition)
        if isinstance(condition, Const):
            return expr.yes if condition.value else expr.no
    if isinstance(expr, Binary):
        return _of_ramps(expr, scalar)
    return expr


def _of_ramps(expr: Binary, scalar: Scalar) -> Expr:
    left, right = expr.left, expr.right
    match expr.kind:
        case BinaryKind.ADD | BinaryKind.SUBTRACT:
            return _sum(expr, scalar)
        case BinaryKind.MULTIPLY:
            if isinstance(right, Ramp):
                left, right = right, left
            factor = scalar_of(right)
            if isinstance(left, Ramp) and isinstance(factor, Const):
                base = scalar(Binary(expr.kind, left.base, factor))
                return Ramp(base, left.stride * int(factor.value), left.lanes)
        case BinaryKind.FLOOR_DIVIDE | BinaryKind.FLOOR_MODULO:
            divisor = scalar_of(right)
            if isinstance(left, Ramp) and isinstance(divisor, Const) and int(divisor.value) > 0:
                return _divided(expr, left, divisor, scalar)
    return expr


def _sum(expr: Binary, scalar: Scalar) -> Expr:
    strides = []
    bases = []
    for part in (expr.left, expr.right):
        uniform = scalar_of(part)
        if not isinstance(part, Ramp) and uniform is None:
            return expr
        strides.append(part.stride if isinstance(part, Ramp) else 0)
        bases.append(part.base if isinstance(part, Ramp) else uniform)
    if bases[0] is None or bases[1] is None or not any(strides):
        return expr
    stride = strides[0] + strides[1] * (1 if expr.kind is BinaryKind.ADD else -1)
    base = scalar(Binary(expr.kind, bases[0], bases[1]))
    return Ramp(base, stride, expr.lanes) if stride else broadcast(base, expr.lanes)


def _divided(expr: Binary, ramp: Ramp, divisor: Const, scalar: Scalar) -> Expr:
    """A ramp divided by a constant, where all lanes share a quotient or have even ones."""
    count = int(divisor.value)
    last = replace(Const(0), value=ramp.stride * (ramp.lanes - 1))
    ends = [ramp.base, scalar(Binary(BinaryKind.ADD, ramp.base, last))]
    first, final = (scalar(Binary(BinaryKind.FLOOR_DIVIDE, end, divisor)) for end in ends)
    divides = expr.kind is BinaryKind.FLOOR_DIVIDE
    if first == final:
        if divides:
            return broadcast(first, ramp.lanes)
        return Ramp(scalar(Binary(expr.kind, ramp.base, divisor)), ramp.stride, ramp.lanes)
    if ramp.stride % count == 0:
        base = scalar(Binary(expr.kind, ramp.base, divisor))
        stride = ramp.stride // count if divides else 0
        return Ramp(base, stride, ramp.lanes) if stride else broadcast(base, ramp.lanes)
    return expr
