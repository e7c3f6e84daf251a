"""Assembly to instructions: kernel calls in segments, and calls of other backends or the evaluator
between them.

Memory is planned for the whole assembly. A single segment has its own part of the arena. Where
there is more than one segment, all slots lie in the program's memory pool, and what is read
or written between segments are values there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from graft.backends.host.lowering.assemble import (
    Assembly,
    NativeStep,
    ReferenceStep,
    RegionStep,
    TransferStep,
)
from graft.backends.host.lowering.buffers import (
    Constant,
    DeviceBuffer,
    HostBuffer,
    Input,
    Output,
    Part,
    Slot,
)
from graft.backends.host.lowering.values import Values
from graft.backends.host.storage import Storage
from graft.backends.reference.stored import evaluated_graph
from graft.base.dims import AnyDim, Dim, Unknown, product, substitute
from graft.base.dtypes import DType
from graft.base.errors import InternalError, Location
from graft.ir.graph import Node
from graft.llvm.emit import SCRATCH_ALIGNMENT, scratch_buffers
from graft.llvm.types import byte_size
from graft.loop.index import dim_of
from graft.loop.ir import Function, Var
from graft.loop.traverse import is_parallel
from graft.program import instructions as p
from graft.program.extents import SizeCheck
from graft.program.guards import Guard
from graft.program.plan_memory import ArenaPlan, Lifetime, plan_arena
from graft.program.program import Value

AnyStep = NativeStep | ReferenceStep | TransferStep


@dataclass
class EmittedProgram:
    """The instructions of an assembly. `makes` has the kernel calls and instructions in the order
    in which they run, each with the name of the value it computes (empty for mere relayouts).
    `bound` is the least arena of any memory plan, where that is a number."""

    instructions: list[p.Instruction] = field(default_factory=list)
    makes: list[tuple[p.KernelCall | p.Instruction, str]] = field(default_factory=list)
    evaluated: list[tuple[p.Evaluate, ReferenceStep]] = field(default_factory=list)
    bound: int | None = 0


def emit(
    assembly: Assembly,
    values: Values,
    inputs: Sequence[int],
    outputs: Sequence[int],
    checks: tuple[SizeCheck, ...] = (),
    guards: tuple[Guard, ...] = (),
    label: str = "",
) -> EmittedProgram:
    """The instructions of an assembly on values with these numbers.

    Where there are guards, the last output of the assembly counts their violations. `label` is a
    prefix of the functions' names, of which a program has one table."""
    return _Emitter(assembly, values, inputs, outputs, checks, guards, label).emit()


