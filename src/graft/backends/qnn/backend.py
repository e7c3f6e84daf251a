"""The `qnn` backend: quantised units of a model on Qualcomm's Hexagon Tensor Processor (HTP).

Regions go to ONNX Runtime's QNN provider as Q/DQ models. What it does not take, and what it would
compute in floats, is refused; everything between the borders of a region is integers.
"""

from __future__ import annotations

from functools import cache

from onnx import parser

from graft.backends.ort.backend import Ort
from graft.backends.qnn import runtime
from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.byoc.contract import Cost, Limits, PatternTable, Runner
from graft.byoc.formats import quantized as units
from graft.byoc.formats.integer_units import coded, extents
from graft.byoc.formats.onnx_model import to_onnx
from graft.byoc.formats.quantized_rules import binding, split_units
from graft.byoc.sizes import node_work, value_bytes
from graft.ir.graph import Graph, Value
from graft.quantize.scheme import Scheme
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import wildcard
from graft.rewrite.rule import Refusal, Replacement, RuleSet
from graft.target.roofline import Roofline

# No maxima and minima: over several axes the emulator gives anything, and says so in its log alone.
UNARY = (*units.UNARY, "nn.leaky_relu", "nn.gelu", "sum")
BINARY = (*units.BINARY, "divide", "nn.batch_matmul")
_PRODUCTS, _READ = (*units.LAYERS, "nn.batch_matmul"), "qnn.dequantize"
# Of Snapdragon X Elite, as its product brief has them: 45 TOPS of 8 bits, two operations to a MAC,
# and eight channels of LPDDR5x at 8448 MT/s.
ROOFLINE = Roofline(flops=45e12, bytes=135e9)

PROBE = """<ir_version: 9, opset_import: ["": 20]>
probe (uint8[1, 4] x) => (uint8[1, 4] y) <float s = {0.1}, uint8 z = {0}> {
    data = DequantizeLinear (x, s, z)
    gate = Sigmoid (data)
    y = QuantizeLinear (gate, s, z)
}"""


class Qnn(Ort):
    """Runs quantised units of bytes on one stated chip; its times are a roofline's."""

    has_variants = False
    package = runtime.PACKAGE
    priced_by = "a roofline of 45 TOPS and 135 GB/s"
    dtypes = (DType.UINT8, DType.INT8)
    limits = Limits(launch_seconds=runtime.LAUNCH_SECONDS, quantized=(Scheme(), Scheme(DType.INT8)))

    def __init__(self) -> None:
        super().__init__(runtime.PROVIDER)
        self.name, self.device = "qnn", runtime.CHIP

    @property
    def simulated(self) -> bool:  # type: ignore[override]
        return runtime.is_emulated()

    def missing(self) -> str:
        return runtime.missing() or defect()

    def patterns(self) -> PatternTable:
        return units.quantized_units(UNARY, BINARY)

    def price(self, region: Graph) -> Cost | None:
        """A roofline of the chip: operations, or the bytes of operands, weights and results. It
        multiplies 8 bits, data of 16 bits in two passes."""
        if not self.simulated:
            return None
        region = self.process(region)
        products = [node for node in region.nodes if node_work(node).macs]
        passes = [region.producers[node.args[0]].args[0].dtype.bits // 8 for node in products]
        macs = sum(node_work(node).macs * n for node, n in zip(products, passes, strict=True))
        moved = sum(map(value_bytes, (*region.inputs, *region.constants, *region.outputs)))
        return Cost(ROOFLINE.seconds(2 * macs, moved))

    def process(self, region: Graph) -> Graph:
        return apply_rules(split_units(region), RULES)

    def compile(self, region: Graph) -> bytes:
        if mistake := _mistake(region):
            raise UnsupportedError(f"Qualcomm's compiler would get it wrong: {mistake}")
        cost = self.price(region)
        model = to_onnx(region).SerializeToString()
        return runtime.compile_model(model, cost.seconds if cost else 0.0)

    def load(self, blob: bytes, threads: int | None = None) -> Runner:
        return runtime.load(blob, threads)


@cache
def defect() -> str:
    """Why not even `PROBE` compiles; empty where it does. Where the provider cannot make its device
    it only says that it takes no node: every match would be refused, and all run on the host."""
    try:
        runtime.compile_model(parser.parse_model(PROBE).SerializeToString(), seconds=0.0)
    except UnsupportedError as error:
        return f"its device cannot be made, or does not work: {error.message}"
    return ""


RULES = RuleSet("close regions")


@RULES.rule(units.quantized(units.dequantized(wildcard())))
def _conversion(site: Site) -> Replacement:
    """A conversion of images that ends a region has a pool of single pixels behind it: else ONNX
    Runtime transposes the result within the conversion, which the provider then does not take."""
    value, (_, *parameters) = site.node.output, site.node.inputs
    if len(value.shape or ()) != 4 or len(tuple(site.readers(value))) == site.uses(value):
        return Refusal("no image, or something else ends the region")
    codes = site.again(site.node, *site.node.inputs)
    pixels = site.emit("qnn.dequantize", codes, *parameters)
    pooled = site.emit("nn.max_pool2d", pixels, pool_size=(1, 1))
    return site.again(site.node, pooled, *parameters)


def _mistake(region: Graph) -> str:
    """What Qualcomm's compiler has been found to get wrong without a word, or not to run."""
    if not all(value.shape for value in (*region.inputs, *region.outputs)):
        return "scalars are not for it"
    known = {node.output: coded(node, region) for node in region.nodes if node.op.name == _READ}
    for node in region.nodes:
        right = known.get(node.args[1]) if node.op.name in _PRODUCTS else None
        if right and (right.zero != right.shift).any():
            return "weights have their zero point in the middle"
        if right and right.scale.size > 1 and right.axis % len(extents(right.value)):
            return "weights have scales for channels of the result"
        if node.op.name == "nn.bias_add":
            weights = known[region.producers[node.args[0]].args[1]]
            if known[node.args[1]].scale.size != weights.scale.size:
                return "a bias has as many scales as weights"
    meanings: dict[Value, tuple[float, int]] = {}
    for node in (one for one in region.nodes if one.op.name.endswith("quantize")):
        codes, maker = coded(node, region), region.producers.get(node.args[0])
        if codes.array is not None:
            continue
        if codes.scale.size * codes.zero.size > 1:
            return "only weights have a scale for each channel"
        meaning = codes.scale.item(), codes.zero.item()
        if meanings.setdefault(codes.value, meaning) != meaning:
            return "integers have one scale and zero point, whoever reads them"
        zero = codes.zero.astype(codes.value.dtype.numpy)
        if maker and maker.op.name == "clip":
            is_empty = maker.attrs.a_min == maker.attrs.a_max
            if is_empty or not all(binding(maker, codes.scale, zero)):
                return "a clip of which one bound alone binds is dropped, one of equal bounds fails"
        if maker and maker.op.name == "nn.softmax" and (codes.offset or meaning[0] < 1 / 512):
            return "a softmax has the lowest zero point, and a scale of 1/512 or more"
    return ""
