"""A program whose sizes are known only when it runs: the same kernels for every size.

Extents are dims, kernels take the symbols in them as scalars, and values share shelves of the
arena, of which each is as large as the largest value that will ever stand on it. With numbers for
the symbols, `bind` makes the plain program that runs at those sizes; nothing is compiled for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from graft.base.dim_functions import function_of
from graft.base.dims import AnyDim, Dim, symbols_of
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, Place
from graft.runtime.extents import Extents, SizeCheck, check_sizes, dims_of_test
from graft.runtime.guards import Guard
from graft.runtime.memory import aligned_size
from graft.runtime.program import (
    NOWHERE,
    Arena,
    BufferRef,
    Constant,
    Input,
    KernelCall,
    Output,
    Program,
    ProgramError,
    Scratch,
    Target,
    TensorSpec,
    check_constant,
    check_guarded,
    check_specs,
)

_WORD = np.dtype(np.int64)
_MOST = np.iinfo(_WORD).max


@dataclass(frozen=True, slots=True)
class ShapedSpec:
    """A tensor by name, element type and shape, as `TensorSpec` with dims."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Shelf:
    """Memory on a shelf of the arena: which one, where on it, and how much."""

    number: int
    offset: Dim
    nbytes: Dim


ShapedRef = BufferRef | Shelf


@dataclass(frozen=True, slots=True)
class ShapedCall:
    """A kernel call, as `KernelCall`, with what is passed for its scalars."""

    symbol: str
    buffers: tuple[ShapedRef, ...]
    scalars: tuple[Dim, ...] = ()
    label: str = ""
    flops: AnyDim = 0
    bytes: AnyDim = 0
    place: Place = NOWHERE
    serial: bool = False


@dataclass(frozen=True, eq=False)
class ShapedProgram:
    """A compiled program for every size. `scratch` are the sizes that some kernel needs."""

    target: Target
    symbols: tuple[str, ...]
    inputs: tuple[ShapedSpec, ...]
    outputs: tuple[ShapedSpec, ...]
    steps: tuple[ShapedCall, ...]
    shelves: tuple[tuple[Dim, ...], ...]  # per shelf the sizes of what stands on it
    scratch: tuple[Dim, ...]
    constants: tuple[Array, ...] = field(default=(), repr=False)
    objects: tuple[bytes, ...] = field(default=(), repr=False)
    checks: tuple[SizeCheck, ...] = ()
    guards: tuple[Guard, ...] = ()  # where there are any, the last output is what they found

    @property
    def results(self) -> tuple[ShapedSpec, ...]:
        """The outputs without what guards found."""
        return self.outputs[:-1] if self.guards else self.outputs

    def validate(self) -> None:
        """Refuse a program that cannot run at any size."""
        check_specs("input", self.inputs)
        check_specs("output", self.outputs)
        for index, array in enumerate(self.constants):
            check_constant(index, array)
        check_guarded(self.guards, self.outputs)
        for step in self.steps:
            _check_call(self, step)
        unknown = {name for dim in self.dims() for name in symbols_of(dim)} - {*self.symbols}
        if unknown:
            raise ProgramError(f"extents depend on {sorted(unknown)}, which are no symbols of it")

    def dims(self) -> Iterator[AnyDim]:
        """All dims that binding needs numbers for."""
        for spec in (*self.inputs, *self.outputs):
            yield from spec.shape
        for step in self.steps:
            yield from (*step.scalars, step.flops, step.bytes)
            for reference in step.buffers:
                if isinstance(reference, Shelf):
                    yield from (reference.offset, reference.nbytes)
        for shelf in self.shelves:
            yield from shelf
        yield from self.scratch
        for check in self.checks:
            yield from dims_of_test(check.test)
        for guard in self.guards:
            yield from (guard.extent, guard.count)

    def measured(self, sizes: Mapping[str, int]) -> Measured:
        """What these values of the symbols lead to; refuses those that do not fit together."""
        return self._numbered.measured(self, [sizes[name] for name in self.symbols])

    def bind(self, sizes: Mapping[str, int]) -> Program:
        """The program for these values of its symbols, step by step."""
        known = self.measured(sizes)
        return Program(
            self.target,
            known.inputs,
            known.outputs,
            tuple([call.bound(known.numbers, known.starts) for call in self._numbered.calls]),
            self.constants,
            self.objects,
            known.arena_bytes,
            known.scratch_bytes,
            guards=known.guards,
        )

    @property
    def numbers(self) -> int:
        """How many numbers `measured` gives."""
        return len(self._numbered.numbers)

    def number_of(self, dim: AnyDim) -> int:
        """The position of a dim's number among those of `measured`."""
        return self._numbered.numbers[dim]

    @cached_property
    def _numbered(self) -> _Numbered:
        return _Numbered(self)


