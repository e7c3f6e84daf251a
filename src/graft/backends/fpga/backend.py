"""`fpga`: int8 regions on a 16 x 16 systolic array in Verilog, priced by its cycles.

The array (`rtl/`) is Graft's own, small enough to be read, and stands for what a company with an
FPGA would graft: an instruction set, a code generator, a cycle model, and RTL that is simulated as
long as there is no board.
"""

from __future__ import annotations

from dataclasses import astuple

from graft.backends.fpga import runtime
from graft.backends.fpga.isa import cycles, encode
from graft.backends.fpga.lower import Lowering
from graft.backends.fpga.schedule import generate
from graft.byoc.contract import Backend, Cost, Limits, Match, PatternTable
from graft.byoc.formats.integer_units import BYTES
from graft.byoc.formats.operands import refused_match
from graft.byoc.formats.quantized import quantized_units
from graft.ir.graph import Graph
from graft.rewrite.rule import Refusal
from graft.runtime.array_file import pack_arrays

_UNARY = ("nn.relu", "clip", "mean", "nn.avg_pool2d")


class Fpga(Backend):
    """Layers, sums and means of bytes, computed in integers."""

    name, version = "fpga", runtime.VERSION
    device = "systolic array 16x16"
    simulated = True
    prices_regions = True  # the first weights of a layer are loaded while the one before computes
    priced_by = f"its cycle model at {runtime.CLOCK / 1e6:.0f} MHz"
    limits = Limits(memory_bytes=256 << 20, layout="NCHW16c", launch_seconds=runtime.LAUNCH_SECONDS)

    def missing(self) -> str:
        return runtime.missing()

    def patterns(self) -> PatternTable:
        return quantized_units(_UNARY, binary=("add", "subtract"), variadic=())

    def supports(self, match: Match) -> Refusal | None:
        return refused_match(self, match, BYTES, ranks=range(5))

    def price(self, region: Graph) -> Cost:
        return Cost(cycles(generate(Lowering(region).layers)) / runtime.CLOCK)

    def compile(self, region: Graph) -> bytes:
        lowering = Lowering(region)
        program, borders = generate(lowering.layers), (*region.inputs, *region.outputs)
        return pack_arrays(
            program=encode(program),
            constants=bytes(lowering.constants),  # the end of its memory
            words=lowering.words,
            tensors=[astuple(lowering.tensors[value]) for value in borders],
            cycles=cycles(program),
        )

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)
