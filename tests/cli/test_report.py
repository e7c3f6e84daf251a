from __future__ import annotations

import json

import pytest

from graft.base.dims import UNKNOWN, AnyDim, symbol
from graft.cli.report import dim_json, dim_text, histogram, lines_of, print_json, table


def test_columns_are_aligned_to_their_sides() -> None:
    rows = table([("a", "1"), ("long", "1,000")], header=("name", "n"), right=(1,))
    assert lines_of(rows) == ["name      n", "a         1", "long  1,000"]
    assert table([]) == []


def test_histogram_fills_the_width_column_by_column() -> None:
    lines = lines_of(histogram({f"operator_{number:02}": 30 - number for number in range(11)}))
    assert lines[0].split()[:4] == ["operator_00", "30", "operator_03", "27"]
    assert sorted(" ".join(lines).split()[::2]) == [f"operator_{number:02}" for number in range(11)]
    assert max(map(len, lines)) <= 98
    assert lines_of(histogram({"a": 1, "b": 1, "c": 2})) == ["c  2    a  1    b  1"]
    assert histogram({}) == ["none"]
    assert lines_of(histogram({"n" * 90: 1000})) == [f"{'n' * 90}  1,000"]


def long_sum() -> AnyDim:
    total: AnyDim = 12345
    for number in range(30):
        total = total + symbol(f"d{number}") * 7
    return total


@pytest.mark.parametrize(
    ("dim", "text", "plain"),
    [
        (1_814_073_344, "1,814,073,344", 1_814_073_344),
        (symbol("n") * 3 + 1, "3*n + 1", "3*n + 1"),
        (UNKNOWN, "known only from data", None),
        (long_sum(), "12,345 + terms in 30 dynamic dims", str(long_sum())),
    ],
)
def test_amounts_of_work(dim: AnyDim, text: str, plain: object) -> None:
    assert dim_text(dim) == text
    assert dim_json(dim) == plain


def test_json_has_no_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), float("-inf"), 1.5], "b": {"c": (1, None)}})
    assert json.loads(capsys.readouterr().out) == {"a": ["nan", "-inf", 1.5], "b": {"c": [1, None]}}
