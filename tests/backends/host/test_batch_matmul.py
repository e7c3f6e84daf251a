"""Products of run-time matrices."""

from __future__ import annotations

import pytest
from tests.backends.host.row_kernels import Case, check, refusal

from graft.backends.host.kernels.batch_matmul import batch_matmul


@pytest.mark.each_value
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 5, 3), (17, 9, 33), (30, 1, 64)])
def test_transposes(
    transpose_a: bool, transpose_b: bool, rows: int, depth: int, columns: int
) -> None:
    case = Case()
    a = case.input(2, *((depth, rows) if transpose_a else (rows, depth)))
    b = case.input(2, *((columns, depth) if transpose_b else (depth, columns)))
    y = case("nn.batch_matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    check(batch_matmul, case, y)


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
