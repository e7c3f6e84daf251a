"""Refuses results larger than this machine's memory, before anything allocates them.

A few bytes of a model can ask for any amount of memory. The evaluator checks sizes that follow
from types, operators those that depend on the values of their operands; an `EvaluationError` names
the result.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from graft.base.errors import EvaluationError


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 36


MOST_BYTES = _physical_memory()


def check_bytes(count: int, what: str) -> None:
    """Raise an error if `count` bytes are more than this machine has."""
    if count > MOST_BYTES:
        size = f"{count / 2**30:.0f} GiB" if count < 1 << 80 else f"2**{count.bit_length()} bytes"
        raise EvaluationError(f"{what} of {size}, more than this machine's memory")


def check_extents(extents: Sequence[int], dtype: np.dtype[Any], what: str) -> None:
    """Raise an error for a tensor with negative extents or more bytes than this machine has."""
    if any(extent < 0 for extent in extents):
        raise EvaluationError(f"{what} would have a negative extent: {list(extents)}")
    check_bytes(math.prod(extents) * dtype.itemsize, f"{what} would make {list(extents)}")
