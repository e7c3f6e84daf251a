"""A computation with its schedule applied stage by stage: tensors, nests and sites.

Arguments and a schedule enter; a `Program` leaves, in which every stage has a nest and a place
where it is computed, or a `ScheduleError`. Legality between stages is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graft.loop.errors import LoopError, ScheduleError
from graft.loop.ir import LoopKind, Scope
from graft.loop.nest import Nest, make_nest
from graft.loop.schedule import Schedule, Split
from graft.loop.stages import fail, loads, reads, rewrite_stages
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.loop.traverse import loads_in


@dataclass(frozen=True)
class Program:
    """Tensors, each after what it reads; the nests of those that are computed."""

    tensors: dict[str, Tensor]
    nests: dict[str, Nest]
    arguments: tuple[str, ...]

    def readers(self, name: str) -> list[str]:
        """The stages that read a tensor."""
        return [other for other, tensor in self.tensors.items() if name in reads(tensor)]

    def roots(self) -> list[Tensor]:
        """The stages that no other stage's loop contains."""
        return [self.tensors[name] for name, nest in self.nests.items() if nest.site is None]

    def computed_at(self, stage: str, loop: str) -> list[Tensor]:
        """The stages computed at the start of each iteration of a loop."""
        sites = {name: nest.site for name, nest in self.nests.items() if nest.site is not None}
        names = [n for n, site in sites.items() if (site.stage, site.loop) == (stage, loop)]
        return [self.tensors[name] for name in names]

    def inside(self, stage: str, loop: str) -> list[Tensor]:
        """The stages computed anywhere within an iteration of a loop."""
        position = self.nests[stage].position(loop)
        return [self.tensors[name] for name in self.nests if self._is_inside(name, stage, position)]

    def loop_within(self, name: str, stage: str) -> str | None:
        """The loop of a stage at which another one is computed, be it inside of further ones."""
        site = self.nests[name].site
        if site is None or site.stage == stage:
            return None if site is None else site.loop
        return self.loop_within(site.stage, stage)

    def is_within(self, name: str, stages: set[str]) -> bool:
        """Whether a stage is computed in a loop of one of the stages."""
        site = self.nests[name].site
        return site is not None and (site.stage in stages or self.is_within(site.stage, stages))

    def _is_inside(self, name: str, stage: str, position: int) -> bool:
        site = self.nests[name].site
        if site is None:
            return False
        if site.stage == stage:
            return self.nests[stage].position(site.loop) >= position
        return self._is_inside(site.stage, stage, position)


def make_program(arguments: Sequence[Tensor], schedule: Schedule) -> Program:
    """Apply a schedule to the stages that the arguments need."""
    names = [tensor.name for tensor in arguments]
    if len(set(names)) != len(names):
        raise LoopError(f"an argument is given twice: {', '.join(names)}")
    tensors = in_order(arguments)
    missing = [t.name for t in tensors if t.body is None and t.name not in names]
    if missing:
        raise LoopError(f"'{missing[0]}' is read and has to be an argument")
    rewritten = rewrite_stages(tensors, set(names), schedule)
    nests = {
        name: make_nest(tensor, schedule.directives(name))
        for name, tensor in rewritten.items()
        if tensor.body is not None
    }
    program = Program(rewritten, nests, tuple(names))
    for name, nest in nests.items():
        _check_site(program, name, nest)
        _check_along(program, name, nest)
        _check_memory(program, name, nest)
        _check_store_with(program, name, nest)
    return program


