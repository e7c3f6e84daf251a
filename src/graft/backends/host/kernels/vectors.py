"""Vectors of neighbouring indices, whole ones and masked ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graft.backends.host.coordinates import times, where
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.loop.ir import (
    Broadcast,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
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


def along(extent: int, lanes: int, tag: str, action: Callable[[Span], Stmt]) -> Stmt:
    """The action on each vector of `extent` indices, which are some whole vectors."""
    if extent == lanes:
        return action(Span(Const(0), lanes, 0, tag))
    iteration = Var(f"iteration{tag}")
    body = action(Span(times(iteration, lanes), lanes, 0, tag))
    return For(iteration, Const(0), Const(extent // lanes), body)
