"""What a compiled program is: values, and instructions on them.

Values are numbered through, those of nested blocks too, and have extents over symbols; a static
model is a program whose extents are all numbers. A symbol gets its number from the shapes of the
inputs, or from an instruction before any that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graft.base.dims import AnyDim, Dim
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.program.extents import dims_of_test
from graft.program.instructions import (
    Block,
    Evaluate,
    Instruction,
    KernelCall,
    Segment,
    Slot,
    walk,
)

ALIGNMENT = 64  # bytes, of constants and of what lies in the arena


class ProgramError(UserError):
    """A compiled program that contradicts itself."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value: a tensor of a dtype with a shape, where known, in the memory of a device if it has a
    `space`. What is no tensor (lists, optional values, maps, strings) has no dtype, but a type in
    ONNX's words; strings have a shape, too. `element` is the dtype and rank of all tensors of a
    list, where these are known.

    Kernels rely on the `alignment` in bytes beyond that of elements. A value with a `slot` lies in
    the program's memory pool; others are allocated by the instruction that makes them."""

    name: str
    dtype: DType | None = None
    shape: tuple[Dim, ...] | None = None
    type: str = ""
    alignment: int = 1
    space: str = ""
    slot: Slot | None = None
    element: tuple[DType, int] | None = None

    @property
    def is_static(self) -> bool:
        """Whether it is a tensor whose extents are all numbers."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    @property
    def size(self) -> int:
        """The number of elements of a tensor whose extents are all numbers."""
        return math.prod(dim for dim in self.shape or () if isinstance(dim, int))

    @property
    def is_native(self) -> bool:
        """Whether native code holds it: a tensor of known rank in the host's memory, or a list of
        such tensors."""
        if self.element is not None:
            return True
        is_tensor = self.dtype is not None and self.dtype is not DType.STRING
        return is_tensor and self.shape is not None and not self.space

    def __str__(self) -> str:
        if self.dtype is None and self.shape is None:
            return self.type
        extents = "*" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype or self.type}[{extents}]"


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that object code is for: LLVM's triple, processor features it relies on, and what
    threads are shared out by: operations and bytes per second of one core, and the seconds that it
    takes to wake other threads and to meet them after a kernel. Where nobody tells these, all work
    is worth sharing."""

    triple: str
    features: tuple[str, ...] = ()
    core: tuple[float, float] = (1.0, 1.0)
    calling: float = 0.0
    meeting: float = 0.0

    @property
    def architecture(self) -> str:
        return self.triple.split("-")[0]


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled model. `objects` holds the object code of its kernels and of the driver."""

    target: Target
    values: tuple[Value, ...]
    constants: tuple[tuple[int, Array], ...] = field(repr=False)  # and the values that they are
    body: Block
    output_names: tuple[str, ...]
    objects: tuple[bytes, ...] = field(default=(), repr=False)
    pool: tuple[Dim, ...] = ()  # sizes of what lies in the program's memory pool
    threads: int | None = None  # to run with, at most one per core; None: one per core

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What goes in."""
        return tuple(self.values[number] for number in self.body.inputs)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What comes out."""
        return tuple(self.values[number] for number in self.body.outputs)

    @property
    def segments(self) -> Iterator[Segment]:
        """The native code, that of nested blocks included."""
        return (one for one in self.instructions if isinstance(one, Segment))

    @property
    def calls(self) -> Iterator[KernelCall]:
        """The kernel calls of all segments."""
        return (call for segment in self.segments for call in segment.calls)

    @property
    def evaluated(self) -> Iterator[Evaluate]:
        """What the reference evaluator runs."""
        return (one for one in self.instructions if isinstance(one, Evaluate))

    @property
    def instructions(self) -> Iterator[Instruction]:
        """All instructions, those of nested blocks included."""
        return walk(self.body)


def segment_dims(segment: Segment, values: Sequence[Value]) -> Iterator[AnyDim]:
    """All dims that a run of a segment needs numbers for."""
    for number in segment.outputs:
        yield from values[number].shape or ()
    for call in segment.calls:
        yield from (*call.scalars, call.flops, call.bytes)
        for buffer in call.buffers:
            if isinstance(buffer, Slot):
                yield from (buffer.offset, buffer.nbytes)
    for pool in segment.pools:
        yield from pool
    yield from segment.scratch
    for check in segment.checks:
        yield from dims_of_test(check.test)
    for guard in segment.guards:
        yield from (guard.extent, guard.count)


def arena_bytes(program: Program) -> int | None:
    """The arena of a run; None where it depends on the inputs."""
    pool = _largest(program.pool)
    sizes = [segment_arena(segment) for segment in program.segments]
    numbers = [size for size in sizes if size is not None]
    if pool is None or len(numbers) < len(sizes):
        return None
    return pool + max(numbers, default=0)


def segment_arena(segment: Segment) -> int | None:
    """The arena that only one segment works in; None where it depends on the inputs."""
    sizes = [_largest(pool) for pool in segment.pools]
    numbers = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes if size is not None]
    return sum(numbers) if len(numbers) == len(sizes) else None


def _largest(sizes: Sequence[Dim]) -> int | None:
    numbers = [size for size in sizes if isinstance(size, int)]
    return max(numbers, default=0) if len(numbers) == len(sizes) else None
