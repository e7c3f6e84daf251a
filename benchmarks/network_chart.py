"""Results as a picture: rows of the comparison in, a bar chart of relative speeds out.

Each network has one bar per contender; the best peer is 1, higher is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.network_tables import Row
from graft.cli.bench.contenders import CONTENDERS
from graft.cli.bench.rounds import GRAFT

_COLOURS = {
    GRAFT: "#1b7f4b",
    "onnxruntime": "#5b7c9d",
    "openvino": "#a8c3dd",
    "torch": "#d3a77e",
    "iree": "#c9c2d9",
    "tvm": "#dcd9a8",
}
_GROUP_WIDTH = 0.8
_INK = "#333333"


def relative_speeds(row: Row, contenders: Sequence[str]) -> list[float | None]:
    """Speeds over that of the best peer; Graft's is the median of the runs' ratios."""
    seconds = {name: row.seconds(name) for name in contenders}
    peers = [one for name, one in seconds.items() if name != GRAFT and one is not None]
    if not peers:
        return [None] * len(contenders)
    best = min(peers)
    others = [None if (one := seconds[name]) is None else best / one for name in contenders]
    return [
        row.speedup() if name == GRAFT else one
        for name, one in zip(contenders, others, strict=True)
    ]


def draw(rows: Sequence[Row], contenders: Sequence[str], title: str, path: Path) -> None:
    """Write the chart. Only this needs Matplotlib, and tests of the driver go without."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(10, 1.5 * len(rows)), 4), layout="constrained")
    axes = figure.subplots()
    width = _GROUP_WIDTH / len(contenders)
    speeds = [relative_speeds(row, contenders) for row in rows]
    for position, name in enumerate(contenders):
        places = [
            number + (position + 0.5) * width - _GROUP_WIDTH / 2 for number in range(len(rows))
        ]
        heights = [speed[position] or 0.0 for speed in speeds]
        bars = axes.bar(
            places, heights, 0.92 * width, color=_COLOURS[name], label=CONTENDERS[name].title
        )
        if name == GRAFT:
            labels = [f"{height:.2f}" if height else "" for height in heights]
            axes.bar_label(bars, labels, padding=2, color=_INK, fontweight="bold", fontsize=10)
    axes.axhline(1.0, color=_INK, linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(rows)), [row.network for row in rows], fontsize=10)
    axes.set_ylabel("speed, best peer = 1", color=_INK)
    axes.set_title(title, fontsize=11, color=_INK, loc="left")
    axes.tick_params(length=0, colors=_INK)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.margins(x=0.02, y=0.12)
    figure.legend(loc="outside upper right", ncols=len(contenders), frameon=False, fontsize=10)
    figure.savefig(path, dpi=150)
