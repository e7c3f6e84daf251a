"""Loop IR written by hand: loops, stores and vectors of 128 bytes.

Vectors are always whole. Where a row is no multiple of 128 bytes, the last store of it runs over
into what follows, which is written later; behind a buffer there is `SLACK` for that. So kernels
write in the order of addresses, and none needs a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, binary, cast, load, maximum, minimum, term
from graft.loop.ir import (
    Allocate,
    BinaryKind,
    Buffer,
    Const,
    For,
    Function,
    LoopKind,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.loop.traverse import block
from graft.loop.verify import verify

VECTOR = SLACK = 128  # bytes
WORDS = 32  # of a vector


class Kernel:
    """A function of loop IR while it is written; all buffers are flat."""

    def __init__(self) -> None:
        self._statements: list[Stmt] = []
        self._parameters: list[Buffer] = []
        self._registers: list[Buffer] = []
        self._loops = 0

    def parameter(self, name: str, dtype: DType, count: int) -> Buffer:
        """Memory of the region's, with the slack behind it."""
        extent = Const(count + SLACK // dtype.numpy.itemsize)
        self._parameters.append(Buffer(name, dtype, (extent,), alignment=VECTOR))
        return self._parameters[-1]

    def registers(self, name: str, count: int) -> Buffer:
        """Words that LLVM keeps in vector registers."""
        extents = (Const(count),)
        buffer = Buffer(name, DType.INT32, extents, Scope.REGISTER, alignment=VECTOR)
        self._registers.append(buffer)
        return buffer

    @contextmanager
    def loop(self, extent: int, is_unrolled: bool = False) -> Iterator[Term]:
        """Statements within run for each value of the loop's variable."""
        self._loops += 1
        var, outer = Var(f"i{self._loops}"), self._statements
        self._statements = []
        yield Term(var)
        kind = LoopKind.UNROLLED if is_unrolled else LoopKind.SERIAL
        outer.append(For(var, Const(0), Const(extent), block(*self._statements), kind))
        self._statements = outer

    def store(self, buffer: Buffer, index: Operand, value: Term) -> None:
        """Write as many elements as the value has lanes."""
        where = vector_at(index, value.expr.lanes)
        self._statements.append(Store(buffer, (where.expr,), value.expr))

    def function(self, name: str) -> Function:
        """The finished kernel."""
        body = block(*self._statements)
        for buffer in self._registers:
            body = Allocate(buffer, body)
        return verify(Function(name, tuple(self._parameters), body))


def vector_at(index: Operand, lanes: int) -> Term:
    """The indices of neighbours from one on."""
    start = term(index)
    return Term(Ramp(start.expr, 1, lanes)) if lanes > 1 else start


def vector(buffer: Buffer, index: Operand, lanes: int) -> Term:
    """Neighbours in a buffer."""
    return load(buffer, vector_at(index, lanes))


def scaled(words: Term, multiplier: Operand) -> Term:
    """The upper 32 bits of products of 64: `words` times a number below 1/2, rounded downwards."""
    factor = cast(DType.INT64, term(multiplier, DType.INT32))
    product = cast(DType.INT64, words) * factor
    return cast(DType.INT32, shifted(product, -32))


def shifted(words: Term, bits: int) -> Term:
    """Words times a power of two, rounded downwards."""
    kind = BinaryKind.SHIFT_LEFT if bits >= 0 else BinaryKind.SHIFT_RIGHT
    return binary(kind, words, abs(bits)) if bits else words


def rounded(words: Term, bits: int) -> Term:
    """Words divided by a power of two, rounded to the nearest, halves upwards."""
    return shifted(words + (1 << bits - 1), -bits)


def clamped(words: Term, zero: int, low: int, high: int) -> Term:
    """Words as codes: the zero point added, and held to bounds."""
    return minimum(maximum(words + zero, low), high)
