"""Makes the names of variables and buffers unique and short.

Generated code qualifies names by their stage and repeats them in copies of a loop. Each gets a
unique name, as short as possible: `ow_o`, or `conv.ow_o` if another stage has an `ow_o`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from graft.loop.ir import (
    Allocate,
    AtomicAdd,
    Buffer,
    Expr,
    For,
    Let,
    Load,
    Prefetch,
    Stmt,
    Store,
    Var,
)
from graft.loop.print import RESERVED
from graft.loop.traverse import map_expr, with_expressions, with_statements


def unique_names(stmt: Stmt, reserved: Iterable[str]) -> Stmt:
    """The statement with unique names, none of them `reserved`."""
    return _Names(set(reserved)).statement(stmt, {}, {})


class _Names:
    """Hands out names in the order of the text."""

    def __init__(self, reserved: set[str]) -> None:
        self._reserved = reserved

    def _new(self, name: str, *candidates: str) -> str:
        for candidate in candidates:
            if candidate not in self._reserved and candidate not in RESERVED:
                self._reserved.add(candidate)
                return candidate
        number = 1
        while f"{name}_{number}" in self._reserved:
            number += 1
        self._reserved.add(f"{name}_{number}")
        return f"{name}_{number}"

    def statement(self, stmt: Stmt, names: dict[str, Expr], buffers: dict[str, Buffer]) -> Stmt:
        stmt = with_expressions(stmt, lambda expr: _renamed(expr, names, buffers))
        match stmt:
            case For() | Let():
                full = stmt.var.name
                var = replace(stmt.var, name=self._new(full, full.rpartition(".")[2], full))
                stmt, names = replace(stmt, var=var), {**names, full: var}
            case Allocate():
                old = stmt.buffer
                extents = tuple(_renamed(extent, names, buffers) for extent in old.extents)
                buffer = replace(old, name=self._new(old.name, old.name), extents=extents)
                stmt, buffers = replace(stmt, buffer=buffer), {**buffers, old.name: buffer}
            case Store() | AtomicAdd() | Prefetch():
                stmt = replace(stmt, buffer=buffers.get(stmt.buffer.name, stmt.buffer))
            case _:
                pass
        return with_statements(stmt, lambda inner: self.statement(inner, names, buffers))


def _renamed(expr: Expr, names: dict[str, Expr], buffers: dict[str, Buffer]) -> Expr:
    def change(node: Expr) -> Expr:
        match node:
            case Var(name=name):
                return names.get(name, node)
            case Load(buffer=buffer):
                return replace(node, buffer=buffers.get(buffer.name, buffer))
            case _:
                return node

    return map_expr(change, expr)
