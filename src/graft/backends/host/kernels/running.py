"""A reduction in registers: vectors that elements are combined into, and what they come to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from graft.backends.host.storage import index
from graft.base.dtypes import DType
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Call,
    Const,
    Expr,
    Let,
    Load,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)

# For each way to combine, the number that changes nothing and the intrinsic that does it to lanes.
NEUTRAL: dict[BinaryKind, float] = {
    BinaryKind.ADD: 0.0,
    BinaryKind.MULTIPLY: 1.0,
    BinaryKind.MAXIMUM: -math.inf,
    BinaryKind.MINIMUM: math.inf,
}
_ACROSS = {
    BinaryKind.ADD: "reduce_add",
    BinaryKind.MAXIMUM: "reduce_max",
    BinaryKind.MINIMUM: "reduce_min",
}


@dataclass(frozen=True, slots=True)
class Running:
    """`slots` vectors of partial results, side by side."""

    name: str
    kind: BinaryKind
    slots: int
    lanes: int
    dtype: DType

    @property
    def neutral(self) -> float:
        """The number that changes nothing."""
        return NEUTRAL[self.kind]

    @property
    def buffer(self) -> Buffer:
        extents = (Const(self.slots), Const(self.lanes))
        return Buffer(self.name, self.dtype, extents, Scope.REGISTER)

    def at(self, slot: int) -> tuple[Expr, ...]:
        return index(slot, Ramp(Const(0), 1, self.lanes) if self.lanes > 1 else 0)

    def value(self, slot: int) -> Expr:
        """What a slot has come to."""
        return Load(self.buffer, self.at(slot))

    def clear(self) -> Stmt:
        neutral = Const(self.neutral, self.dtype, self.lanes)
        return Block(tuple(Store(self.buffer, self.at(s), neutral) for s in range(self.slots)))

    def add(self, slot: int, value: Expr) -> Stmt:
        """Combine a vector into a slot."""
        return Store(self.buffer, self.at(slot), Binary(self.kind, self.value(slot), value))

    def total(self) -> Expr:
        """All slots and lanes combined into one number."""
        parts = [self.value(slot) for slot in range(self.slots)]
        if self.kind not in _ACROSS:  # no intrinsic: lane by lane
            pairs = ((slot, lane) for slot in range(self.slots) for lane in range(self.lanes))
            parts = [Load(self.buffer, index(*pair)) for pair in pairs]
        while len(parts) > 1:  # in pairs, which is shorter and more exact than in a row
            half = -(-len(parts) // 2)
            joined = [Binary(self.kind, a, b) for a, b in zip(parts, parts[half:], strict=False)]
            parts = [*joined, *parts[len(joined) : half]]
        if self.kind in _ACROSS and self.lanes > 1:
            return Call(_ACROSS[self.kind], (parts[0],), self.dtype)
        return parts[0]

    def around(self, combining: Stmt, name: Var, body: Stmt) -> Stmt:
        """Combine from nothing, then run the body, which knows the total by that name."""
        return Allocate(
            self.buffer, Block((self.clear(), combining, Let(name, self.total(), body)))
        )
