"""Random schedules: any directives on any loops that exist at that point.

Most are legal; the others have to be refused with a `ScheduleError` and nothing else.
"""

from __future__ import annotations

from hypothesis import strategies as st

from graft.loop.nest import make_nest
from graft.loop.schedule import (
    CacheWrite,
    ComputeAt,
    Directive,
    Fuse,
    Inline,
    Pack,
    Parallel,
    Reorder,
    Schedule,
    Split,
    StoreIn,
    Unroll,
    Vectorize,
)
from graft.loop.tensor import Tensor

FACTORS = (1, 2, 3, 4, 6)
TAILS = ("guard", "remainder", "shift_inwards")


@st.composite
def loop_directives(draw: st.DrawFn, tensor: Tensor) -> list[Directive]:
    """Splits, fusions, an order and kinds for a stage's loops."""
    done: list[Directive] = []
    for step in range(draw(st.integers(0, 3))):
        loops = [loop.name for loop in _loops(tensor, done)]
        place = draw(st.integers(0, len(loops) - 1))
        if draw(st.integers(0, 2)) or place + 1 == len(loops):
            tail = draw(st.sampled_from(TAILS))
            factor = draw(st.sampled_from(FACTORS))
            name = loops[place]
            done.append(Split(name, f"{name}o{step}", f"{name}i{step}", factor, tail))
        else:
            pair = loops[place], loops[place + 1]
            done.append(Fuse(*pair, f"f{step}"))
        try:
            _loops(tensor, done)
        except Exception:
            done.pop()
    loops = [loop.name for loop in _loops(tensor, done)]
    if draw(st.booleans()):
        done.append(Reorder(tuple(draw(st.permutations(loops)))))
    for kind in (Vectorize, Unroll, Unroll, Parallel):
        if draw(st.integers(0, 2)) == 0:
            done.append(kind(draw(st.sampled_from(loops))))
    return done


def _loops(tensor: Tensor, directives: list[Directive]):
    return make_nest(tensor, directives).loops
