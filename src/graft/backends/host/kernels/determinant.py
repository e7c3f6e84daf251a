"""Determinants: `det`, by elimination with the largest pivots, whatever the sizes.

The threads share the matrices; each works on a copy of its own.
"""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, compare, load, term
from graft.loop.ir import CompareKind
from graft.loop.statements import Cell, scratch
from graft.target.target import Target


@node_kernel("det")
def determinant(group: Group, stores: Stores, _target: Target) -> Plan:
    """Determinants of square matrices, by elimination."""
    return node_plan(group, stores, lambda writer: _Elimination(writer).write())


class _Elimination:
    """Writes the loops over matrices, columns and rows."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._code = writer, writer.code
        self._shape = shape_of(writer.group.node.args[0])
        self._edge = writer.dim(self._shape[-1])
        self._data, self._result = writer.present_operand(0), writer.result(0)
        wide = self._data.dtype is DType.FLOAT64
        self._dtype = DType.FLOAT64 if wide else DType.FLOAT32
        self._matrix = scratch("matrix", self._dtype, self._edge * self._edge)
        self._total, self._pivot = Cell("total", self._dtype), Cell("pivot")

    def _entry(self, row: Term, column: Term) -> Term:
        return load(self._matrix, row * self._edge + column)

    def _set(self, row: Term, column: Term, value: Term) -> None:
        self._code.store(self._matrix, row * self._edge + column, value)

    def write(self) -> None:
        code, size = self._code, self._edge * self._edge
        count = self._writer.dim(product(self._shape[:-2]))
        with (
            code.parallel("number", count) as number,
            code.memory(self._matrix, self._total, self._pivot),
        ):
            with code.loop("at", size) as at:
                value = load(self._data, number * size + at)
                code.store(self._matrix, at, cast(self._dtype, value))
            code.set(self._total, term(1.0, self._dtype))
            with code.loop("column", self._edge) as column:
                self._eliminate(column)
            code.store(self._result, number, cast(self._result.dtype, self._total.value))

    def _eliminate(self, column: Term) -> None:
        code, below = self._code, self._edge - column - 1
        code.set(self._pivot, column)
        with code.loop("candidate", below, column + 1) as row:
            best = call("abs", self._entry(self._pivot.value, column))
            with code.when(call("abs", self._entry(row, column)) > best):
                code.set(self._pivot, row)
        self._swap(column, code.let("chosen", self._pivot.value))
        corner = code.let("corner", self._entry(column, column))
        code.set(self._total, self._total.value * corner)
        with (
            code.when(compare(CompareKind.NOT_EQUAL, corner, 0.0)),
            code.loop("row", below, column + 1) as row,
        ):
            factor = code.let("factor", self._entry(row, column) / corner)
            with code.loop("beside", below, column + 1) as at:
                self._set(row, at, self._entry(row, at) - factor * self._entry(column, at))

    def _swap(self, column: Term, pivot: Term) -> None:
        """Exchange two rows, which changes the sign."""
        with self._code.when(compare(CompareKind.NOT_EQUAL, pivot, column)):
            self._code.set(self._total, -self._total.value)
            with self._code.loop("swapped", self._edge) as at:
                upper = self._code.let("upper", self._entry(column, at))
                self._set(column, at, self._entry(pivot, at))
                self._set(pivot, at, upper)
