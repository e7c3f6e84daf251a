"""Fused graph -> program: kernels, the memory they work in, and the order in which they run.

Node by node, the storage of operands is brought about (a relayout where a template wants another
one), a template makes the kernel, and its result gets a place: the user's output where it is one,
else a slot of the arena. Slots get their offsets when all steps are known. What no template takes
becomes a step on the reference evaluator, which the program shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graft.backends.host.group import Group, group_of
from graft.backends.host.kernel import Kernel
from graft.backends.host.kernels.relayout import relayout
from graft.backends.host.layout import choose_storage, input_storage, is_convolution, needed_halo
from graft.backends.host.storage import Storage, row_major, static_shape
from graft.backends.host.templates import kernel_for
from graft.base.dtypes import Array, DType
from graft.ir.evaluate import run_op
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.op import Work
from graft.llvm.target import Target
from graft.loop.ir import Function
from graft.loop.print import to_text
from graft.passes.plan_memory import is_view
from graft.runtime.program import Constant, Input, Output

PythonFunction = Callable[["Sequence[Array]"], "Sequence[Array]"]


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory of the arena whose offset is not decided yet."""

    number: int
    nbytes: int


Home = Input | Output | Constant | Slot


@dataclass(frozen=True, eq=False)
class NativeStep:
    """A kernel and what it is called with."""

    symbol: str
    homes: tuple[Home, ...]
    label: str
    work: Work
    node: Node | None


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """A node on the reference evaluator, and why."""

    node: Node
    inputs: tuple[tuple[Home, Storage], ...]
    outputs: tuple[tuple[Home, Storage], ...]
    reason: str

    def function(self) -> PythonFunction:
        """What the step calls."""
        node = self.node

        def run(operands: Sequence[Array]) -> Sequence[Array]:
            given = iter(operands)
            arrays = [None if value is None else next(given) for value in node.inputs]
            return list(run_op(node.op, node.attrs, arrays))

        return run


@dataclass
class Assembly:
    """Everything a program needs but offsets and object code."""

    steps: list[NativeStep | ReferenceStep] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    constants: list[Array] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)


def assemble(graph: Graph, target: Target) -> Assembly:
    """Turn a fused graph with static shapes into steps."""
    return _Assembler(graph, target).run()


