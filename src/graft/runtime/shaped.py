"""A program whose sizes are known only when it runs: the same kernels for every size.

Extents are dims, kernels take the symbols in them as scalars, and values share shelves of the
arena, of which each is as large as the largest value that will ever stand on it. With numbers for
the symbols, `bind` makes the plain program that runs at those sizes; nothing is compiled for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graft.base.dims import AnyDim, Dim, evaluate_dim
from graft.base.dtypes import Array, DType
from graft.base.errors import Place
from graft.runtime.memory import aligned_size
from graft.runtime.program import (
    NOWHERE,
    Arena,
    BufferRef,
    KernelCall,
    Program,
    Target,
    TensorSpec,
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

    def bind(self, sizes: Mapping[str, int]) -> Program:
        """The program for these values of its symbols."""
        known = _Extents({name: sizes[name] for name in self.symbols})
        starts, end = [], 0
        for shelf in self.shelves:
            starts.append(end)
            end += max((aligned_size(known[size]) for size in shelf), default=0)
        return Program(
            self.target,
            tuple(known.spec(spec) for spec in self.inputs),
            tuple(known.spec(spec) for spec in self.outputs),
            tuple(known.call(step, starts) for step in self.steps),
            self.constants,
            self.objects,
            end,
            max((known[size] for size in self.scratch), default=0),
        )


class _Extents(dict[AnyDim, int]):
    """Numbers for dims, each worked out once."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        super().__init__()
        self._symbols = symbols

    def __missing__(self, dim: AnyDim) -> int:
        value = dim if isinstance(dim, int) else evaluate_dim(dim, self._symbols)
        self[dim] = value
        return value

    def spec(self, spec: ShapedSpec) -> TensorSpec:
        shape = tuple([self[dim] for dim in spec.shape])
        return TensorSpec(spec.name, spec.dtype, shape, spec.alignment)

    def call(self, step: ShapedCall, starts: list[int]) -> KernelCall:
        return KernelCall(
            step.symbol,
            tuple([self._reference(reference, starts) for reference in step.buffers]),
            tuple([self[dim] for dim in step.scalars]),
            step.label,
            self[step.flops],
            self[step.bytes],
            step.place,
            step.serial,
        )

    def _reference(self, reference: ShapedRef, starts: list[int]) -> BufferRef:
        if isinstance(reference, Shelf):
            start = starts[reference.number] + self[reference.offset]
            return Arena(start, self[reference.nbytes])
        return reference
