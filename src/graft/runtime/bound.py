"""Native stretches of flows: a program for whatever sizes come, and a run that knows them.

A stretch is bound to sizes when it first runs at them; the last few sizes are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from graft.base import capacity
from graft.base.dtypes import Array
from graft.runtime.engine import Engine
from graft.runtime.executor import Executor
from graft.runtime.flow import Stretch
from graft.runtime.flow_checks import Data, Symbols
from graft.runtime.flow_profile import Path, Recorder
from graft.runtime.memory import ALIGNMENT, aligned_copy, is_usable
from graft.runtime.prepared import PreparedSizes, prepared
from graft.runtime.program import Program
from graft.runtime.shaped import Measured, ShapedProgram
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
        self._engine, self._functions = engine, functions
        self._inputs, self._program = step.inputs, step.program
        self._names = step.program.symbols if isinstance(step.program, ShapedProgram) else ()
        self._known: OrderedDict[tuple[int, ...], Sized] = OrderedDict()

    def __call__(self, values: list[Data], run: Run) -> list[Array]:
        sized = self.sized(run.symbols)
        pairs = zip(self._inputs, sized.alignments, strict=True)
        operands = [ready(values[number], alignment) for number, alignment in pairs]
        outputs = [self._engine.results.empty(*home) for home in sized.homes]
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
            found = self._known[key] = self._bound(symbols)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _bound(self, symbols: Symbols) -> Sized:
        program = self._program
        if isinstance(program, Program):
            _refuse_absurd_sizes(program)
            executor = Executor(prepared(program, self._engine), self._engine, self._functions)
            return Sized(program, executor, lambda: program)
        measured = program.measured(symbols)
        _refuse_absurd_sizes(measured)
        executor = Executor(self._sizes.at(measured), self._engine, self._functions)
        numbers = {name: symbols[name] for name in self._names}
        return Sized(measured, executor, lambda: program.bind(numbers))

    @cached_property
    def _sizes(self) -> PreparedSizes:
        assert isinstance(self._program, ShapedProgram)
        return PreparedSizes(self._program, self._engine)


class Sized:
    """A program at some sizes: what goes in and comes out, what runs it, how inputs lie, and where
    results go."""

    def __init__(
        self, known: Program | Measured, executor: Executor, program: Callable[[], Program]
    ) -> None:
        self.inputs, self.outputs, self.guards = known.inputs, known.outputs, known.guards
        self.executor, self._program = executor, program
        self.alignments = [spec.alignment for spec in known.inputs]
        results = known.outputs[:-1] if known.guards else known.outputs
        self.homes = [
            (spec.shape, spec.dtype.numpy, max(spec.alignment, ALIGNMENT)) for spec in results
        ]

    @property
    def program(self) -> Program:
        """Step by step, for who wants to know."""
        return self._program()


def ready(data: Array, alignment: int) -> Array:
    """The array where it lies, or a copy that kernels can read."""
    return data if is_usable(data, alignment) else aligned_copy(data, ALIGNMENT)


def _refuse_absurd_sizes(program: Program | Measured) -> None:
    """Loops may make more of their data with every turn."""
    for spec in program.outputs:
        if spec.nbytes > capacity.MOST_BYTES:
            capacity.check_bytes(spec.nbytes, f"'{spec.name}' would be {spec}")
    capacity.check_bytes(program.arena_bytes, "a stretch would work in an arena")
