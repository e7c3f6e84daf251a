"""Native stretches of flows: a program for whatever sizes come, and a run that knows them.

A stretch is bound to sizes when it first runs at them; the last few sizes are remembered.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from graft.base import capacity
from graft.base.dtypes import Array
from graft.runtime.context import Context
from graft.runtime.engine import Engine
from graft.runtime.executor import Executor
from graft.runtime.flow import Stretch
from graft.runtime.flow_checks import Data, Symbols
from graft.runtime.flow_profile import Path, Recorder
from graft.runtime.lending import Recycled, ResultSpec
from graft.runtime.memory import ALIGNMENT, aligned_copy, is_usable
from graft.runtime.native_call import RUNS_BEFORE, NativeCall
from graft.runtime.prepared import PreparedSizes, prepared
from graft.runtime.program import Program, Spec
from graft.runtime.shaped import Measured, ShapedProgram
from graft.runtime.spaces import Runner

# Sizes that a stretch stays bound to.
REMEMBERED = 8
_LARGEST_ELEMENT = 16  # bytes


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
        specs: Sequence[Spec] = step.program.results
        self._results = [(one.dtype.numpy, one.alignment) for one in specs]
        self._alignments = [spec.alignment for spec in step.program.inputs]
        self._known: OrderedDict[tuple[int, ...], Sized] = OrderedDict()
        self._contexts: list[Context] = []  # which serve all sizes

    def __call__(self, values: list[Data], run: Run) -> list[Array]:
        sized = self.sized(run.symbols)
        pairs = zip(self._inputs, self._alignments, strict=True)
        operands = [ready(values[number], alignment) for number, alignment in pairs]
        if run.recorder is None:
            return sized.run(operands)
        outputs = sized.allocate()
        times = sized.executor.profile(operands, outputs)
        run.recorder.add(run.path, sized.program, times)
        return outputs

    @property
    def is_native(self) -> bool:
        """Whether the program has only kernels."""
        return isinstance(self._program, ShapedProgram) or self._program.is_native

    def alignment(self, number: int) -> int:
        """How the program needs a value aligned that it reads."""
        pairs = zip(self._inputs, self._alignments, strict=True)
        return max([alignment for one, alignment in pairs if one == number], default=1)

    def native_call(
        self, count: int, values: Sequence[int | Array], symbols: Symbols, order: Sequence[int]
    ) -> NativeCall | None:
        """The program at some sizes, as `NativeCall` has it; `values` are its sources by number."""
        pairs = zip(self._inputs, self._alignments, strict=True)
        sources = [_source(values[number], alignment) for number, alignment in pairs]
        sized = self.sized(symbols)
        return sized.executor.native_call(count, sources, sized.results, order)

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
            shapes = [spec.shape for spec in program.outputs]
            _refuse_absurd_sizes(program, shapes)
            executor = Executor(prepared(program, self._engine), self._engine, self._functions)
            return self._sized(shapes, executor, program, lambda: program)
        measured = program.measured(symbols)
        _refuse_absurd_sizes(measured, measured.shapes)
        executor = Executor(self._sizes.at(measured), self._engine, {}, self._contexts)
        numbers = {name: symbols[name] for name in self._names}
        return self._sized(measured.shapes, executor, measured, lambda: program.bind(numbers))

    def _sized(
        self,
        shapes: Sequence[tuple[int, ...]],
        executor: Executor,
        known: Program | Measured,
        bind: Callable[[], Program],
    ) -> Sized:
        results = [(shape, *how) for shape, how in zip(shapes, self._results, strict=False)]
        return Sized(results, self._engine.results, executor, known, bind)

    @cached_property
    def _sizes(self) -> PreparedSizes:
        assert isinstance(self._program, ShapedProgram)
        return PreparedSizes(self._program, self._engine)


@dataclass(eq=False)
class Sized:
    """A program at some sizes: its results, memory for them, and what runs it. `known` tells all
    about inputs and outputs."""

    results: list[ResultSpec]
    memory: Recycled
    executor: Executor
    known: Program | Measured
    bind: Callable[[], Program]
    runs: int = 0

    def allocate(self) -> list[Array]:
        """Arrays for the results."""
        return [self.memory.empty(shape, dtype) for shape, dtype, _ in self.results]

    def run(self, operands: Sequence[Array]) -> list[Array]:
        """Run once; sizes that come often get a native call of their own."""
        call = self._call if self.runs >= RUNS_BEFORE else None
        if call is not None:
            return call.run(*operands)
        self.runs += 1
        outputs = self.allocate()
        self.executor.run(operands, outputs)
        return outputs

    @cached_property
    def _call(self) -> NativeCall | None:
        sources, order = range(len(self.known.inputs)), range(len(self.results))
        return self.executor.native_call(len(sources), sources, self.results, order)

    @cached_property
    def program(self) -> Program:
        """Step by step, for who wants to know."""
        return self.bind()


def ready(data: Array, alignment: int) -> Array:
    """The array where it lies, or a copy that kernels can read."""
    return data if is_usable(data, alignment) else aligned_copy(data, ALIGNMENT)


def _source(value: int | Array, alignment: int) -> int | Array:
    return value if isinstance(value, int) else ready(value, alignment)


def _refuse_absurd_sizes(known: Program | Measured, shapes: Sequence[tuple[int, ...]]) -> None:
    """Loops may make more of their data with every turn."""
    if any(math.prod(shape) > capacity.MOST_BYTES // _LARGEST_ELEMENT for shape in shapes):
        for spec in known.outputs:
            capacity.check_bytes(spec.nbytes, f"'{spec.name}' would be {spec}")
    capacity.check_bytes(known.arena_bytes, "a stretch would work in an arena")
