"""Small matrices times grids of vectors, as straight-line code or in loops.

Matrices of numbers and a grid of vectors enter; statements leave that compute linear combinations
of the vectors, for whoever stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from graft.backends.host.storage import index
from graft.base.dtypes import Array, DType
from graft.loop.build import constant
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Let,
    Load,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)

# Pairs of rows or columns with no more numbers than this gain nothing from common parts.
_LONG = 2


class Names:
    """Let-bound vectors, collected in order and then wrapped around a statement."""

    def __init__(self, tag: str, lanes: int, dtype: DType) -> None:
        self.tag = tag
        self.lanes = lanes
        self.dtype = dtype
        self.bound: list[tuple[Var, Expr]] = []

    def name(self, value: Expr) -> Var:
        """A name for a vector."""
        var = Var(f"{self.tag}{len(self.bound)}", self.dtype, self.lanes)
        self.bound.append((var, value))
        return var

    def around(self, body: Stmt) -> Stmt:
        """The statement with everything named so far in sight."""
        for var, value in reversed(self.bound):
            body = Let(var, value, body)
        return body


@dataclass(frozen=True, slots=True)
class GridTransform:
    """down @ grid @ across.T, of vectors with `lanes` elements.

    Columns are transformed first, then rows; between the two, vectors have a buffer of registers.
    Integers wrap around. `element` reads a vector of the grid by its row and column, `store` stores
    a row of results.
    """

    tag: str
    lanes: int
    down: Array
    across: Array
    element: Callable[[int, Expr], Expr]
    store: Callable[[Expr, Sequence[Expr]], Stmt]
    dtype: DType = DType.FLOAT32

    @property
    def half(self) -> Buffer:
        extents = index(len(self.down), self.across.shape[1], self.lanes)
        return Buffer(f"half_{self.tag}", self.dtype, extents, Scope.REGISTER)

    def column(self, column: Expr, name: str) -> Stmt:
        """Transform a column of the grid."""
        names = Names(f"{self.tag}c{name}_", self.lanes, self.dtype)
        read = [names.name(self.element(row, column)) for row in range(self.down.shape[1])]
        found = enumerate(_product(names, shared_sums(self.down), read))
        stores = (Store(self.half, self._place(row, column), value) for row, value in found)
        return names.around(Block(tuple(stores)))

    def row(self, row: Expr, name: str) -> Stmt:
        """Transform a row of what columns have become."""
        names = Names(f"{self.tag}r{name}_", self.lanes, self.dtype)
        columns = range(self.across.shape[1])
        read = [names.name(Load(self.half, self._place(row, column))) for column in columns]
        return names.around(self.store(row, _product(names, shared_sums(self.across), read)))

    def _place(self, row: Expr | int, column: Expr | int) -> tuple[Expr, ...]:
        return index(row, column, Ramp(Const(0), 1, self.lanes))


def transformed(grids: Sequence[GridTransform], registers: int) -> Stmt:
    """Transform grids of one shape on a core with so many vector registers.

    Straight-line code has several columns, or rows, under way at a time. Where registers do not
    hold two and the factors, each is an iteration of a loop, and has them for itself: Winograd's
    algorithm for 16 channels took 0.93 to 0.96 of the time with AVX2 on a Zen 5, and as long as
    before with AVX-512, where there are enough."""
    first = grids[0]
    if not _is_crowded(first.down, registers) and not _is_crowded(first.across, registers):
        return Block(tuple(map(straight, grids)))
    columns, rows = Var(f"column_{first.tag}"), Var(f"row_{first.tag}")
    down = Block(tuple(grid.column(columns, "") for grid in grids))
    across = Block(tuple(grid.row(rows, "") for grid in grids))
    width, height = Const(first.across.shape[1]), Const(len(first.down))
    body: Stmt = Block((For(columns, Const(0), width, down), For(rows, Const(0), height, across)))
    for grid in grids:
        body = Allocate(grid.half, body)
    return body


def _is_crowded(matrix: Array, registers: int) -> bool:
    """Whether the operands of two products and the factors have too few registers."""
    sums = shared_sums(matrix).sums
    factors = {abs(factor) for terms in sums for factor, _ in terms} - {1.0}
    return 2 * int(matrix.shape[1]) + len(factors) > registers


def straight(grid: GridTransform) -> Stmt:
    """Transform a grid in straight-line code."""
    columns = (grid.column(Const(n), str(n)) for n in range(grid.across.shape[1]))
    rows = (grid.row(Const(n), str(n)) for n in range(len(grid.down)))
    return Allocate(grid.half, Block((*columns, *rows)))


def operations(down: Array, across: Array) -> int:
    """How many multiplications, additions and multiply-adds of vectors a `GridTransform` takes."""
    columns: int = across.shape[1]
    return _operations(down) * columns + _operations(across) * len(down)


def _operations(matrix: Array) -> int:
    sums = shared_sums(matrix).sums
    return sum(len(terms) - (abs(terms[0][0]) == 1) for terms in sums)


Terms = tuple[tuple[float, int], ...]  # factors, each with the number of a vector or a sum


@dataclass(frozen=True, slots=True)
class SharedSums:
    """The product of a matrix and vectors as sums that build upon one another.

    Vectors have the numbers from 0 on, and the sums, in their order, the ones that follow; the
    results are vectors or sums."""

    sums: tuple[Terms, ...]
    results: tuple[int, ...]


def shared_sums(matrix: Array) -> SharedSums:
    """Compute parts that rows or columns have in common once.

    Polynomials evaluated at x and at -x share their even and their odd part, so rows (of the data's
    matrix) or columns (of the results') that differ in signs only come in pairs. For F(4, 3) that
    takes 12 multiply-adds instead of 16."""
    return _shared_sums(matrix.shape[1], matrix.astype(np.float64).tobytes())


@cache  # schedules are priced by the hundred for each layer, with the same few matrices
def _shared_sums(width: int, content: bytes) -> SharedSums:
    rows = np.frombuffer(content).reshape(-1, width).copy()
    sums: list[Terms] = []

    def add(factors: Sequence[float], numbers: Sequence[int]) -> int:
        terms = [term for term in zip(factors, numbers, strict=True) if term[0]]
        if len(terms) == 1 and terms[0][0] == 1:
            return terms[0][1]
        # a sum that begins with a vector as it is takes multiply-adds from there on
        terms.sort(key=lambda term: (abs(term[0]) != 1, term[0] < 0))
        sums.append(tuple(terms))
        return width + len(sums) - 1

    numbers = list(range(width))
    for one, other in combinations(range(width), 2):
        if _is_mirrored(rows[:, one], rows[:, other]):
            pair = (numbers[one], numbers[other])
            numbers[one], numbers[other] = add((1.0, 1.0), pair), add((1.0, -1.0), pair)
            is_same = rows[:, one] == rows[:, other]
            rows[:, other] = np.where(is_same, 0, rows[:, one])
            rows[:, one] = np.where(is_same, rows[:, one], 0)
    results = [-1] * len(rows)
    for one, other in combinations(range(len(rows)), 2):
        if results[one] < 0 and results[other] < 0 and _is_mirrored(rows[one], rows[other]):
            is_same = rows[one] == rows[other]
            differing = np.where(is_same, 0, rows[one])
            scale = float(min(abs(differing[differing != 0])))
            common = add(np.where(is_same, rows[one], 0).tolist(), numbers)
            pair = (common, add((differing / scale).tolist(), numbers))
            results[one], results[other] = add((1.0, scale), pair), add((1.0, -scale), pair)
    for number, row in enumerate(rows):
        if results[number] < 0:
            results[number] = add(row.tolist(), numbers)
    return SharedSums(tuple(sums), tuple(results))


def _is_mirrored(one: Array, other: Array) -> bool:
    """Whether two rows, or columns, are equal in some places, opposite in others, and long enough
    for their common parts to pay."""
    used = one != 0
    is_same = (one == other)[used]
    alike = bool((abs(one) == abs(other)).all())
    return alike and bool(is_same.any()) and not is_same.all() and int(used.sum()) > _LONG


def _product(names: Names, shared: SharedSums, vectors: Sequence[Expr]) -> list[Expr]:
    """The results of the sums of some vectors."""
    found = list(vectors)
    for terms in shared.sums:
        found.append(_combined(names, terms, found))
    return [found[number] for number in shared.results]


def _combined(names: Names, terms: Terms, vectors: Sequence[Expr]) -> Expr:
    """A linear combination; one with a subtraction first ends it, which is one instruction."""
    total: Expr | None = None
    if len(terms) > 1 and terms[0][0] < 0 < terms[1][0]:
        terms = (terms[1], terms[0], *terms[2:])
    for factor, number in terms:
        scaled = vectors[number]
        if abs(factor) != 1:
            size = Const(constant(abs(factor), names.dtype).value, names.dtype, names.lanes)
            scaled = Binary(BinaryKind.MULTIPLY, size, scaled)
        if total is None:
            zero = Const(constant(0, names.dtype).value, names.dtype, names.lanes)
            total = scaled if factor > 0 else Binary(BinaryKind.SUBTRACT, zero, scaled)
        else:
            kind = BinaryKind.ADD if factor > 0 else BinaryKind.SUBTRACT
            total = Binary(kind, total, scaled)
    assert total is not None
    return names.name(total)