class _Emitter:
    def __init__(
        self,
        assembly: Assembly,
        values: Values,
        inputs: Sequence[int],
        outputs: Sequence[int],
        checks: tuple[SizeCheck, ...],
        guards: tuple[Guard, ...],
        label: str,
    ) -> None:
        self._assembly, self._values = assembly, values
        self._inputs, self._outputs = inputs, list(outputs)
        self._checks, self._guards, self._label = checks, guards, label
        self._violations: int | None = None
        if guards:
            extents = (len(guards),)
            self._violations = values.add(Value("out_of_range", DType.INT64, extents, alignment=8))
            self._outputs.append(self._violations)
        self._constants = [values.add_constant(array) for array in assembly.constants]
        # Segments share memory where something runs between them.
        self._is_cut = not all(isinstance(step, NativeStep) for step in assembly.steps)
        self._memory = _Memory(assembly, is_shared=self._is_cut)
        self._defined = {*inputs}
        self._numbers: dict[tuple[HostBuffer | DeviceBuffer, tuple[int, ...]], int] = {}
        self._in_slots: dict[Slot | None, int] = {}  # the value that a function has written to each
        self._calls: list[tuple[p.KernelCall, NativeStep]] = []
        self._emitted = EmittedProgram(bound=self._memory.plan.bound)

    def emit(self) -> EmittedProgram:
        for number, step in enumerate(self._assembly.steps):
            if isinstance(step, NativeStep):
                self._calls.append((self._call(step), step))
            else:
                self._end_segment()
                self._emit_outside(f"{self._label} {number}".strip(), step)
        self._end_segment()
        self._define_empty(self._outputs)
        if self._is_cut:
            self._values.pool |= dict.fromkeys(self._memory.size)
        return self._emitted

    def _define_empty(self, numbers: Sequence[int]) -> None:
        """Define those that no step has written: outputs without elements may have none."""
        missing = tuple(number for number in numbers if number not in self._defined)
        if missing:
            self._emitted.instructions.append(p.Segment((), missing, ()))
            self._defined |= {*missing}

    def _call(self, step: NativeStep) -> p.KernelCall:
        function = self._assembly.functions[step.symbol]
        return p.KernelCall(
            step.symbol,
            (*(self._buffer(buffer) for buffer in step.buffers), p.Scratch()),
            step.scalars,
            step.label,
            _or_zero(step.work.macs * 2 + step.work.flops),
            self._moved(step),
            (step.node.location if step.node else None) or Location(),
            not is_parallel(function.body),  # one of the threads runs it
        )

    def _moved(self, step: NativeStep) -> AnyDim:
        """The bytes that a kernel reads or writes, each once."""
        sizes = [self._size(buffer) for buffer in step.buffers]
        if all(isinstance(size, int) for size in sizes):
            return sum(size for size in sizes if isinstance(size, int))
        return _or_zero(step.work.bytes)

    def _size(self, buffer: HostBuffer) -> AnyDim:
        match buffer:
            case Slot() | Part():
                return buffer.nbytes
            case Constant(index):
                return int(self._assembly.constants[index].nbytes)
        return _nbytes(self._values.values[self._number(buffer)])

    def _number(self, buffer: Input | Output | Constant) -> int:
        match buffer:
            case Input(index):
                return self._inputs[index]
            case Output(index):
                return self._outputs[index]
            case Constant(index):
                return self._constants[index]

    def _buffer(self, buffer: HostBuffer) -> p.Buffer:
        if isinstance(buffer, Slot | Part):
            return self._memory.slot(buffer)
        return self._number(buffer)

    def _end_segment(self) -> None:
        """Emit the kernel calls since the last segment as one."""
        if not self._calls:
            return
        calls = tuple(call for call, _ in self._calls)
        numbers = dict.fromkeys(
            one for call in calls for one in call.buffers if isinstance(one, int)
        )
        constants = frozenset(self._constants)
        own = [number for number in numbers if number not in constants]
        read = [number for number in own if number in self._defined]
        slots = dict.fromkeys(slot_of(buffer) for _, step in self._calls for buffer in step.buffers)
        read += [self._in_slots[slot] for slot in slots if slot in self._in_slots]
        results = [number for number in own if number not in self._defined]
        self._defined |= {*results}
        is_watched = self._violations in results
        scratch = dict.fromkeys(_scratch(step, self._assembly) for _, step in self._calls)
        self._emitted.instructions.append(
            p.Segment(
                tuple(dict.fromkeys(read)),
                tuple(number for number in results if number != self._violations),
                calls,
                () if self._is_cut else self._memory.plan.pools,
                _largest(tuple(scratch)),
                self._checks,
                self._guards if is_watched else (),
                self._violations if is_watched else None,
            )
        )
        self._emitted.makes += [(call, _result_name(step)) for call, step in self._calls]
        self._checks, self._calls = (), []

    def _emit_outside(self, number: str, step: ReferenceStep | TransferStep) -> None:
        """Emit a step outside of native code, on row-major tensors."""
        instruction: p.Instruction
        if isinstance(step, TransferStep):
            instruction = self._transfer(step)
        else:
            read = tuple(self._operand_value(buffer, storage) for buffer, storage in step.inputs)
            results = tuple(self._result_value(buffer, storage) for buffer, storage in step.outputs)
            instruction = self._function(number, step, read, results)
        self._emitted.instructions.append(instruction)
        self._emitted.makes.append((instruction, _result_name(step)))
        self._defined |= {*p.writes(instruction)}
        self._alias_outputs(step)

    def _function(
        self, number: str, step: ReferenceStep, read: tuple[int, ...], results: tuple[int, ...]
    ) -> p.Instruction:
        node, location = step.node, step.node.location or Location()
        if isinstance(step, RegionStep):
            return p.RegionCall(str(node.attrs.label), read, results, _label(step), location)
        name = f"{node.op.name}_{number}"
        instruction = p.Evaluate(name, read, results, evaluated_graph(node), _label(step), location)
        self._emitted.evaluated.append((instruction, step))
        return instruction

    def _transfer(self, step: TransferStep) -> p.Transfer:
        (buffer, storage), there = step.host, self._device_value(step.device)
        on_host = (
            self._operand_value(buffer, storage)
            if step.upload
            else self._result_value(buffer, storage)
        )
        ends = (on_host, there) if step.upload else (there, on_host)
        return transfer(step.region, *ends, step.upload)

    def _device_value(self, device: DeviceBuffer) -> int:
        """A tensor in the memory of a device."""
        key = device, device.shape
        if key not in self._numbers:
            value = Value("", device.dtype, device.shape, space=device.space)
            self._numbers[key] = self._values.add(value)
        return self._numbers[key]

    def _operand_value(self, buffer: HostBuffer | DeviceBuffer, storage: Storage) -> int:
        """The value that a function reads from a buffer; an alias where it has another shape."""
        if isinstance(buffer, DeviceBuffer):
            return self._device_value(buffer)
        if isinstance(buffer, Constant):
            array = self._assembly.constants[buffer.index]
            if array.shape == storage.sizes:
                return self._constants[buffer.index]
            return self._values.add_constant(array.reshape(storage.sizes))
        key = buffer, storage.sizes
        if key in self._numbers:
            return self._numbers[key]
        if isinstance(buffer, Slot | Part):
            return self._slot_value(buffer, storage)
        number = self._number(buffer)
        self._define_empty([number])
        if self._values.values[number].shape == storage.sizes:
            return number
        return self._alias(number, key, storage)

    def _slot_value(self, buffer: Slot | Part, storage: Storage) -> int:
        """A value in the arena that kernels, or a function under another shape, have written."""
        number = self._numbers[buffer, storage.sizes] = self._add(buffer, storage)
        source = self._in_slots.get(slot_of(buffer))
        if source is not None:
            self._emitted.instructions.append(p.Alias(source, number))
        else:
            self._produce(number)
        self._defined.add(number)
        return number

    def _produce(self, number: int) -> None:
        """Make a value in the arena a result of the last segment, which has written it."""
        steps = self._emitted.instructions
        for position in reversed(range(len(steps))):
            segment = steps[position]
            if isinstance(segment, p.Segment):
                outputs = (*segment.outputs, number)
                steps[position] = replace(segment, outputs=outputs)
                return
        raise InternalError("a function reads what nothing has written")

    def _result_value(self, buffer: HostBuffer | DeviceBuffer, storage: Storage) -> int:
        """The value that a function writes to a buffer."""
        if isinstance(buffer, DeviceBuffer):
            return self._device_value(buffer)
        key = buffer, storage.sizes
        if isinstance(buffer, Slot | Part):
            number = self._numbers[key] = self._add(buffer, storage)
            self._in_slots[slot_of(buffer)] = number
            return number
        number = self._number(buffer)
        if self._values.values[number].shape == storage.sizes:
            return number
        self._numbers[key] = self._values.add(Value("", storage.dtype, storage.sizes))
        return self._numbers[key]

    def _alias_outputs(self, step: ReferenceStep | TransferStep) -> None:
        """Define outputs of the graph that a function has written under another shape."""
        pairs = step.outputs if isinstance(step, ReferenceStep) else (step.host,)
        for buffer, storage in pairs:
            number = self._number(buffer) if isinstance(buffer, Output) else None
            if number is not None and number not in self._defined:
                source = self._numbers[buffer, storage.sizes]
                self._emitted.instructions.append(p.Alias(source, number))
                self._defined.add(number)

    def _alias(
        self, number: int, key: tuple[HostBuffer | DeviceBuffer, tuple[int, ...]], storage: Storage
    ) -> int:
        alias = self._numbers[key] = self._values.add(Value("", storage.dtype, storage.sizes))
        self._emitted.instructions.append(p.Alias(number, alias))
        self._defined.add(alias)
        return alias

    def _add(self, buffer: Slot | Part, storage: Storage) -> int:
        slot = self._memory.slot(buffer)
        return self._values.add(Value("", storage.dtype, storage.sizes, slot=slot))


