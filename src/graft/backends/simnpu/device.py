"""The simulated device: an array of multiply-accumulate units, a local memory, a bus.

Time is a model's. Matrix work fills the array tile by tile; everything else runs on a vector unit;
meanwhile operands stream from the device's memory unless a producer left them in the local one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graft.byoc.sizes import node_work, value_bytes
from graft.ir.graph import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Device:
    """What the model knows of the device. The defaults are an edge device's: 1 TMAC/s, 8 GB/s."""

    rows: int = 32  # of the array: outputs computed side by side
    columns: int = 32  # of the array: products added up side by side
    clock: float = 1e9
    vector_lanes: int = 64
    local_bytes: int = 2 << 20
    memory_bytes: int = 256 << 20
    memory_bandwidth: float = 8e9
    bus_bandwidth: float = 2e9
    bus_latency: float = 1e-5
    launch_seconds: float = 5e-5

    def seconds(self, region: Graph) -> float:
        """What a region takes, without its launch and without transfers to the device."""
        nodes = [node for node in region.nodes if node.op.name != "constant"]
        near = self._kept_near(region, nodes)
        return sum(max(self._compute(node), self._stream(node, near)) for node in nodes)

    def _compute(self, node: Node) -> float:
        work = node_work(node)
        if not work.macs:
            return work.flops / (self.vector_lanes * self.clock)
        outputs = max(value_bytes(node.output) // 4, 1)
        depth = max(work.macs // outputs, 1)  # products per output
        tiles = math.ceil(outputs / self.rows) * math.ceil(depth / self.columns)
        return tiles / self.clock

    def _kept_near(self, region: Graph, nodes: list[Node]) -> set[Value]:
        """Values that stay in the local memory from their producer to their readers."""
        leaves = set(region.outputs)
        return {
            value
            for node in nodes
            for value in node.outputs
            if value not in leaves and value_bytes(value) <= self.local_bytes // 2
        }

    def _stream(self, node: Node, near: set[Value]) -> float:
        values = dict.fromkeys((*node.args, *node.outputs))
        far = sum(value_bytes(value) for value in values if value not in near)
        return far / self.memory_bandwidth
