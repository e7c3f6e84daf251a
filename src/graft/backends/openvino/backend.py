"""The OpenVINO backend: whatever can be written as ONNX, compiled to OpenVINO's own form."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import onnx

from graft.backends.openvino import runtime
from graft.base.dtypes import DType
from graft.byoc.contract import Match, PatternTable
from graft.byoc.formats.onnx_model import OnnxBackend, why_not
from graft.byoc.formats.onnx_writer import WRITERS
from graft.ir.types import TensorType
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal


class OpenVino(OnnxBackend):
    """Runs regions of float32 tensors with static shapes."""

    name = "openvino"
    device = runtime.DEVICE

    @property
    def version(self) -> str:  # type: ignore[override]
        try:
            return installed("openvino")
        except PackageNotFoundError:
            return "not installed"

    def missing(self) -> str:
        return runtime.missing()

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in sorted(WRITERS)]

    def supports(self, match: Match) -> Refusal | None:
        for value in (*match.inputs, *match.outputs):
            type_ = value.type
            if not isinstance(type_, TensorType) or not type_.is_static:
                return Refusal(f"%{value.name} is {type_}, not a tensor of static shape")
            if type_.dtype is not DType.FLOAT32:
                return Refusal(f"%{value.name} is {type_.dtype}, not float32")
            if 0 in (type_.shape or ()):  # OpenVINO divides by zero there
                return Refusal(f"%{value.name} is {type_}, which is empty")
        return why_not(match.nodes)

    def compile_model(self, model: onnx.ModelProto) -> bytes:
        return runtime.compile_model(model.SerializeToString())

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)
