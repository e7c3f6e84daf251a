"""Writing statements pleasantly: operands as `build.py` takes them in, loop IR out.

For kernels that no schedule makes. A `StatementBuilder` is told statements in the order in which
they run; the body of a loop or branch is what it is told within a `with`. A vector is as many
neighbours in a buffer as its index has lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, load, term
from graft.loop.ir import (
    INDEX,
    Allocate,
    Block,
    Broadcast,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Let,
    LoopKind,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
    While,
)
from graft.loop.traverse import block


@dataclass(frozen=True, slots=True)
class Cell:
    """A number that changes while a kernel runs."""

    name: str
    dtype: DType = INDEX

    @property
    def buffer(self) -> Buffer:
        return Buffer(self.name, self.dtype, (Const(1),), Scope.REGISTER)

    @property
    def value(self) -> Term:
        """What it is now; `StatementBuilder.let` gives that a name."""
        return load(self.buffer, 0)

    def set(self, value: Operand) -> Stmt:
        return store(self.buffer, 0, value)


def scratch(name: str, dtype: DType, count: Operand) -> Buffer:
    """Memory of one thread's own."""
    return Buffer(name, dtype, (term(count).expr,), Scope.HEAP)


def store(buffer: Buffer, at: Operand, value: Operand) -> Stmt:
    """Write an element, or a vector where the index has lanes."""
    return Store(buffer, (term(at).expr,), term(value, buffer.dtype).expr)


def bound(bindings: Sequence[tuple[Var, Expr]], body: Stmt) -> Stmt:
    """The body with variables for expressions, each of which may use the variables before it."""
    for var, value in reversed(bindings):
        body = Let(var, value, body)
    return body


def with_memory(body: Stmt, *owners: Cell | Buffer) -> Stmt:
    """The body with cells and scratch memory."""
    for owner in reversed(owners):
        body = Allocate(owner.buffer if isinstance(owner, Cell) else owner, body)
    return body


def ramp(start: Operand, lanes: int) -> Term:
    """Neighbouring indices, one for each lane of a vector."""
    return Term(Ramp(term(start).expr, 1, lanes)) if lanes > 1 else term(start)


def vector(buffer: Buffer, start: Operand, lanes: int) -> Term:
    """Neighbours in a buffer."""
    return load(buffer, ramp(start, lanes))


def store_vector(buffer: Buffer, start: Operand, value: Term) -> Stmt:
    """Write as many neighbours as the value has lanes."""
    return store(buffer, ramp(start, value.expr.lanes), value)


def spread(value: Term, lanes: int) -> Term:
    """A number in all lanes of a vector."""
    return Term(Broadcast(value.expr, lanes), value.sources) if lanes > 1 else value


class StatementBuilder:
    """Collects statements in the order in which they run."""

    def __init__(self) -> None:
        self._body: list[Stmt | tuple[Var, Expr]] = []  # a name holds for all behind it

    def statement(self) -> Stmt:
        """All that was written."""
        parts: list[Stmt] = []
        for one in reversed(self._body):
            parts = (
                [Let(*one, block(*reversed(parts)))] if isinstance(one, tuple) else [*parts, one]
            )
        return block(*reversed(parts))

    def emit(self, *statements: Stmt) -> None:
        self._body.extend(statements)

    def let(self, name: str, value: Operand) -> Term:
        """A name for what a value is now, until the end of the body."""
        operand = term(value).expr
        var = Var(name, operand.dtype, operand.lanes)
        self._body.append((var, operand))
        return Term(var)

    def store(self, buffer: Buffer, at: Operand, value: Operand) -> None:
        """Write an element, or a vector where the index has lanes."""
        self.emit(store(buffer, at, value))

    def set(self, cell: Cell, value: Operand) -> None:
        self.emit(cell.set(value))

    @contextmanager
    def _inside(self, wrap: Callable[[Stmt], Stmt]) -> Iterator[None]:
        """What is written within is the body of a statement."""
        outer, self._body = self._body, []
        yield
        body, self._body = self.statement(), outer
        self.emit(wrap(body))

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names that are given within end there."""
        with self._inside(lambda body: body):
            yield

    @contextmanager
    def loop(
        self,
        name: str,
        extent: Operand,
        start: Operand = 0,
        kind: LoopKind = LoopKind.SERIAL,
    ) -> Iterator[Term]:
        """A loop over the numbers from `start` on, `extent` of them."""
        var, is_empty = Var(name), isinstance(extent, int) and not extent

        def wrap(body: Stmt) -> Stmt:
            return For(var, term(start).expr, term(extent).expr, body, kind)

        with self._inside(lambda body: Block(()) if is_empty else wrap(body)):
            yield Term(var)

    @contextmanager
    def parallel(self, name: str, extent: Operand) -> Iterator[Term]:
        """A loop whose iterations the threads share."""
        with self.loop(name, extent, kind=LoopKind.PARALLEL) as number:
            yield number

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """What one of the threads does."""
        with self.parallel("only", 1):
            yield

    @contextmanager
    def when(self, condition: Term) -> Iterator[None]:
        with self._inside(lambda body: If(condition.expr, body)):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """What is done where the condition of the branch before does not hold."""
        branch = self._body.pop()
        assert isinstance(branch, If)
        with self._inside(lambda body: replace(branch, otherwise=body)):
            yield

    @contextmanager
    def as_long_as(self, condition: Term) -> Iterator[None]:
        with self._inside(lambda body: While(condition.expr, body)):
            yield

    @contextmanager
    def memory(self, *owners: Cell | Buffer) -> Iterator[None]:
        """Cells and scratch memory for what is written within."""
        with self._inside(lambda body: with_memory(body, *owners)):
            yield
