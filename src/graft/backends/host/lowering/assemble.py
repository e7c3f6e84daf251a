"""Fused graph -> program: kernels, the memory they work in, and the order in which they run.

For each node: convert its operands to the layouts that its kernel requires, instantiate the kernel,
and allocate its result: an output buffer if the value is a graph output, else an arena slot, whose
offset is assigned when all steps are known. Fusion and layout choice have asked the templates
before, so every group has its kernel; a lone node without one becomes a step on the reference
evaluator, which the program shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from graft.backends.host.aliases import ChannelsLast, Joins, cuts, located
from graft.backends.host.extents import Extents
from graft.backends.host.group import Group
from graft.backends.host.kernel import Argument, Kernel, Repacked
from graft.backends.host.kernel_memo import Kernels
from graft.backends.host.kernels.relayout import copied
from graft.backends.host.layout import choose_layout
from graft.backends.host.lowering.buffers import (
    Constant,
    DeviceBuffer,
    DeviceBuffers,
    HostBuffer,
    Input,
    Output,
    Part,
    Slot,
    part_of,
)
from graft.backends.host.storage import Storage, covers, row_major, shape_of
from graft.base.dims import Dim
from graft.base.dtypes import Array
from graft.base.errors import InternalError
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.op import Work
from graft.loop.ir import Function
from graft.loop.print import to_text
from graft.loop.share import name_shared
from graft.passes.simplify_movement import is_view
from graft.target.target import Target


@dataclass(frozen=True, eq=False)
class NativeStep:
    """A kernel call."""

    symbol: str
    buffers: tuple[HostBuffer, ...]
    label: str
    work: Work
    node: Node | None
    scalars: tuple[Dim, ...] = ()


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """A node on the reference evaluator, and why."""

    node: Node
    inputs: tuple[tuple[HostBuffer | DeviceBuffer, Storage], ...]
    outputs: tuple[tuple[HostBuffer | DeviceBuffer, Storage], ...]
    reason: str


@dataclass(frozen=True, eq=False)
class RegionStep(ReferenceStep):
    """A region, which another backend runs."""


@dataclass(frozen=True, eq=False)
class TransferStep:
    """A copy of a tensor to or from the memory of a device, for a region."""

    region: Node
    host: tuple[HostBuffer, Storage]
    device: DeviceBuffer
    upload: bool


@dataclass
class Assembly:
    """Everything a program needs but offsets and object code."""

    steps: list[NativeStep | ReferenceStep | TransferStep] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    constants: list[Array] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    begin: Callable[[Function], None] | None = None  # called with each new function
    # Functions by the identity of their bodies, which those of the same structure share.
    _named: dict[int, tuple[Function, str]] = field(default_factory=dict)

    def slot(self, storage: Storage) -> Slot:
        """Memory of the arena for a tensor."""
        slot = Slot(len(self.slots), storage.nbytes)
        self.slots.append(slot)
        return slot

    def symbol(self, function: Function) -> str:
        """The name of a function in the program; equal functions have one."""
        previous, name = self._named.get(id(function.body), (None, ""))
        if previous is not None and previous.parameters is function.parameters:
            self.functions[name] = replace(self.functions[name], notes=function.notes)
            return name
        shared = name_shared(function)
        plain = replace(shared, name="kernel", notes=())
        name = "k" + hashlib.sha256(to_text(plain).encode()).hexdigest()[:20]
        is_new = name not in self.functions
        self.functions[name] = replace(shared, name=name)
        self._named[id(function.body)] = function, name
        if is_new and self.begin is not None:
            self.begin(self.functions[name])
        return name

    def constant(self, array: Array) -> Constant:
        """Memory for a constant."""
        self.constants.append(array)
        return Constant(len(self.constants) - 1)


def assemble(
    graph: Graph,
    target: Target,
    spaces: Mapping[str, str] | None = None,
    kernels: Kernels | None = None,
    begin: Callable[[Function], None] | None = None,
) -> Assembly:
    """Turn a fused graph with static shapes into steps.

    `spaces` are the memory spaces of regions that do not work in the host's memory, by label.
    `kernels` are those that other parts of the model have already. `begin` is called with each new
    function, in order, as soon as it is written."""
    return _Assembler(graph, target, spaces or {}, kernels or Kernels(target), begin).run()


class _Assembler:
    def __init__(
        self,
        graph: Graph,
        target: Target,
        spaces: Mapping[str, str],
        kernels: Kernels,
        begin: Callable[[Function], None] | None,
    ) -> None:
        self.graph = graph
        self.kernels = kernels
        self.device_buffers = DeviceBuffers(spaces)
        self.assembly = Assembly(begin=begin)
        self.constants: dict[Value, Literal] = {
            node.output: node.attrs.value for node in graph.nodes if node.op.name == "constant"
        }
        self.layout = choose_layout(graph, self.constants, target, accuracy=kernels.accuracy)
        self.storages = dict(self.layout.storages)
        self.joins = Joins(graph)
        self.joints = self.joins.joints(self.storages)
        self.storages.update((value, joint.storage) for value, joint in self.joints.items())
        self.buffers: dict[Value, dict[Storage, HostBuffer]] = {}
        self.repacked: dict[tuple[Value, str], Slot] = {}  # by tensor and function
        self.computed: set[Value] = set()  # by kernels
        self.outputs = _output_roots(graph)
        for number, value in enumerate(graph.inputs):
            self.buffers[value] = {row_major(value).users: Input(number)}

    def run(self) -> Assembly:
        for node in self.graph.nodes:
            if node.op.name == "constant":
                continue
            if node.op.name == "region" and node.attrs.label in self.device_buffers.spaces:
                _on_device(self, node)
                continue
            for value in node.args:
                _bring_to_host(self, value)
            if is_view(node):
                self.view(node)
            elif node.op.name == "region":
                self.in_python(node, RegionStep, "")
            elif node in self.layout.renamed:
                self.rename(node, self.layout.renamed[node])
            elif not self.is_joined(node) and not self.is_cut(node):
                self.compute(node)
        for number, value in enumerate(self.graph.outputs):
            _bring_to_host(self, value)
            self.deliver(number, value)
        return self.assembly

    def view(self, node: Node) -> None:
        """Describe the operand's memory by another shape."""
        source, buffer = self.in_rows(node.args[0])
        storage = replace(source, shape=shape_of(node.output))
        self.buffers[node.output] = {storage: buffer}

    def rename(self, node: Node, moved: ChannelsLast) -> None:
        """Describe rows of channels as an image in one block, or such an image as rows."""
        if moved.makes_image:
            rows, buffer = self.in_rows(moved.operand)
            self.buffers[node.output] = {moved.stored(rows): buffer}
            return
        rows, buffer = self.destination(node.output)
        image = moved.stored(rows)
        if image in self.buffers[moved.operand]:
            self.buffers[node.output] = {rows: self.buffers[moved.operand][image]}
            return
        source = self.current(moved.operand)
        self.buffers[moved.operand][image] = buffer
        self.relayout(moved.operand, source, image)

    def compute(self, node: Node) -> None:
        """The kernel of a group; the evaluator for a node that has none."""
        group = self.layout.groups[node]
        stores = self.operand_stores(group)
        stores.update((value, _result_storage(self, value)) for value in node.outputs)
        kernel = self.kernels.kernel(group, stores)
        if isinstance(kernel, Kernel):
            if kernel.initial is not None:
                _begin(self, node, kernel.initial)
            self.native(group, kernel, stores)
        elif len(group.nodes) > 1 or any(storage.block for storage in stores.values()):
            # fusion and layout choice have asked the same templates
            raise InternalError(
                f"a kernel was declared that is not: {kernel.reason}", node.location
            )
        else:
            self.in_python(node, ReferenceStep, kernel.reason)

    def is_joined(self, node: Node) -> bool:
        """Whether a concatenation's operands have all been made where they belong."""
        if node.op.name != "concatenate" or node.output not in self.buffers:
            return False
        roots = [self.joins.root(value) for value in node.args]
        if all(root in self.joints for root in roots):
            return True
        self.buffers[node.output] = {}  # some are elsewhere, so all are copied
        return False

    def is_cut(self, node: Node) -> bool:
        """Whether the results are ranges of the operand's memory; then they get their buffers."""
        sliced = cuts(node)
        source = node.args[0] if node.args else None
        if sliced is None or source not in self.buffers:
            return False
        axis, ranges = sliced
        block = self.storages[node.output].block
        if block and all(storage.block != block for storage in self.buffers[source]):
            self.read(source, self.layout.stored(source, block))  # made in rows, cut in blocks
        for storage, buffer in self.buffers[source].items():
            places = [located(storage, axis, part.first, part.count) for part in ranges]
            if isinstance(buffer, Slot | Part) and storage.block == block:
                if None in places:
                    continue
                for part, place in zip(ranges, filter(None, places), strict=True):
                    inner, offset = place
                    self.buffers[part.value] = {inner: part_of(buffer, offset, inner.static_bytes)}
                return True
        return False

    def operand_stores(self, group: Group) -> dict[Value, Storage]:
        """The storage in which a group reads each operand: one that it already has, if any fits."""
        candidate = self.layout.candidates.get(group.node)
        requirements = candidate.requirements if candidate else ()
        required = {requirement.value: requirement.blocks for requirement in requirements}
        stores: dict[Value, Storage] = {}
        for value in group.reads():
            if value in group.constants:
                continue
            outer = group.outer(value)
            blocks = required.get(outer, (0,))
            needs_halo = group.first_anchor is not None and value in group.first_anchor.args[:1]
            there = {
                one.block: one
                for one in self.buffers[outer]
                if not needs_halo or covers(one.halo, self.layout.stored(outer, one.block).halo)
            }
            fitting = (there[block] for block in blocks if block in there)
            stores[outer] = next(fitting, None) or self.layout.stored(outer, blocks[0])
        return stores

    def current(self, value: Value) -> Storage:
        """A storage in which a value exists, preferably a blocked one."""
        return max(self.buffers[value], key=lambda storage: storage.block)

    def destination(self, value: Value) -> tuple[Storage, HostBuffer]:
        """The storage and buffer of a result."""
        storage = _result_storage(self, value)
        buffers = self.buffers.setdefault(value, {})
        if storage not in buffers:
            buffers[storage] = (
                Output(self.outputs[value])
                if _is_direct(self, value)
                else self.memory(value, storage)
            )
        return storage, buffers[storage]

    def memory(self, value: Value, storage: Storage) -> Slot | Part:
        """A slot, or a part of the slot of the concatenation that the value is an operand of."""
        joint = self.joints.get(value)
        if joint is None:
            return self.assembly.slot(storage)
        whole = self.destination(joint.whole)[1]
        assert isinstance(whole, Slot)
        return part_of(whole, joint.offset, storage.static_bytes)

    def native(self, group: Group, kernel: Kernel, stores: Mapping[Value, Storage]) -> None:
        for value in group.node.outputs:
            self.destination(value)
        self.computed.update(group.node.outputs)
        buffers = tuple(self.argument(argument, stores) for argument in kernel.arguments)
        symbol = self.assembly.symbol(kernel.function)
        step = NativeStep(symbol, buffers, group.label, kernel.work, group.node, kernel.scalars)
        self.assembly.steps.append(step)

    def argument(self, argument: Argument, stores: Mapping[Value, Storage]) -> HostBuffer:
        """The buffer that a kernel is called with."""
        match argument:
            case Value():
                return self.read(argument, stores[argument])
            case Repacked(value, storage, function):
                return self.repack(value, stores[value], storage, function)
        return self.assembly.constant(argument)

    def repack(
        self, value: Value, source: Storage, storage: Storage, function: Function
    ) -> HostBuffer:
        """The buffer of a value in the order of some kernels, made for the first of them."""
        symbol = self.assembly.symbol(function)
        if (value, symbol) not in self.repacked:
            slot = self.repacked[value, symbol] = self.assembly.slot(storage)
            buffers = (self.read(value, source), slot)
            work = Work(bytes=source.nbytes + storage.nbytes)
            self.assembly.steps.append(NativeStep(symbol, buffers, "relayout", work, None))
        return self.repacked[value, symbol]

    def read(self, value: Value, storage: Storage) -> HostBuffer:
        """The buffer of a value in some storage, after a relayout where there is none yet."""
        buffers = self.buffers[value]
        if storage not in buffers:
            source = self.current(value)
            buffers[storage] = self.assembly.slot(storage)
            self.relayout(value, source, storage)
        return buffers[storage]

    def relayout(self, value: Value, source: Storage, target: Storage) -> None:
        buffers = (self.buffers[value][source], self.buffers[value][target])
        function, passed = self.kernels.relayout(source, target)
        symbol = self.assembly.symbol(function)
        work = Work(bytes=source.nbytes + target.nbytes)
        self.assembly.steps.append(NativeStep(symbol, buffers, "relayout", work, None, passed))

    def in_rows(self, value: Value) -> tuple[Storage, HostBuffer]:
        """A value in row-major storage."""
        if value in self.constants:
            storage = row_major(value)
            return storage, self.assembly.constant(storage.pack(self.constants[value].array))
        for storage, buffer in self.buffers[value].items():
            if not storage.block:
                return storage, buffer
        return row_major(value), self.read(value, row_major(value))

    def in_python(self, node: Node, kind: type[ReferenceStep], reason: str) -> None:
        """A step outside of native code, on row-major tensors."""
        rows = [self.in_rows(value) for value in node.args]
        inputs = tuple((buffer, storage) for storage, buffer in rows)
        outputs = []
        for value in node.outputs:
            _as_rows(self, value)
            storage, buffer = self.destination(value)
            outputs.append((buffer, storage))
        self.assembly.steps.append(kind(node, inputs, tuple(outputs), reason))

    def deliver(self, number: int, value: Value) -> None:
        """Copy an output to the user's memory, unless it is there."""
        there = value in self.constants or any(not one.block for one in self.buffers[value])
        storage, buffer = self.in_rows(value) if there else (None, None)
        if buffer == Output(number):
            return
        users = row_major(value).users
        if storage is None:
            source = self.current(value)
            self.buffers[value][users] = Output(number)
            self.relayout(value, source, users)
        else:
            # an output that is an input, a constant or another output as well
            assert buffer is not None
            self.copy(value, storage, buffer, Output(number))

    def copy(self, value: Value, storage: Storage, source: HostBuffer, target: HostBuffer) -> None:
        """Copy a value to other memory."""
        extents = Extents()
        function = copied(storage.nbytes, extents)
        step = NativeStep(
            self.assembly.symbol(function),
            (source, target),
            f"copy {value.name}",
            Work(bytes=2 * storage.nbytes),
            None,
            extents.passed(function),
        )
        self.assembly.steps.append(step)


