"""Small matrices times grids of vectors, as straight-line code.

A matrix of numbers and a grid of vectors enter; named vectors leave, each of which is one linear
combination, and can be wrapped around the statement that uses them.
"""

from __future__ import annotations

from collections.abc import Sequence

from graft.base.dtypes import Array, DType
from graft.loop.ir import Binary, BinaryKind, Const, Expr, Let, Stmt, Var

Grid = list[list[Expr]]


class Names:
    """Let-bound vectors, collected in order and then wrapped around a statement."""

    def __init__(self, tag: str, lanes: int) -> None:
        self.tag = tag
        self.lanes = lanes
        self.bound: list[tuple[Var, Expr]] = []

    def name(self, value: Expr) -> Var:
        """A name for a vector."""
        var = Var(f"{self.tag}{len(self.bound)}", DType.FLOAT32, self.lanes)
        self.bound.append((var, value))
        return var

    def around(self, body: Stmt) -> Stmt:
        """The statement with everything named so far in sight."""
        for var, value in reversed(self.bound):
            body = Let(var, value, body)
        return body


def transformed(names: Names, matrix: Array, grid: Grid) -> Grid:
    """matrix @ grid @ matrix.T, of vectors."""
    columns = [
        [_combined(names, row, [line[c] for line in grid]) for row in matrix]
        for c in range(len(grid[0]))
    ]
    return [
        [_combined(names, row, [column[r] for column in columns]) for row in matrix]
        for r in range(len(matrix))
    ]


def operations(matrix: Array) -> int:
    """How many multiplications and additions of vectors `transformed` takes."""
    used = matrix != 0
    adds = int((used.sum(axis=1) - 1).sum())
    multiplies = int((used & (abs(matrix) != 1)).sum())
    return (adds + multiplies) * sum(matrix.shape)


def _combined(names: Names, row: Array, vectors: Sequence[Expr]) -> Expr:
    """A linear combination."""
    total: Expr | None = None
    for factor, vector in zip(row.tolist(), vectors, strict=True):
        if factor == 0:
            continue
        scaled = vector
        if abs(factor) != 1:
            number = Const(float(abs(factor)), DType.FLOAT32, names.lanes)
            scaled = Binary(BinaryKind.MULTIPLY, number, vector)
        if total is None:
            zero = Const(0.0, DType.FLOAT32, names.lanes)
            total = scaled if factor > 0 else Binary(BinaryKind.SUBTRACT, zero, scaled)
        else:
            kind = BinaryKind.ADD if factor > 0 else BinaryKind.SUBTRACT
            total = Binary(kind, total, scaled)
    assert total is not None
    return names.name(total)
