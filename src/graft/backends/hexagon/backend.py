"""`hexagon`: regions on a Hexagon v67 DSP with HVX, by code generation of Graft's own.

Whatever has a tensor expression runs on the scalar unit, quantised units run on the vectors.
Without a board QEMU runs the code, and counts what it executes: that is the price.
"""

from __future__ import annotations

from graft.backends.hexagon import layers, runtime  # noqa: F401 (layers fill the table of units)
from graft.backends.hexagon.code import CPU, linked
from graft.backends.hexagon.plan import Plan, Planner
from graft.base.dtypes import DType
from graft.byoc.contract import Backend, Cost, Limits, Match, PatternTable, Source
from graft.byoc.formats.operands import expressed_operators, inexpressible, unfit
from graft.byoc.formats.quantized import FUNCTIONS, UNARY, quantized_units
from graft.ir.graph import Graph, Node
from graft.ops.resize import interpolates
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal
from graft.runtime.array_file import pack_arrays

_DTYPES = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.BOOL)
_UNITS = tuple(dict.fromkeys((*UNARY, *FUNCTIONS)))
# Expressions that are too large where all of them is computed in one place.
_LEFT_OUT = ("grid_sample", "nn.deformable_conv2d")
_MEMORY = 256 << 20  # bytes of DDR that a process of the DSP gets, code and stack aside
_COUNTED = 20_000_000  # operations on floats up to which a region is run to be priced
_PACKETS = 5  # for each operation beyond: what counted convolutions of floats come to


class Hexagon(Backend):
    """Runs regions of static shapes."""

    name = "hexagon"
    device = CPU
    simulated = True
    limits = Limits(memory_bytes=_MEMORY, layout="NHWC")

    @property
    def version(self) -> str:
        return runtime.version()

    @property
    def priced_by(self) -> str:  # type: ignore[override]
        return f"QEMU {runtime.emulator_version()}'s packets at {runtime.CLOCK / 1e6:.0f} MHz"

    def missing(self) -> str:
        return runtime.missing()

    def patterns(self) -> PatternTable:
        names = (name for name in expressed_operators(_DTYPES) if name not in _LEFT_OUT)
        plain = [(name, is_op(name)) for name in names]
        return [*quantized_units(_UNITS), *plain]

    def supports(self, match: Match) -> Refusal | None:
        for node in match.nodes:
            reason = unfit((*node.args, *node.outputs), _DTYPES) or _no_kernel(node)
            if reason:
                return Refusal(reason, node)
        return None

    def price(self, region: Graph) -> Cost | None:
        """Packets that a run executes, of which none depends on data but by a condition."""
        plan = Planner(region).run()
        if plan.scalar_work > _COUNTED:
            return Cost(plan.scalar_work * _PACKETS / runtime.CLOCK, Source.ROOFLINE)
        counted = runtime.load(_packed(plan))
        counted.run()
        return Cost(counted.seconds)

    def compile(self, region: Graph) -> bytes:
        return _packed(Planner(region).run())

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)


def _packed(plan: Plan) -> bytes:
    program, steps = linked(plan.steps, plan.arena_bytes), len(plan.steps)
    places = {"inputs": plan.inputs, "outputs": plan.outputs}
    return pack_arrays(program=program, steps=steps, constants=plan.constants, **places)


def _no_kernel(node: Node) -> str:
    """Why there is no kernel for a node."""
    is_mean = node.op.name == "resize" and interpolates(node.attrs)
    if is_mean and not node.output.dtype.is_float:
        return "means of integers are rounded as the last bit of a float has it"
    return inexpressible(node)
