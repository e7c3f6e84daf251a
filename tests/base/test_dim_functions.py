"""Dims as a function: the same numbers as one by one, and the same refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.base.dim_functions import function_of
from graft.base.dims import (
    UNKNOWN,
    Dim,
    broadcast_dim,
    dim_max,
    dim_min,
    evaluate_dim,
    parse_dim,
    symbol,
)
from graft.base.errors import EvaluationError

NAMES = ("n", "past + 1", "é", "max")


def some_dims() -> list[Dim]:
    n, past, e, most = map(symbol, NAMES)
    found = [
        3,
        n,
        2 * n * n - 5 * past + 7,
        (n + 1) // 2,
        ((n + 1) // 2 + past) % 7,
        dim_min(n, past, 12) * 4,
        dim_max(n - e, 0) + (past * e) // (most + 1),
        ((n * past) // 3 % (e + 2)) // 2 * dim_max(most, 1),
        broadcast_dim(n, 1, e),
    ]
    return [dim for dim in found if dim is not UNKNOWN]


@given(st.tuples(*(st.integers(0, 40) for _ in NAMES)))
def test_numbers_are_those_of_dims_one_by_one(numbers: tuple[int, ...]) -> None:
    dims, mapping = some_dims(), dict(zip(NAMES, numbers, strict=True))
    if len({mapping["n"], mapping["é"]} - {1}) > 1:
        with pytest.raises(EvaluationError, match="has no value here"):
            function_of(dims, NAMES)(numbers)
        dims = dims[:-1]
    wanted = [evaluate_dim(dim, mapping) for dim in dims]
    assert function_of(dims, NAMES, [[1], [0, 1, 3]])(numbers) == (
        wanted,
        [wanted[1], max(wanted[0], wanted[1], wanted[3])],
    )


def test_a_division_by_zero_is_refused() -> None:
    dims = [parse_dim("n//m")]
    assert function_of(dims, ["n", "m"])([7, 2]) == ([3], [])
    with pytest.raises(EvaluationError, match="has no value here"):
        function_of(dims, ["n", "m"])([7, 0])


def test_nothing_and_no_symbols() -> None:
    assert function_of([], [])([]) == ([], [])
    assert function_of([5, 0], [])([]) == ([5, 0], [])


def test_what_only_data_tell_has_no_function() -> None:
    with pytest.raises(EvaluationError, match="known only from data"):
        function_of([UNKNOWN], [])
