"""How kernels of searching operators are written: flat tensors, cells, loops and conditions.

A fusion group of one node and the storage of its tensors enter; the node's tensors leave as flat
buffers, whatever their sizes, and a finished body becomes a kernel that is called with the extents
it uses. Expressions are `Term`s, so that formulas read as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from graft.backends.host.extents import Extents
from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.storage import Storage
from graft.base.dims import AnyDim, product
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import InternalError
from graft.ir.graph import Value
from graft.loop.build import Operand, Term, load, term
from graft.loop.ir import (
    INDEX,
    Allocate,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Function,
    If,
    Let,
    LoopKind,
    Scope,
    Stmt,
    Store,
    Var,
    While,
)
from graft.loop.traverse import walk_all, walk_expr, walk_stmt


@dataclass
class Writer:
    """Collects the parameters of a kernel of one node while its body is written."""

    group: Group
    stores: Stores
    extents: Extents = field(default_factory=Extents)
    _buffers: list[Buffer] = field(default_factory=list)
    _arguments: list[Value | Array] = field(default_factory=list)

    def operand(self, number: int) -> Buffer | None:
        """An input of the node as a flat buffer; None where it is left out."""
        inputs = self.group.node.inputs
        value = inputs[number] if number < len(inputs) else None
        if value is None:
            return None
        literal = self.group.constants.get(value)
        if literal is None:
            return self._flat(f"a{number}", self.stores[value], value)
        storage = Storage(literal.type.dtype, literal.array.shape)
        return self._flat(f"a{number}", storage, storage.pack(literal.array))

    def given(self, number: int) -> Buffer:
        """An input that is there."""
        buffer = self.operand(number)
        if buffer is None:
            raise InternalError(f"{self.group.node.op.name} has no operand {number}")
        return buffer

    def result(self, number: int) -> Buffer:
        """An output as a flat buffer."""
        value = self.group.node.outputs[number]
        return self._flat(f"r{number}", self.stores[value], value)

    def table(self, name: str, array: Array) -> Buffer:
        """Numbers that the kernel itself brings along; there is room for one if there are none."""
        filled = array if array.size else np.zeros(1, array.dtype)
        storage = Storage(dtype_of(filled.dtype), filled.shape)
        return self._flat(name, storage, storage.pack(filled))

    def _flat(self, name: str, storage: Storage, argument: Value | Array) -> Buffer:
        count = self.extents.expr(product(storage.shape))
        buffer = Buffer(name, storage.dtype, (count,), alignment=storage.alignment)
        self._buffers.append(buffer)
        self._arguments.append(argument)
        return buffer

    def dim(self, dim: AnyDim) -> Term:
        """An extent as a number of the kernel's."""
        return Term(self.extents.expr(dim))

    def kernel(self, body: Stmt) -> Kernel:
        """The finished kernel."""
        node = self.group.node
        names = {part.name for part in self._parts(body) if isinstance(part, Var)}
        used = sorted(names & self.extents.names, key=lambda name: int(name[1:]))
        scalars = tuple(Var(name) for name in used)
        place = (node.place.node if node.place else "") or node.output.name
        notes = (f"{node.op.name} {place}",)
        function = Function("kernel", (*self._buffers, *scalars), body, notes)
        types = [value.type for value in node.args]
        work = node.op.work(node.attrs, types, [value.type for value in node.outputs])
        return Kernel(function, tuple(self._arguments), work, self.extents.passed(function))

    def _parts(self, body: Stmt) -> Iterator[Expr]:
        """Everything that may mention a scalar."""
        yield from walk_all(body)
        allocated = (s.buffer for s in walk_stmt(body) if isinstance(s, Allocate))
        for buffer in (*self._buffers, *allocated):
            for extent in buffer.extents:
                yield from walk_expr(extent)


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
        """What it is now; a name for that is given by `let`."""
        return load(self.buffer, 0)

    def set(self, value: Operand) -> Stmt:
        return store(self.buffer, 0, value)


def scratch(name: str, dtype: DType, count: Operand) -> Buffer:
    """Memory of one thread's own."""
    return Buffer(name, dtype, (term(count).expr,), Scope.HEAP)


def store(buffer: Buffer, at: Operand, value: Operand) -> Stmt:
    """Write an element, or a vector where the index has lanes."""
    return Store(buffer, (term(at).expr,), term(value, buffer.dtype).expr)


def block(*statements: Stmt) -> Stmt:
    return Block(statements)


def let(name: str, value: Operand, body: Callable[[Term], Stmt]) -> Stmt:
    """A name for what a value is now."""
    given = term(value).expr
    var = Var(name, given.dtype, given.lanes)
    return Let(var, given, body(Term(var)))


def loop(
    name: str,
    extent: Operand,
    body: Callable[[Term], Stmt],
    start: Operand = 0,
    kind: LoopKind = LoopKind.SERIAL,
) -> Stmt:
    """The body for each number from `start` on, `extent` times."""
    var = Var(name)
    return For(var, term(start).expr, term(extent).expr, body(Term(var)), kind)


def parallel(name: str, extent: Operand, body: Callable[[Term], Stmt]) -> Stmt:
    """A loop whose turns the threads share."""
    return loop(name, extent, body, kind=LoopKind.PARALLEL)


def when(condition: Term, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    return If(condition.expr, then, otherwise)


def as_long_as(condition: Term, body: Stmt) -> Stmt:
    return While(condition.expr, body)


def with_memory(body: Stmt, *owners: Cell | Buffer) -> Stmt:
    """The body with cells and scratch memory."""
    for owner in reversed(owners):
        body = Allocate(owner.buffer if isinstance(owner, Cell) else owner, body)
    return body