class Measured:
    """A program for every size, at one of them: numbers for all its dims, where shelves of the
    arena begin, both one after the other as `words`, and what goes in and comes out."""

    def __init__(
        self, program: ShapedProgram, numbered: _Numbered, numbers: list[int], shelves: list[int]
    ) -> None:
        self.numbers, self._program, self._numbered = numbers, program, numbered
        self.starts, self.arena_bytes = [], 0
        for size in shelves:
            self.starts.append(self.arena_bytes)
            self.arena_bytes += aligned_size(size)
        self.scratch_bytes = max([numbers[size] for size in numbered.scratch], default=0)
        # Work may come to more than a word holds; memory cannot.
        counts = numbers + self.starts
        words = np.array(counts)
        if words.dtype != _WORD:
            words = np.array([min(max(count, 0), _MOST) for count in counts], _WORD)
        self.words = words

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the outputs."""
        numbers = self.numbers
        return [tuple([numbers[at] for at in extents]) for extents in self._numbered.outputs]

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What goes in."""
        numbers, extents = self.numbers, self._numbered.inputs
        shapes = [tuple([numbers[at] for at in one]) for one in extents]
        return tuple(map(_spec, self._program.inputs, shapes))

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What comes out."""
        return tuple(map(_spec, self._program.outputs, self.shapes))

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """With numbers."""
        known = dict(zip(self._numbered.numbers, self.numbers, strict=True))
        return tuple([guard.bound(known) for guard in self._program.guards])


def _check_call(program: ShapedProgram, step: ShapedCall) -> None:
    tables: dict[type, Sequence[object]] = {
        Input: program.inputs,
        Output: program.outputs,
        Constant: program.constants,
    }
    for reference in step.buffers:
        match reference:
            case Shelf(number):
                there = 0 <= number < len(program.shelves)
            case Input(index) | Output(index) | Constant(index):
                there = 0 <= index < len(tables[type(reference)])
            case Arena():
                there = False
            case Scratch():
                there = True
        if not there:
            raise ProgramError(f"{step.symbol}: there is no {reference}", step.place)


def _spec(spec: ShapedSpec, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, shape, spec.alignment)


@dataclass(frozen=True, slots=True)
class _Call:
    """A kernel call with numbers of dims in the place of dims."""

    step: ShapedCall
    buffers: tuple[BufferRef | tuple[int, int, int], ...]
    scalars: tuple[int, ...]
    work: tuple[int, int]

    def bound(self, numbers: Sequence[int], starts: Sequence[int]) -> KernelCall:
        """The call at some sizes: the dims' numbers, and where shelves begin."""
        step, (flops, moved) = self.step, self.work
        return KernelCall(
            step.symbol,
            tuple(
                [
                    Arena(starts[one[0]] + numbers[one[1]], numbers[one[2]])
                    if isinstance(one, tuple)
                    else one
                    for one in self.buffers
                ]
            ),
            tuple([numbers[dim] for dim in self.scalars]),
            step.label,
            numbers[flops],
            numbers[moved],
            step.place,
            step.serial,
        )


class _Numbered:
    """A program whose dims are numbered, each once, so that a new size need not look them up."""

    def __init__(self, program: ShapedProgram) -> None:
        self.numbers: dict[AnyDim, int] = {}
        self.calls = [self._call(step) for step in program.steps]
        shelves = [self._several(shelf) or (self._number(0),) for shelf in program.shelves]
        self.scratch = self._several(program.scratch)
        self.inputs = [self._several(spec.shape) for spec in program.inputs]
        self.outputs = [self._several(spec.shape) for spec in program.outputs]
        self._several(program.dims())
        self._function = function_of(list(self.numbers), program.symbols, shelves)

    def measured(self, program: ShapedProgram, given: Sequence[int]) -> Measured:
        """At these values of the symbols."""
        if program.checks:
            check_sizes(program.checks, self._one_by_one(program, given))
        try:
            return Measured(program, self, *self._function(given))
        except EvaluationError:
            self._one_by_one(program, given).refuse_without_value(self.numbers)
            raise

    def _one_by_one(self, program: ShapedProgram, given: Sequence[int]) -> Extents:
        return Extents(dict(zip(program.symbols, given, strict=True)))

    def _several(self, dims: Iterable[AnyDim]) -> tuple[int, ...]:
        return tuple([self._number(dim) for dim in dims])

    def _number(self, dim: AnyDim) -> int:
        return self.numbers.setdefault(dim, len(self.numbers))

    def _call(self, step: ShapedCall) -> _Call:
        return _Call(
            step,
            tuple(map(self._buffer, step.buffers)),
            tuple(map(self._number, step.scalars)),
            (self._number(step.flops), self._number(step.bytes)),
        )

    def _buffer(self, reference: ShapedRef) -> BufferRef | tuple[int, int, int]:
        if isinstance(reference, Shelf):
            extents = self._number(reference.offset), self._number(reference.nbytes)
            return (reference.number, *extents)
        return reference
