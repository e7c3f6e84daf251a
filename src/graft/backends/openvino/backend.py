"""The OpenVINO backend: whatever can be written as ONNX, compiled to OpenVINO's own form."""

from __future__ import annotations

import onnx

from graft.backends.openvino import runtime
from graft.base.dtypes import DType
from graft.byoc.contract import Limits, Match
from graft.byoc.executable import Settings
from graft.byoc.formats.onnx_model import OnnxBackend
from graft.byoc.formats.onnx_writer import extents
from graft.ir.graph import Node
from graft.rewrite.rule import Refusal


def _mistake(node: Node) -> Refusal | None:
    """What the conformance kit has found OpenVINO to compute wrongly, though the model is right."""
    if node.op.name in ("nn.conv2d", "nn.conv3d"):
        column = extents(node.output)[-1] == 1 < node.attrs.strides[-1]
        if column and node.attrs.groups == 1 == extents(node.args[0])[1]:
            return Refusal("OpenVINO strides wrongly over one channel to one column", node)
    return None


class OpenVino(OnnxBackend):
    """Runs regions of float32 and bool tensors with static shapes."""

    name = "openvino"
    device = runtime.DEVICE
    dtypes = (DType.FLOAT32, DType.BOOL)

    def __init__(self, precision: DType = DType.FLOAT32) -> None:
        self._precision = precision

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        return Limits(rounding=self._precision, computes_in=runtime.computes_in())

    @property
    def options(self) -> dict[str, str]:
        is_plain = self._precision is DType.FLOAT32
        return {} if is_plain else {"precision": str(self._precision)}

    def configured(self, settings: Settings) -> OpenVino:
        return OpenVino(settings.precision)

    @property
    def version(self) -> str:  # type: ignore[override]
        return runtime.version()

    def missing(self) -> str:
        return runtime.missing()

    def supports(self, match: Match) -> Refusal | None:
        return super().supports(match) or next(filter(None, map(_mistake, match.nodes)), None)

    def compile_model(self, model: onnx.ModelProto) -> bytes:
        return runtime.compile_model(model.SerializeToString(), self._precision)

    def load(self, blob: bytes, threads: int | None = None) -> runtime.Region:
        return runtime.load(blob, threads)
