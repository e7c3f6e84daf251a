"""Native stretches of flows: a program for whatever sizes come, and a run that knows them.

A stretch is bound to sizes when it first runs at them; the last few sizes are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from graft.base.capacity import check_bytes
from graft.base.dtypes import Array
from graft.runtime.engine import Engine
from graft.runtime.executor import Executor
from graft.runtime.flow import Stretch
from graft.runtime.flow_checks import Data, Symbols
from graft.runtime.flow_profile import Path, Recorder
from graft.runtime.memory import ALIGNMENT, aligned_copy, aligned_empty, is_usable
from graft.runtime.program import Program
from graft.runtime.shaped import ShapedProgram
from graft.runtime.spaces import Runner

# Sizes that a stretch stays bound to.
REMEMBERED = 8


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run in progress: what symbols stand for, and who measures it, where somebody does."""

    symbols: Symbols
    recorder: Recorder | None = None
    path: Path = ()  # of the step that runs


class Bound:
    """A program, bound to whatever sizes come."""

    def __init__(self, step: Stretch, engine: Engine, functions: Mapping[str, Runner]) -> None:
        self._program, self._engine, self._functions = step.program, engine, functions
        self._names = step.program.symbols if isinstance(step.program, ShapedProgram) else ()
        self._inputs = step.inputs
        self._known: OrderedDict[tuple[int, ...], Sized] = OrderedDict()

    def __call__(self, values: list[Data], run: Run) -> list[Array]:
        sized = self.sized(run.symbols)
        pairs = zip(self._inputs, sized.alignments, strict=True)
        operands = [ready(values[number], alignment) for number, alignment in pairs]
        outputs = [aligned_empty(*home) for home in sized.homes]
        if run.recorder is None:
            sized.executor.run(operands, outputs)
        else:
            run.recorder.add(run.path, sized.program, sized.executor.profile(operands, outputs))
        return outputs

    def sized(self, symbols: Symbols) -> Sized:
        """The program at some sizes."""
        key = tuple([symbols[name] for name in self._names])
        found = self._known.get(key)
        if found is None:
            program = self._program
            plain = program.bind(symbols) if isinstance(program, ShapedProgram) else program
            _refuse_absurd_sizes(plain)
            found = Sized(plain, Executor(plain, self._engine, self._functions))
            self._known[key] = found
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found


class Sized:
    """A program at some sizes: what runs it, how inputs lie, and where results go."""

    def __init__(self, program: Program, executor: Executor) -> None:
        self.program, self.executor = program, executor
        self.alignments = [spec.alignment for spec in program.inputs]
        self.homes = [
            (spec.shape, spec.dtype.numpy, max(spec.alignment, ALIGNMENT))
            for spec in program.results
        ]


def ready(data: Array, alignment: int) -> Array:
    """The array where it lies, or a copy that kernels can read."""
    return data if is_usable(data, alignment) else aligned_copy(data, ALIGNMENT)


def _refuse_absurd_sizes(program: Program) -> None:
    """Loops may make more of their data with every turn."""
    for spec in program.outputs:
        check_bytes(spec.nbytes, f"'{spec.name}' would be {spec}")
    check_bytes(program.arena_bytes, "a stretch would work in an arena")
