"""Values of a block in device memory: regions in, their calls with the copies around them out.

A tensor is brought to a device before the first region there that reads it, and stays for others of
the block. One that a loop or scan captures is brought before that, once for all iterations. What a
region computes there is brought back at once if anything else reads it. Where an extent is symbolic
there is no device value, and the region copies its operands itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from graft.backends.host.lowering.emit import region_title, transfer
from graft.backends.host.lowering.values import Values
from graft.backends.reference.stored import value_of
from graft.base.errors import Location
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.program.instructions import Instruction, RegionCall

Numbers = Callable[[Value], int]


class DeviceValues:
    """The values of one block, whose instructions go to `steps`. `spaces` are the memory spaces of
    regions, by label; `number` gives the number of a value in the host's memory. `captured` are the
    values of the block `around` that inputs of this one are in every execution."""

    def __init__(
        self,
        graph: Graph,
        spaces: Mapping[str, str],
        values: Values,
        number: Numbers,
        steps: list[Instruction],
    ) -> None:
        self._graph, self._spaces, self._values = graph, spaces, values
        self._number, self._steps = number, steps
        self._there: dict[tuple[Value, str], int] = {}
        self._around: DeviceValues | None = None
        self._captured: Mapping[Value, Value] = {}

    def repeat_within(self, around: DeviceValues, captured: Mapping[Value, Value]) -> None:
        """Let the block around this one, which repeats it, bring what this one captures."""
        self._around, self._captured = around, captured

    def call(self, node: Node) -> RegionCall:
        """Call a region."""
        space, location = self._space_of(node), node.location or Location()
        inputs = [self._bring(node, v, space) if space else self._number(v) for v in node.args]
        outputs = [
            self._add(value, space) if space else self._number(value) for value in node.outputs
        ]
        title = region_title(node)
        call = RegionCall(node.attrs.label, tuple(inputs), tuple(outputs), title, location)
        self._steps.append(call)
        for value, there in zip(node.outputs, outputs, strict=True):
            if space and self._is_read_elsewhere(value, space):
                self._steps.append(transfer(node, there, self._number(value), upload=False))
        return call

    def _bring(self, region: Node, value: Value, space: str) -> int:
        """The number of a value in the memory of a device, after bringing it there if need be."""
        if (value, space) not in self._there:
            outer = self._captured.get(value)
            if self._around is not None and outer is not None and outer.type == value.type:
                self._there[value, space] = self._around._bring(region, outer, space)
            else:
                ends = self._number(value), self._add(value, space)
                self._steps.append(transfer(region, *ends, upload=True))
        return self._there[value, space]

    def _space_of(self, node: Node) -> str:
        """The memory that a region's operands and results lie in; empty for the host's."""
        values = (*node.args, *node.outputs)
        is_static = all(isinstance(v.type, TensorType) and v.type.is_static for v in values)
        return self._spaces.get(node.attrs.label, "") if is_static else ""

    def _add(self, value: Value, space: str) -> int:
        there = replace(value_of(value), name="", space=space)
        self._there[value, space] = self._values.add(there)
        return self._there[value, space]

    def _is_read_elsewhere(self, value: Value, space: str) -> bool:
        return value in self._graph.outputs or any(
            user.op.name != "region" or self._space_of(user) != space
            for user in self._graph.users.get(value, ())
        )
