"""Products of run-time matrices."""

from __future__ import annotations

import pytest
from tests.backends.host.row_kernels import Case, check, refusal

from graft.backends.host.kernels.batch_matmul import batch_matmul
from graft.backends.host.kernels.expression.template import expression


@pytest.mark.each_value
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 5, 3), (17, 9, 33), (30, 1, 64)])
def test_transposes(
    transpose_a: bool, transpose_b: bool, rows: int, depth: int, columns: int
) -> None:
    case = Case()
    a = case.input(2, *((depth, rows) if transpose_a else (rows, depth)))
    b = case.input(2, *((columns, depth) if transpose_b else (depth, columns)))
    y = case("nn.batch_matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    check(batch_matmul, case, y)


@pytest.mark.each_value
@pytest.mark.parametrize(("rows", "depth"), [(1, 5), (2, 33), (3, 64), (6, 70)])
def test_a_transposed_matrix_is_read_as_it_lies_for_few_rows(rows: int, depth: int) -> None:
    case = Case()
    y = case(
        "nn.batch_matmul", case.input(2, rows, depth), case.input(2, 9, depth), transpose_b=True
    )
    y = case("add", y, case.input(9))
    assert refusal(batch_matmul, case, y) == (
        f"{rows} rows are too few to transpose the right matrix for"
    )
    check(expression, case, y)


@pytest.mark.parametrize("rows", [3, 7])
def test_a_matrix_is_transposed_where_sums_are_short_or_rows_many(rows: int) -> None:
    case = Case()
    depth = 17 if rows < 7 else 64
    left, right = case.input(2, rows, depth), case.input(2, 9, depth)
    check(batch_matmul, case, case("nn.batch_matmul", left, right, transpose_b=True))


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 1, 5, 4), (2, 4, 7)), ((5, 4), (3, 4, 7)), ((2, 3, 5, 4), (4, 7)), ((5, 4), (4, 7))],
)
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    case = Case()
    check(batch_matmul, case, case("nn.batch_matmul", case.input(*left), case.input(*right)))


def test_epilogue() -> None:
    case = Case()
    y = case("nn.batch_matmul", case.input(3, 6, 10), case.input(3, 10, 21))
    y = case("add", y, case.input(6, 21))
    check(batch_matmul, case, case("nn.relu", case("multiply", y, case.constant(1, 6, 1))))


def test_integers_are_refused() -> None:
    case = Case()
    a, b = case.input(2, 3, dtype="int64"), case.input(3, 3, dtype="int64")
    assert "int64" in refusal(batch_matmul, case, case("nn.batch_matmul", a, b))
