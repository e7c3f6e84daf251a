"""What a compiled program is: the description that a compiler hands to the run time.

Everything is immutable and plain: tensors by name, constants, sizes of the memory to set aside, and
steps in the order in which they run. `validate` refuses a program that contradicts itself before
anything of it runs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from graft.base.dtypes import Array, DType
from graft.base.errors import Place, UserError
from graft.runtime.evaluated import EvaluatedGraph
from graft.runtime.guards import Guard
from graft.runtime.memory import ALIGNMENT, address_of

NOWHERE = Place()


class ProgramError(UserError):
    """A compiled program that contradicts itself."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor: its name, element type and shape, and the alignment in bytes that kernels rely on
    beyond that of its elements."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    alignment: int = 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.numpy.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Input:
    """The memory of an input."""

    index: int


@dataclass(frozen=True, slots=True)
class Output:
    """The memory of an output."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """The memory of a constant; never written."""

    index: int


@dataclass(frozen=True, slots=True)
class Arena:
    """A slot of the memory that values share while the program runs."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that each thread has for itself: every thread sees another address here."""


BufferRef = Input | Output | Constant | Arena | Scratch


@dataclass(frozen=True, slots=True)
class Remote:
    """A tensor in the memory of a device: one of the program's `remotes`."""

    index: int


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of native code by all threads at once, after which they meet.

    A `serial` kernel is called by one thread while the others wait. After a step that `runs_on`
    the threads do not meet, since what follows does not depend on it.
    """

    symbol: str
    buffers: tuple[BufferRef, ...]
    scalars: tuple[int, ...] = ()
    label: str = ""
    flops: int = 0
    bytes: int = 0
    place: Place = NOWHERE
    serial: bool = False
    runs_on: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a Python function reads or writes."""

    buffer: BufferRef | Remote
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.numpy.itemsize


@dataclass(frozen=True, slots=True)
class PythonStep:
    """A call of a Python function, which whoever loads the program supplies by name; one that
    evaluates a node has its `graph`."""

    function: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    label: str = ""
    flops: int = 0
    bytes: int = 0
    place: Place = NOWHERE
    graph: EvaluatedGraph | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy between the host's memory and a device's, for a region that works there."""

    region: str  # the name of its function
    home: Operand
    remote: Remote
    upload: bool  # to the device; otherwise from it
    label: str = ""
    flops: int = 0
    bytes: int = 0
    place: Place = NOWHERE


Step = KernelCall | PythonStep | Transfer


@dataclass(frozen=True, slots=True)
class RemoteTensor:
    """Memory of a device that a program needs for a tensor."""

    space: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that object code is for: LLVM's triple, processor features it relies on, and the
    operations and bytes per second that one core comes to at best. Where nobody has told these,
    they are so low that all work is worth sharing."""

    triple: str
    features: tuple[str, ...] = ()
    core_flops: float = 1.0
    core_bytes: float = 1.0

    @property
    def architecture(self) -> str:
        return self.triple.split("-")[0]


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled static program. `objects` holds the kernels' object code and the driver's."""

    target: Target
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[Step, ...]
    constants: tuple[Array, ...] = field(default=(), repr=False)
    objects: tuple[bytes, ...] = field(default=(), repr=False)
    arena_bytes: int = 0
    scratch_bytes: int = 0  # per thread
    threads: int | None = None  # to run with, at most one per core; None: one per core
    remotes: tuple[RemoteTensor, ...] = ()
    guards: tuple[Guard, ...] = ()  # where there are any, the last output is what they found

    @property
    def is_native(self) -> bool:
        """Whether all steps are kernels."""
        return all(isinstance(step, KernelCall) for step in self.steps)

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The outputs without what guards found."""
        return self.outputs[:-1] if self.guards else self.outputs

    @property
    def python_steps(self) -> tuple[PythonStep, ...]:
        """The steps that call functions from outside of the program."""
        return tuple(step for step in self.steps if isinstance(step, PythonStep))

    def validate(self) -> None:
        """Refuse a program that cannot run as it stands."""
        check_specs("input", self.inputs)
        check_specs("output", self.outputs)
        for index, array in enumerate(self.constants):
            check_constant(index, array)
        for name in ("arena_bytes", "scratch_bytes"):
            if getattr(self, name) < 0:
                raise ProgramError(f"{name} is negative")
        if self.threads is not None and self.threads < 1:
            raise ProgramError(f"it wants {self.threads} threads")
        for step in self.steps:
            try:
                _check_step(self, step)
            except ProgramError as error:
                raise error.at(step.place) from None
        _check_outputs_are_written(self)
        check_guarded(self.guards, self.outputs)


def float_bits(value: float) -> int:
    """A floating-point scalar as the 64-bit word that stands for it among a kernel's scalars."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


class Spec(Protocol):
    """A tensor by name, as far as checks go that do not depend on its size."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> Sequence[object]: ...

    @property
    def alignment(self) -> int: ...


def check_specs(kind: str, specs: Iterable[Spec]) -> None:
    """Refuse tensors that are named alike, or that native memory cannot hold."""
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise ProgramError(f"two {kind}s are named '{spec.name}'")
        seen.add(spec.name)
        if spec.alignment < 1 or spec.alignment & (spec.alignment - 1):
            raise ProgramError(
                f"the {kind} '{spec.name}' has the alignment {spec.alignment}, "
                "which is not a power of two"
            )
        _check_tensor(f"the {kind} '{spec.name}'", spec.dtype, spec.shape)


