"""What is written of times at any size."""

from __future__ import annotations

import pytest
from benchmarks.any_size import HEADER, IMAGES, compared, row
from benchmarks.new_size import SYMBOLS, any_size
from benchmarks.pages import MODELS, table


def test_a_row_compares_lap_by_lap() -> None:
    times = {"known": [0.01, 0.02, 0.03], "batch": [0.01, 0.02, 0.03], "size": [0.02, 0.04, 0.06]}
    cells = row("net", compared(times))
    assert cells[:2] == ["net", "20 ms"]
    assert cells[2:4] == ["20 ms", "+0.0% ± 0.0%"]
    assert cells[4:] == ["40 ms", "+100.0% ± 0.0%"]
    assert len({line.count("|") for line in table(HEADER, [cells])}) == 1


@pytest.mark.parametrize("name", IMAGES)
def test_networks_may_have_any_size(name: str) -> None:
    graph = any_size(MODELS / f"{name}.onnx", SYMBOLS)
    assert graph.input_symbols == {"batch", "height", "width"}
