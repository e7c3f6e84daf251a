"""Walking along an axis in vectors: whole ones in a loop, and a masked one for what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graft.backends.host.coordinates import modulo, over, plus, times, where
from graft.backends.host.storage import index
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.target.target import Target


@dataclass(frozen=True, slots=True)
class Span:
    """Some neighbouring indices of an axis."""

    first: Expr
    lanes: int
    slot: int  # which of the vectors that are worked on side by side
    tag: str  # keeps names apart
    condition: Expr | None = None  # which lanes are there; None: all of them

    @property
    def index(self) -> Expr:
        return Ramp(self.first, 1, self.lanes) if self.lanes > 1 else self.first

    def loaded(self, value: Expr, otherwise: float) -> Expr:
        """The value, which memory is read for, and a number in the lanes that are not there."""
        if self.condition is None:
            return value
        return Select(self.condition, value, Const(otherwise, value.dtype, value.lanes))


def lanes_for(target: Target, dtypes: set[DType], extent: Dim) -> int:
    """Lanes of a vector: those of the widest dtype, but no more than an axis is known to fill."""
    lanes = min(target.lanes(dtype) for dtype in dtypes)
    if not isinstance(extent, int):
        return lanes
    while lanes > 1 and lanes // 2 >= extent:
        lanes //= 2
    return lanes


def mask_of(count: Expr, lanes: int) -> Expr | None:
    """The first `count` lanes; None is all of them."""
    if isinstance(count, Const) and count.value >= lanes:
        return None
    if lanes == 1:
        return Compare(CompareKind.LESS, Const(0), count)
    return Compare(CompareKind.LESS, Ramp(Const(0), 1, lanes), Broadcast(count, lanes))


def masked_store(
    buffer: Buffer, indices: tuple[Expr, ...], value: Expr, condition: Expr | None
) -> Stmt:
    """A store of the lanes that are there, whose value reads memory for those alone."""
    if condition is None:
        return Store(buffer, indices, value)
    return Store(buffer, indices, where(condition, value), condition)


def along(
    extent: Expr | int,
    lanes: int,
    tag: str,
    action: Callable[[Span], Stmt],
    start: Expr | int = 0,
    unroll: int = 1,
) -> Stmt:
    """The action on each vector of `extent` indices from `start` on, `unroll` in a row."""
    (count,) = index(extent)
    whole = over(count, lanes)
    iterations = over(whole, unroll)
    statements: list[Stmt] = []
    if not isinstance(iterations, Const) or iterations.value > 1:
        iteration = Var(f"iteration{tag}")
        first = plus(times(iteration, unroll * lanes), start)
        spans = (Span(plus(first, n * lanes), lanes, n, f"{tag}_t{n}") for n in range(unroll))
        body = Block(tuple(action(span) for span in spans))
        statements.append(For(iteration, Const(0), iterations, body))
    if isinstance(count, Const) and isinstance(iterations, Const):
        covered = iterations.value * unroll * lanes if iterations.value > 1 else 0
        rest = spans_of(int(count.value - covered), lanes, tag, plus(start, int(covered)), unroll)
        statements += [action(span) for span in rest]
    else:
        statements += _unknown_rest(count, lanes, tag, action, start, unroll)
    return Block(tuple(statements))


def _unknown_rest(
    count: Expr,
    lanes: int,
    tag: str,
    action: Callable[[Span], Stmt],
    start: Expr | int,
    unroll: int,
) -> list[Stmt]:
    """What is left of so many indices after rows of `unroll` vectors: whole ones, part of one."""
    more = Var(f"more{tag}")
    covered = times(over(count, lanes * unroll), lanes * unroll)
    remainder = modulo(count, lanes * unroll)
    first = plus(plus(covered, times(more, lanes)), start)
    statements: list[Stmt] = []
    if unroll > 1:
        body = action(Span(first, lanes, 0, f"{tag}_m"))
        statements.append(For(more, Const(0), over(remainder, lanes), body))
    if lanes > 1:
        remaining = modulo(count, lanes)
        begin = plus(Binary(BinaryKind.SUBTRACT, count, remaining), start)
        tail = Span(begin, lanes, 0, f"{tag}_e", mask_of(remaining, lanes))
        statements.append(If(Compare(CompareKind.GREATER, remaining, Const(0)), action(tail)))
    return statements


def spans_of(
    extent: int, lanes: int, tag: str, start: Expr | int = 0, unroll: int = 1
) -> list[Span]:
    """The vectors of `extent` indices one by one, the last of them masked if it is not whole."""
    return [
        Span(
            plus(start, n * lanes),
            lanes,
            n % unroll,
            f"{tag}_r{n}",
            mask_of(Const(extent - n * lanes), lanes),
        )
        for n in range(-(-extent // lanes))
    ]
