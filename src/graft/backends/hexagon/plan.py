"""A region as steps of the DSP: kernels, the storage of values, and one arena of memory.

Quantised units become HVX kernels (`units.py`, `layers.py`). Every other node becomes a scalar
kernel of its tensor expression. Movement of axes is no step at all: values are stored in whatever
order of axes they come in, so that images cross the border of a region as NHWC and stay so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graft.backends.hexagon.code import Step, buffers_of
from graft.backends.hexagon.hvx import SLACK, VECTOR
from graft.base.errors import UnsupportedError
from graft.base.registry import Registry
from graft.byoc.formats.buffers import Buffers, plan_offsets, row_major
from graft.byoc.formats.integer_units import Unit, extents
from graft.byoc.formats.storage import CHANNELS_LAST, Storage
from graft.byoc.sizes import node_work
from graft.ir.graph import Graph, Node, Value
from graft.llvm.types import byte_size
from graft.loop.default_schedule import element_loop
from graft.loop.ir import Const, Function
from graft.loop.tensor import Tensor

Lower = Callable[["Planner", Unit], None]
LOWER: Registry[Lower] = Registry("lowering to HVX")  # by operator
OTHERS = "others"  # the entry for operators without one of their own


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps on an arena that begins with the constants; where inputs and outputs lie there."""

    steps: tuple[Step, ...]
    constants: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: int
    scalar_work: int  # operations of the graph that no vectors do


class Planner(Buffers):
    """Steps, and where values are, while a region is planned. Buffers go by names."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._steps: list[tuple[Function, tuple[str, ...]]] = []
        self._scalar_work = 0

    def run(self) -> Plan:
        inputs = [self.make(value, row_major(value)) for value in self.graph.inputs]
        for nodes, unit in self._parts():
            is_planned = unit is not None and self._lower(unit)
            if not is_planned and not self.view(nodes):
                self.express(nodes)
        outputs = [self.require(value, row_major(value)) for value in self.graph.outputs]
        return self._laid_out(inputs, outputs)

    def _parts(self) -> list[tuple[Sequence[Node], Unit | None]]:
        """What has to be computed, in order: single nodes, and units with all of theirs."""
        needed, parts = set(self.graph.outputs), list[tuple[Sequence[Node], Unit | None]]()
        for node in reversed(self.graph.nodes):
            if node.op.name == "constant" or not needed.intersection(node.outputs):
                continue
            unit = self._unit(node)
            nodes = unit.nodes if unit else (node,)
            made = {value for one in nodes for value in one.outputs}
            needed.update(value for one in nodes for value in one.args if value not in made)
            parts.append((nodes, unit))
        return parts[::-1]

    def _unit(self, node: Node) -> Unit | None:
        """What a node ends, if that is a whole unit."""
        unit = Unit(node, self.graph)
        try:
            return unit if node.op.name == "qnn.quantize" and unit.nodes else None
        except UnsupportedError:  # it quantises floats
            return None

    def _lower(self, unit: Unit) -> bool:
        """Plan the steps of a unit in integers; False where it has no such form."""
        planned = len(self._steps)
        try:
            name = unit.operator.op.name
            LOWER.get(name if name in LOWER else OTHERS)(self, unit)
        except UnsupportedError:
            del self._steps[planned:]
            return False
        return True

    def storage_for(self, value: Value) -> Storage:
        """Images with the channels last, others as they are."""
        is_image = len(extents(value)) == 4
        return Storage(value.dtype, extents(value), CHANNELS_LAST) if is_image else row_major(value)

    def own(self, nbytes: int) -> str:
        return super().own(_room(nbytes))

    def step(self, function: Function, buffers: tuple[str, ...]) -> None:
        """Run a kernel on buffers; memory of its own comes behind these."""
        for buffer in buffers_of(function)[len(buffers) :]:
            count = math.prod(int(one.value) for one in buffer.extents if isinstance(one, Const))
            buffers = (*buffers, self.own(count * byte_size(buffer.dtype)))
        self._steps.append((function, buffers))

    def step_on(self, function: Function, operands: Sequence[Value], result: Value) -> None:
        """Run a kernel on values as they are best stored."""
        names = [self.require(value, self.storage_for(value)) for value in operands]
        self.step(function, (*names, self.make(result, self.storage_for(result))))

    def express(self, nodes: Sequence[Node], values: Sequence[Value] = ()) -> None:
        self._scalar_work += sum(2 * one.macs + one.flops for one in map(node_work, nodes))
        super().express(nodes, values)

    def run_kernel(
        self, inputs: Sequence[Tensor], result: Tensor, buffers: tuple[str, ...], label: str
    ) -> None:
        self.step(element_loop("kernel", inputs, result), buffers)

    def _laid_out(self, inputs: Sequence[str], outputs: Sequence[str]) -> Plan:
        offsets, constants = dict[str, int](), bytearray()
        for name, array in self.constants.items():
            offsets[name] = len(constants)
            constants += array.tobytes().ljust(_room(array.nbytes), b"\0")
        uses = [inputs, *(names for _, names in self._steps), (*inputs, *outputs)]
        places, size = plan_offsets(self.sizes, uses)
        offsets |= {name: len(constants) + offset for name, offset in places.items()}
        steps = (Step(one, tuple(offsets[n] for n in names)) for one, names in self._steps)
        return Plan(
            tuple(steps),
            bytes(constants),
            tuple(offsets[name] for name in inputs),
            tuple(offsets[name] for name in outputs),
            len(constants) + size or VECTOR,
            self._scalar_work,
        )


def _room(nbytes: int) -> int:
    """Bytes of a buffer with the slack behind it, in whole vectors."""
    return -(-(nbytes + SLACK) // VECTOR) * VECTOR
