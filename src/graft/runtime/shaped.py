"""A program whose sizes are known only when it runs: the same kernels for every size.

Extents are dims, kernels take the symbols in them as scalars, and values share shelves of the
arena, of which each is as large as the largest value that will ever stand on it. With numbers for
the symbols, `bind` makes the plain program that runs at those sizes; nothing is compiled for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graft.base.dims import AnyDim, Dim, symbols_of
from graft.base.dtypes import Array, DType
from graft.base.errors import Place
from graft.runtime.extents import Extents, SizeCheck, check_sizes, dims_of_test
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
    check_specs,
)


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

    def validate(self) -> None:
        """Refuse a program that cannot run at any size."""
        check_specs("input", self.inputs)
        check_specs("output", self.outputs)
        for index, array in enumerate(self.constants):
            check_constant(index, array)
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

    def bind(self, sizes: Mapping[str, int]) -> Program:
        """The program for these values of its symbols; refuses those that do not fit together."""
        known = Extents({name: sizes[name] for name in self.symbols})
        check_sizes(self.checks, known)
        starts, end = [], 0
        for shelf in self.shelves:
            starts.append(end)
            end += max((aligned_size(known[size]) for size in shelf), default=0)
        binder = _Binder(known, starts)
        return Program(
            self.target,
            tuple(map(binder.spec, self.inputs)),
            tuple(map(binder.spec, self.outputs)),
            tuple(map(binder.call, self.steps)),
            self.constants,
            self.objects,
            end,
            max((known[size] for size in self.scratch), default=0),
        )


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


class _Binder:
    """Makes plain things of shaped ones."""

    def __init__(self, extents: Extents, starts: list[int]) -> None:
        self._extents, self._starts = extents, starts

    def spec(self, spec: ShapedSpec) -> TensorSpec:
        shape = tuple([self._extents[dim] for dim in spec.shape])
        return TensorSpec(spec.name, spec.dtype, shape, spec.alignment)

    def call(self, step: ShapedCall) -> KernelCall:
        extents = self._extents
        return KernelCall(
            step.symbol,
            tuple([self._reference(reference) for reference in step.buffers]),
            tuple([extents[dim] for dim in step.scalars]),
            step.label,
            extents[step.flops],
            extents[step.bytes],
            step.place,
            step.serial,
        )

    def _reference(self, reference: ShapedRef) -> BufferRef:
        if isinstance(reference, Shelf):
            start = self._starts[reference.number] + self._extents[reference.offset]
            return Arena(start, self._extents[reference.nbytes])
        return reference