def _scratch(step: NativeStep, assembly: Assembly) -> Dim:
    return _known_dim(scratch_dim(assembly.functions[step.symbol], step.scalars))


class _Memory:
    """The memory plan: offsets of slots in the arena."""

    def __init__(self, assembly: Assembly, is_shared: bool) -> None:
        spans = lifetimes(assembly)
        slots = list(spans)
        self.plan: ArenaPlan = plan_arena(
            [Lifetime(_known_dim(slot.nbytes), *spans[slot]) for slot in slots]
        )
        self._offsets: dict[Slot | None, tuple[int, int]] = dict(
            zip(slots, self.plan.offsets, strict=True)
        )
        self._first = 0 if is_shared else 1
        if is_shared and len(self.plan.pools) > 1:
            raise InternalError("what is not native stands among segments of unknown sizes")

    @property
    def size(self) -> Sequence[Dim]:
        """Sizes of which the largest is that of the pool, where there is one."""
        return self.plan.pools[0] if self.plan.pools else ()

    def slot(self, buffer: Slot | Part) -> p.Slot:
        pool, offset = self._offsets[slot_of(buffer)]
        start = offset + (buffer.offset if isinstance(buffer, Part) else 0)
        return p.Slot(self._first + pool, start, _known_dim(buffer.nbytes))


