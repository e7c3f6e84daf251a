"""A region as steps of the DSP: kernels, the storage of values, and one arena of memory.

Quantised units become HVX kernels (`units.py`, `layers.py`). Every other node becomes a scalar
kernel of its tensor expression. Movement of axes is no step at all: values are stored in whatever
order of axes they come in, so that images cross the border of a region as NHWC and stay so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graft.backends.hexagon import layers
from graft.backends.hexagon.code import Step, buffers_of
from graft.backends.hexagon.kernel import SLACK, VECTOR
from graft.backends.hexagon.units import lower_unit, storage_of
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import Unit, extents
from graft.byoc.formats.storage import Storage
from graft.byoc.formats.tensors import Tensors
from graft.byoc.sizes import node_work
from graft.ir.graph import Graph, Node, Value
from graft.llvm.types import byte_size
from graft.loop.errors import ScheduleError
from graft.loop.ir import Buffer, Const, Function, Var
from graft.loop.lower import lower
from graft.loop.schedule import ComputeAt, Directive, Fuse, Inline, Schedule, StoreIn
from graft.loop.stages import rewrite_stages
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.program.plan_memory import Lifetime, plan_arena

FAMILIES = (layers,)  # importing them fills the table of units


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps on an arena that begins with the constants; where inputs and outputs lie there."""

    steps: tuple[Step, ...]
    constants: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: int
    scalar_work: int  # operations of the graph that no vectors do


def plan_region(region: Graph) -> Plan:
    """The steps of a region."""
    return Planner(region).run()


