"""`ort:<Provider>`: any execution provider of ONNX Runtime, built in or plugged in, as a backend.

Which nodes a provider takes only the provider knows, so it is asked: a match is refused where no
session on that provider alone can be made of it, with ONNX Runtime's reason. A provider that has
options or a compiled form of its own derives from `Ort`, as `qnn` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from graft.backends.ort import runtime
from graft.base.dtypes import DType
from graft.byoc.contract import Match, PatternTable, Runner
from graft.byoc.formats.onnx_model import OnnxBackend
from graft.byoc.formats.operands import not_compiled
from graft.byoc.formats.quantized import overflowing, quantized_units
from graft.rewrite.rule import Refusal
from graft.runtime import onnx_session

# Its sums over windows are made by differences, so that small values vanish beside large ones: an
# error of 0.04 where results are below 2 (ONNX Runtime 1.31, one channel of 1e4).
_INACCURATE = (("CPUExecutionProvider", "nn.lrn"),)


class Ort(OnnxBackend):
    """One provider; without a name, the family that makes backends of providers."""

    has_variants = True
    package = onnx_session.PACKAGE
    dtypes: Sequence[DType] = (DType.FLOAT32, DType.BOOL, DType.INT8, DType.UINT8)

    def __init__(self, provider: str = "") -> None:
        self.provider = self.device = provider
        self.name = f"ort:{provider}" if provider else "ort"

    def missing(self) -> str:
        return onnx_session.missing(self.provider)

    def patterns(self) -> PatternTable:
        entries = [*quantized_units(), *super().patterns()]
        return [one for one in entries if (self.provider, one[0]) not in _INACCURATE]

    def supports(self, match: Match) -> Refusal | None:
        reason = _mistake(match) or super().supports(match) or overflowing(match)
        return reason or not_compiled(self, match)

    def compile_model(self, model: onnx.ModelProto) -> bytes:
        """The model itself, once the provider has taken all of it."""
        blob = runtime.pack(self.provider, model.SerializeToString())
        runtime.load(blob, threads=1)
        return blob

    def load(self, blob: bytes, threads: int | None = None) -> Runner:
        return runtime.load(blob, threads)


def _mistake(match: Match) -> Refusal | None:
    """What the author's kit has found ONNX Runtime itself to get wrong."""
    makers = {node.output: node for node in match.nodes}
    for node in match.nodes:
        is_coded = len(makers) > 1 and node.op.name.endswith("quantize")
        if is_coded and node.args[1].tensor.size != 1 and node.args[0] not in match.constants:
            return Refusal("ONNX Runtime reads the first of several scales of a tensor")
        if node.op.name == "nn.instance_norm" and set((node.args[0].shape or ())[2:]) == {1}:
            return Refusal("ONNX Runtime leaves of single pixels a difference of large numbers")
        layer = makers.get(node.args[0])
        if layer and (layer.op.name, node.op.name) == ("nn.dense", "nn.bias_add"):
            scales = (makers[one].args[1] for one in (node.args[1], *layer.args))
            bias, data, weights = (match.constants[one].ravel() for one in scales)
            if bias.size != weights.size or not np.allclose(bias, data[0] * weights, 1e-3, 0):
                return Refusal("ONNX Runtime counts a bias in steps of the products")
    return None
