"""`ort:<Provider>`: any execution provider of ONNX Runtime, built in or plugged in, as a backend.

Which nodes a provider takes only the provider knows, so it is asked: a match is refused where no
session on that provider alone can be made of it, with ONNX Runtime's reason. A provider that has
options or a compiled form of its own derives from `Ort`, as `qnn` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from graft.backends.ort import runtime
from graft.base.dtypes import DType
from graft.byoc.contract import Match, PatternTable, Runner
from graft.byoc.formats.onnx_model import OnnxBackend
from graft.byoc.formats.operands import not_compiled
from graft.byoc.formats.quantized import quantized_units
from graft.ir.graph import Node
from graft.rewrite.rule import Refusal
from graft.runtime import onnx_session

# Its sums over windows are made by differences, so that small values vanish beside large ones: an
# error of 0.04 where results are below 2 (ONNX Runtime 1.31, one channel of 1e4).
_INACCURATE = {"CPUExecutionProvider": ("nn.lrn",)}


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
        refused = _INACCURATE.get(self.provider, ())
        operators = [entry for entry in super().patterns() if entry[0] not in refused]
        return [*quantized_units(), *operators]

    def supports(self, match: Match) -> Refusal | None:
        scales = [node.args[1] for node in match.nodes if node.op.name == "qnn.quantize"]
        if len(match.nodes) > 1 and any(scale.tensor.size != 1 for scale in scales):
            return Refusal("ONNX Runtime reads the first of several scales of a unit's result")
        if self.provider in _INACCURATE and any(map(_is_single, match.nodes)):
            return Refusal("ONNX Runtime normalises single pixels by differences of large numbers")
        return super().supports(match) or not_compiled(self, match)

    def compile_model(self, model: onnx.ModelProto) -> bytes:
        """The model itself, once the provider has taken all of it."""
        blob = runtime.pack(self.provider, model.SerializeToString())
        runtime.load(blob, threads=1)
        return blob

    def load(self, blob: bytes, threads: int | None = None) -> Runner:
        return runtime.load(blob, threads)


def _is_single(node: Node) -> bool:
    """Whether instances of one pixel are normalised, whose result is the bias: ONNX Runtime takes
    the difference of two products, an error of 0.014 where results are below 2 (pixels of 1e4)."""
    return node.op.name == "nn.instance_norm" and set((node.args[0].shape or ())[2:]) == {1}
