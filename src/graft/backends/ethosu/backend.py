"""`ethosu:<accelerator>`: int8 regions on Arm's Ethos-U55, U65 and U85, by way of TOSA and Vela.

Without a board, Arm's reference model computes and Vela estimates. Which operators the chip has
only Vela knows, so it is asked: what it does not compile is refused, with its reason.
"""

from __future__ import annotations

from typing import Any

from graft.backends.ethosu import runtime
from graft.backends.ethosu.vela import DEVICES
from graft.base.dtypes import DType
from graft.byoc.contract import Backend, Cost, Limits, Match, PatternTable
from graft.byoc.formats.integer_units import BYTES
from graft.byoc.formats.operands import refused_match
from graft.byoc.formats.quantized import FUNCTIONS, quantized_layer, quantized_units
from graft.ir.graph import Graph
from graft.quantize.scheme import Scheme
from graft.rewrite.rule import Refusal

_UNARY = (
    *("nn.relu", "clip", *FUNCTIONS),
    *("nn.max_pool2d", "nn.avg_pool2d", "mean", "nn.pad", "strided_slice"),
    *("reshape", "squeeze", "expand_dims", "transpose"),
)
_RANKS = range(7)


class EthosU(Backend):
    """One accelerator; without a name, the family that makes backends of accelerators."""

    package = "ethos-u-vela"
    has_variants = True
    simulated = True
    prices_regions = True  # Vela keeps tensors between layers in SRAM

    def __init__(self, accelerator: str = "") -> None:
        self.name = f"ethosu:{accelerator}" if accelerator else "ethosu"
        self.device = accelerator or "Ethos-U"
        self._accelerator = DEVICES.get(accelerator)
        memory = None if self._accelerator is None else self._accelerator.memory_bytes
        schemes = (Scheme(DType.INT8), Scheme())
        self.limits = Limits(memory_bytes=memory, layout="NHWC", quantized=schemes)

    @property
    def priced_by(self) -> str:  # type: ignore[override]
        clock = 0.0 if self._accelerator is None else self._accelerator.clock
        return f"Vela {self.version} at {clock / 1e6:.0f} MHz"

    def missing(self) -> str:
        lacks = runtime.missing()
        if lacks or self._accelerator is not None:
            return lacks
        wanted = "name an accelerator" if self.name == "ethosu" else f"there is no '{self.name}'"
        return f"{wanted}: there are {', '.join(f'ethosu:{name}' for name in DEVICES)}"

    def patterns(self) -> PatternTable:
        transposed = ("quantized nn.conv2d_transpose", quantized_layer("nn.conv2d_transpose"))
        # Of resizing Vela takes next to nothing for the smaller accelerators: 2 times 2 in int8.
        resize = ("resize",) if self.device.startswith("u85") else ()
        return [transposed, *quantized_units((*_UNARY, *resize))]

    def supports(self, match: Match) -> Refusal | None:
        return refused_match(self, match, BYTES, ranks=_RANKS)

    def price(self, region: Graph) -> Cost:
        return Cost(self._compiled(region)[2])

    def compile(self, region: Graph) -> bytes:
        return runtime.pack(*self._compiled(region))

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)

    def _compiled(self, region: Graph) -> tuple[bytes, Any, float]:
        """The region in TOSA, what Vela makes of that, and the seconds that it estimates."""
        # lazy: these import packages that may be missing; the families fill the table of `lower`
        from graft.backends.ethosu import lower, movement, operators  # noqa: F401

        assert self._accelerator is not None
        tosa = lower.Lowering(region).tosa.serialized()
        model = self._accelerator.compile(tosa)
        return tosa, model, model.perf_report.totalCycles / self._accelerator.clock
