"""The loop nest of one stage: its loops in order and how they came from the stage's axes.

A tensor and its directives enter; a `Nest` leaves, or a `ScheduleError` that names the stage and
the loop. Whatever can be decided about a directive without knowing extents is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from graft.loop.errors import ScheduleError
from graft.loop.ir import LoopKind, Scope
from graft.loop.schedule import (
    SCOPES,
    Combine,
    ComputeAt,
    ComputeWith,
    Directive,
    Fuse,
    Mask,
    Parallel,
    Reorder,
    Split,
    StoreIn,
    StoreWith,
    Tensorize,
    Thread,
    Unroll,
    Vectorize,
)
from graft.loop.tensor import Reduce, Tensor


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a nest by its name."""

    name: str
    reduces: bool = False
    kind: LoopKind = LoopKind.SERIAL
    masked: bool = False  # whether guards mask the lanes of a vector loop


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops, outermost first, the splits and fusions that made them, and where it is computed."""

    stage: str
    loops: tuple[Loop, ...]
    relations: tuple[Split | Fuse, ...] = ()
    site: ComputeAt | None = None
    along: str | None = None  # the stage that computes its elements: it has no loops of its own
    scope: Scope = Scope.HEAP
    store_with: str | None = None  # the stage in whose memory its elements are
    tensorize: Tensorize | None = None

    def fail(self, message: str, hint: str = "") -> ScheduleError:
        return ScheduleError(f"schedule of {self.stage}: {message}", hint=hint)

    def position(self, name: str) -> int:
        """The position of a loop; the outermost is 0."""
        for position, loop in enumerate(self.loops):
            if loop.name == name:
                return position
        names = ", ".join(loop.name for loop in self.loops) or "none"
        raise self.fail(f"there is no loop '{name}'", hint=f"its loops are {names}")

    def leaves(self, name: str) -> frozenset[str]:
        """The loops of the nest that an axis or former loop is made of."""
        for relation in self.relations:
            match relation:
                case Split(loop=loop, outer=outer, inner=inner) if loop == name:
                    return self.leaves(outer) | self.leaves(inner)
                case Fuse(outer=outer, inner=inner, fused=fused) if name in (outer, inner):
                    return self.leaves(fused)
                case _:
                    continue
        return frozenset([name])

    def is_masked(self, name: str) -> bool:
        """Whether a loop of the nest is a vector whose lanes guards mask."""
        return any(loop.masked for loop in self.loops if loop.name == name)

    def reduction_position(self) -> int:
        """The position of the outermost reduction loop, or the number of loops."""
        positions = (position for position, loop in enumerate(self.loops) if loop.reduces)
        return next(positions, len(self.loops))


def short(name: str) -> str:
    """An axis without its stage: `conv@ow` -> `ow`."""
    return name.rpartition("@")[2]


def make_nest(tensor: Tensor, directives: Iterable[Directive]) -> Nest:
    """The stage's loops after all its directives."""
    loops = [Loop(short(axis.name)) for axis in tensor.axes]
    if isinstance(tensor.body, Reduce):
        loops += [Loop(short(axis.name), reduces=True) for axis, _ in tensor.body.axes]
    nest = Nest(tensor.name, tuple(loops))
    for directive in directives:
        if type(directive) in _APPLY:  # others have changed the tensors before there are nests
            nest = _APPLY[type(directive)](nest, directive)
    _check_tails(nest)
    _check_kinds(nest)
    return nest


def _new_names(nest: Nest, *names: str) -> None:
    names_in_use = {loop.name for loop in nest.loops}
    for relation in nest.relations:
        names_in_use |= {relation.outer, relation.inner}
        names_in_use.add(relation.loop if isinstance(relation, Split) else relation.fused)
    for name in names:
        if name in names_in_use or names.count(name) > 1:
            raise nest.fail(f"there is a loop '{name}' already")


def _plain(nest: Nest, name: str) -> Loop:
    loop = nest.loops[nest.position(name)]
    if loop.kind is not LoopKind.SERIAL:
        raise nest.fail(f"loop '{name}' is {loop.kind.value} already")
    return loop


