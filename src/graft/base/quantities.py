"""Counts, durations and sizes as text, the same in all commands, messages and pages."""

from __future__ import annotations

import math

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_NO_TIME = 1e-12  # seconds; what is less is a rounding error


def number(value: int) -> str:
    """With separators between thousands."""
    return f"{value:,}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 node`, `2 nodes`."""
    return f"{number(count)} {noun if count == 1 else plural or noun + 's'}"


def size_text(count: int) -> str:
    """A number of bytes in decimal units, with three digits."""
    if count < 1000:
        return f"{count} B"
    exponent = min(int(math.log10(count)) // 3, 6)
    scaled = f"{count / 1000**exponent:.3g}"
    if scaled == "1e+03":
        scaled, exponent = "1", exponent + 1
    return f"{scaled} {' kMGTPE'[exponent]}B"


def time_text(seconds: float) -> str:
    """A duration with three digits, in µs, ms or s."""
    pairs = ((scale, unit) for scale, unit in _TIME_UNITS if seconds >= scale * 0.9995)
    scale, unit = next(pairs, _TIME_UNITS[-1])
    value = seconds / scale if seconds >= _NO_TIME else 0
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
