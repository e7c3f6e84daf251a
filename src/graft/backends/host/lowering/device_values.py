"""Values of a block in the memory of devices: a region in, its call with the copies around it out.

A tensor is brought to a device before the first region there that reads it, and stays for others of
the block. What a region computes there is brought back at once if anything else reads it. Where an
extent is symbolic there is no device value, and the region copies its operands itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graft.backends.host.lowering.emit import region_title
from graft.backends.host.lowering.values import Values
from graft.base.errors import Location
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.program.instructions import Instruction, RegionCall, Transfer
from graft.program.program import Value as ProgramValue

Numbers = Callable[[Value], int]


class DeviceValues:
    """The values of one block. `spaces` are the memory spaces of regions, by label; `number` gives
    the number of a value in the host's memory."""

    def __init__(
        self, graph: Graph, spaces: Mapping[str, str], values: Values, number: Numbers
    ) -> None:
        self._graph, self._spaces, self._values, self._number = graph, spaces, values, number
        self._there: dict[tuple[Value, str], int] = {}

    def call(self, node: Node) -> tuple[RegionCall, list[Instruction]]:
        """The call of a region, and all instructions that it takes, in order."""
        space, location = self._space_of(node), node.location or Location()
        before: list[Instruction] = []
        after: list[Instruction] = []
        for value in node.args if space else ():
            if (value, space) not in self._there:
                ends = self._number(value), self._add(value, space)
                before.append(_transfer(node, *ends, upload=True))
        for value in node.outputs if space else ():
            there = self._add(value, space)
            if self._is_read_elsewhere(value, space):
                after.append(_transfer(node, there, self._number(value), upload=False))
        inputs, outputs = (
            tuple(self._there[value, space] if space else self._number(value) for value in values)
            for values in (node.args, node.outputs)
        )
        call = RegionCall(node.attrs.label, inputs, outputs, region_title(node), location)
        return call, [*before, call, *after]

    def _space_of(self, node: Node) -> str:
        """The memory that a region's operands and results lie in; empty for the host's."""
        values = (*node.args, *node.outputs)
        is_static = all(isinstance(v.type, TensorType) and v.type.is_static for v in values)
        return self._spaces.get(node.attrs.label, "") if is_static else ""

    def _add(self, value: Value, space: str) -> int:
        there = ProgramValue("", value.dtype, value.shape, space=space)
        self._there[value, space] = self._values.add(there)
        return self._there[value, space]

    def _is_read_elsewhere(self, value: Value, space: str) -> bool:
        return value in self._graph.outputs or any(
            user.op.name != "region" or self._space_of(user) != space
            for user in self._graph.users.get(value, ())
        )


def _transfer(region: Node, source: int, target: int, upload: bool) -> Transfer:
    attrs, location = region.attrs, region.location or Location()
    label = f"{'to' if upload else 'from'} {attrs.backend}"
    return Transfer(attrs.label, source, target, upload, label, location)