def check_guarded(guards: Sequence[Guard], outputs: Sequence[Spec]) -> None:
    """Refuse guards that nothing is found for."""
    if not guards:
        return
    last = outputs[-1] if outputs else None
    if last is None or last.dtype is not DType.INT64 or tuple(last.shape) != (len(guards),):
        raise ProgramError(f"the last output does not tell what {len(guards)} guards found")


def _check_tensor(what: str, dtype: DType, shape: Sequence[object]) -> None:
    if dtype is DType.STRING:
        raise ProgramError(f"{what} holds strings, which have no place in native memory")
    least = min((extent for extent in shape if isinstance(extent, int)), default=0)
    if least < 0:
        raise ProgramError(f"{what} has the negative extent {least}")


def check_constant(index: int, array: Array) -> None:
    """Refuse a constant that kernels cannot read where it lies."""
    if array.dtype.hasobject:
        raise ProgramError(f"constant {index} holds Python objects")
    if not array.flags.c_contiguous:
        raise ProgramError(f"constant {index} is not contiguous")
    if array.size and address_of(array) % ALIGNMENT:
        raise ProgramError(f"constant {index} is not aligned to {ALIGNMENT} bytes")


def _check_step(program: Program, step: Step) -> None:
    if isinstance(step, KernelCall):
        if not step.symbol:
            raise ProgramError("a kernel call names no function")
        for reference in step.buffers:
            _size_of(program, reference, step.symbol)
        for scalar in step.scalars:
            if not -(2**63) <= scalar < 2**63:
                raise ProgramError(f"{step.symbol}: the scalar {scalar} has more than 64 bits")
        return
    if isinstance(step, Transfer):
        _check_transfer(program, step)
        return
    for operand in step.inputs + step.outputs:
        _check_operand(program, operand, step.function)
    for operand in step.outputs:
        _check_written(operand, step.function)
    if len({_space(program, operand) for operand in step.inputs + step.outputs}) > 1:
        raise ProgramError(f"{step.function}: its operands lie in several memories")


def _space(program: Program, operand: Operand) -> str:
    """The memory space of an operand; empty for the host's."""
    buffer = operand.buffer
    return program.remotes[buffer.index].space if isinstance(buffer, Remote) else ""


def _check_transfer(program: Program, step: Transfer) -> None:
    if all(other.function != step.region for other in program.python_steps):
        raise ProgramError(f"a transfer is for '{step.region}', which no step calls")
    if isinstance(step.home.buffer, Remote):
        raise ProgramError(f"{step.region}: a transfer leads from one device to another")
    _check_operand(program, step.home, step.region)
    _check_operand(program, replace(step.home, buffer=step.remote), step.region)
    if not step.upload:
        _check_written(step.home, step.region)


def _check_operand(program: Program, operand: Operand, user: str) -> None:
    _check_tensor(f"{user}: an operand", operand.dtype, operand.shape)
    if isinstance(operand.buffer, Scratch):
        raise ProgramError(f"{user}: Python has no scratch memory")
    if isinstance(operand.buffer, Remote):
        index = operand.buffer.index
        if not 0 <= index < len(program.remotes):
            raise ProgramError(f"{user}: there is no {operand.buffer}")
        remote = program.remotes[index]
        if (remote.dtype, remote.shape) != (operand.dtype, operand.shape):
            raise ProgramError(f"{user}: {operand.buffer} is of another type than the operand")
        return
    size = _size_of(program, operand.buffer, user)
    if operand.nbytes > size:
        raise ProgramError(
            f"{user}: {operand.buffer} has {size} bytes and the operand needs {operand.nbytes}"
        )


def _check_written(operand: Operand, user: str) -> None:
    if isinstance(operand.buffer, Input | Constant):
        raise ProgramError(f"{user}: {operand.buffer} cannot be written")


def _size_of(program: Program, reference: BufferRef, user: str) -> int:
    """How many bytes a reference gives; refuses one that leads nowhere."""
    match reference:
        case Input(index) if 0 <= index < len(program.inputs):
            return program.inputs[index].nbytes
        case Output(index) if 0 <= index < len(program.outputs):
            return program.outputs[index].nbytes
        case Constant(index) if 0 <= index < len(program.constants):
            return int(program.constants[index].nbytes)
        case Arena(offset, nbytes):
            if offset < 0 or nbytes < 0 or offset + nbytes > program.arena_bytes:
                raise ProgramError(
                    f"{user}: {reference} lies outside the arena of {program.arena_bytes} bytes"
                )
            if offset % ALIGNMENT:
                raise ProgramError(f"{user}: {reference} is not aligned to {ALIGNMENT} bytes")
            return nbytes
        case Scratch():
            return program.scratch_bytes
    raise ProgramError(f"{user}: there is no {reference}")


def _check_outputs_are_written(program: Program) -> None:
    used: set[int] = set()
    for step in program.steps:
        match step:
            case KernelCall():
                references: Iterable[BufferRef | Remote] = step.buffers
            case PythonStep():
                references = [operand.buffer for operand in step.outputs]
            case Transfer():
                references = () if step.upload else (step.home.buffer,)
        used |= {reference.index for reference in references if isinstance(reference, Output)}
    for index, spec in enumerate(program.outputs):
        if index not in used and spec.nbytes:
            raise ProgramError(f"no step writes the output '{spec.name}'")
