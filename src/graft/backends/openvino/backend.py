"""The OpenVINO backend: whatever can be written as ONNX, compiled to OpenVINO's own form."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import onnx

from graft.backends.openvino import runtime
from graft.base.dtypes import DType
from graft.byoc.formats.onnx_model import OnnxBackend


class OpenVino(OnnxBackend):
    """Runs regions of float32 and bool tensors with static shapes."""

    name = "openvino"
    device = runtime.DEVICE
    dtypes = (DType.FLOAT32, DType.BOOL)

    @property
    def version(self) -> str:  # type: ignore[override]
        try:
            return installed("openvino")
        except PackageNotFoundError:
            return "not installed"

    def missing(self) -> str:
        return runtime.missing()

    def compile_model(self, model: onnx.ModelProto) -> bytes:
        return runtime.compile_model(model.SerializeToString())

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)