def slot_of(buffer: HostBuffer | DeviceBuffer) -> Slot | None:
    """The slot that memory is, or is a part of; None where it is neither."""
    if isinstance(buffer, Part):
        return buffer.slot
    return buffer if isinstance(buffer, Slot) else None


def lifetimes(assembly: Assembly) -> dict[Slot, tuple[int, int]]:
    """The first and the last step that touches each slot."""
    spans: dict[Slot, tuple[int, int]] = {}
    for number, step in enumerate(assembly.steps):
        for buffer in _buffers_of(step):
            slot = slot_of(buffer)
            if slot is not None:
                spans[slot] = spans.get(slot, (number, number))[0], number
    return spans


def _buffers_of(step: AnyStep) -> tuple[HostBuffer | DeviceBuffer, ...]:
    match step:
        case NativeStep():
            return step.buffers
        case TransferStep():
            return (step.host[0], step.device)
    return tuple(buffer for buffer, _ in (*step.inputs, *step.outputs))


def _result_name(step: AnyStep) -> str:
    """The name of the value that a step computes; empty where it only copies one."""
    if isinstance(step, TransferStep) or step.node is None:
        return ""
    return step.node.output.name


def _label(step: ReferenceStep) -> str:
    """The label in profiles of a step outside of native code."""
    if isinstance(step, RegionStep):
        return region_title(step.node)
    return f"{getattr(step.node.attrs, 'label', '') or step.node.op.name} (reference)"


def transfer(region: Node, source: int, target: int, upload: bool) -> p.Transfer:
    """A copy to the memory of a region's device, or from there."""
    attrs, location = region.attrs, region.location or Location()
    label = f"{'to' if upload else 'from'} {attrs.backend}"
    return p.Transfer(str(attrs.label), source, target, upload, label, location)


def region_title(region: Node) -> str:
    """The backend of a region and the size of its body."""
    inner = (node.op.name for node in region.attrs.body.walk())
    count = sum(name not in ("constant", "composite") for name in inner)
    return f"{region.attrs.backend}: {count} node{'s' if count != 1 else ''}"


def _nbytes(value: Value) -> AnyDim:
    size: AnyDim = value.dtype.numpy.itemsize if value.dtype else 0
    for extent in value.shape or ():
        size = size * extent
    return size


def _largest(sizes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Sizes of which only the largest counts: one, where all are numbers."""
    numbers = [size for size in sizes if isinstance(size, int)]
    others = tuple(size for size in sizes if not isinstance(size, int))
    largest = max(numbers, default=0)
    return (largest, *others) if largest else others


def _or_zero(dim: AnyDim) -> Dim:
    """The dim, or 0 where it is unknown."""
    return 0 if isinstance(dim, Unknown) else dim


def _known_dim(dim: AnyDim) -> Dim:
    """A dim that must not be unknown."""
    if isinstance(dim, Unknown):
        raise InternalError("a size in a segment is unknown")
    return dim


def scratch_dim(function: Function, scalars: Sequence[Dim]) -> AnyDim:
    """Bytes that each thread needs."""
    total: AnyDim = 0
    for buffer in scratch_buffers(function):
        size = product(dim_of(extent) for extent in buffer.extents) * byte_size(buffer.dtype)
        units = (size + (SCRATCH_ALIGNMENT - 1)) // SCRATCH_ALIGNMENT
        total = total + units * SCRATCH_ALIGNMENT
    names = [parameter.name for parameter in function.parameters if isinstance(parameter, Var)]
    return substitute(total, dict(zip(names, scalars, strict=True)))
