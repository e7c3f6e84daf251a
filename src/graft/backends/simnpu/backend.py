"""The `simnpu` backend: right results from the host's kernels, times from a model of a device.

Everything that shows its times says that they are simulated.
"""

from __future__ import annotations

from graft.backends.host.backend import HostBackend
from graft.backends.simnpu import runtime
from graft.backends.simnpu.device import Device
from graft.base.dtypes import DType
from graft.byoc.contract import Backend, Cost, Limits, Match, PatternTable, Runner, Source
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.rewrite.pattern import Pattern, is_op, wildcard
from graft.rewrite.rule import Refusal

_MATRIX = ("nn.conv2d", "nn.dense", "nn.batch_matmul")
_ALONE = (
    *_MATRIX,
    "nn.bias_add",
    "nn.relu",
    "clip",
    "add",
    "multiply",
    "nn.max_pool2d",
    "nn.avg_pool2d",
    "concatenate",
)


def _fused() -> Pattern:
    """A product with bias, and an activation behind it."""
    data, weight, bias = wildcard(), wildcard(), wildcard()
    product = is_op(*_MATRIX)(data, weight)
    biased = product.optional(lambda x: is_op("nn.bias_add")(x, bias))
    return is_op("nn.relu", "clip")(biased)


def _biased() -> Pattern:
    return is_op("nn.bias_add")(is_op(*_MATRIX)(wildcard(), wildcard()), wildcard())


class SimNpu(Backend):
    """A device that exists as a model of its time only."""

    name = "simnpu"
    version = runtime.VERSION
    device = "simulated"
    simulated = True

    def __init__(self, device: Device | None = None) -> None:
        self._device = device or Device()
        self.limits = Limits(
            space="simnpu",
            memory_bytes=self._device.memory_bytes,
            launch_seconds=self._device.launch_seconds,
            latency=self._device.bus_latency,
            bytes_per_second=self._device.bus_bandwidth,
        )

    def patterns(self) -> PatternTable:
        return [("fused", _fused), ("biased", _biased), *((name, is_op(name)) for name in _ALONE)]

    def supports(self, match: Match) -> Refusal | None:
        for value in (*match.inputs, *match.outputs):
            type_ = value.type
            if not isinstance(type_, TensorType) or type_.dtype is not DType.FLOAT32:
                return Refusal(f"%{value.name} is {type_}, and the device knows float32 only")
            if not type_.is_static:
                return Refusal(f"%{value.name} is {type_}, and the device wants static shapes")
        return None

    def price(self, region: Graph) -> Cost:
        return Cost(self._device.seconds(region), Source.DECLARED)

    def compile(self, region: Graph) -> bytes:
        device = self._device
        timing = runtime.Timing(
            device.seconds(region),
            device.launch_seconds,
            device.bus_latency,
            device.bus_bandwidth,
        )
        return runtime.pack(timing, HostBackend().compile(region))

    def load(self, blob: bytes, threads: int | None = None) -> Runner:
        return runtime.load(blob, threads)
