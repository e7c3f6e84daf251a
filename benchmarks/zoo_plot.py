"""The zoo's histogram as a picture: a file and LABEL=COUNT pairs in."""

from __future__ import annotations

import sys

from matplotlib.figure import Figure

_INK = "#333333"
_FASTER, _SLOWER = "#1b7f4b", "#b5523b"


def main() -> None:
    path, *pairs = sys.argv[1:]
    labels, counts = zip(*(pair.rsplit("=", 1) for pair in pairs), strict=True)
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots()
    colours = [_SLOWER if _is_slower(label) else _FASTER for label in labels]
    bars = axes.bar(range(len(labels)), [int(one) for one in counts], 0.9, color=colours)
    axes.bar_label(bars, padding=2, color=_INK)
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    axes.set_xlabel("ONNX Runtime's time over Graft's", color=_INK)
    axes.set_ylabel("models", color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.12)
    figure.savefig(path, dpi=150)


def _is_slower(label: str) -> bool:
    """Whether a bar's upper edge is below 1."""
    words = label.split()
    return "more" not in words and float(words[-1]) < 1


if __name__ == "__main__":
    main()