class _Assembler:
    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph = graph
        self.target = target
        self.made = Assembly()
        self.constants: dict[Value, Literal] = {
            node.output: node.attrs.value for node in graph.nodes if node.op.name == "constant"
        }
        self.chosen = choose_storage(graph, self.constants)
        self.homes: dict[Value, dict[Storage, Home]] = {}
        self.outputs = _output_roots(graph)
        for number, value in enumerate(graph.inputs):
            self.homes[value] = {_users(row_major(value)): Input(number)}

    def run(self) -> Assembly:
        for node in self.graph.nodes:
            if node.op.name == "constant":
                continue
            if is_view(node):
                self.view(node)
            else:
                self.compute(node)
        for number, value in enumerate(self.graph.outputs):
            self.deliver(number, value)
        return self.made

    def view(self, node: Node) -> None:
        """The operand's memory under another shape."""
        source, home = self.in_rows(node.args[0])
        storage = replace(source, shape=static_shape(node.output))
        self.homes[node.output] = {storage: home}

    def compute(self, node: Node) -> None:
        group = group_of(node, self.constants)
        stores = self.operand_stores(group)
        stores.update((value, self.destination(value)[0]) for value in node.outputs)
        made = kernel_for(group, stores, self.target)
        if isinstance(made, Kernel):
            self.native(group, made, stores)
        else:
            self.on_reference(group, made.reason)

    def operand_stores(self, group: Group) -> dict[Value, Storage]:
        """The storage in which the group reads each of its operands."""
        found: dict[Value, Storage] = {}
        blocked = any(self.chosen[value].block for value in group.node.outputs)
        for value in group.reads():
            if value not in group.constants:
                outer = group.outer(value)
                found[outer] = self.wanted(group, value, outer, blocked)
        return found

    def wanted(self, group: Group, value: Value, outer: Value, blocked: bool) -> Storage:
        """How the group wants an operand: as it is, where that will do."""
        current = self.current(outer)
        if is_convolution(group) and group.anchor is not None and value is group.anchor.args[0]:
            halo = needed_halo(group)
            return current if _covers(current, halo) else input_storage(outer, halo)
        same = static_shape(outer) == static_shape(group.output)
        if blocked and same:
            return current if current.block else input_storage(outer, (0, 0, 0, 0))
        anchor = group.anchor
        keeps = blocked or (anchor is not None and anchor.op.name == "mean")
        return current if keeps or not current.block else row_major(outer)

    def current(self, value: Value) -> Storage:
        """The storage that a value has now; of several, a blocked one."""
        return max(self.homes[value], key=lambda storage: storage.block)

    def destination(self, value: Value) -> tuple[Storage, Home]:
        """Where a result goes."""
        storage = self.chosen[value]
        direct = value in self.outputs and not storage.block
        storage = _users(storage) if direct else storage
        known = self.homes.setdefault(value, {})
        if storage not in known:
            known[storage] = Output(self.outputs[value]) if direct else self.slot(storage)
        return storage, known[storage]

    def slot(self, storage: Storage) -> Slot:
        made = Slot(len(self.made.slots), storage.nbytes)
        self.made.slots.append(made)
        return made

    def native(self, group: Group, kernel: Kernel, stores: Mapping[Value, Storage]) -> None:
        homes = tuple(
            self.read(argument, stores[argument])
            if isinstance(argument, Value)
            else self.constant(argument)
            for argument in kernel.arguments
        )
        symbol = self.symbol(kernel.function)
        self.made.steps.append(NativeStep(symbol, homes, group.label, kernel.work, group.node))

    def symbol(self, function: Function) -> str:
        """The function's name in the program: equal functions are one."""
        plain = replace(function, name="kernel", notes=())
        name = "k" + hashlib.sha256(to_text(plain).encode()).hexdigest()[:20]
        self.made.functions[name] = replace(function, name=name)
        return name

    def constant(self, array: Array) -> Constant:
        self.made.constants.append(array)
        return Constant(len(self.made.constants) - 1)

    def read(self, value: Value, storage: Storage) -> Home:
        """A value in some storage, brought about by a relayout where it is not there yet."""
        known = self.homes[value]
        if storage not in known:
            source = self.current(value)
            known[storage] = self.slot(storage)
            self.relayout(value, source, storage)
        return known[storage]

    def relayout(self, value: Value, source: Storage, target: Storage) -> None:
        homes = (self.homes[value][source], self.homes[value][target])
        symbol = self.symbol(relayout(source, target))
        work = Work(bytes=source.nbytes + target.nbytes)
        self.made.steps.append(NativeStep(symbol, homes, "relayout", work, None))

    def in_rows(self, value: Value) -> tuple[Storage, Home]:
        """A value in row-major storage."""
        if value in self.constants:
            storage = row_major(value)
            return storage, self.constant(storage.pack(self.constants[value].array))
        for storage, home in self.homes[value].items():
            if not storage.block:
                return storage, home
        return row_major(value), self.read(value, row_major(value))

    def on_reference(self, group: Group, reason: str) -> None:
        node = group.node
        rows = [self.in_rows(value) for value in node.args]
        inputs = tuple((home, storage) for storage, home in rows)
        outputs = []
        for value in node.outputs:
            self.chosen[value] = row_major(value)
            self.homes[value] = {}  # not where a kernel would have put it
            storage, home = self.destination(value)
            outputs.append((home, storage))
        self.made.steps.append(ReferenceStep(node, inputs, tuple(outputs), reason))

    def deliver(self, number: int, value: Value) -> None:
        """See to it that an output is in the user's memory."""
        storage, home = self.in_rows(value) if self.is_in_rows(value) else (None, None)
        if home == Output(number):
            return
        users = _users(row_major(value))
        if storage is None:
            source = self.current(value)
            self.homes[value][users] = Output(number)
            self.relayout(value, source, users)
        else:
            self.copy(value, storage, home, number)

    def is_in_rows(self, value: Value) -> bool:
        if value in self.constants:
            return True
        return any(not storage.block for storage in self.homes[value])

    def copy(self, value: Value, storage: Storage, home: Home | None, number: int) -> None:
        """An output that is an input, a constant or another output as well."""
        assert home is not None
        # byte by byte, whatever the elements are
        flat = Storage(DType.UINT8, (1, 1, 1, storage.nbytes), alignment=1)
        symbol = self.symbol(relayout(flat, flat))
        work = Work(bytes=2 * storage.nbytes)
        self.made.steps.append(
            NativeStep(symbol, (home, Output(number)), f"copy {value.name}", work, None)
        )


def _users(storage: Storage) -> Storage:
    """The same in memory of the user's, which has the alignment of its elements only."""
    return replace(storage, alignment=storage.dtype.numpy.itemsize)


def _covers(storage: Storage, padding: tuple[int, int, int, int]) -> bool:
    """Whether the storage is blocked with a halo at least as wide as the padding."""
    pairs = zip(storage.halo, padding, strict=True)
    return storage.block > 0 and all(halo >= wanted for halo, wanted in pairs)


def _output_roots(graph: Graph) -> dict[Value, int]:
    """Values that can be computed right into an output: outputs and what they are views of."""
    source = {node.output: node.args[0] for node in graph.nodes if is_view(node)}
    found: dict[Value, int] = {}
    for number, value in enumerate(graph.outputs):
        root = value
        while root in source:
            root = source[root]
        found.setdefault(root, number)
    return found