def _is_direct(assembler: _Assembler, value: Value) -> bool:
    """Whether a result is computed right into an output."""
    return value in assembler.outputs and not assembler.storages[value].block


def _result_storage(assembler: _Assembler, value: Value) -> Storage:
    """The storage that a result is computed in."""
    storage = assembler.storages[value]
    return storage.users if _is_direct(assembler, value) else storage


def _begin(assembler: _Assembler, node: Node, initial: Value) -> None:
    """Let a node's result begin as an operand: in the operand's memory if nothing else reads that,
    else as a copy."""
    result, joins = node.output, assembler.joins
    storage, buffer = assembler.in_rows(initial)
    target = _result_storage(assembler, result)
    has_place = _is_direct(assembler, result) or result in assembler.joints
    is_free = joins.dies(initial, node) and joins.root(initial) in assembler.computed
    fits = isinstance(buffer, Slot) and storage.nbytes == target.nbytes
    if fits and is_free and not has_place:
        assembler.buffers[result] = {target: buffer}
    else:
        assembler.copy(initial, storage, buffer, assembler.destination(result)[1])


def _as_rows(assembler: _Assembler, value: Value) -> None:
    """Give a result row-major storage of its own."""
    assembler.storages[value] = row_major(value)
    assembler.joints.pop(value, None)
    assembler.buffers[value] = {}


