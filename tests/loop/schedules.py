"""Random schedules: any directives on loops that exist at that point.

Most are legal; the others have to be refused with a `ScheduleError` and nothing else.
"""

from __future__ import annotations

from hypothesis import strategies as st

from graft.loop.errors import ScheduleError
from graft.loop.nest import make_nest
from graft.loop.schedule import (
    CacheWrite,
    ComputeAt,
    ComputeWith,
    Directive,
    Factor,
    Fuse,
    Inline,
    Pack,
    Parallel,
    Reorder,
    Schedule,
    Split,
    StoreIn,
    StoreWith,
    Tail,
    Unroll,
    Vectorize,
)
from graft.loop.stages import rewrite_stages
from graft.loop.tensor import Tensor, in_order

FACTORS = (1, 2, 3, 4, 6)
TAILS: tuple[Tail, ...] = ("guard", "remainder", "shift_inwards")
KINDS: tuple[type[Vectorize | Unroll | Parallel], ...] = (Vectorize, Unroll, Unroll, Parallel)


def loop_names(tensor: Tensor, directives: list[Directive]) -> list[str]:
    return [loop.name for loop in make_nest(tensor, directives).loops]


def is_fine(tensor: Tensor, directives: list[Directive]) -> bool:
    try:
        make_nest(tensor, directives)
    except ScheduleError:
        return False
    return True


@st.composite
def loop_directives(draw: st.DrawFn, tensor: Tensor) -> list[Directive]:
    """Splits, fusions, an order and kinds for a stage's loops."""
    done: list[Directive] = []

    def attempt(directive: Directive) -> None:
        if is_fine(tensor, [*done, directive]):
            done.append(directive)

    for step in range(draw(st.integers(0, 3))):
        loops = loop_names(tensor, done)
        place = draw(st.integers(0, len(loops) - 1))
        name = loops[place]
        if draw(st.integers(0, 2)) or place + 1 == len(loops):
            factor, tail = draw(st.sampled_from(FACTORS)), draw(st.sampled_from(TAILS))
            attempt(Split(name, f"{name}o{step}", f"{name}i{step}", factor, tail))
        else:
            attempt(Fuse(name, loops[place + 1], f"f{step}"))
    loops = loop_names(tensor, done)
    if draw(st.booleans()):
        attempt(Reorder(tuple(draw(st.permutations(loops)))))
    for kind in KINDS:
        if draw(st.integers(0, 2)) == 0:
            attempt(kind(draw(st.sampled_from(loops))))
    return done


@st.composite
def rewrites(draw: st.DrawFn) -> dict[str, list[Directive]]:
    """Copies and totals around the product of `dense`."""
    found: dict[str, list[Directive]] = {"out": [], "product": []}
    if draw(st.booleans()):
        found["out"].append(CacheWrite("result"))
    own = found["product"]
    if draw(st.booleans()):
        blocks = draw(st.sampled_from([0, 2, 4])), draw(st.sampled_from([0, 3]))
        rank = 2 + sum(block > 0 for block in blocks)
        own.append(Pack("b", "panel", blocks, tuple(draw(st.permutations(range(rank))))))
    if draw(st.booleans()):
        own.append(Pack("a", "rows", (0, 0), draw(st.sampled_from([(0, 1), (1, 0)]))))
    if draw(st.booleans()):
        own.append(Factor("k", "part", draw(st.sampled_from([2, 4]))))
    return found


@st.composite
def dense_schedules(draw: st.DrawFn, tensors: list[Tensor]) -> Schedule:
    """A schedule of a matrix product with an epilogue, with copies in other layouts."""
    found = draw(rewrites())
    arguments = {tensor.name for tensor in tensors}
    stages = rewrite_stages(in_order(tensors), arguments, Schedule.of(found))
    sites: list[tuple[str, str]] = []
    for name in [one for one in reversed(stages) if stages[one].body is not None]:
        own = found.setdefault(name, [])
        own += [
            directive
            for directive in draw(loop_directives(stages[name]))
            if name == "out" or not isinstance(directive, Parallel)
        ]
        if name != "out" and draw(st.integers(0, 2)):
            own.append(ComputeAt(*draw(st.sampled_from(sites))))
        sites += [(name, loop) for loop in loop_names(stages[name], own)]
    return Schedule.of(found)


@st.composite
def schedules(draw: st.DrawFn, tensors: list[Tensor]) -> Schedule:
    """A schedule of the blur: each stage's loops, and where it is computed."""
    stages = {tensor.name: tensor for tensor in in_order(tensors) if tensor.body is not None}
    found: dict[str, list[Directive]] = {"out": draw(loop_directives(stages["out"]))}
    sites = [("out", loop) for loop in loop_names(stages["out"], found["out"])]
    for name in ("total", "pad"):
        own = [d for d in draw(loop_directives(stages[name])) if not isinstance(d, Parallel)]
        if draw(st.booleans()):
            own.append(ComputeAt(*draw(st.sampled_from(sites))))
            if name == "total" and draw(st.booleans()):
                own.append(StoreIn("register"))
        if name == "pad" and draw(st.integers(0, 4)) == 0:
            own = [Inline()]
        found[name] = own
        sites += [(name, loop) for loop in loop_names(stages[name], own)]
    extra = draw(st.integers(0, 3))
    if extra == 0:
        found["out"] = [CacheWrite("cached"), *found["out"]]
    if extra == 1:
        own = [d for d in found["total"] if isinstance(d, (ComputeAt, StoreIn))]
        found["total"] = [Factor("a", "part", 2), *own]
    return Schedule.of(found)


@st.composite
def kept_schedules(draw: st.DrawFn, tensors: list[Tensor]) -> Schedule:
    """A schedule of rows: some stages are computed with a reader, or stored with the result."""
    stages = {tensor.name: tensor for tensor in in_order(tensors) if tensor.body is not None}
    found: dict[str, list[Directive]] = {"out": draw(loop_directives(stages["out"]))}
    loops = loop_names(stages["out"], found["out"])
    site = ComputeAt("out", draw(st.sampled_from([loops[0], loops[0], *loops])))
    here: list[Directive] = [site] if draw(st.integers(0, 3)) else []
    for name in [one for one in stages if one != "out"]:
        own = [one for one in draw(loop_directives(stages[name])) if not isinstance(one, Parallel)]
        found[name] = [*here, *own]
    kept = draw(st.integers(0, 3))
    if kept:
        found["less"] = [*here, ComputeWith("square" if kept > 1 else "total")]
    if here and draw(st.booleans()):
        found["less"].append(StoreWith("out"))
    if draw(st.booleans()):
        found["square"] = [Factor("q", "part", draw(st.sampled_from([2, 4]))), *here]
        found["part"] = [*here]
    return Schedule.of(found)
