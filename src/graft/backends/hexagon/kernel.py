"""Loop IR written by hand: loops, stores and vectors of 128 bytes.

Vectors are always whole. Where a row is no multiple of 128 bytes, the last store of it runs over
into what follows, which is written later; behind a buffer there is `SLACK` for that. So kernels
write in the order of addresses, and none needs a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graft.base.dtypes import DType
from graft.loop import ir
from graft.loop.build import Operand, Term, binary, cast, load, term
from graft.loop.traverse import block
from graft.loop.verify import verify

VECTOR = SLACK = 128  # bytes
WORDS = 32  # of a vector


class Kernel:
    """A function of loop IR while it is written; all buffers are flat."""

    def __init__(self) -> None:
        self._statements: list[ir.Stmt] = []
        self._parameters: list[ir.Buffer] = []
        self._registers: list[ir.Buffer] = []
        self._loops = 0

    def parameter(self, name: str, dtype: DType, count: int) -> ir.Buffer:
        """Memory of the region's, with the slack behind it."""
        extent = ir.Const(count + SLACK // dtype.numpy.itemsize)
        self._parameters.append(ir.Buffer(name, dtype, (extent,), alignment=VECTOR))
        return self._parameters[-1]

    def registers(self, name: str, count: int) -> ir.Buffer:
        """Words that LLVM keeps in vector registers."""
        extents = (ir.Const(count),)
        buffer = ir.Buffer(name, DType.INT32, extents, ir.Scope.REGISTER, alignment=VECTOR)
        self._registers.append(buffer)
        return buffer

    @contextmanager
    def loop(self, extent: int, is_unrolled: bool = False) -> Iterator[Term]:
        """Statements within run for each value of the loop's variable."""
        self._loops += 1
        var, outer = ir.Var(f"i{self._loops}"), self._statements
        self._statements = []
        yield Term(var)
        kind = ir.LoopKind.UNROLLED if is_unrolled else ir.LoopKind.SERIAL
        outer.append(ir.For(var, ir.Const(0), ir.Const(extent), block(*self._statements), kind))
        self._statements = outer

    def store(self, buffer: ir.Buffer, index: Operand, value: Term) -> None:
        """Write as many elements as the value has lanes."""
        where = vector_at(index, value.expr.lanes)
        self._statements.append(ir.Store(buffer, (where.expr,), value.expr))

    def function(self, name: str) -> ir.Function:
        """The finished kernel."""
        body = block(*self._statements)
        for buffer in self._registers:
            body = ir.Allocate(buffer, body)
        return verify(ir.Function(name, tuple(self._parameters), body))


def vector_at(index: Operand, lanes: int) -> Term:
    """The indices of neighbours from one on."""
    start = term(index)
    return Term(ir.Ramp(start.expr, 1, lanes)) if lanes > 1 else start


def vector(buffer: ir.Buffer, index: Operand, lanes: int) -> Term:
    """Neighbours in a buffer."""
    return load(buffer, vector_at(index, lanes))


def shifted(words: Term, bits: int) -> Term:
    """Words times a power of two, rounded downwards."""
    kind = ir.BinaryKind.SHIFT_LEFT if bits >= 0 else ir.BinaryKind.SHIFT_RIGHT
    return binary(kind, words, abs(bits)) if bits else words


def scaled(words: Term, left: int, multiplier: Operand) -> Term:
    """Words, shifted left, times a multiplier of 32 bits: the upper half of the product."""
    factor = cast(DType.INT64, term(multiplier, DType.INT32))
    product = cast(DType.INT64, shifted(words, left)) * factor
    return cast(DType.INT32, shifted(product, -32))
