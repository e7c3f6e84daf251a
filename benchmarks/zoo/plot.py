"""The zoo's histogram as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_INK = "#333333"
_FASTER, _SLOWER = "#1b7f4b", "#b5523b"


def draw_histogram(counts: Mapping[str, int], path: Path) -> None:
    """Write the chart of counts by label. Only this needs Matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots()
    colours = [_SLOWER if _is_slower(label) else _FASTER for label in counts]
    bars = axes.bar(range(len(counts)), list(counts.values()), 0.9, color=colours)
    axes.bar_label(bars, padding=2, color=_INK)
    axes.set_xticks(range(len(counts)), list(counts), fontsize=9)
    axes.set_xlabel("ONNX Runtime's time over Graft's", color=_INK)
    axes.set_ylabel("models", color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.12)
    figure.savefig(path, dpi=150)


def _is_slower(label: str) -> bool:
    """Whether a bar's upper edge is below 1."""
    words = label.split()
    return "more" not in words and float(words[-1]) < 1
