"""Assembly -> instructions: kernel calls in segments, and what other backends or the evaluator run
between them.

Memory is planned for the whole assembly. What only one segment works in lies in its own part of the
arena. Where there is more than one segment, all of it lies in the program's memory pool, and what
is read or written between segments are values there.
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
from graft.backends.host.lowering.homes import Abroad, Constant, Home, Input, Output, Part, Slot
from graft.backends.host.lowering.values import Values
from graft.backends.host.storage import Storage
from graft.backends.reference.stored import evaluated_graph
from graft.base.dims import AnyDim, Dim, Unknown, product, substitute
from graft.base.dtypes import DType
from graft.base.errors import InternalError, Place
from graft.llvm.emit import SCRATCH_ALIGNMENT, scratch_buffers
from graft.llvm.types import byte_size
from graft.loop.index import dim_of
from graft.loop.ir import For, Function, LoopKind, Var
from graft.loop.traverse import walk_stmt
from graft.program import instructions as p
from graft.program.extents import SizeCheck
from graft.program.guards import Guard
from graft.program.plan_memory import ArenaPlan, Lifetime, plan_arena
from graft.program.program import Value

AnyStep = NativeStep | ReferenceStep | TransferStep


@dataclass
class Emitted:
    """The instructions of an assembly. `makes` are the values that kernel calls and instructions
    make, in the order in which they run, with the step of each; mere relayouts make none. `bound`
    is the arena that no plan can do without, where that is a number."""

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
) -> Emitted:
    """The instructions of an assembly on values with these numbers.

    Where there are guards, the assembly has one more output, which is what they find. `label` goes
    before the names of functions, of which a program has one table."""
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
        self._found: int | None = None
        if guards:
            extents = (len(guards),)
            self._found = values.add(Value("out_of_range", DType.INT64, extents, alignment=8))
            self._outputs.append(self._found)
        self._constants = [values.add_constant(array) for array in assembly.constants]
        # Segments share memory where something runs between them.
        self._is_cut = not all(isinstance(step, NativeStep) for step in assembly.steps)
        self._memory = _Memory(assembly, is_shared=self._is_cut)
        self._made = {*inputs}
        self._seen: dict[tuple[Home | Abroad, tuple[int, ...]], int] = {}
        self._in_slots: dict[Slot | None, int] = {}  # values that functions have put there
        self._calls: list[tuple[p.KernelCall, NativeStep]] = []
        self._result = Emitted(bound=self._memory.plan.bound)

    def emit(self) -> Emitted:
        for number, step in enumerate(self._assembly.steps):
            if isinstance(step, NativeStep):
                self._calls.append((self._call(step), step))
            else:
                self._finish_segment()
                self._outside(f"{self._label} {number}".strip(), step)
        self._finish_segment()
        # Outputs without elements may have no step.
        missing = [number for number in self._outputs if number not in self._made]
        if missing:
            self._result.instructions.append(p.Segment((), tuple(missing), ()))
        if self._is_cut:
            self._values.pool |= dict.fromkeys(self._memory.size)
        return self._result

    def _call(self, step: NativeStep) -> p.KernelCall:
        function = self._assembly.functions[step.symbol]
        return p.KernelCall(
            step.symbol,
            (*(self._buffer(home) for home in step.homes), p.Scratch()),
            step.scalars,
            step.label,
            _told(step.work.macs * 2 + step.work.flops),
            self._moved(step),
            (step.node.place if step.node else None) or Place(),
            not is_parallel(function),
        )

    def _moved(self, step: NativeStep) -> AnyDim:
        """Bytes that a kernel reads or writes, each once."""
        sizes = [self._size(home) for home in step.homes]
        if all(isinstance(size, int) for size in sizes):
            return sum(size for size in sizes if isinstance(size, int))
        return _told(step.work.bytes)

    def _size(self, home: Home) -> AnyDim:
        match home:
            case Slot() | Part():
                return home.nbytes
            case Constant(index):
                return int(self._assembly.constants[index].nbytes)
        return _nbytes(self._values.values[self._number(home)])

    def _number(self, home: Input | Output | Constant) -> int:
        match home:
            case Input(index):
                return self._inputs[index]
            case Output(index):
                return self._outputs[index]
            case Constant(index):
                return self._constants[index]

    def _buffer(self, home: Home) -> p.Buffer:
        if isinstance(home, Slot | Part):
            return self._memory.slot(home)
        return self._number(home)

    def _finish_segment(self) -> None:
        """The kernel calls since the last one as a segment."""
        if not self._calls:
            return
        calls = tuple(call for call, _ in self._calls)
        used = dict.fromkeys(one for call in calls for one in call.buffers if isinstance(one, int))
        own = [number for number in used if number not in self._constants]
        read = [number for number in own if number in self._made]
        slots = dict.fromkeys(slot_of(home) for _, step in self._calls for home in step.homes)
        read += [self._in_slots[slot] for slot in slots if slot in self._in_slots]
        made = [number for number in own if number not in self._made]
        self._made |= {*made}
        is_watched = self._found in made
        scratch = dict.fromkeys(self._scratch(step) for _, step in self._calls)
        self._result.instructions.append(
            p.Segment(
                tuple(dict.fromkeys(read)),
                tuple(number for number in made if number != self._found),
                calls,
                () if self._is_cut else self._memory.plan.pools,
                _largest(tuple(scratch)),
                self._checks,
                self._guards if is_watched else (),
                self._found if is_watched else None,
            )
        )
        self._result.makes += [(call, _made_by(step)) for call, step in self._calls]
        self._checks, self._calls = (), []

    def _scratch(self, step: NativeStep) -> Dim:
        return _known(scratch_dim(self._assembly.functions[step.symbol], step.scalars))

    def _outside(self, number: str, step: ReferenceStep | TransferStep) -> None:
        """A step outside of native code, on row-major tensors."""
        made: p.Instruction
        if isinstance(step, TransferStep):
            made = self._transfer(step)
        else:
            read = tuple(self._read(home, storage) for home, storage in step.inputs)
            results = tuple(self._written(home, storage) for home, storage in step.outputs)
            made = self._function(number, step, read, results)
        self._result.instructions.append(made)
        self._result.makes.append((made, _made_by(step)))
        self._made |= {*p.writes(made)}
        self._alias_outputs(step)

    def _function(
        self, number: str, step: ReferenceStep, read: tuple[int, ...], results: tuple[int, ...]
    ) -> p.Instruction:
        node, location = step.node, step.node.place or Place()
        if isinstance(step, RegionStep):
            return p.RegionCall(str(node.attrs.label), read, results, _label(step), location)
        name = f"{node.op.name}_{number}"
        made = p.Evaluate(name, read, results, evaluated_graph(node), _label(step), location)
        self._result.evaluated.append((made, step))
        return made

    def _transfer(self, step: TransferStep) -> p.Transfer:
        (home, storage), attrs = step.home, step.region.attrs
        there = self._abroad(step.abroad)
        at_home = self._read(home, storage) if step.upload else self._written(home, storage)
        ends = (at_home, there) if step.upload else (there, at_home)
        direction = "to" if step.upload else "from"
        label, location = f"{direction} {attrs.backend}", step.region.place or Place()
        return p.Transfer(str(attrs.label), *ends, step.upload, label, location)

    def _abroad(self, abroad: Abroad) -> int:
        """A tensor in the memory of a device."""
        key = abroad, abroad.shape
        if key not in self._seen:
            value = Value("", abroad.dtype, abroad.shape, space=abroad.space)
            self._seen[key] = self._values.add(value)
        return self._seen[key]

    def _read(self, home: Home | Abroad, storage: Storage) -> int:
        """The value that a function reads there; a view where it sees another shape."""
        if isinstance(home, Abroad):
            return self._abroad(home)
        if isinstance(home, Constant):
            array = self._assembly.constants[home.index]
            if array.shape == storage.sizes:
                return self._constants[home.index]
            return self._values.add_constant(array.reshape(storage.sizes))
        key = home, storage.sizes
        if key in self._seen:
            return self._seen[key]
        if isinstance(home, Slot | Part):
            return self._read_slot(home, storage)
        number = self._number(home)
        if self._values.values[number].shape == storage.sizes:
            return number
        return self._alias(number, key, storage)

    def _read_slot(self, home: Slot | Part, storage: Storage) -> int:
        """What kernels have put into the arena, or another function as another tensor."""
        number = self._seen[home, storage.sizes] = self._add(home, storage)
        made = self._in_slots.get(slot_of(home))
        if made is not None:
            self._result.instructions.append(p.Alias(made, number))
        else:
            self._produce(number)
        self._made.add(number)
        return number

    def _produce(self, number: int) -> None:
        """Make a value in the arena a result of the last segment, which has written it."""
        steps = self._result.instructions
        for position in reversed(range(len(steps))):
            segment = steps[position]
            if isinstance(segment, p.Segment):
                outputs = (*segment.outputs, number)
                steps[position] = replace(segment, outputs=outputs)
                return
        raise InternalError("a function reads what nothing has written")

    def _written(self, home: Home | Abroad, storage: Storage) -> int:
        """The value that a function makes there."""
        if isinstance(home, Abroad):
            return self._abroad(home)
        key = home, storage.sizes
        if isinstance(home, Slot | Part):
            number = self._seen[key] = self._add(home, storage)
            self._in_slots[slot_of(home)] = number
            return number
        number = self._number(home)
        if self._values.values[number].shape == storage.sizes:
            return number
        self._seen[key] = self._values.add(Value("", storage.dtype, storage.sizes))
        return self._seen[key]

    def _alias_outputs(self, step: ReferenceStep | TransferStep) -> None:
        """Outputs of the graph that a function has made under another shape."""
        pairs = step.outputs if isinstance(step, ReferenceStep) else (step.home,)
        for home, storage in pairs:
            number = self._number(home) if isinstance(home, Output) else None
            if number is not None and number not in self._made:
                made = self._seen[home, storage.sizes]
                self._result.instructions.append(p.Alias(made, number))
                self._made.add(number)

    def _alias(
        self, number: int, key: tuple[Home | Abroad, tuple[int, ...]], storage: Storage
    ) -> int:
        seen = self._seen[key] = self._values.add(Value("", storage.dtype, storage.sizes))
        self._result.instructions.append(p.Alias(number, seen))
        self._made.add(seen)
        return seen

    def _add(self, home: Slot | Part, storage: Storage) -> int:
        slot = self._memory.slot(home)
        return self._values.add(Value("", storage.dtype, storage.sizes, slot=slot))


class _Memory:
    """Where slots lie in the arena."""

    def __init__(self, assembly: Assembly, is_shared: bool) -> None:
        spans = lifetimes(assembly)
        slots = list(spans)
        self.plan: ArenaPlan = plan_arena(
            [Lifetime(_known(slot.nbytes), *spans[slot]) for slot in slots]
        )
        self._places: dict[Slot | None, tuple[int, int]] = dict(
            zip(slots, self.plan.offsets, strict=True)
        )
        self._first = 0 if is_shared else 1
        if is_shared and len(self.plan.pools) > 1:
            raise InternalError("what is not native stands among segments of unknown sizes")

    @property
    def size(self) -> Sequence[Dim]:
        """Sizes of which the largest is that of the pool, where there is one."""
        return self.plan.pools[0] if self.plan.pools else ()

    def slot(self, home: Slot | Part) -> p.Slot:
        pool, offset = self._places[slot_of(home)]
        start = offset + (home.offset if isinstance(home, Part) else 0)
        return p.Slot(self._first + pool, start, _known(home.nbytes))


def slot_of(home: Home | Abroad) -> Slot | None:
    """The slot that memory is, or is a part of; None where it is neither."""
    if isinstance(home, Part):
        return home.slot
    return home if isinstance(home, Slot) else None


def lifetimes(assembly: Assembly) -> dict[Slot, tuple[int, int]]:
    """The first and the last step that touches each slot."""
    found: dict[Slot, tuple[int, int]] = {}
    for number, step in enumerate(assembly.steps):
        for home in _homes(step):
            slot = slot_of(home)
            if slot is not None:
                found[slot] = found.get(slot, (number, number))[0], number
    return found


def _homes(step: AnyStep) -> tuple[Home | Abroad, ...]:
    match step:
        case NativeStep():
            return step.homes
        case TransferStep():
            return (step.home[0], step.abroad)
    return tuple(home for home, _ in (*step.inputs, *step.outputs))


def _made_by(step: AnyStep) -> str:
    """The value that a step makes; empty where it only moves one."""
    if isinstance(step, TransferStep) or step.node is None:
        return ""
    return step.node.output.name


def is_parallel(function: Function) -> bool:
    """Whether the function shares its work among threads; otherwise one of them runs it."""
    loops = (stmt for stmt in walk_stmt(function.body) if isinstance(stmt, For))
    return any(loop.kind is LoopKind.PARALLEL for loop in loops)


def _label(step: ReferenceStep) -> str:
    """What the profile calls a step outside of native code."""
    attrs = step.node.attrs
    if isinstance(step, RegionStep):
        inner = (node.op.name for node in attrs.body.walk())
        count = sum(name not in ("constant", "composite") for name in inner)
        return f"{attrs.backend}: {count} node{'s' if count != 1 else ''}"
    return f"{getattr(attrs, 'label', '') or step.node.op.name} (reference)"


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


def _told(dim: AnyDim) -> Dim:
    """An amount of work; 0 where nobody knows it."""
    return 0 if isinstance(dim, Unknown) else dim


def _known(dim: AnyDim) -> Dim:
    """A dim that has to be one."""
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
    names = [one.name for one in function.parameters if isinstance(one, Var)]
    return substitute(total, dict(zip(names, scalars, strict=True)))