def _on_device(assembler: _Assembler, node: Node) -> None:
    """Call a region in the memory of a device, after copying its operands there."""
    space = assembler.device_buffers.spaces[node.attrs.label]
    for value in node.args:
        if not assembler.device_buffers.has(value, space):
            _bring_to_host(assembler, value)  # devices have no direct transfers
            storage, buffer = assembler.in_rows(value)
            there = assembler.device_buffers.add(value, space)
            assembler.assembly.steps.append(
                TransferStep(node, (buffer, storage), there, upload=True)
            )
    for value in node.outputs:
        _as_rows(assembler, value)
        assembler.device_buffers.add_result(value, space, node)
    operands = [
        tuple((assembler.device_buffers.get(value, space), row_major(value)) for value in values)
        for values in (node.args, node.outputs)
    ]
    assembler.assembly.steps.append(RegionStep(node, operands[0], operands[1], ""))
    for value in node.outputs:
        if _is_read_elsewhere(assembler, value, space):
            _bring_to_host(assembler, value)  # at once, so that its memory can be used again


def _is_read_elsewhere(assembler: _Assembler, value: Value, space: str) -> bool:
    """Whether something outside of a memory space reads a value."""
    graph, spaces = assembler.graph, assembler.device_buffers.spaces
    return value in graph.outputs or any(
        user.op.name != "region" or spaces.get(user.attrs.label) != space
        for user in graph.users.get(value, ())
    )


def _bring_to_host(assembler: _Assembler, value: Value) -> None:
    """Copy a value to the host's memory, unless it is there."""
    if value in assembler.device_buffers.results and not assembler.buffers[value]:
        region, device = assembler.device_buffers.results[value]
        storage, buffer = assembler.destination(value)
        assembler.assembly.steps.append(
            TransferStep(region, (buffer, storage), device, upload=False)
        )


def _output_roots(graph: Graph) -> dict[Value, int]:
    """Values that can be computed right into an output: outputs and what they are views of."""
    source = {node.output: node.args[0] for node in graph.nodes if is_view(node)}
    numbers: dict[Value, int] = {}
    for number, value in enumerate(graph.outputs):
        root = value
        while root in source:
            root = source[root]
        numbers.setdefault(root, number)
    return numbers
