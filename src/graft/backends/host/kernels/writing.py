"""Kernels of single nodes on flat tensors, and copies as statements of theirs.

`Writer` makes the node's tensors flat buffers, whatever their sizes, and collects the kernel's
statements in `code`. The kernel is called with the extents that these mention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Parameters, Stores
from graft.backends.host.kernel_template import Plan
from graft.backends.host.storage import Storage
from graft.base.dims import AnyDim, product
from graft.base.dtypes import Array
from graft.base.errors import InternalError
from graft.ir.graph import Value
from graft.loop.build import Term, minimum, term
from graft.loop.ir import Buffer, Stmt
from graft.loop.statements import StatementBuilder, spread, store_vector, vector

CHUNK_VECTORS = 64  # that a thread copies at a time


@dataclass
class Writer(Parameters):
    """Collects the parameters of a kernel of one node, its tensors as flat buffers, and code."""

    code: StatementBuilder = field(default_factory=StatementBuilder)

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
        count = self.extents.expr(product(storage.extents))
        buffer = Buffer(name, storage.dtype, (count,), alignment=storage.alignment)
        self.buffers.append(buffer)
        self.arguments.append(argument)
        return buffer

    def dim(self, dim: AnyDim) -> Term:
        """An extent as a number of the kernel's."""
        return Term(self.extents.expr(dim))


def node_plan(
    group: Group, stores: Stores, write: Callable[[Writer], None], initial: Value | None = None
) -> Plan:
    """The plan of a node's kernel, whose code `write` puts down; of one that changes a part of its
    result only, `initial` is what that holds before."""

    def plan() -> Kernel:
        writer = Writer(group, stores)
        write(writer)
        return replace(writer.kernel(writer.code.statement()), initial=initial)

    return plan


def copy_run(source: Buffer, target: Buffer, run: Term, lanes: int) -> Stmt:
    """Copy `run` neighbouring elements in chunks, which the threads share."""

    def copied(at: Term, width: int) -> Stmt:
        return store_vector(target, at, vector(source, at, width))

    return _in_chunks(copied, run, lanes)


def clear_run(target: Buffer, run: Term, lanes: int) -> Stmt:
    """Set `run` neighbouring elements to zero in chunks, which the threads share."""
    zero = term(0, target.dtype)

    def cleared(at: Term, width: int) -> Stmt:
        return store_vector(target, at, spread(zero, width))

    return _in_chunks(cleared, run, lanes, "_cleared")


def _in_chunks(written: Callable[[Term, int], Stmt], run: Term, lanes: int, tag: str = "") -> Stmt:
    """`written` from each index on for as many elements as it is told, over `run` elements."""
    code, length = StatementBuilder(), lanes * CHUNK_VECTORS
    with code.parallel(f"job{tag}", (run + (length - 1)) // length) as job:
        start = code.let(f"start{tag}", job * length)
        count = code.let(f"rest{tag}", minimum(run - start, length))
        vectors = count // lanes
        with code.loop(f"vector{tag}", vectors) as number:
            code.emit(written(start + number * lanes, lanes))
        with code.loop(f"element{tag}", count % lanes, vectors * lanes) as number:
            code.emit(written(start + number, 1))
    return code.statement()
