"""Schedules: how to compute, as data.

A directive is a frozen dataclass; a `Schedule` maps stages to the directives that apply to them, in
order. It is hashable and has a text form that parses back, so that defaults, a database and a
search can all supply one:

    out: split(ow, ow_o, ow_i, 6, remainder) unroll(ow_i) vectorize(c)
    conv: compute_at(out, ow_o) store_in(register) reorder(ci, kh, kw, ow, c) vectorize(c)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from graft.base.errors import ParseError
from graft.loop.ir import Scope

Tail = Literal["guard", "remainder", "branch", "shift_inwards"]
ScopeName = Literal["heap", "shared", "register"]


@dataclass(frozen=True, slots=True)
class Split:
    """Cut a loop into tiles: `loop = outer * factor + inner`.

    The last, partial tile is cut short (guard), gets loops of its own behind the loop (remainder)
    or in a branch of each iteration (branch), or is moved back so that it is whole and overlaps the
    one before (shift_inwards).
    """

    loop: str
    outer: str
    inner: str
    factor: int
    tail: Tail = "guard"


@dataclass(frozen=True, slots=True)
class Fuse:
    """Make one loop of two neighbours: `fused = outer * extent of inner + inner`."""

    outer: str
    inner: str
    fused: str


@dataclass(frozen=True, slots=True)
class Reorder:
    """Permute the named loops among their positions, outermost first."""

    loops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vectorize:
    """Run a loop in the lanes of vectors; its extent has to be constant."""

    loop: str


@dataclass(frozen=True, slots=True)
class Mask:
    """Vectorize a loop; where a guard or a select applies to some of its lanes, mask the others.

    A vector that a guard cuts short then stays one vector, whose other lanes are neither read nor
    written, instead of a loop over what is left.
    """

    loop: str


@dataclass(frozen=True, slots=True)
class Unroll:
    """Unroll a loop; its extent has to have a constant bound."""

    loop: str


@dataclass(frozen=True, slots=True)
class Parallel:
    """Share a loop among the threads."""

    loop: str


@dataclass(frozen=True, slots=True)
class Thread:
    """Share a loop among the threads of a block; a parallel loop around it is shared by blocks."""

    loop: str


@dataclass(frozen=True, slots=True)
class Inline:
    """Compute the stage wherever it is read, and store it nowhere."""


@dataclass(frozen=True, slots=True)
class ComputeAt:
    """Compute what an iteration of another stage's loop needs at the start of that iteration."""

    stage: str
    loop: str


@dataclass(frozen=True, slots=True)
class ComputeWith:
    """Compute each element where another stage reads it, and keep it for further readers.

    The stage has no loops of its own: each innermost iteration of the other one computes the
    element that it needs, stores it and goes on with its value. Both are computed at the same loop,
    where the memory of the elements is.
    """

    stage: str


@dataclass(frozen=True, slots=True)
class StoreIn:
    """Keep the stage's elements in registers, in memory that the threads of a block share, or in
    scratch memory (the default)."""

    scope: ScopeName


@dataclass(frozen=True, slots=True)
class StoreWith:
    """Keep the stage's elements in the memory of another, at the same indices, until it takes it.

    The other one reads an element last, where it computes the one that takes its place.
    """

    stage: str


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Compute the stage's elements into a stage of the given name, from which they are copied."""

    name: str


@dataclass(frozen=True, slots=True)
class Pack:
    """Copy a tensor that the stage reads into a stage of the given name, in another layout.

    `blocks` gives each dimension's block size, 0 for none; a blocked dimension becomes two, which
    count blocks and elements in a block, and is filled up with zeros. `order` then permutes all.
    """

    tensor: str
    name: str
    blocks: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """Reduce over an axis in `lanes` totals, side by side, that are then combined.

    The totals are a stage of the given name with one more axis, `lane`; what does not fill all
    lanes is a stage called `<name>.tail`, which the totals are added to.
    """

    axis: str
    name: str
    lanes: int


@dataclass(frozen=True, slots=True)
class FactorMasked:
    """As Factor, but what does not fill all lanes is a vector of them too.

    Its elements beyond the end of the axis are the reduction's identity: with `mask(lane)` they are
    not read. It is a stage called `<name>.tail` with an axis `lane`, which the totals begin with;
    where there are other axes to reduce over and the extent is constant, which leaves no doubt in
    most steps, it is the last step of the totals.
    """

    axis: str
    name: str
    lanes: int


