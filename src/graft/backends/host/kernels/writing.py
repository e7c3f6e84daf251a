"""A vocabulary for kernels of single nodes on flat tensors: cells, loops, conditions, copies.

`Writer` makes the node's tensors flat buffers, whatever their sizes, and a finished body a kernel
that is called with the extents it mentions. Expressions are `Term`s, so that formulas read as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graft.backends.host.kernel import Parameters
from graft.backends.host.storage import Storage
from graft.base.dims import AnyDim, product
from graft.base.dtypes import Array, DType
from graft.base.errors import InternalError
from graft.ir.graph import Value
from graft.loop.build import Operand, Term, load, minimum, term
from graft.loop.ir import (
    INDEX,
    Allocate,
    Block,
    Broadcast,
    Buffer,
    Const,
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

CHUNK_VECTORS = 64  # that a thread copies at a time


class Writer(Parameters):
    """Collects the parameters of a kernel of one node: its tensors as flat buffers."""

    def operand(self, number: int) -> Buffer | None:
        """An input of the node as a flat buffer; None where it is left out."""
        inputs = self.group.node.inputs
        value = inputs[number] if number < len(inputs) else None
        if value is None:
            return None
        literal = self.group.constants.get(value)
        if literal is None:
            return self._append_flat(f"a{number}", self.stores[value], value)
        storage = Storage(literal.type.dtype, literal.array.shape)
        return self._append_flat(f"a{number}", storage, storage.pack(literal.array))

    def present_operand(self, number: int) -> Buffer:
        """An input that is not left out."""
        buffer = self.operand(number)
        if buffer is None:
            raise InternalError(f"{self.group.node.op.name} has no operand {number}")
        return buffer

    def result(self, number: int) -> Buffer:
        """An output as a flat buffer."""
        value = self.group.node.outputs[number]
        return self._append_flat(f"r{number}", self.stores[value], value)

    def _append_flat(self, name: str, storage: Storage, argument: Value | Array) -> Buffer:
        count = self.extents.expr(product(storage.shape))
        buffer = Buffer(name, storage.dtype, (count,), alignment=storage.alignment)
        self.buffers.append(buffer)
        self.arguments.append(argument)
        return buffer

    def dim(self, dim: AnyDim) -> Term:
        """An extent as a number of the kernel's."""
        return Term(self.extents.expr(dim))


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
    operand = term(value).expr
    var = Var(name, operand.dtype, operand.lanes)
    return Let(var, operand, body(Term(var)))


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
    """A loop whose iterations the threads share."""
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


def ramp(start: Term, lanes: int) -> Term:
    """Neighbouring indices, one for each lane of a vector."""
    return Term(Ramp(start.expr, 1, lanes)) if lanes > 1 else start


def spread(value: Term, lanes: int) -> Term:
    """A number in all lanes of a vector."""
    return Term(Broadcast(value.expr, lanes), value.sources) if lanes > 1 else value


def copy_run(source: Buffer, target: Buffer, run: Term, lanes: int, tag: str = "") -> Stmt:
    """Copy `run` neighbouring elements in chunks, which the threads share."""
    length = lanes * CHUNK_VECTORS

    def copied(at: Term, width: int) -> Stmt:
        return store(target, ramp(at, width), load(source, ramp(at, width)))

    def chunk(start: Term, count: Term) -> Stmt:
        vectors = count // lanes
        return block(
            loop(f"vector{tag}", vectors, lambda n: copied(start + n * lanes, lanes)),
            loop(f"element{tag}", count % lanes, lambda n: copied(start + n, 1), vectors * lanes),
        )

    def job(number: Term) -> Stmt:
        return let(
            f"start{tag}",
            number * length,
            lambda start: let(
                f"rest{tag}", minimum(run - start, length), lambda count: chunk(start, count)
            ),
        )

    return parallel(f"job{tag}", (run + (length - 1)) // length, job)
