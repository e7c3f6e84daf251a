"""Loop IR written by hand: statements in the order of `with` blocks, on flat buffers.

For kernels that no schedule makes. Expressions are `Term`s (`build.py`), so that formulas read as
such; a vector is as many neighbours in a buffer as it has lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graft.base.dtypes import DType
from graft.loop import ir
from graft.loop.build import Operand, Term, load, term
from graft.loop.traverse import block
from graft.loop.verify import verify


class Writer:
    """A function of loop IR while it is written."""

    def __init__(self) -> None:
        self._statements: list[ir.Stmt] = []
        self._parameters: list[ir.Buffer] = []
        self._registers: list[ir.Buffer] = []
        self._loops = 0

    def parameter(self, name: str, dtype: DType, count: int, alignment: int) -> ir.Buffer:
        """A flat buffer of the caller's."""
        extents = (ir.Const(count),)
        self._parameters.append(ir.Buffer(name, dtype, extents, alignment=alignment))
        return self._parameters[-1]

    def registers(self, name: str, dtype: DType, count: int, alignment: int) -> ir.Buffer:
        """Elements that LLVM keeps in registers."""
        extents, scope = (ir.Const(count),), ir.Scope.REGISTER
        self._registers.append(ir.Buffer(name, dtype, extents, scope, alignment=alignment))
        return self._registers[-1]

    @contextmanager
    def loop(self, extent: int, is_unrolled: bool = False) -> Iterator[Term]:
        """Statements within run for each value of the loop's variable."""
        self._loops += 1
        var, outer = ir.Var(f"i{self._loops}"), self._statements
        self._statements = []
        yield Term(var)
        kind = ir.LoopKind.UNROLLED if is_unrolled else ir.LoopKind.SERIAL
        loop = ir.For(var, ir.Const(0), ir.Const(extent), block(*self._statements), kind)
        self._statements = [*outer, loop] if extent else outer

    def store(self, buffer: ir.Buffer, index: Operand, value: Term) -> None:
        """Write as many neighbours as the value has lanes."""
        where = _neighbours(index, value.expr.lanes)
        self._statements.append(ir.Store(buffer, (where.expr,), value.expr))

    def function(self, name: str) -> ir.Function:
        """The finished kernel."""
        body = block(*self._statements)
        for buffer in self._registers:
            body = ir.Allocate(buffer, body)
        return verify(ir.Function(name, tuple(self._parameters), body))


def vector(buffer: ir.Buffer, index: Operand, lanes: int) -> Term:
    """Neighbours in a buffer."""
    return load(buffer, _neighbours(index, lanes))


def _neighbours(index: Operand, lanes: int) -> Term:
    start = term(index)
    return Term(ir.Ramp(start.expr, 1, lanes)) if lanes > 1 else start
