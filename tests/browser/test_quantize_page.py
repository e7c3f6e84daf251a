"""Hovers over the page of `graft quantize` in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import browser, executable

from graft.byoc.explain_html import filled_page

PROGRAM = executable()

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on the PATH"),
]


def facts(precision: str) -> dict[str, Any]:
    """Two units, of which one has become narrow."""
    units = [
        {"name": "conv", "op": "nn.conv2d", "precision": precision, "reason": ""},
        {"name": "scores", "op": "nn.dense", "precision": "float32", "reason": "no faster"},
    ]
    known = {"seconds": {"float32": 2e-3, precision: 1e-3}, "errors": {precision: 1e-4}}
    counts: list[dict[str, int]] = [{"float32": 2}, {"float32": 1, precision: 1}]
    front = [
        {"seconds": seconds, "error": error, "counts": own}
        for seconds, error, own in zip((4e-3, 3e-3), (0.0, 0.01), counts, strict=True)
    ]
    return {
        "model": "model.onnx",
        "seconds": 3.5e-3,
        "float_seconds": 5e-3,
        "held_out": 4,
        "confidence": 0.99,
        "advice": "",
        "random": False,
        "quality": {"error": 0.012, "error_bound": 0.02},
        "budget": {"error": 0.05, "agreement": None},
        "units": [{**unit, **known} for unit in units],
        "front": front,
    }


@pytest.mark.parametrize("precision", ["int8", "int4", "int16", "bf16", "fp16"])
def test_points_say_what_they_are(precision: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    filled = filled_page("graft.cli", "quantize.html", "model.onnx", facts(precision))
    file.write_text(filled, encoding="utf-8")
    assert PROGRAM is not None
    with browser(PROGRAM) as page:
        page.open(file.as_uri())
        said = [_hovered(page, number) for number in range(4)]
        assert "1.43 × as fast" in page.text("#summary")
        assert page.text("#legend").split() == ["float32", "most", "units"]
        cell = "getComputedStyle(document.querySelector('td .kind')).backgroundColor"
        assert page.value(cell) != "rgba(0, 0, 0, 0)"
        assert page.problems == []
    mixed = f"1 float32, 1 {precision}"
    assert said[0] == said[2]  # what is measured is drawn over what is predicted
    assert "3.00 ms of units, about 3.75 ms in all" in said[1]
    assert said[2].splitlines()[::3] == ["measured in float", "2 float32"]
    assert said[3].splitlines() == [
        *("measured, the result", "3.50 ms", "error 1.20 %, at most 2.00 % on others", mixed)
    ]


def _hovered(page: Any, number: int) -> str:
    """What is shown where the mouse is over a point."""
    middle = page.value(
        f"(() => {{ const box = document.querySelectorAll('.point')[{number}]"
        ".getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=middle[0], y=middle[1])
    return page.text("#tip")
