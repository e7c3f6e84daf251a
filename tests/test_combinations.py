"""Tests marked `each_value`: short runs try every value, full runs all combinations."""

from __future__ import annotations

import pytest
from tests.combinations import leave_to_full_runs

pytest_plugins = ["pytester"]

FILE = """
    import pytest

    @pytest.mark.{marker}
    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 2), (2, 1), (2, 2), (9, 9)])
    @pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
    def test_something(threads, rows, columns, dtype):
        pass
"""


def short_run(pytester: pytest.Pytester, marker: str) -> list[str]:
    """The names of cases, in their order, that are not left to full runs."""
    pytester.makepyfile(FILE.format(marker=marker))
    items, _ = pytester.inline_genitems()
    assert len(items) == 30
    leave_to_full_runs(items)
    return [item.name for item in items if item.get_closest_marker("full") is None]


def test_every_value_occurs_and_those_of_one_decorator_together(pytester: pytest.Pytester) -> None:
    names = short_run(pytester, "each_value")
    cases = [name.partition("[")[2].rstrip("]").split("-") for name in names]
    assert {dtype for dtype, *_ in cases} == {"int8", "float32", "float64"}
    assert {tuple(shape) for _, *shape, _ in cases} == {*zip("11229", "12129", strict=True)}
    assert {threads for *_, threads in cases} == {"1", "2"}
    assert 5 <= len(cases) <= 8
    assert names == short_run(pytester, "each_value")


def test_others_are_left_alone(pytester: pytest.Pytester) -> None:
    assert len(short_run(pytester, "something_else")) == 30
