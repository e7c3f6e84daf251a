"""The OpenVINO backend: whatever can be written as ONNX, compiled to OpenVINO's own form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from graft.backends.openvino import runtime
from graft.base.dtypes import Array, DType
from graft.byoc.contract import Limits, Match, PatternTable
from graft.byoc.executable import Settings
from graft.byoc.formats.onnx_model import OnnxBackend
from graft.byoc.formats.quantized import quantized_units
from graft.ir.graph import Node, Value
from graft.ops.elementwise import clip_bound
from graft.rewrite.rule import Refusal


def _quantization(match: Match) -> Refusal | None:
    """What OpenVINO does not compile, or gets wrong, of quantised units."""
    makers = {value: node.op.name for node in match.nodes for value in node.outputs}
    is_unit = any(node.op.name.startswith("qnn.") for node in match.nodes)
    for node in match.nodes if is_unit else ():
        (data, *parameters), rank = node.args, len(node.output.shape or ())
        if "avg_pool" in node.op.name and node.attrs.count_include_pad and any(node.attrs.padding):
            return Refusal("OpenVINO pads integers with something else than zero", node)
        is_last = node.op.name != "nn.bias_add" or node.attrs.axis in (-1, rank - 1)
        if makers.get(data) == "nn.dense" and not is_last:
            return Refusal("OpenVINO adds a bias to a product's last axis alone", node)
        if not node.op.name.startswith("qnn."):
            continue
        is_constant = data in match.constants
        if is_constant and data.dtype is DType.UINT8:
            return Refusal("OpenVINO has not all layers with weights of uint8", node)
        if not is_constant and any(value.tensor.size != 1 for value in parameters):
            return Refusal("its data has a scale or zero point per channel", node)
        if len({value.shape for value in parameters}) > 1:
            return Refusal("its zero point has another shape than its scale", node)
    return None


def _convolution(node: Node) -> Refusal | None:
    """What the conformance kit has found OpenVINO not to compile or to compute wrongly, though the
    model is right."""
    attrs, weight = node.attrs, node.args[1].tensor
    channels, columns = (node.args[0].shape or ())[1], (node.output.shape or ())[-1]
    if not (isinstance(channels, int) and weight.is_static):
        return Refusal("OpenVINO has no convolution with symbolic channels or weights", node)
    is_column = columns == 1 or not isinstance(columns, int)
    is_plain = attrs.groups == 1 == channels and node.op.name in ("nn.conv2d", "nn.conv3d")
    if is_column and is_plain and attrs.strides[-1] > 1:
        return Refusal("OpenVINO strides wrongly over one channel to one column", node)
    borders = zip(attrs.strides, attrs.padding, strict=False)
    has_border = any(stride > 1 and pad for stride, pad in borders)
    if has_border and set((weight.shape or ())[2:]) == {1}:
        return Refusal("OpenVINO drops strides over padded images of single pixels", node)
    return None


def _product(node: Node, constants: Mapping[Value, Array]) -> Refusal | None:
    """The same of products by several matrices that are constant."""
    data, matrices, *_ = node.args
    if matrices not in constants or not any(n != 1 for n in (matrices.shape or ())[:-2]):
        return None
    if not data.tensor.is_static:
        return Refusal("OpenVINO's batch is that of the constant matrices, not broadcast", node)
    if node.op.name == "nn.attention" and data.dtype is DType.BFLOAT16:
        return Refusal("OpenVINO misreads constant keys of bfloat16", node)
    return None


def _mistake(node: Node, constants: Mapping[Value, Array]) -> Refusal | None:
    if node.op.name.startswith("nn.conv"):
        return _convolution(node)
    if node.op.name == "clip":
        bounds = [one for one in (node.attrs.a_min, node.attrs.a_max) if one is not None]
        if any(np.isinf(clip_bound(one, node.output.dtype)) for one in bounds):
            return Refusal("OpenVINO takes the largest finite number for an infinite bound", node)
    is_product = node.op.name in ("nn.batch_matmul", "nn.attention")
    return _product(node, constants) if is_product else None


class OpenVino(OnnxBackend):
    """Runs regions of floats of 16 and 32 bits and of quantised units, at any size."""

    name = package = "openvino"
    device = runtime.DEVICE
    dtypes = (DType.FLOAT32, DType.BOOL, DType.FLOAT16, DType.BFLOAT16)
    quantized_dtypes = (DType.INT8, DType.UINT8)
    symbolic = True

    def __init__(self, precision: DType = DType.FLOAT32) -> None:
        self._precision = DType(precision)
        self.arguments = {"precision": precision}

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        return Limits(rounding=self._precision, computes_in=runtime.computes_in())

    @property
    def options(self) -> dict[str, str]:
        is_plain = self._precision is DType.FLOAT32
        return {} if is_plain else {"precision": str(self._precision)}

    def configured(self, settings: Settings) -> OpenVino:
        return OpenVino(settings.precision)

    def missing(self) -> str:
        return runtime.missing()

    def patterns(self) -> PatternTable:
        # It crashes on concatenations of bytes that it had quantised, and rounds the bounds of a
        # clip between bytes to steps of its operand, which may be coarser than those of the result.
        refused = ("quantized concatenate", "quantized clip")
        units = [entry for entry in quantized_units() if entry[0] not in refused]
        return [*units, *super().patterns()]

    def supports(self, match: Match) -> Refusal | None:
        mistakes = (_mistake(node, match.constants) for node in match.nodes)
        return super().supports(match) or _quantization(match) or next(filter(None, mistakes), None)

    def compile_model(self, model: onnx.ModelProto) -> bytes:
        is_quantized = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
        rounding = DType.INT8 if is_quantized else self._precision
        return runtime.compile_model(model.SerializeToString(), self._precision, rounding)

    def load(self, blob: bytes, threads: int | None = None) -> runtime.Region:
        return runtime.load(blob, threads)
