"""Determinants: `det`, by elimination with the largest pivots, whatever the sizes.

The threads share the matrices; each works on a copy of its own.
"""

from __future__ import annotations

from functools import partial

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, compare, load, term
from graft.loop.ir import CompareKind, Stmt
from graft.loop.statements import Cell, let, loop, parallel, scratch, store, when, with_memory
from graft.loop.traverse import block
from graft.target.target import Target


@node_kernel("det")
def determinant(group: Group, stores: Stores, _target: Target) -> Plan:
    """Determinants of square matrices, by elimination."""
    return lambda: _Elimination(Writer(group, stores)).kernel()


class _Elimination:
    """Writes the loops over matrices, columns and rows."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._shape = shape_of(writer.group.node.args[0])
        self._edge = writer.dim(self._shape[-1])
        self._data, self._result = writer.present_operand(0), writer.result(0)
        wide = self._data.dtype is DType.FLOAT64
        self._dtype = DType.FLOAT64 if wide else DType.FLOAT32
        self._matrix = scratch("matrix", self._dtype, self._edge * self._edge)
        self._total, self._pivot = Cell("total", self._dtype), Cell("pivot")

    def _entry(self, row: Term, column: Term) -> Term:
        return load(self._matrix, row * self._edge + column)

    def _set(self, row: Term, column: Term, value: Term) -> Stmt:
        return store(self._matrix, row * self._edge + column, value)

    def kernel(self) -> Kernel:
        size = self._edge * self._edge

        def one(number: Term) -> Stmt:
            def copied(at: Term) -> Stmt:
                value = load(self._data, number * size + at)
                return store(self._matrix, at, cast(self._dtype, value))

            begin = self._total.set(term(1.0, self._dtype))
            end = store(self._result, number, cast(self._result.dtype, self._total.value))
            columns = loop("column", self._edge, self._eliminate)
            body = block(loop("at", size, copied), begin, columns, end)
            return with_memory(body, self._matrix, self._total, self._pivot)

        count = self._writer.dim(product(self._shape[:-2]))
        return self._writer.kernel(parallel("number", count, one))

    def _eliminate(self, column: Term) -> Stmt:
        below = self._edge - column - 1

        def larger(row: Term) -> Stmt:
            best = call("abs", self._entry(self._pivot.value, column))
            return when(call("abs", self._entry(row, column)) > best, self._pivot.set(row))

        search = loop("candidate", below, larger, column + 1)
        swapped = let("chosen", self._pivot.value, partial(self._swapped, column))
        counted = let("corner", self._entry(column, column), partial(self._reduced, column))
        return block(self._pivot.set(column), search, swapped, counted)

    def _swapped(self, column: Term, pivot: Term) -> Stmt:
        """Rows that change places change the sign."""

        def entry(at: Term) -> Stmt:
            def moved(upper: Term) -> Stmt:
                lower = self._set(column, at, self._entry(pivot, at))
                return block(lower, self._set(pivot, at, upper))

            return let("upper", self._entry(column, at), moved)

        swap = block(self._total.set(-self._total.value), loop("swapped", self._edge, entry))
        return when(compare(CompareKind.NOT_EQUAL, pivot, column), swap)

    def _reduced(self, column: Term, corner: Term) -> Stmt:
        below = self._edge - column - 1

        def of_row(row: Term) -> Stmt:
            def entries(factor: Term) -> Stmt:
                return loop(
                    "beside",
                    below,
                    lambda at: self._set(
                        row, at, self._entry(row, at) - factor * self._entry(column, at)
                    ),
                    column + 1,
                )

            return let("factor", self._entry(row, column) / corner, entries)

        rows = when(
            compare(CompareKind.NOT_EQUAL, corner, 0.0), loop("row", below, of_row, column + 1)
        )
        return block(self._total.set(self._total.value * corner), rows)