class Planner:
    """Steps, and where values are, while a region is planned. Buffers go by names."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.literals: Mapping[Value, Array] = {v: one.array for v, one in graph.constants.items()}
        self._places: dict[Value, tuple[str, Storage]] = {}
        self._sizes: dict[str, int] = {}
        self._constants: dict[str, Array] = {}
        self._steps: list[tuple[Function, tuple[str, ...]]] = []
        self._scalar_work = 0

    def run(self) -> Plan:
        for value in self.graph.inputs:
            self.make(value, Storage.row_major(value.dtype, extents(value)))
        for node, unit in self._parts():
            planned = len(self._steps)
            if unit is None:
                self._plain(node)
            elif not lower_unit(self, unit):
                del self._steps[planned:]
                self._express(unit.nodes)
        outputs = [
            self.require(value, Storage.row_major(value.dtype, extents(value)))
            for value in self.graph.outputs
        ]
        return self._laid_out([self._places[value][0] for value in self.graph.inputs], outputs)

    def _parts(self) -> list[tuple[Node, Unit | None]]:
        """The nodes that have to be computed, each alone or as the end of a unit, in order."""
        needed, parts = set(self.graph.outputs), list[tuple[Node, Unit | None]]()
        for node in reversed(self.graph.nodes):
            if node.op.name == "constant" or not needed.intersection(node.outputs):
                continue
            unit = self._unit(node)
            inside = unit.nodes if unit else (node,)
            made = {value for one in inside for value in one.outputs}
            needed.update(value for one in inside for value in one.args if value not in made)
            parts.append((node, unit))
        return parts[::-1]

    def _unit(self, node: Node) -> Unit | None:
        """What a node ends, if that is a whole unit."""
        unit = Unit(node, self.graph)
        try:
            return unit if node.op.name == "qnn.quantize" and unit.nodes else None
        except UnsupportedError:  # it quantises floats
            return None

    # Buffers and storage.

    def constant(self, array: Array) -> str:
        """The buffer of an array that is known."""
        name = f"constant{len(self._constants)}"
        self._constants[name] = np.ascontiguousarray(array)
        return name

    def own(self, size: int) -> str:
        """A buffer of so many bytes."""
        name = f"own{len(self._sizes)}"
        self._sizes[name] = size
        return name

    def located(self, value: Value) -> tuple[str, Storage]:
        """The buffer and the storage of a value."""
        if value not in self._places:
            storage = Storage.row_major(value.dtype, extents(value))
            self._places[value] = self.constant(storage.pack(self.literals[value])), storage
        return self._places[value]

    def make(self, value: Value, storage: Storage) -> str:
        """The buffer of a value that a step writes."""
        self._places[value] = self.own(storage.nbytes), storage
        return self._places[value][0]

    def require(self, value: Value, storage: Storage) -> str:
        """The buffer of a value in some storage, copied there where it is not yet."""
        name, now = self.located(value)
        if now.serves(storage):
            return name
        if value in self.literals:
            return self.constant(storage.pack(self.literals[value]))
        tensors, copy = Tensors(self), self.own(storage.nbytes)
        self._launch(tensors, tensors.get(value), storage, copy)
        return copy

    # Steps.

    def step(self, function: Function, buffers: tuple[str, ...]) -> None:
        """Run a kernel on buffers; memory of its own comes behind these."""
        rest = buffers_of(function)[len(buffers) :]
        sizes = (_count(one) * byte_size(one.dtype) for one in rest)
        self._steps.append((function, (*buffers, *map(self.own, sizes))))

    def compute(self, tensors: Tensors, result: Tensor, value: Value) -> None:
        """The step that computes a value by its tensor expression."""
        storage = storage_of(value)
        self._launch(tensors, result, storage, self.make(value, storage))

    def _plain(self, node: Node) -> None:
        order = _moved_axes(node)
        if order is None:
            self._express((node,))
            return
        name, storage = self.located(node.args[0])
        moved = tuple(order.index(axis) for axis in storage.order)
        self._places[node.output] = name, Storage(storage.dtype, extents(node.output), moved)

    def _express(self, nodes: Sequence[Node]) -> None:
        """A step for each result of the last node, which computes what it reads on its way."""
        tensors = Tensors(self)
        for position, node in enumerate(nodes):
            tensors.add(node, f"t{position}")
            work = node_work(node)
            self._scalar_work += 2 * work.macs + work.flops
        for value in nodes[-1].outputs:
            self.compute(tensors, tensors.get(value), value)

    def _launch(self, tensors: Tensors, value: Tensor, storage: Storage, target: str) -> None:
        if 0 in storage.extents:
            return
        result = storage.result("result", value)
        if not result.shape:  # loops need an axis: a scalar is a list of one
            scalar = replace(result.buffer, extents=(Const(1),))
            result = replace(result, buffer=scalar, axes=(Var("result@i0"),))
        inputs = tensors.complete(result)
        function = scalar_kernel(inputs, result)
        self.step(function, (*(tensors.buffers[one.name] for one in inputs), target))

    # Memory.

    def _laid_out(self, inputs: Sequence[str], outputs: Sequence[str]) -> Plan:
        offsets, stored = dict[str, int](), bytearray()
        for name, array in self._constants.items():
            offsets[name] = len(stored)
            stored += array.tobytes().ljust(_room(array.nbytes), b"\0")
        end = len(self._steps)
        first, last = dict.fromkeys(inputs, 0), dict.fromkeys((*inputs, *outputs), end)
        for number, (_, names) in enumerate(self._steps):
            for name in names:
                first.setdefault(name, number)
                last[name] = max(last.get(name, 0), number)
        used = [name for name in self._sizes if name in last]
        lifetimes = [
            Lifetime(_room(self._sizes[name]), first.get(name, 0), last[name]) for name in used
        ]
        arena = plan_arena(lifetimes)
        for name, (_, offset) in zip(used, arena.offsets, strict=True):
            offsets[name] = len(stored) + offset
        total = max((offsets[n] + _room(self._sizes[n]) for n in used), default=len(stored))
        steps = [Step(kernel, tuple(offsets[n] for n in names)) for kernel, names in self._steps]
        return Plan(
            tuple(steps),
            bytes(stored),
            tuple(offsets[name] for name in inputs),
            tuple(offsets[name] for name in outputs),
            total or VECTOR,
            self._scalar_work,
        )


def _room(size: int) -> int:
    """Bytes of a buffer with the slack behind it, in whole vectors."""
    return -(-(size + SLACK) // VECTOR) * VECTOR


def _count(buffer: Buffer) -> int:
    return math.prod(int(one.value) for one in buffer.extents if isinstance(one, Const))


def _moved_axes(node: Node) -> tuple[int, ...] | None:
    """For each axis of a result the one of the operand that it is, where nothing else is done."""
    rank = len(extents(node.output))
    if node.op.name == "transpose":
        axes = node.attrs.axes
        return tuple(range(rank))[::-1] if axes is None else tuple(axis % rank for axis in axes)
    layouts = {"NHWC": (0, 3, 1, 2), "NCHW": (0, 1, 2, 3)}
    if node.op.name != "layout_transform":
        return None
    source, target = (layouts.get(one) for one in (node.attrs.src_layout, node.attrs.dst_layout))
    if source is None or target is None:
        return None
    return tuple(source[target.index(axis)] for axis in range(4))


def scalar_kernel(inputs: Sequence[Tensor], result: Tensor) -> Function:
    """One loop over the elements of a result, with the reductions behind each in registers.

    Reductions of which several elements read one (as in softmax) come before, in memory."""
    stages = [one for one in in_order([result]) if one.body is not None and one is not result]
    schedule: dict[str, list[Directive]] = {
        one.name: [Inline()] for one in stages if not isinstance(one.body, Reduce)
    }
    names = {one.name for one in (*inputs, result)}
    written = rewrite_stages(in_order([result]), names, Schedule.of(schedule))
    axes = [axis.name.rpartition("@")[2] for axis in written[result.name].axes]
    fused, schedule[result.name] = axes[0], []
    for number, axis in enumerate(axes[1:]):
        schedule[result.name].append(Fuse(fused, axis, f"fused{number}"))
        fused = f"fused{number}"
    at_once: dict[str, list[Directive]] = {
        one.name: [ComputeAt(result.name, fused), StoreIn("register")]
        for one in written.values()
        if isinstance(one.body, Reduce) and one is not written[result.name]
        if _count(one.buffer) >= _count(result.buffer)
    }
    try:
        return lower("kernel", (*inputs, result), Schedule.of(schedule | at_once))
    except ScheduleError:  # an element reads several of one reduction
        return lower("kernel", (*inputs, result), Schedule.of(schedule))
