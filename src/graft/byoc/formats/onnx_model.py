"""Regions as ONNX models, so that a runtime that ingests ONNX becomes a backend in a few lines.

Each operator has a writer that turns a node into ONNX nodes of one opset. `why_not` refuses nodes
without a writer, or that their writer refuses; a backend's `supports` can return its refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import helper

from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.byoc.contract import Backend, Match, PatternTable
from graft.byoc.formats import onnx_attention, onnx_operators, onnx_whole
from graft.byoc.formats.onnx_writer import MODEL_WRITERS, OPSET, WRITERS, Write, Writer, described
from graft.byoc.formats.operands import late_attribute, unbound, unfit
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.ops import OPS
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal

FAMILIES = (onnx_operators, onnx_attention, onnx_whole)  # importing them fills the table
_IR_VERSION = 9
# What is quantised to these takes the next opset, in which nothing else that is written differs.
_NEWER = (DType.INT16, DType.UINT16, DType.INT4, DType.UINT4)
_NEWER_OPSET = OPSET + 1, 10


class OnnxBackend(Backend):
    """A backend that compiles ONNX models: of all operators that have an ONNX form, on tensors of
    `dtypes` and of static shapes, or `symbolic` ones. Define `compile_model` and `load`."""

    dtypes: Sequence[DType] = (DType.FLOAT32,)
    quantized_dtypes: Sequence[DType] = ()  # beside these, where they are (de)quantised
    symbolic: bool = False  # the runtime runs the model at any size

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in sorted(WRITERS) if self._may_take(name)]

    def _may_take(self, name: str) -> bool:
        """Whether the operator and the backend share a dtype.

        Quantised operators read or write integers beside floats."""
        integers = (*self.dtypes, *self.quantized_dtypes)
        if name.startswith("qnn.") and not any(dtype.is_integer for dtype in integers):
            return False
        dtypes = OPS.get(name).dtypes
        return dtypes is None or any(dtype in dtypes for dtype in self.dtypes)

    def supports(self, match: Match) -> Refusal | None:
        values = (*match.inputs, *match.outputs)
        is_quantized = any(node.op.name.startswith("qnn.") for node in match.nodes)
        dtypes = (*self.dtypes, *self.quantized_dtypes) if is_quantized else self.dtypes
        reason = unfit(values, dtypes, symbolic=self.symbolic)
        reason = reason or unbound(match.inputs, match.outputs)
        return Refusal(reason) if reason else why_not(match.nodes)

    def compile(self, region: Graph) -> bytes:
        return self.compile_model(to_onnx(region))

    def compile_model(self, model: onnx.ModelProto) -> bytes:
        """The code for a region that is given as a model; by default the model itself."""
        return bytes(model.SerializeToString())


def why_not(nodes: Iterable[Node], whole: bool = False) -> Refusal | None:
    """Why nodes cannot be written as ONNX, in a region or in a whole model; None if they can."""
    table = _table(whole)
    for node in nodes:
        if node.op.name == "constant":
            continue
        if node.op.name not in table:
            return Refusal(f"{node.op.name} has no ONNX form here", node)
        reason = late_attribute(node)
        has_operands = node.op.name in _RUN_TIME_OPERANDS
        if reason and not has_operands and not (whole and node.op.name in MODEL_WRITERS):
            return Refusal(reason, node)
        try:
            table[node.op.name](Writer(table), node)
        except UnsupportedError as error:
            return Refusal(error.message, node)
    return None


_RUN_TIME_OPERANDS = ("clip",)


def _table(whole: bool) -> Mapping[str, Write]:
    return {**WRITERS, **MODEL_WRITERS} if whole else WRITERS


def to_onnx(region: Graph, whole: bool = False) -> onnx.ModelProto:
    """A region, or a whole graph, as a model with the same names and order of inputs and
    outputs."""
    refusal = why_not(region.nodes, whole)
    if refusal is not None:
        raise UnsupportedError(refusal.reason, refusal.node.location if refusal.node else None)
    values = [value for node in region.nodes for value in node.outputs]
    writer = Writer(_table(whole), {value.name for value in (*region.inputs, *values)})
    writer.write(region)
    outputs = [
        _returned(writer, value, name)
        for value, name in zip(region.outputs, region.output_names, strict=True)
    ]
    graph = helper.make_graph(
        writer.nodes,
        region.name or "region",
        [described(value) for value in region.inputs],
        outputs,
        writer.constants,
    )
    is_newer = any(value.dtype in _NEWER for value in values if isinstance(value.type, TensorType))
    opset, version = _NEWER_OPSET if is_newer else (OPSET, _IR_VERSION)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=version)


def _returned(writer: Writer, value: Value, name: str) -> onnx.ValueInfoProto:
    """An output under its name in the graph's signature."""
    if name == value.name:
        return described(value)
    if name in writer.used_names:
        raise UnsupportedError(f"both an output and another value have the name '{name}'")
    writer.emit("Identity", [value.name], [name])
    return described(Value(name, value.type))
