"""A small network and its explanation, for tests of what explains placement."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graft.byoc.explain import Explanation, explain
from graft.byoc.partition import Partition
from graft.compiler import compile_options
from graft.stages import import_graph, optimize, place

STRANGE = "</script><b class='injected'>&\u2028\"<script>window.injected = 1</script>"


def network() -> onnx.ModelProto:
    """Two large convolutions, a reduction that no accelerator has between them, and a small tail.
    One node has a name that would be markup if anybody let it."""
    draw = np.random.default_rng(0)
    weights = {
        "w1": draw.standard_normal((64, 32, 3, 3)),
        "b1": draw.standard_normal(64),
        "w2": draw.standard_normal((64, 64, 3, 3)),
        "w3": draw.standard_normal((5, 64)),
    }
    made = helper.make_node
    nodes = [
        made("Conv", ["x", "w1", "b1"], ["c1"], name="first/Conv", pads=[1, 1, 1, 1]),
        made("Relu", ["c1"], ["r1"], name="first/Relu"),
        made("Softmax", ["r1"], ["s"], name=STRANGE, axis=1),
        made("Conv", ["s", "w2"], ["c2"], name="second/Conv", pads=[1, 1, 1, 1]),
        made("Add", ["c2", "r1"], ["a"], name="second/Add"),
        made("GlobalAveragePool", ["a"], ["p"], name="pool"),
        made("Flatten", ["p"], ["f"], name="flatten"),
        made("Gemm", ["f", "w3"], ["y"], name="last", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 56, 57])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


@cache
def partitioned() -> Partition:
    """The network on the simulated accelerator, one node of it pinned there so that there is a
    region whatever this machine's times are."""
    options = compile_options(["simnpu", "host"], pins=["first/Conv=simnpu"])
    placed = place(optimize(import_graph(network())), options)
    assert placed.partition is not None
    return placed.partition


@cache
def explained() -> Explanation:
    return explain(partitioned(), model="small")
