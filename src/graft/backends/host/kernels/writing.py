"""Kernels of single nodes on flat tensors, and copies as statements of theirs.

`Writer` makes the node's tensors flat buffers, whatever their sizes, and a finished body a kernel
that is called with the extents it mentions. Bodies are written by `loop/statements.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.backends.host.kernel import Parameters
from graft.backends.host.storage import Storage
from graft.base.dims import AnyDim, product
from graft.base.dtypes import Array
from graft.base.errors import InternalError
from graft.ir.graph import Value
from graft.loop.build import Term, minimum, term
from graft.loop.ir import Buffer, Stmt
from graft.loop.statements import let, loop, parallel, spread, store_vector, vector
from graft.loop.traverse import block

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


def copy_run(source: Buffer, target: Buffer, run: Term, lanes: int, tag: str = "") -> Stmt:
    """Copy `run` neighbouring elements in chunks, which the threads share."""

    def copied(at: Term, width: int) -> Stmt:
        return store_vector(target, at, vector(source, at, width))

    return _in_chunks(copied, run, lanes, tag)


def clear_run(target: Buffer, run: Term, lanes: int) -> Stmt:
    """Set `run` neighbouring elements to zero in chunks, which the threads share."""
    zero = term(0, target.dtype)

    def cleared(at: Term, width: int) -> Stmt:
        return store_vector(target, at, spread(zero, width))

    return _in_chunks(cleared, run, lanes, "_cleared")


def _in_chunks(written: Callable[[Term, int], Stmt], run: Term, lanes: int, tag: str) -> Stmt:
    """`written` from each index on for as many elements as it is told, over `run` elements."""
    length = lanes * CHUNK_VECTORS

    def chunk(start: Term, count: Term) -> Stmt:
        vectors = count // lanes
        return block(
            loop(f"vector{tag}", vectors, lambda n: written(start + n * lanes, lanes)),
            loop(f"element{tag}", count % lanes, lambda n: written(start + n, 1), vectors * lanes),
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
