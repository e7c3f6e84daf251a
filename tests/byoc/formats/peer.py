"""A backend of a dozen lines, to see what another reader makes of the models: ONNX Runtime."""

from __future__ import annotations

import onnxruntime

from graft.byoc.contract import Runner
from graft.byoc.formats.onnx_model import OnnxBackend


class OnnxRuntime(OnnxBackend):
    """Runs the models as they are written, without any optimisation of its own."""

    name = "onnxruntime"
    version = str(onnxruntime.__version__)

    def load(self, blob: bytes) -> Runner:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
        names = [item.name for item in session.get_inputs()]
        return lambda inputs, _outputs: session.run(None, dict(zip(names, inputs, strict=True)))
