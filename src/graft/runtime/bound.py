"""Native stretches of flows: a program for whatever sizes come, and a run that knows them.

A stretch is bound to sizes when it first runs at them; the last few sizes are remembered.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graft.base import capacity
from graft.base.dtypes import Array
from graft.runtime.context import Context
from graft.runtime.engine import Engine
from graft.runtime.executor import Executor
from graft.runtime.flow import Stretch
from graft.runtime.flow_checks import Data, Symbols
from graft.runtime.flow_profile import Path, Recorder
from graft.runtime.memory import ALIGNMENT, aligned_copy, is_usable
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


# Shape, element type and alignment of memory for a result.
Home = tuple[tuple[int, ...], np.dtype[Any], int]


class Bound:
    """A program, bound to whatever sizes come."""

    def __init__(self, step: Stretch, engine: Engine, functions: Mapping[str, Runner]) -> None:
        self._engine, self._functions = engine, functions
        self._inputs, self._program = step.inputs, step.program
        self._names = step.program.symbols if isinstance(step.program, ShapedProgram) else ()
        specs: Sequence[Spec] = step.program.results
        self._results = [(one.dtype.numpy, max(one.alignment, ALIGNMENT)) for one in specs]
        self._alignments = [spec.alignment for spec in step.program.inputs]
        self._known: OrderedDict[tuple[int, ...], Sized] = OrderedDict()
        self._contexts: list[Context] = []  # which serve all sizes

    def __call__(self, values: list[Data], run: Run) -> list[Array]:
        sized = self.sized(run.symbols)
        pairs = zip(self._inputs, self._alignments, strict=True)
        operands = [ready(values[number], alignment) for number, alignment in pairs]
        outputs = [self._engine.results.empty(*home) for home in sized.homes]
        if run.recorder is None:
            sized.executor.run(operands, outputs)
        else:
            times = sized.executor.profile(operands, outputs)
            run.recorder.add(run.path, sized.program, times)
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
            shapes = [spec.shape for spec in program.outputs]
            _refuse_absurd_sizes(program, shapes)
            executor = Executor(prepared(program, self._engine), self._engine, self._functions)
            return Sized(self._homes(shapes), executor, program, lambda: program)
        measured = program.measured(symbols)
        _refuse_absurd_sizes(measured, measured.shapes)
        executor = Executor(self._sizes.at(measured), self._engine, {}, self._contexts)
        numbers = {name: symbols[name] for name in self._names}
        homes = self._homes(measured.shapes)
        return Sized(homes, executor, measured, lambda: program.bind(numbers))

    def _homes(self, shapes: Sequence[tuple[int, ...]]) -> list[Home]:
        return [(shape, *how) for shape, how in zip(shapes, self._results, strict=False)]

    @cached_property
    def _sizes(self) -> PreparedSizes:
        assert isinstance(self._program, ShapedProgram)
        return PreparedSizes(self._program, self._engine)


@dataclass(frozen=True, eq=False)
class Sized:
    """A program at some sizes: where results go, and what runs it. `known` tells all about inputs
    and outputs."""

    homes: list[Home]
    executor: Executor
    known: Program | Measured
    bind: Callable[[], Program]

    @cached_property
    def program(self) -> Program:
        """Step by step, for who wants to know."""
        return self.bind()


def ready(data: Array, alignment: int) -> Array:
    """The array where it lies, or a copy that kernels can read."""
    return data if is_usable(data, alignment) else aligned_copy(data, ALIGNMENT)


def _refuse_absurd_sizes(known: Program | Measured, shapes: Sequence[tuple[int, ...]]) -> None:
    """Loops may make more of their data with every turn."""
    if any(math.prod(shape) > capacity.MOST_BYTES // _LARGEST_ELEMENT for shape in shapes):
        for spec in known.outputs:
            capacity.check_bytes(spec.nbytes, f"'{spec.name}' would be {spec}")
    capacity.check_bytes(known.arena_bytes, "a stretch would work in an arena")