def _check_site(program: Program, name: str, nest: Nest) -> None:
    site = nest.site
    if site is None:
        return
    where = f"cannot compute it at loop '{site.loop}' of {site.stage}"
    if name in program.arguments:
        raise fail(name, f"{where}: it is an argument and has to be computed whole")
    if site.stage not in program.nests:
        raise fail(name, f"{where}: there is no such stage")
    owner = program.nests[site.stage]
    try:
        position = owner.position(site.loop)
    except ScheduleError as error:
        raise fail(name, f"{where}: {error.message}", error.hint) from None
    order = list(program.nests)
    if order.index(site.stage) <= order.index(name):
        raise fail(name, f"{where}: {site.stage} comes before it")
    inside = {tensor.name for tensor in program.inside(site.stage, site.loop)} | {site.stage}
    outside = [reader for reader in program.readers(name) if reader not in inside]
    if outside:
        raise fail(name, f"{where}: {outside[0]} reads it outside that loop")
    if owner.reduction_position() <= position and _reads_initially(program, site.stage, name):
        raise fail(name, f"{where}: the initial value needs it before that loop")
    tile = owner.tensorize
    if tile is not None and position >= owner.position(tile.loop):
        raise fail(name, f"{where}: that is inside the tensorized loop '{tile.loop}'")
    inner_vector = [one.name for one in owner.loops[: position + 1] if one.kind is LoopKind.VECTOR]
    if inner_vector:
        raise fail(name, f"{where}: that is inside the vector loop '{inner_vector[0]}'")


def _check_along(program: Program, name: str, nest: Nest) -> None:
    """Refuse a stage that others read before those that compute it, or from other loops."""
    if nest.along is None:
        return
    where = f"cannot compute it with {nest.along}"
    readers = program.readers(name)
    computing = [reader for reader in readers if name in program.tensors[reader].computes]
    for one in computing:
        other = program.nests[one]
        if other.along is not None or other.tensorize is not None:
            raise fail(name, f"{where}: {one} has no loops of its own")
        if other.site != nest.site:
            raise fail(name, f"{where}: {one} is computed elsewhere")
    order = list(program.nests)
    last = max(map(order.index, computing))
    early = [reader for reader in readers if reader not in computing and order.index(reader) < last]
    if early:
        raise fail(name, f"{where}: {early[0]} reads it before that")
    inside = [one for one in program.nests if program.is_within(one, set(computing))]
    if any(one in readers for one in inside):
        raise fail(name, f"{where}: a stage inside of that reads it")


def _check_store_with(program: Program, name: str, nest: Nest) -> None:
    """Refuse a stage whose elements would be overwritten before they are read, or elsewhere."""
    if nest.store_with is None:
        return
    where = f"cannot store it with {nest.store_with}"
    site, owner = nest.site, program.tensors.get(nest.store_with)
    if owner is None or site is None or site.stage != owner.name:
        raise fail(name, f"{where}: it is not computed at a loop of that")
    tensor = program.tensors[name]
    same = (tensor.dtype, tensor.shape) == (owner.dtype, owner.shape)
    if not same or nest.scope is not Scope.HEAP:
        raise fail(name, f"{where}: dtype, shape or scope differ")
    at = {load.indices for load in loads(owner) if load.buffer.name == name}
    if at != {owner.axes} or isinstance(owner.body, Reduce) or name in owner.computes:
        raise fail(name, f"{where}: that does not read just the element whose place it takes")
    splits = [one for one in program.nests[owner.name].relations if isinstance(one, Split)]
    if any(split.tail == "shift_inwards" for split in splits):
        raise fail(name, f"{where}: tiles of that overlap")
    for reader in program.readers(name):
        if reader != owner.name and program.loop_within(reader, owner.name) != site.loop:
            raise fail(name, f"{where}: {reader} reads it in a loop inside of that")


def _reads_initially(program: Program, reader: str, name: str) -> bool:
    body = program.tensors[reader].body
    if not isinstance(body, Reduce):
        return False
    return any(load.buffer.name == name for load in loads_in(body.initial))


def _check_memory(program: Program, name: str, nest: Nest) -> None:
    parallel = [loop.name for loop in nest.loops if loop.kind is LoopKind.PARALLEL]
    is_argument = name in program.arguments
    if parallel and not is_argument:
        message = f"cannot parallelise loop '{parallel[0]}': each thread has its own '{name}'"
        raise fail(name, message, hint="make it an argument, which the threads share")
    if nest.scope is Scope.REGISTER and (is_argument or nest.site is None):
        what = "an argument" if is_argument else "computed outside every loop"
        raise fail(name, f"cannot keep it in registers: it is {what}")
    if not is_argument and nest.site is None and not program.readers(name):
        raise fail(name, "nothing reads it")
