"""Fills the halo of an image: kernels that write its rows write its border too."""

from __future__ import annotations

from dataclasses import dataclass

from graft.backends.host.coordinates import plus
from graft.backends.host.storage import Storage
from graft.loop.build import constant
from graft.loop.ir import (
    Block,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Ramp,
    Stmt,
    Store,
    Var,
)


@dataclass(frozen=True, slots=True)
class Bordered:
    """An image with a halo; its height and width are index expressions of the kernel."""

    storage: Storage
    buffer: Buffer
    height: Expr
    width: Expr

    def filled(self, batch: Expr, block: Expr, row: Expr, tag: str = "") -> list[Stmt]:
        """Statements that fill the halo beside a row, and above or below the first and last."""
        top, left, bottom, right = self.storage.halo
        here = (batch, block, plus(row, top))
        behind = plus(self.width, left)
        statements: list[Stmt] = []
        if left:
            statements.append(self.pixels(here, Const(0), Const(left), f"l{tag}"))
        if right:
            statements.append(self.pixels(here, behind, Const(right), f"r{tag}"))
        below, last = plus(self.height, top), plus(self.height, -1)
        edges = (("t", top, Const(0), Const(0)), ("b", bottom, below, last))
        for name, count, start, edge in edges:
            if count:
                line = Var(f"line{name}{tag}")
                at = (batch, block, plus(line, start))
                body = self.pixels(at, Const(0), plus(behind, right), f"e{name}{tag}")
                rows = For(line, Const(0), Const(count), body)
                statements.append(If(Compare(CompareKind.EQUAL, row, edge), rows))
        return statements

    def pixels(self, at: tuple[Expr, ...], first: Expr, count: Expr, tag: str) -> Stmt:
        """Some pixels of a row, a whole block of channels each."""
        column = Var(f"zero{tag}")
        storage, lanes = self.storage, self.storage.block
        filling = constant(storage.fill, storage.dtype, lanes)
        channel: Expr = Ramp(Const(0), 1, lanes) if lanes > 1 else Const(0)
        store = Store(self.buffer, (*at, plus(column, first), channel), filling)
        return For(column, Const(0), count, Block((store,)))
