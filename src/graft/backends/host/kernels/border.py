"""Keeps the halo of an image as it should be: whoever writes its rows writes its border too."""

from __future__ import annotations

from graft.backends.host.point import plus
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


def filled_border(
    storage: Storage, buffer: Buffer, batch: Expr, block: Expr, row: Expr, tag: str = ""
) -> list[Stmt]:
    """Statements that fill the halo beside one row, and above or below the first and last one."""
    top, left, bottom, right = storage.halo
    _, _, height, width = storage.sizes
    here = plus(row, top)
    whole = left + width + right
    found: list[Stmt] = []
    if left:
        found.append(_filling(storage, buffer, (batch, block, here), 0, left, f"l{tag}"))
    if right:
        found.append(
            _filling(storage, buffer, (batch, block, here), left + width, right, f"r{tag}")
        )
    for count, start, edge in ((top, 0, 0), (bottom, top + height, height - 1)):
        if count:
            line = Var(f"line{start}{tag}")
            at = (batch, block, plus(line, start))
            body = _filling(storage, buffer, at, 0, whole, f"e{start}{tag}")
            rows = For(line, Const(0), Const(count), body)
            found.append(If(Compare(CompareKind.EQUAL, row, Const(edge)), rows))
    return found


def _filling(
    storage: Storage, buffer: Buffer, at: tuple[Expr, ...], first: int, count: int, tag: str
) -> Stmt:
    """Some pixels of a row, a whole block of channels each."""
    column = Var(f"zero{tag}")
    lanes = storage.block
    single = constant(storage.fill, storage.dtype)
    filling = Const(single.value, storage.dtype, lanes)
    channel: Expr = Ramp(Const(0), 1, lanes) if lanes > 1 else Const(0)
    store = Store(buffer, (*at, plus(column, first), channel), filling)
    return For(column, Const(0), Const(count), Block((store,)))
