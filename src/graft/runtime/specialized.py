"""A program for any size and others for some sizes: what is compiled of a model with variants.

The extents of the inputs tell the symbols' numbers, and these which program runs. `validate`
refuses variants that are not of the same model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graft.base.dims import bare_symbol
from graft.runtime.evaluated import EvaluatedGraph
from graft.runtime.flow import Evaluation, Stretch
from graft.runtime.flow_program import FlowProgram, all_steps
from graft.runtime.program import Program, ProgramError, PythonStep, Target
from graft.runtime.shaped import ShapedProgram

AnyProgram = Program | FlowProgram
Key = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SpecializedProgram:
    """`variants` are by the numbers that `symbols` have; `general` runs at all other sizes."""

    general: FlowProgram
    symbols: tuple[str, ...]
    variants: Mapping[Key, AnyProgram]

    @property
    def target(self) -> Target:
        """The machine that all of them are for."""
        return self.general.target

    @property
    def threads(self) -> int | None:
        """As of any program."""
        return self.general.threads

    @property
    def programs(self) -> Iterator[Program | ShapedProgram]:
        """All native programs."""
        for one in (self.general, *self.variants.values()):
            yield from one.programs if isinstance(one, FlowProgram) else (one,)

    @cached_property
    def sources(self) -> tuple[tuple[int, int], ...]:
        """Per symbol an input and its axis with that extent."""
        found: dict[str, tuple[int, int]] = {}
        for number, kind in enumerate(self.general.inputs):
            for axis, dim in enumerate(kind.shape or ()):
                name = bare_symbol(dim)
                if name is not None:
                    found.setdefault(name, (number, axis))
        missing = [name for name in self.symbols if name not in found]
        if missing:
            raise ProgramError(f"no input tells the number of '{missing[0]}'")
        return tuple(found[name] for name in self.symbols)

    def key(self, inputs: Sequence[Any]) -> Key:
        """The symbols' numbers; one of the wrong rank has none, and no variant."""
        shapes = [(np.shape(inputs[number]), axis) for number, axis in self.sources]
        return tuple([shape[axis] if axis < len(shape) else -1 for shape, axis in shapes])

    def name(self, key: Key) -> str:
        """What people call the variant; nothing is the general program."""
        return variant_name(self.symbols, key) if key in self.variants else ""

    def validate(self) -> None:
        """Refuse variants that cannot stand for the general program."""
        self.general.validate()
        own = len(self.sources)
        inputs, outputs = [kind.name for kind in self.general.inputs], self.general.output_names
        for key, program in self.variants.items():
            program.validate()
            if len(key) != own or min(key, default=1) < 1:
                raise ProgramError(f"a variant is for the sizes {list(key)} of {self.symbols}")
            if [one.name for one in program.inputs] != inputs or output_names(program) != outputs:
                raise ProgramError(f"the variant {list(key)} has other inputs or outputs")


def evaluated_steps(
    program: AnyProgram | SpecializedProgram,
) -> Iterator[tuple[Evaluation | PythonStep, EvaluatedGraph]]:
    """The steps that the reference evaluator runs, of all variants, with their graphs."""
    if isinstance(program, SpecializedProgram):
        for one in (program.general, *program.variants.values()):
            yield from evaluated_steps(one)
    elif isinstance(program, FlowProgram):
        for step in all_steps(program.flow):
            if isinstance(step, Evaluation):
                yield step, step.graph
            elif isinstance(step, Stretch) and isinstance(step.program, Program):
                yield from evaluated_steps(step.program)
    else:
        for call in program.python_steps:
            if call.graph is not None:
                yield call, call.graph


def output_names(program: AnyProgram) -> tuple[str, ...]:
    """What a program's outputs are called."""
    if isinstance(program, FlowProgram):
        return program.output_names
    return tuple(spec.name for spec in program.results)


def variant_name(symbols: Sequence[str], key: Key) -> str:
    """What people call the variant for these sizes."""
    return ", ".join(f"{name}={size}" for name, size in zip(symbols, key, strict=True))
