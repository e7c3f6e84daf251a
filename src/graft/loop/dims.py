"""Symbolic dimensions as index expressions, and back.

A dim enters, whose symbols are scalars of the kernel under the same names; the index expression in
normal form leaves. The way back finds the dim that an extent of a tensor is, so that whoever builds
expressions can compute with extents as with any other dims.
"""

from __future__ import annotations

from functools import reduce

from graft.base.dims import (
    UNKNOWN,
    AnyDim,
    Unknown,
    broadcast_dim,
    dim_max,
    dim_min,
    symbol,
)
from graft.base.dims import IndexExpr as DimExpr
from graft.base.polynomials import Atom
from graft.loop.affine import ONE, ZERO, add, multiply
from graft.loop.errors import LoopError
from graft.loop.ir import Binary, BinaryKind, Compare, CompareKind, Const, Expr, Select, Var


class UnknownExtentError(LoopError):
    """An extent that no expression over the kernel's scalars gives."""


_KINDS = {
    "floordiv": BinaryKind.FLOOR_DIVIDE,
    "mod": BinaryKind.FLOOR_MODULO,
    "min": BinaryKind.MINIMUM,
    "max": BinaryKind.MAXIMUM,
}


def index_of(dim: AnyDim) -> Expr:
    """The dim as an index expression."""
    if isinstance(dim, Unknown):
        raise UnknownExtentError("an extent is known only from data")
    if isinstance(dim, int):
        return Const(dim)
    total: Expr = ZERO
    for monomial, coefficient in dim.terms:
        term: Expr = Const(coefficient)
        for atom in monomial:
            term = multiply(term, _of_atom(atom))
        total = add(total, term)
    return total


def _of_atom(atom: Atom) -> Expr:
    if not atom.is_call:
        return Var(atom.name)
    arguments = [index_of(argument) for argument in atom.arguments]
    if atom.name == "broadcast":
        return reduce(_broadcast, arguments)
    kind = _KINDS[atom.name]
    return reduce(lambda left, right: Binary(kind, left, right), arguments)


def _broadcast(left: Expr, right: Expr) -> Expr:
    return Select(Compare(CompareKind.EQUAL, right, ONE), left, right)


def dim_of(expr: Expr) -> AnyDim:
    """The dim that an index expression is; UNKNOWN if it is none."""
    match expr:
        case Const(value=int(value)):
            return value
        case Var(name):
            return symbol(name)
        case Binary(kind, left, right):
            return _combined(kind, dim_of(left), dim_of(right))
        case Select(Compare(CompareKind.EQUAL, test, Const(value=1)), yes, no) if test == no:
            return broadcast_dim(dim_of(yes), dim_of(no))
        case _:
            return UNKNOWN


def _combined(kind: BinaryKind, left: AnyDim, right: AnyDim) -> AnyDim:
    match kind:
        case BinaryKind.ADD:
            return left + right
        case BinaryKind.SUBTRACT:
            return left - right
        case BinaryKind.MULTIPLY:
            return left * right
        case BinaryKind.FLOOR_DIVIDE:
            return left // right
        case BinaryKind.FLOOR_MODULO:
            return left % right
        case BinaryKind.MINIMUM:
            return dim_min(left, right)
        case BinaryKind.MAXIMUM:
            return dim_max(left, right)
        case _:
            return UNKNOWN


Symbolic = DimExpr | Unknown