def _split(nest: Nest, split: Split) -> Nest:
    loop = _plain(nest, split.loop)
    _new_names(nest, split.outer, split.inner)
    if split.factor < 1:
        raise nest.fail(f"cannot split loop '{split.loop}' by {split.factor}")
    if split.tail == "shift_inwards" and loop.reduces:
        message = f"cannot shift the tail of loop '{split.loop}' inwards: it carries a reduction"
        raise nest.fail(message, hint="elements would count twice; use guard or remainder")
    position = nest.position(split.loop)
    new = (replace(loop, name=split.outer), replace(loop, name=split.inner))
    loops = nest.loops[:position] + new + nest.loops[position + 1 :]
    return replace(nest, loops=loops, relations=(*nest.relations, split))


def _fuse(nest: Nest, fuse: Fuse) -> Nest:
    outer, inner = _plain(nest, fuse.outer), _plain(nest, fuse.inner)
    _new_names(nest, fuse.fused)
    position = nest.position(fuse.outer)
    if nest.position(fuse.inner) != position + 1:
        message = f"cannot fuse loops '{fuse.outer}' and '{fuse.inner}'"
        raise nest.fail(f"{message}: they are no neighbours, in this order")
    if outer.reduces != inner.reduces:
        carrier = fuse.outer if outer.reduces else fuse.inner
        message = f"cannot fuse loops '{fuse.outer}' and '{fuse.inner}'"
        raise nest.fail(f"{message}: only '{carrier}' carries a reduction")
    loops = (*nest.loops[:position], replace(outer, name=fuse.fused), *nest.loops[position + 2 :])
    return replace(nest, loops=loops, relations=(*nest.relations, fuse))


def _reorder(nest: Nest, reorder: Reorder) -> Nest:
    positions = sorted(nest.position(name) for name in reorder.loops)
    if len(set(positions)) != len(positions):
        raise nest.fail(f"cannot reorder loops: a name of {', '.join(reorder.loops)} is repeated")
    loops = list(nest.loops)
    for position, name in zip(positions, reorder.loops, strict=True):
        loops[position] = nest.loops[nest.position(name)]
    return replace(nest, loops=tuple(loops))


_VERBS = {
    LoopKind.VECTOR: "vectorise",
    LoopKind.PARALLEL: "parallelise",
    LoopKind.THREAD: "share among threads",
    LoopKind.UNROLLED: "unroll",
}


def _combine(nest: Nest, directive: Combine) -> Nest:
    loop = _plain(nest, directive.loop)
    if not loop.reduces:
        raise nest.fail(f"cannot combine lanes of loop '{loop.name}': it carries no reduction")
    return _of_kind(nest, loop, LoopKind.VECTOR)


def _mark(nest: Nest, name: str, kind: LoopKind) -> Nest:
    loop = _plain(nest, name)
    if loop.reduces and kind is not LoopKind.UNROLLED:
        raise nest.fail(f"cannot {_VERBS[kind]} loop '{name}': it carries a reduction")
    return _of_kind(nest, loop, kind)


def _of_kind(nest: Nest, loop: Loop, kind: LoopKind, masked: bool = False) -> Nest:
    new = replace(loop, kind=kind, masked=masked)
    return replace(nest, loops=tuple(new if one is loop else one for one in nest.loops))


def _mask(nest: Nest, directive: Mask) -> Nest:
    loop = _plain(nest, directive.loop)
    if loop.reduces:
        message = f"cannot mask loop '{loop.name}': it carries a reduction"
        raise nest.fail(message, hint="factor_masked reduces in lanes that can be masked")
    return _of_kind(nest, loop, LoopKind.VECTOR, masked=True)


def _along(nest: Nest, directive: ComputeWith) -> Nest:
    if nest.relations or any(loop.kind is not LoopKind.SERIAL for loop in nest.loops):
        raise nest.fail(f"cannot compute it with {directive.stage}: its loops are scheduled")
    return replace(nest, loops=(), along=directive.stage)


def _tensorize(nest: Nest, directive: Tensorize) -> Nest:
    _plain(nest, directive.loop)
    return replace(nest, tensorize=directive)


