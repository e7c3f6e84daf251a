"""`fpga`: int8 regions on a 16 x 16 systolic array in Verilog, priced by its cycles.

The array (`rtl/`) is Graft's own, small enough to be read, and stands for what a company with an
FPGA would graft: an instruction set, a code generator, a cycle model, and RTL that is simulated as
long as there is no board.
"""

from __future__ import annotations

from graft.backends.fpga import runtime
from graft.backends.fpga.isa import cycles, encode
from graft.backends.fpga.lower import Lowering
from graft.backends.fpga.schedule import Tensor, generate
from graft.byoc.contract import Backend, Cost, Limits, Match, PatternTable
from graft.byoc.formats.operands import refused_unit
from graft.byoc.formats.quantized import (
    ACTIVATIONS,
    LAYERS,
    dequantized,
    quantized,
    quantized_layer,
)
from graft.ir.graph import Graph
from graft.rewrite.pattern import is_op, wildcard
from graft.rewrite.rule import Refusal


class Fpga(Backend):
    """Layers, sums and means of bytes, computed in integers."""

    name = "fpga"
    version = runtime.VERSION
    device = "systolic array 16x16"
    simulated = True
    prices_regions = True  # the first weights of a layer are loaded while the one before computes
    priced_by = f"its cycle model at {runtime.CLOCK / 1e6:.0f} MHz"
    limits = Limits(
        memory_bytes=256 << 20,
        layout=f"NCHW{runtime.LANES}c",
        launch_seconds=runtime.LAUNCH_SECONDS,
    )

    def missing(self) -> str:
        return runtime.missing()

    def patterns(self) -> PatternTable:
        operand = dequantized(wildcard())
        pair = is_op("add", "subtract")(operand, dequantized(wildcard()))
        return [
            *((f"quantized {name}", quantized_layer(name)) for name in LAYERS),
            ("quantized sum", quantized(pair.optional(lambda x: is_op(*ACTIVATIONS)(x)))),
            ("quantized mean", quantized(is_op("mean")(operand))),
        ]

    def supports(self, match: Match) -> Refusal | None:
        return refused_unit(self, match, largest_rank=4)

    def price(self, region: Graph) -> Cost:
        return Cost(cycles(generate(Lowering(region).layers)) / runtime.CLOCK)

    def compile(self, region: Graph) -> bytes:
        lowering = Lowering(region)
        program = generate(lowering.layers)
        borders = [_row(lowering.tensors[v]) for v in (*region.inputs, *region.outputs)]
        constants, took = bytes(lowering.constants), cycles(program)
        return runtime.pack(encode(program), constants, lowering.words, borders, took)

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)


def _row(tensor: Tensor) -> tuple[int, ...]:
    return tensor.address, tensor.images, tensor.channels, tensor.height, tensor.width
