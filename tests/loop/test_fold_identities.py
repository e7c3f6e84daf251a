"""Reductions begin with their first term where nothing comes between."""

from __future__ import annotations

from graft.loop.fold_identities import fold_identities
from graft.loop.parse import from_text
from graft.loop.print import to_text

HEAD = "kernel kernel(x: float32[8], y: float32[8], z: float32[8]) {\n"


def folded(*statements: str) -> list[str]:
    """The statements on registers `a` and `b` that are left of some."""
    inner = "\n".join(statements)
    registers = "allocate a: float32[1] in register {\nallocate b: float32[1] in register {\n"
    function = from_text(f"{HEAD}{registers}{inner}\n}}\n}}\n}}\n")
    lines = to_text(type(function)("k", function.parameters, fold_identities(function.body)))
    return [line.strip() for line in lines.splitlines() if " = " in line]


def test_sums_products_and_extremes() -> None:
    assert folded("a[0] = 0.0", "a[0] = a[0] + x[1]", "z[0] = a[0]") == [
        "a[0] = x[1]",
        "z[0] = a[0]",
    ]
    assert folded("a[0] = 1.0", "a[0] = a[0] * x[1]")[0] == "a[0] = x[1]"
    assert folded("a[0] = 0.0", "a[0] = fma(x[0], y[0], a[0])")[0] == "a[0] = x[0] * y[0]"


def test_several_totals_side_by_side() -> None:
    lines = folded("a[0] = 0.0", "b[0] = 0.0", "a[0] = a[0] + x[0]", "b[0] = b[0] + x[1]")
    assert lines == ["a[0] = x[0]", "b[0] = x[1]"]


def test_other_numbers_and_reads_in_between_stay() -> None:
    for kept in (
        ["a[0] = 1.0", "a[0] = a[0] + x[0]"],
        ["a[0] = 0.0", "a[0] = a[0] * x[0]"],
        ["a[0] = 0.0", "z[0] = a[0]", "a[0] = a[0] + x[0]"],
        ["z[0] = 0.0", "z[0] = z[0] + x[0]"],  # memory, which others may see
        ["a[0] = 0.0", "a[0] = a[0] + a[0]"],
    ):
        assert folded(*kept) == kept