_APPLY: dict[type[Directive], Callable[[Nest, Any], Nest]] = {
    Split: _split,
    Fuse: _fuse,
    Reorder: _reorder,
    Vectorize: lambda nest, directive: _mark(nest, directive.loop, LoopKind.VECTOR),
    Mask: _mask,
    Unroll: lambda nest, directive: _mark(nest, directive.loop, LoopKind.UNROLLED),
    Parallel: lambda nest, directive: _mark(nest, directive.loop, LoopKind.PARALLEL),
    Thread: lambda nest, directive: _mark(nest, directive.loop, LoopKind.THREAD),
    ComputeAt: lambda nest, directive: replace(nest, site=directive),
    ComputeWith: _along,
    StoreIn: lambda nest, directive: replace(nest, scope=SCOPES[directive.scope]),
    StoreWith: lambda nest, directive: replace(nest, store_with=directive.stage),
    Combine: _combine,
    Tensorize: _tensorize,
}


def _check_tails(nest: Nest) -> None:
    """Refuse splits whose loops were reordered or fused such that their tail is undefined."""
    splits = [relation for relation in nest.relations if isinstance(relation, Split)]
    for split in splits:
        outer, inner = nest.leaves(split.outer), nest.leaves(split.inner)
        first_inner = min(nest.position(name) for name in inner)
        if split.tail == "remainder":
            if outer != {split.outer}:
                message = f"cannot split or fuse loop '{split.outer}'"
                raise nest.fail(f"{message}: the remainder of '{split.loop}' follows it")
            if nest.position(split.outer) > first_inner:
                message = f"cannot put loop '{split.inner}' outside '{split.outer}'"
                raise nest.fail(f"{message}: the remainder of '{split.loop}' follows it")
        if split.tail == "branch" and max(map(nest.position, outer)) > first_inner:
            message = f"cannot put loop '{split.inner}' outside '{split.outer}'"
            raise nest.fail(f"{message}, which decides how far it goes")
        if split.tail == "shift_inwards":
            last_outer = max(nest.position(name) for name in outer)
            if last_outer > nest.reduction_position():
                carrier = nest.loops[nest.reduction_position()].name
                message = f"cannot shift the tail of loop '{split.loop}' inwards"
                raise nest.fail(f"{message}: '{split.outer}' is inside '{carrier}', which reduces")
            _check_overlap(nest, split, outer)


def _check_overlap(nest: Nest, split: Split, outer: frozenset[str]) -> None:
    """Refuse overlapping tiles that would accumulate into the same elements concurrently."""
    if nest.reduction_position() == len(nest.loops):
        return
    around = {loop.name for loop in nest.loops[: max(nest.position(name) for name in outer)]}
    shared = outer | (nest.leaves(split.inner) & around)
    for loop in nest.loops:
        is_vector = loop.kind is LoopKind.VECTOR and loop.name in outer
        if is_vector or (loop.kind is LoopKind.PARALLEL and loop.name in shared):
            message = f"cannot shift the tail of loop '{split.loop}' inwards"
            carrier = nest.loops[nest.reduction_position()].name
            kind = "a vector" if is_vector else "parallel"
            raise nest.fail(
                f"{message}: '{loop.name}' is {kind} around '{carrier}', which reduces",
                hint="elements of two tiles would count twice; use guard or remainder",
            )


def _check_kinds(nest: Nest) -> None:
    """Allow one parallel loop, outside reductions, and one vector loop inside it."""
    parallel = [loop.name for loop in nest.loops if loop.kind is LoopKind.PARALLEL]
    vector = [loop.name for loop in nest.loops if loop.kind is LoopKind.VECTOR]
    if len(parallel) > 1:
        raise nest.fail(f"loop '{parallel[1]}' is parallel inside '{parallel[0]}', which is too")
    if len(vector) > 1:
        raise nest.fail(f"loop '{vector[1]}' is a vector inside '{vector[0]}', which is one too")
    if parallel and nest.position(parallel[0]) > nest.reduction_position():
        carrier = nest.loops[nest.reduction_position()].name
        message = f"loop '{parallel[0]}' is parallel inside '{carrier}', which carries a reduction"
        raise nest.fail(message)
    if parallel and vector and nest.position(parallel[0]) > nest.position(vector[0]):
        raise nest.fail(f"loop '{parallel[0]}' is parallel inside the vector loop '{vector[0]}'")
