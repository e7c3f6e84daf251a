"""The `qnn` backend: quantised units of a model on Qualcomm's Hexagon Tensor Processor (HTP).

Regions go to ONNX Runtime's QNN provider as Q/DQ models. What it does not take, and what it would
compute in floats, is refused; everything between the borders of a region is integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from onnx import parser

from graft.backends.ort.backend import Ort
from graft.backends.qnn import runtime
from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.byoc.contract import Cost, Limits, PatternTable, Runner
from graft.byoc.formats import quantized as units
from graft.byoc.formats.onnx_model import to_onnx
from graft.byoc.formats.quantized_rules import binding, split_units
from graft.byoc.sizes import node_work, value_bytes
from graft.ir.graph import Graph, Node, Value
from graft.quantize.scheme import Scheme
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, wildcard
from graft.rewrite.rule import Refusal, Replacement, RuleSet

MORE_UNARY = ("nn.leaky_relu", "nn.gelu", "max", "min", "sum")
BINARY = ("divide", "nn.batch_matmul")
# Of Snapdragon X Elite, as its product brief has them: 45 TOPS of 8 bits, two operations to a MAC,
# and eight channels of LPDDR5x at 8448 MT/s.
OPERATIONS_PER_SECOND = 45e12
BYTES_PER_SECOND = 135e9
LAUNCH_SECONDS = 1e-4  # assumed: a call from the host to the processor is no published number

PROBE = """<ir_version: 9, opset_import: ["": 20]>
probe (uint8[1, 4] x) => (uint8[1, 4] y) <float s = {0.1}, uint8 z = {0}> {
    data = DequantizeLinear (x, s, z)
    gate = Sigmoid (data)
    y = QuantizeLinear (gate, s, z)
}"""


@cache
def _defect() -> str:
    """Why not even `PROBE` compiles; empty where it does. Where the provider cannot make its device
    it only says that it takes no node: every match would be refused, and all run on the host."""
    try:
        with runtime.own_output():
            runtime.compile_model(parser.parse_model(PROBE).SerializeToString(), 0.0, 0.0)
    except UnsupportedError as error:
        return f"its device cannot be made, or does not work: {error.message}"
    return ""


def _mistakes(region: Graph) -> Iterator[str]:
    """What the author's kit has found Qualcomm's compiler to get wrong without a word."""
    if not all(value.shape for value in (*region.inputs, *region.outputs)):
        yield "scalars are not for it"
    arrays = {node.output: node.attrs.value.array for node in region.nodes if not node.inputs}
    meanings: dict[Value, bytes] = {}
    for node in region.nodes:
        if not node.op.name.endswith("quantize"):
            continue
        is_result = node.op.name == "qnn.quantize"
        value = node.output if is_result else node.args[0]
        scale, zero = (*(arrays[one] for one in node.args[1:]), np.zeros(1, value.dtype.numpy))[:2]
        if value in arrays:
            if zero.dtype == np.int8 and zero.any():
                yield "signed weights have a zero point of 0"
        elif scale.size * zero.size > 1:
            yield "only weights have a scale for each channel"
        elif meanings.setdefault(value, (key := scale.tobytes() + zero.tobytes())) != key:
            yield "integers have one scale and zero point, whoever reads them"
        maker = region.producers.get(node.args[0]) if is_result else None
        kind = maker.op.name if maker else ""
        if maker and kind == "clip" and not all(binding(maker, scale, zero)):
            yield "a clip of which one bound alone binds is dropped"
        lowest = np.iinfo(zero.dtype).min
        if kind == "nn.softmax" and not (zero.item() == lowest and scale.item() >= 1 / 512):
            yield "a softmax has the lowest zero point, and a scale of 1/512 or more"


def _passes(node: Node, region: Graph) -> int:
    """How often the multipliers of 8 bits are needed: once for each byte of the data's codes."""
    maker = region.producers.get(node.args[0]) if node.args else None
    is_coded = maker is not None and maker.op.name == "qnn.dequantize"
    return maker.args[0].dtype.numpy.itemsize if maker and is_coded else 1


RULES = RuleSet("close regions")


@RULES.rule(units.quantized(units.dequantized(wildcard())))
def _conversion(site: Site) -> Replacement:
    """A conversion of images that ends a region has a pool of single pixels behind it: else ONNX
    Runtime transposes the result within the conversion, which the provider then does not take."""
    value = site.node.output
    if len(value.shape or ()) != 4 or len(tuple(site.readers(value))) == site.uses(value):
        return Refusal("no image, or something else ends the region")
    parameters = site.node.inputs[1:]
    codes = site.again(site.node, *site.node.inputs)
    pooled = site.emit(
        "nn.max_pool2d", site.emit("qnn.dequantize", codes, *parameters), pool_size=(1, 1)
    )
    return site.again(site.node, pooled, *parameters)


class Qnn(Ort):
    """Runs quantised units of bytes on one stated chip; its times are a roofline's."""

    has_variants = False
    priced_by = "a roofline of 45 TOPS and 135 GB/s"
    dtypes: Sequence[DType] = (DType.UINT8, DType.INT8)
    limits = Limits(launch_seconds=LAUNCH_SECONDS, quantized=(Scheme(), Scheme(DType.INT8)))

    def __init__(self) -> None:
        super().__init__(runtime.PROVIDER)
        self.name, self.device = "qnn", runtime.CHIP

    @property
    def simulated(self) -> bool:  # type: ignore[override]
        return runtime.is_emulated()

    @property
    def version(self) -> str:  # type: ignore[override]
        return runtime.version()

    def missing(self) -> str:
        return runtime.missing() or _defect()

    def patterns(self) -> PatternTable:
        operands = [units.dequantized(wildcard()) for _ in range(2)]
        product = units.quantized(is_op(*BINARY)(*operands))
        unary = (*units.UNARY, *MORE_UNARY)
        return [*units.quantized_units(unary), ("quantized product", product)]

    def price(self, region: Graph) -> Cost | None:
        """A roofline of the chip: operations, or the bytes of operands, weights and results."""
        if not self.simulated:
            return None
        region = self.process(region)
        constants = [node.output for node in region.nodes if node.op.name == "constant"]
        moved = sum(map(value_bytes, (*region.inputs, *constants, *region.outputs)))
        operations = sum(2 * node_work(node).macs * _passes(node, region) for node in region.nodes)
        seconds = max(operations / OPERATIONS_PER_SECOND, moved / BYTES_PER_SECOND)
        return Cost(seconds)

    def process(self, region: Graph) -> Graph:
        return apply_rules(split_units(region), RULES)

    def compile(self, region: Graph) -> bytes:
        for mistake in _mistakes(region):
            raise UnsupportedError(f"Qualcomm's compiler would get it wrong: {mistake}")
        cost = self.price(region)
        model = to_onnx(region).SerializeToString()
        return runtime.compile_model(model, cost.seconds if cost else 0.0, LAUNCH_SECONDS)

    def load(self, blob: bytes, threads: int | None = None) -> Runner:
        return runtime.load(blob, threads)
