"""What is compiled of a model whose sizes or steps depend on its data: a flow and what it is for.

`validate` refuses one that contradicts itself before anything of it runs, as a program's does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graft.base.dims import bare_symbol, symbols_of
from graft.runtime.flow import (
    Choice,
    Flow,
    FlowStep,
    Handing,
    Kind,
    Offload,
    Reading,
    Repetition,
    Stretch,
    Sweep,
    nested,
    reads,
)
from graft.runtime.lists import OPERATIONS
from graft.runtime.program import Program, ProgramError, Target
from graft.runtime.shaped import ShapedProgram


@dataclass(frozen=True, eq=False)
class FlowProgram:
    """A compiled flow: the machine it is for, what its outputs are called, and the threads to run
    it with, at most one per core; None: one per core."""

    target: Target
    flow: Flow
    output_names: tuple[str, ...]
    threads: int | None = None

    @property
    def inputs(self) -> tuple[Kind, ...]:
        """What goes in."""
        return tuple(self.flow.kinds[number] for number in self.flow.inputs)

    @property
    def outputs(self) -> tuple[Kind, ...]:
        """What comes out."""
        return tuple(self.flow.kinds[number] for number in self.flow.outputs)

    @property
    def programs(self) -> tuple[Program | ShapedProgram, ...]:
        """All native programs, those in branches and bodies included."""
        return tuple(step.program for step in all_steps(self.flow) if isinstance(step, Stretch))

    def validate(self) -> None:
        """Refuse a flow that cannot run as it stands."""
        if self.threads is not None and self.threads < 1:
            raise ProgramError(f"it wants {self.threads} threads")
        _check_names("input", [kind.name for kind in self.inputs])
        _check_names("output", self.output_names)
        _same("names of outputs", len(self.output_names), len(self.flow.outputs))
        _check_flow(self.flow, frozenset())


def all_steps(flow: Flow) -> Iterator[FlowStep]:
    """The steps of a flow and of all flows inside it."""
    for step in flow.steps:
        yield step
        for inner in nested(step):
            yield from all_steps(inner)


def _check_names(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ProgramError(f"two {kind}s are named '{name}'")
        seen.add(name)


def _same(what: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise ProgramError(f"{what}: {given} are given and {wanted} wanted")


def _check_flow(flow: Flow, around: frozenset[str]) -> None:
    """`around` are the symbols that have numbers before the flow begins."""
    if not around.issuperset(flow.inherited):
        raise ProgramError(f"'{flow.name}' inherits symbols that nothing gives a number")
    made: set[int] = set()
    known = set(flow.inherited)

    def make(numbers: Iterable[int]) -> None:
        for number in numbers:
            if not 0 <= number < len(flow.kinds) or number in made:
                raise ProgramError(f"'{flow.name}' makes the value {number} twice, or it is none")
            made.add(number)
            known.update(_bound(flow.kinds[number]))

    def read(numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in made:
                raise ProgramError(f"'{flow.name}' reads the value {number} before it is made")

    make(flow.inputs)
    make(number for number, _ in flow.constants)
    for step in flow.steps:
        read(reads(step))
        _check_step(flow, step, frozenset(known))
        if isinstance(step, Reading):
            known.add(step.symbol)
        make(step.outputs)
    read(flow.outputs)


def _bound(kind: Kind) -> Iterator[str]:
    for dim in kind.shape or ():
        name = bare_symbol(dim)
        if name is not None:
            yield name


def _check_step(flow: Flow, step: FlowStep, known: frozenset[str]) -> None:
    for inner in nested(step):
        _check_flow(inner, known)
    match step:
        case Stretch():
            _check_stretch(step, known)
        case Handing():
            if step.operation not in OPERATIONS:
                raise ProgramError(f"'{step.operation}' is nothing that is done to lists")
            _same(f"results of '{step.operation}'", len(step.outputs), 1)
        case Offload():
            for number in step.outputs:
                _check_home(flow.kinds[number], known)
        case Choice():
            for branch in step.branches:
                _same("inputs of a branch", len(branch.inputs), len(step.captures))
                _same("outputs of a branch", len(branch.outputs), len(step.outputs))
        case Repetition():
            taken = 2 + len(step.carried) + len(step.captures)
            _same("inputs of a loop's body", len(step.body.inputs), taken)
            _same("outputs of a loop's body", len(step.body.outputs), 1 + len(step.outputs))
            _at_least("outputs of a loop", len(step.outputs), len(step.carried))
        case Sweep():
            _check_sweep(step)


def _check_stretch(step: Stretch, known: frozenset[str]) -> None:
    program = step.program
    program.validate()
    _same("inputs of a stretch", len(program.inputs), len(step.inputs))
    _same("outputs of a stretch", len(program.results), len(step.outputs))
    if isinstance(program, ShapedProgram) and not known.issuperset(program.symbols):
        raise ProgramError(f"of {list(program.symbols)} some have no number when a stretch begins")


def _check_home(kind: Kind, known: frozenset[str]) -> None:
    symbols = {name for dim in kind.shape or () for name in symbols_of(dim)}
    if kind.dtype is None or kind.shape is None or not symbols <= known:
        raise ProgramError(f"the size of '{kind.name}' is not known when a region makes it")


def _check_sweep(step: Sweep) -> None:
    body, carried = step.body, len(step.carried)
    taken = carried + len(step.scanned) + len(step.captures)
    _at_least("scanned tensors", len(step.scanned), 1)
    _same("inputs of a scan's body", len(body.inputs), taken)
    _same("outputs of a scan's body", len(body.outputs), len(step.outputs))
    for what, given in (("axes", step.axes), ("directions", step.backwards)):
        _same(f"{what} of scanned tensors", len(given), len(step.scanned))
    for what, given in (("axes", step.result_axes), ("directions", step.result_backwards)):
        _same(f"{what} of stacked results", len(given), len(step.outputs) - carried)


def _at_least(what: str, given: int, least: int) -> None:
    if given < least:
        raise ProgramError(f"{what}: {given} are given and at least {least} wanted")