@dataclass(frozen=True, slots=True)
class Interleave:
    """Reduce over an axis in `count` interleaved totals, which shortens the dependence chain.

    The totals are a stage of the given name with one more axis, `part`, in front. What does not
    fill all of them is a stage called `<name>.rest`: a total for each element, along an axis `part`
    too, where their number is known, else one total. The stage itself combines all of these.
    """

    axis: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Combine:
    """Vectorize a reduction loop; its lanes are combined by a horizontal reduction."""

    loop: str


@dataclass(frozen=True, slots=True)
class Tensorize:
    """Replace a loop and all inside it by what a registered micro-kernel generator emits."""

    loop: str
    kernel: str


Directive = (
    Split
    | Fuse
    | Reorder
    | Vectorize
    | Mask
    | Unroll
    | Parallel
    | Thread
    | Inline
    | ComputeAt
    | ComputeWith
    | StoreIn
    | StoreWith
    | CacheWrite
    | Pack
    | Factor
    | FactorMasked
    | Interleave
    | Combine
    | Tensorize
)
SCOPES: dict[ScopeName, Scope] = {
    "heap": Scope.HEAP,
    "shared": Scope.SHARED,
    "register": Scope.REGISTER,
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Directives by stage, each stage at most once."""

    stages: tuple[tuple[str, tuple[Directive, ...]], ...] = ()

    @staticmethod
    def of(stages: Mapping[str, Sequence[Directive]]) -> Schedule:
        """The schedule with these directives."""
        return Schedule(tuple((name, tuple(parts)) for name, parts in stages.items()))

    def directives(self, stage: str) -> tuple[Directive, ...]:
        """The stage's directives, in order."""
        return next((parts for name, parts in self.stages if name == stage), ())

    def __str__(self) -> str:
        return "".join(
            f"{name}:{''.join(f' {directive_text(part)}' for part in parts)}\n"
            for name, parts in self.stages
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """A schedule that is valid where scalars are at least the values in `needs`."""

    schedule: Schedule
    needs: tuple[tuple[str, int], ...] = ()


def _keyword(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_KINDS: dict[str, type] = {_keyword(kind): kind for kind in get_args(Directive)}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_DIRECTIVE = re.compile(r"\s*([a-z_]+)\(((?:[^()]|\([^()]*\))*)\)")


def directive_text(directive: Directive) -> str:
    """`split(i, i_o, i_i, 6, guard)`."""
    values = [getattr(directive, one.name) for one in fields(directive)]
    if isinstance(directive, Reorder):
        values = list(directive.loops)
    return f"{_keyword(type(directive))}({', '.join(map(_value_text, values))})"


def _value_text(value: object) -> str:
    return f"({' '.join(map(str, value))})" if isinstance(value, tuple) else str(value)


def parse_schedule(text: str) -> Schedule:
    """The schedule that the text describes: a line per stage."""
    stages: dict[str, tuple[Directive, ...]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            name, _, rest = line.partition(":")
            if not _WORD.fullmatch(name.strip()) or name.strip() in stages:
                raise ParseError(f"line {number}: expected a new stage, found '{name.strip()}'")
            stages[name.strip()] = _parse_directives(rest, number)
    return Schedule.of(stages)


def _parse_directives(text: str, number: int) -> tuple[Directive, ...]:
    directives, position = [], 0
    while text[position:].strip():
        match = _DIRECTIVE.match(text, position)
        if match is None or match[1] not in _KINDS:
            raise ParseError(f"line {number}: cannot read '{text[position:].strip()}'")
        parts = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
        directives.append(_make(_KINDS[match[1]], parts, f"line {number}: {match[0].strip()}"))
        position = match.end()
    return tuple(directives)


def _make(kind: type, parts: list[str], where: str) -> Directive:
    if kind is Reorder:
        return Reorder(tuple(parts))
    hints = get_type_hints(kind)
    names = [one.name for one in fields(kind)]
    if len(parts) != len(names):
        raise ParseError(f"{where}: expected {len(names)} values: {', '.join(names)}")
    pairs = zip(names, parts, strict=True)
    directive: Directive = kind(*(_parse_value(hints[name], part, where) for name, part in pairs))
    return directive


def _parse_value(hint: Any, text: str, where: str) -> Any:
    choices = get_args(hint)
    try:
        if hint is int:
            return int(text)
        if int in choices:
            if not (text.startswith("(") and text.endswith(")")):
                raise ValueError(text)
            return tuple(int(word) for word in text[1:-1].split())
    except ValueError:
        raise ParseError(f"{where}: '{text}' is no number or list of numbers") from None
    if choices and text not in choices:
        raise ParseError(f"{where}: '{text}' is none of {', '.join(choices)}")
    return text
