"""How much memory a program works in: a program in, sizes out, where they are numbers."""

from __future__ import annotations

from collections.abc import Sequence

from graft.base.dims import Dim
from graft.program.instructions import Segment
from graft.program.program import ALIGNMENT, Program


def arena_bytes(program: Program) -> int | None:
    """The arena of a run; None where it depends on the inputs."""
    pool = _largest(program.pool)
    sizes = [segment_arena(segment) for segment in program.segments]
    known = [size for size in sizes if size is not None]
    if pool is None or len(known) < len(sizes):
        return None
    return pool + max(known, default=0)


def segment_arena(segment: Segment) -> int | None:
    """The arena that only one segment works in; None where it depends on the inputs."""
    sizes = [_largest(pool) for pool in segment.pools]
    known = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _largest(sizes: Sequence[Dim]) -> int | None:
    known = [size for size in sizes if isinstance(size, int)]
    return max(known, default=0) if len(known) == len(sizes) else None
