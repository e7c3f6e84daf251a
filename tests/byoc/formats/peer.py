"""A backend of a dozen lines, to see what another reader makes of the models: ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime

from graft.byoc.contract import Match, Runner
from graft.byoc.formats.onnx_model import OnnxBackend, why_not
from graft.byoc.formats.onnx_writer import WRITERS, Writer
from graft.ir.graph import Node
from graft.rewrite.rule import Refusal


def _pads(node: Node) -> Sequence[int]:
    """The padding that the model has."""
    if "pool" not in node.op.name or why_not([node]):
        return ()
    writer = Writer()
    WRITERS[node.op.name](writer, node)
    found = [item.ints for item in writer.nodes[-1].attribute if item.name == "pads"]
    return found[0] if found else ()


class OnnxRuntime(OnnxBackend):
    """Runs the models as they are written, without any optimisation of its own."""

    name = "onnxruntime"
    version = str(onnxruntime.__version__)

    def supports(self, match: Match) -> Refusal | None:
        attrs, rank = match.root.attrs, len(getattr(match.root.attrs, "pool_size", ()))
        reach = [attrs.pool_size[axis % rank] for axis in range(2 * rank)]
        if any(pad >= size for pad, size in zip(_pads(match.root), reach, strict=False)):
            return Refusal("ONNX Runtime wants less padding than the window has elements")
        return super().supports(match)

    def load(self, blob: bytes) -> Runner:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
        names = [item.name for item in session.get_inputs()]
        return lambda inputs, _outputs: session.run(None, dict(zip(names, inputs, strict=True)))
