"""Binds shared parts of large expressions to names.

Expressions are graphs, but text and machine code are written operand by operand, so their size is
that of the expanded tree. Where that is large, parts that occur several times, and parts of very
deep expressions, become `let`s around the statement. Small expressions are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from graft.loop.build import constant
from graft.loop.ir import (
    INDEX,
    AtomicAdd,
    Expr,
    Function,
    If,
    Let,
    Load,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.traverse import (
    children,
    is_long,
    map_stmt,
    operands_first,
    with_children,
)
from graft.loop.vectors import is_mask

# A condition per lane, and the side of it that is asked for.
Guard = tuple[Expr, bool]
# What is written several times has a name from so many nodes on, and what is written once as well
# if it is that much larger: Python's stack is not as deep as expressions are.
_SHARED, _DEEP = 16, 128


def name_shared(function: Function) -> Function:
    """The function with names for parts of its large expressions."""
    names = (f"shared_{number}" for number in count())
    body = map_stmt(function.body, lambda expr: expr, lambda stmt: _named(stmt, names))
    return function if body is function.body else replace(function, body=body)


def _named(stmt: Stmt, names: Iterator[str]) -> Stmt:
    if not isinstance(stmt, (Store, AtomicAdd)) or not is_long(stmt.value):
        return stmt
    condition = None
    if isinstance(stmt, Store) and stmt.condition is not None:
        condition = stmt.condition
        if condition.lanes == 1:  # it guards what is read
            return If(condition, _named(replace(stmt, condition=None), names))
    named = _Names(names, stmt.value)
    value = named.expression(stmt.value, () if condition is None else ((condition, True),))
    result: Stmt = replace(stmt, value=value)
    for var, part in reversed(named.values):
        result = Let(var, part, result)
    return result


class _Names:
    """The parts of one statement's expression that have names."""

    def __init__(self, names: Iterator[str], whole: Expr) -> None:
        self._names = names
        self._reading: set[int] = set()  # nodes that depend on what is in memory
        for node in operands_first(whole):
            if isinstance(node, Load) or any(id(one) in self._reading for one in children(node)):
                self._reading.add(id(node))
        self.values: list[tuple[Var, Expr]] = []

    def expression(self, expr: Expr, guards: tuple[Guard, ...]) -> Expr:
        """The expression, which is evaluated only in the lanes that satisfy the guards."""
        order = operands_first(expr, self._operands)
        uses = Counter(id(child) for node in order for child in self._operands(node))
        names_allowed = all(is_mask(condition) for condition, _ in guards)
        changed: dict[int, Expr] = {}
        sizes: dict[int, int] = {}
        for node in order:
            size = 1 + sum(sizes[id(child)] for child in self._operands(node))
            new = self._rebuilt(node, changed, guards)
            limit = _SHARED if uses[id(node)] > 1 else _DEEP
            plain = id(node) in self._reading or node.dtype is not INDEX
            if size > limit and plain and names_allowed:
                new, size = self._name(new, guards), 1
            changed[id(node)], sizes[id(node)] = new, size
        return changed[id(expr)]

    def _operands(self, node: Expr) -> tuple[Expr, ...]:
        """The operands that may get names where the node stands.

        Indices may not, unless memory decides them: how they differ between lanes decides how
        memory is accessed. What masks choose from is looked at under them."""
        if isinstance(node, Load):
            return tuple(index for index in node.indices if id(index) in self._reading)
        return () if _is_masked(node) else children(node)

    def _rebuilt(self, node: Expr, changed: dict[int, Expr], guards: tuple[Guard, ...]) -> Expr:
        if isinstance(node, Select) and _is_masked(node):
            yes = self.expression(node.yes, (*guards, (node.condition, True)))
            no = self.expression(node.no, (*guards, (node.condition, False)))
            return with_children(node, (node.condition, yes, no))
        return with_children(node, tuple(changed.get(id(one), one) for one in children(node)))

    def _name(self, value: Expr, guards: tuple[Guard, ...]) -> Var:
        """Bind a value to a name, masked by the guards."""
        var = Var(next(self._names), value.dtype, value.lanes)
        nothing = constant(0, value.dtype, value.lanes)
        for condition, chosen in reversed(guards):
            if condition.lanes == value.lanes:
                sides = (value, nothing) if chosen else (nothing, value)
                value = Select(condition, *sides)
        self.values.append((var, value))
        return var


def _is_masked(node: Expr) -> bool:
    return isinstance(node, Select) and is_mask(node.condition)
