"""Starts reductions in registers with their first term instead of the identity.

Runs after unrolling, on registers that are set to a reduction's identity and combined with a term
in the same block. LLVM must not do this to floats: 0.0 + -0.0 is not -0.0.
"""

from __future__ import annotations

from dataclasses import replace

from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    Scope,
    Select,
    Stmt,
    Store,
)
from graft.loop.tensor import identity
from graft.loop.traverse import block, buffers_read, buffers_written, loads_in, map_stmt

_Element = tuple[Buffer, tuple[Expr, ...]]
_COMBINING = (BinaryKind.ADD, BinaryKind.MULTIPLY, BinaryKind.MAXIMUM, BinaryKind.MINIMUM)


def fold_identities(stmt: Stmt) -> Stmt:
    """Replace `r = identity; r = r op term` on registers by `r = term`."""
    return map_stmt(stmt, lambda expr: expr, _folded)


def _folded(stmt: Stmt) -> Stmt:
    if not isinstance(stmt, Block):
        return stmt
    result: list[Stmt | None] = []
    pending: dict[_Element, int] = {}  # where identities were stored, in the result
    for one in stmt.statements:
        if isinstance(one, Store) and one.buffer.scope is Scope.REGISTER and not one.condition:
            element = one.buffer, one.indices
            before = pending.pop(element, None)
            start = result[before] if before is not None else None
            term = _first_term(one, start.value) if isinstance(start, Store) else None
            if term is not None and before is not None:
                one, result[before] = replace(one, value=term), None
            for load in loads_in(one.value):
                _drop(pending, frozenset([load.buffer]), load.indices)
            if isinstance(one.value, Const):
                pending[element] = len(result)
        else:
            _drop(pending, buffers_read(one) | buffers_written(one))
        result.append(one)
    return block(*(one for one in result if one is not None))


def _first_term(store: Store, start: Expr) -> Expr | None:
    """The term that a store combines with its element, if `start` is the identity."""
    own = Load(store.buffer, store.indices)
    match store.value:
        case Binary(kind, left, term) if left == own and kind in _COMBINING:
            is_identity = _is_identity(start, kind)
        case Call("fma", (one, two, left)) if left == own:
            term = Binary(BinaryKind.MULTIPLY, one, two)
            is_identity = _is_identity(start, BinaryKind.ADD)
        case Select(condition, combined, left) if left == own:  # lanes that a mask rules out
            first = _first_term(replace(store, value=combined), start)
            return None if first is None else Select(condition, first, start)
        case _:
            return None
    return term if is_identity and store.buffer not in _buffers(term) else None


def _buffers(expr: Expr) -> frozenset[Buffer]:
    return frozenset(load.buffer for load in loads_in(expr))


def _is_identity(expr: Expr, kind: BinaryKind) -> bool:
    return isinstance(expr, Const) and expr.value == identity(kind, expr.dtype).value


def _drop(
    pending: dict[_Element, int], buffers: frozenset[Buffer], indices: tuple[Expr, ...] = ()
) -> None:
    """Forget pending identities in buffers that are accessed in any other way, at some indices."""
    for element in [one for one in pending if one[0] in buffers]:
        if not _are_apart(element[1], indices):
            del pending[element]


def _are_apart(one: tuple[Expr, ...], other: tuple[Expr, ...]) -> bool:
    """Whether elements of a buffer differ in a number that is among their indices."""
    pairs = zip(one, other, strict=False)
    return any(isinstance(a, Const) and isinstance(b, Const) and a != b for a, b in pairs)
