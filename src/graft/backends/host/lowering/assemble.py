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
from graft.backends.host.kernel import Kernel
from graft.backends.host.kernel_memo import Kernels
from graft.backends.host.kernels.relayout import copied
from graft.backends.host.layout import choose_layout
from graft.backends.host.lowering.homes import (
    Abroad,
    Constant,
    Home,
    Input,
    Output,
    Part,
    Slot,
    Travels,
    within,
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
    """A kernel and what it is called with."""

    symbol: str
    homes: tuple[Home, ...]
    label: str
    work: Work
    node: Node | None
    scalars: tuple[Dim, ...] = ()


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """A node on the reference evaluator, and why."""

    node: Node
    inputs: tuple[tuple[Home | Abroad, Storage], ...]
    outputs: tuple[tuple[Home | Abroad, Storage], ...]
    reason: str


@dataclass(frozen=True, eq=False)
class RegionStep(ReferenceStep):
    """A region, which another backend runs."""


@dataclass(frozen=True, eq=False)
class TransferStep:
    """A tensor's way to the memory of a device, or home: for which region, from or to where."""

    region: Node
    home: tuple[Home, Storage]
    abroad: Abroad
    upload: bool


@dataclass
class Assembly:
    """Everything a program needs but offsets and object code."""

    steps: list[NativeStep | ReferenceStep | TransferStep] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    constants: list[Array] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    begin: Callable[[Function], None] | None = None  # is told of functions as they are made
    # Functions by the identity of their bodies, which those of the same structure share.
    _named: dict[int, tuple[Function, str]] = field(default_factory=dict)

    def slot(self, storage: Storage) -> Slot:
        """Memory of the arena for a tensor."""
        made = Slot(len(self.slots), storage.nbytes)
        self.slots.append(made)
        return made

    def symbol(self, function: Function) -> str:
        """The function's name in the program: equal functions are one."""
        known, name = self._named.get(id(function.body), (None, ""))
        if known is not None and known.parameters is function.parameters:
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
    `kernels` are those that other parts of the model have already. `begin` is told of each of the
    assembly's functions once, in their order, as soon as it is made."""
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
        self.travels = Travels(spaces)
        self.made = Assembly(begin=begin)
        self.constants: dict[Value, Literal] = {
            node.output: node.attrs.value for node in graph.nodes if node.op.name == "constant"
        }
        self.layout = choose_layout(graph, self.constants, target, accuracy=kernels.accuracy)
        self.chosen = dict(self.layout.storages)
        self.joins = Joins(graph)
        self.joints = self.joins.joints(self.chosen)
        self.chosen.update((value, joint.storage) for value, joint in self.joints.items())
        self.homes: dict[Value, dict[Storage, Home]] = {}
        self.outputs = _output_roots(graph)
        for number, value in enumerate(graph.inputs):
            self.homes[value] = {row_major(value).users: Input(number)}

    def run(self) -> Assembly:
        for node in self.graph.nodes:
            if node.op.name == "constant":
                continue
            if node.op.name == "region" and node.attrs.label in self.travels.spaces:
                _on_device(self, node)
                continue
            for value in node.args:
                _bring_home(self, value)
            if is_view(node):
                self.view(node)
            elif node.op.name == "region":
                self.in_python(node, RegionStep, "")
            elif node in self.layout.renamed:
                self.rename(node, self.layout.renamed[node])
            elif not self.is_joined(node) and not self.is_cut(node):
                self.compute(node)
        for number, value in enumerate(self.graph.outputs):
            _bring_home(self, value)
            self.deliver(number, value)
        return self.made

    def view(self, node: Node) -> None:
        """The operand's memory under another shape."""
        source, home = self.in_rows(node.args[0])
        storage = replace(source, shape=shape_of(node.output))
        self.homes[node.output] = {storage: home}

    def rename(self, node: Node, moved: ChannelsLast) -> None:
        """Rows of channels as the image in one block that they are, or such an image as rows."""
        if moved.makes_image:
            rows, home = self.in_rows(moved.operand)
            self.homes[node.output] = {moved.stored(rows): home}
            return
        rows, home = self.destination(node.output)
        image = moved.stored(rows)
        if image in self.homes[moved.operand]:
            self.homes[node.output] = {rows: self.homes[moved.operand][image]}
            return
        source = self.current(moved.operand)
        self.homes[moved.operand][image] = home
        self.relayout(moved.operand, source, image)

    def compute(self, node: Node) -> None:
        """The kernel of a group; the evaluator for a node that has none."""
        group = self.layout.groups[node]
        stores = self.operand_stores(group)
        stores.update((value, self.destination(value)[0]) for value in node.outputs)
        kernel = self.kernels.kernel(group, stores)
        if isinstance(kernel, Kernel):
            self.native(group, kernel, stores)
        elif len(group.nodes) > 1 or any(storage.block for storage in stores.values()):
            # fusion and layout choice have asked the same templates
            raise InternalError(f"a kernel was declared that is not: {kernel.reason}", node.place)
        else:
            self.in_python(node, ReferenceStep, kernel.reason)

    def is_joined(self, node: Node) -> bool:
        """Whether a concatenation's operands have all been made where they belong."""
        if node.op.name != "concatenate" or node.output not in self.homes:
            return False
        roots = [self.joins.root(value) for value in node.args]
        if all(root in self.joints for root in roots):
            return True
        self.homes[node.output] = {}  # some are elsewhere, so the whole is copied together
        return False

    def is_cut(self, node: Node) -> bool:
        """Whether the results are ranges of the operand's memory; then they get their homes."""
        found = cuts(node)
        source = node.args[0] if node.args else None
        if found is None or source not in self.homes:
            return False
        axis, ranges = found
        for storage, home in self.homes[source].items():
            places = [located(storage, axis, part.first, part.count) for part in ranges]
            if isinstance(home, Slot | Part) and storage.block == self.chosen[node.output].block:
                if None in places:
                    continue
                for part, place in zip(ranges, filter(None, places), strict=True):
                    inner, offset = place
                    self.homes[part.value] = {inner: within(home, offset, inner.static_bytes)}
                return True
        return False

    def operand_stores(self, group: Group) -> dict[Value, Storage]:
        """The storage in which a group reads each operand: one that it already has, if any fits."""
        candidate = self.layout.candidates.get(group.node)
        requirements = candidate.requirements if candidate else ()
        required = {one.value: one.blocks for one in requirements}
        stores: dict[Value, Storage] = {}
        for value in group.reads():
            if value in group.constants:
                continue
            outer = group.outer(value)
            blocks = required.get(outer, (0,))
            needs_halo = group.anchor is not None and value is group.anchor.args[0]
            there = {
                one.block: one
                for one in self.homes[outer]
                if not needs_halo or covers(one.halo, self.layout.stored(outer, one.block).halo)
            }
            fitting = (there[block] for block in blocks if block in there)
            stores[outer] = next(fitting, None) or self.layout.stored(outer, blocks[0])
        return stores

    def current(self, value: Value) -> Storage:
        """The storage that a value has now; of several, a blocked one."""
        return max(self.homes[value], key=lambda storage: storage.block)

    def destination(self, value: Value) -> tuple[Storage, Home]:
        """Where a result goes."""
        storage = self.chosen[value]
        direct = value in self.outputs and not storage.block
        storage = storage.users if direct else storage
        known = self.homes.setdefault(value, {})
        if storage not in known:
            known[storage] = Output(self.outputs[value]) if direct else self.memory(value, storage)
        return storage, known[storage]

    def memory(self, value: Value, storage: Storage) -> Slot | Part:
        """A slot, or the value's part of what it will be joined to."""
        joint = self.joints.get(value)
        if joint is None:
            return self.made.slot(storage)
        whole = self.destination(joint.whole)[1]
        assert isinstance(whole, Slot)
        return within(whole, joint.offset, storage.static_bytes)

    def native(self, group: Group, kernel: Kernel, stores: Mapping[Value, Storage]) -> None:
        homes = tuple(
            self.read(argument, stores[argument])
            if isinstance(argument, Value)
            else self.made.constant(argument)
            for argument in kernel.arguments
        )
        symbol = self.made.symbol(kernel.function)
        step = NativeStep(symbol, homes, group.label, kernel.work, group.node, kernel.scalars)
        self.made.steps.append(step)

    def read(self, value: Value, storage: Storage) -> Home:
        """A value in some storage, brought about by a relayout where it is not there yet."""
        known = self.homes[value]
        if storage not in known:
            source = self.current(value)
            known[storage] = self.made.slot(storage)
            self.relayout(value, source, storage)
        return known[storage]

    def relayout(self, value: Value, source: Storage, target: Storage) -> None:
        homes = (self.homes[value][source], self.homes[value][target])
        function, passed = self.kernels.relayout(source, target)
        symbol = self.made.symbol(function)
        work = Work(bytes=source.nbytes + target.nbytes)
        self.made.steps.append(NativeStep(symbol, homes, "relayout", work, None, passed))

    def in_rows(self, value: Value) -> tuple[Storage, Home]:
        """A value in row-major storage."""
        if value in self.constants:
            storage = row_major(value)
            return storage, self.made.constant(storage.pack(self.constants[value].array))
        for storage, home in self.homes[value].items():
            if not storage.block:
                return storage, home
        return row_major(value), self.read(value, row_major(value))

    def in_python(self, node: Node, kind: type[ReferenceStep], reason: str) -> None:
        """A step outside of native code, on row-major tensors."""
        rows = [self.in_rows(value) for value in node.args]
        inputs = tuple((home, storage) for storage, home in rows)
        outputs = []
        for value in node.outputs:
            _as_rows(self, value)
            storage, home = self.destination(value)
            outputs.append((home, storage))
        self.made.steps.append(kind(node, inputs, tuple(outputs), reason))

    def deliver(self, number: int, value: Value) -> None:
        """See to it that an output is in the user's memory."""
        there = value in self.constants or any(not one.block for one in self.homes[value])
        storage, home = self.in_rows(value) if there else (None, None)
        if home == Output(number):
            return
        users = row_major(value).users
        if storage is None:
            source = self.current(value)
            self.homes[value][users] = Output(number)
            self.relayout(value, source, users)
        else:
            self.copy(value, storage, home, number)

    def copy(self, value: Value, storage: Storage, home: Home | None, number: int) -> None:
        """An output that is an input, a constant or another output as well."""
        assert home is not None
        extents = Extents()
        function = copied(storage.nbytes, extents)
        step = NativeStep(
            self.made.symbol(function),
            (home, Output(number)),
            f"copy {value.name}",
            Work(bytes=2 * storage.nbytes),
            None,
            extents.passed(function),
        )
        self.made.steps.append(step)


def _as_rows(assembler: _Assembler, value: Value) -> None:
    """A result is to be row-major, and not where a kernel would have put it."""
    assembler.chosen[value] = row_major(value)
    assembler.joints.pop(value, None)
    assembler.homes[value] = {}


def _on_device(assembler: _Assembler, node: Node) -> None:
    """A region that reads and writes the memory of a device; what it needs is brought there."""
    space = assembler.travels.spaces[node.attrs.label]
    for value in node.args:
        if not assembler.travels.is_at(value, space):
            _bring_home(assembler, value)  # from another device there is no other way
            storage, home = assembler.in_rows(value)
            there = assembler.travels.arrive(value, space)
            assembler.made.steps.append(TransferStep(node, (home, storage), there, upload=True))
    for value in node.outputs:
        _as_rows(assembler, value)
        assembler.travels.make(value, space, node)
    operands = [
        tuple((assembler.travels.at(value, space), row_major(value)) for value in values)
        for values in (node.args, node.outputs)
    ]
    assembler.made.steps.append(RegionStep(node, operands[0], operands[1], ""))
    for value in node.outputs:
        if _is_wanted_elsewhere(assembler, value, space):
            _bring_home(assembler, value)  # at once, so that its memory can be used again


def _is_wanted_elsewhere(assembler: _Assembler, value: Value, space: str) -> bool:
    """Whether something outside of a memory space reads a value that is made there."""
    graph, spaces = assembler.graph, assembler.travels.spaces
    return value in graph.outputs or any(
        user.op.name != "region" or spaces.get(user.attrs.label) != space
        for user in graph.users.get(value, ())
    )


def _bring_home(assembler: _Assembler, value: Value) -> None:
    """See to it that a value is in the host's memory."""
    if value in assembler.travels.made and not assembler.homes[value]:
        region, abroad = assembler.travels.made[value]
        storage, home = assembler.destination(value)
        assembler.made.steps.append(TransferStep(region, (home, storage), abroad, upload=False))


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
