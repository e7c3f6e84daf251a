"""A region as steps of the DSP: kernels, the storage of values, and one arena of memory.

Quantised units become HVX kernels (`units.py`, `layers.py`). Every other node becomes a scalar
kernel of its tensor expression. Movement of axes is no step at all: values are stored in whatever
order of axes they come in, so that images cross the border of a region as NHWC and stay so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graft.backends.hexagon import layers
from graft.backends.hexagon.code import Step, buffers_of
from graft.backends.hexagon.hvx import SLACK, VECTOR
from graft.backends.hexagon.units import lower_unit, storage_of
from graft.base.errors import UnsupportedError
from graft.byoc.formats.buffers import Buffers, plan_offsets
from graft.byoc.formats.integer_units import Unit, extents
from graft.byoc.formats.storage import Storage
from graft.byoc.formats.tensors import Tensors, strided
from graft.byoc.sizes import node_work
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Kind
from graft.llvm.types import byte_size
from graft.loop.default_schedule import element_loop
from graft.loop.ir import Const, Function
from graft.loop.tensor import Tensor

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


class Planner(Buffers):
    """Steps, and where values are, while a region is planned. Buffers go by names."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._steps: list[tuple[Function, tuple[str, ...]]] = []
        self._scalar_work = 0

    def run(self) -> Plan:
        inputs = [self.make(value, _row_major(value)) for value in self.graph.inputs]
        for node, unit in self._parts():
            planned = len(self._steps)
            if unit is None:
                if not self._is_view(node):
                    self._express((node,))
            elif not lower_unit(self, unit):
                del self._steps[planned:]
                self._express(unit.nodes)
        outputs = [self.require(value, _row_major(value)) for value in self.graph.outputs]
        return self._laid_out(inputs, outputs)

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

    def own(self, nbytes: int) -> str:
        return super().own(_room(nbytes))

    def step(self, function: Function, buffers: tuple[str, ...]) -> None:
        """Run a kernel on buffers; memory of its own comes behind these."""
        for buffer in buffers_of(function)[len(buffers) :]:
            count = math.prod(int(one.value) for one in buffer.extents if isinstance(one, Const))
            buffers = (*buffers, self.own(count * byte_size(buffer.dtype)))
        self._steps.append((function, buffers))

    def run_kernel(
        self, inputs: Sequence[Tensor], result: Tensor, buffers: tuple[str, ...], label: str
    ) -> None:
        self.step(element_loop("kernel", inputs, result), buffers)

    def write(self, tensors: Tensors, result: Tensor, value: Value) -> None:
        """The step that computes a value by its tensor expression."""
        storage = storage_of(value)
        self.compute(tensors, result, storage, self.make(value, storage))

    def _is_view(self, node: Node) -> bool:
        """Whether a node leaves all elements where they are; its result is then where these are."""
        if node.op.kind is not Kind.INJECTIVE or len(node.outputs) > 1:
            return False
        value, shape = node.output, extents(node.output)
        source = strided(self, (node,), value)
        order = source.order(shape) if source and source.dtype is value.dtype else None
        if source is None or order is None:
            return False
        self.places[value] = source.buffer, Storage(value.dtype, shape, order)
        return True

    def _express(self, nodes: Sequence[Node]) -> None:
        """A step for each result of the last node, which computes what it reads on its way."""
        tensors = Tensors(self)
        for position, node in enumerate(nodes):
            tensors.add(node, f"t{position}")
            work = node_work(node)
            self._scalar_work += 2 * work.macs + work.flops
        for value in nodes[-1].outputs:
            self.write(tensors, tensors.get(value), value)

    def _laid_out(self, inputs: Sequence[str], outputs: Sequence[str]) -> Plan:
        offsets, constants = dict[str, int](), bytearray()
        for name, array in self.constants.items():
            offsets[name] = len(constants)
            constants += array.tobytes().ljust(_room(array.nbytes), b"\0")
        uses = [inputs, *(names for _, names in self._steps), (*inputs, *outputs)]
        places, size = plan_offsets(self.sizes, uses)
        offsets |= {name: len(constants) + offset for name, offset in places.items()}
        return Plan(
            tuple(Step(one, tuple(offsets[n] for n in names)) for one, names in self._steps),
            bytes(constants),
            tuple(offsets[name] for name in inputs),
            tuple(offsets[name] for name in outputs),
            len(constants) + size or VECTOR,
            self._scalar_work,
        )


def _row_major(value: Value) -> Storage:
    return Storage.row_major(value.dtype, extents(value))


def _room(nbytes: int) -> int:
    """Bytes of a buffer with the slack behind it, in whole vectors."""
    return -(-(nbytes + SLACK) // VECTOR) * VECTOR
