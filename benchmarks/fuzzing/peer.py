"""ONNX Runtime as the fuzzer's peer: a model and inputs in, arrays out, or the peer's refusal.

The peer has two parts to play. It computes every node of a model alone while the model is being
drawn, so that only what it has kernels for is drawn at all, and it runs whole models with its
optimisations off and on. One thread: the models are small, and several fuzzers may run at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from graft.base.dtypes import Array

_SILENT = 4

onnxruntime.set_default_logger_severity(_SILENT)


class PeerError(Exception):
    """ONNX Runtime does not take a model, or not these inputs."""


class Peer:
    """A model in ONNX Runtime."""

    def __init__(self, model: onnx.ModelProto, optimized: bool) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = _SILENT
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
        )
        try:
            self._session: Any = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise PeerError(str(error)) from error

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """All outputs, in order."""
        try:
            return [np.asarray(array) for array in self._session.run(None, dict(feeds))]
        except Exception as error:
            raise PeerError(str(error)) from error


def ir_version(opset: int) -> int:
    """The file format that was current with an opset, which older readers ask for."""
    return {19: 9, 20: 9}.get(opset, 8 if opset < 19 else 10)


def tensor_type(array: Array) -> int:
    """ONNX's number of an array's dtype."""
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto],
    opset: int,
) -> onnx.ModelProto:
    """A model of its parts."""
    graph = helper.make_graph(nodes, "fuzz", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version(opset))
