"""Scatters change a tensor where it lies, if a kernel has computed it and nothing else reads it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx.small_models import it, node, tensor, value
from tests.passes.checking import graph_of

import graft
from graft.backends.host.backend import HostBackend
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.byoc.executable import Settings
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import tensor as tensor_type
from graft.program.instructions import Segment
from graft.program.program import Program

LEVELS, ROW = 3, (5, 2, 3)
DATA, INDICES = tensor_type("float32", 16, 4), tensor_type("int64", 3, 1)
UPDATES = tensor_type("float32", 3, 4)
Build = Callable[..., Value | tuple[Value, ...]]


def labels(program: Program) -> list[str]:
    """What the kernels do, in order."""
    segments = [one for one in program.instructions if isinstance(one, Segment)]
    return [call.label.split()[0] for segment in segments for call in segment.calls]


def pyramid(reduction: str = "none") -> onnx.ModelProto:
    """Features by level, put together as torchvision's detectors do it."""
    nodes = [
        node("Shape", "level", "count"),
        node("Concat", "count row", "shape", axis=0),
        node("ConstantOfShape", "shape", "result0", value=tensor("", [1.0], np.float32)),
    ]
    for number in range(LEVELS):
        nodes += [
            node("Equal", f"level level{number}", f"here{number}"),
            node("NonZero", f"here{number}", f"places{number}"),
            node("Squeeze", f"places{number} first", f"index{number}"),
            node("Gather", f"features index{number}", f"rows{number}", axis=0),
            node("Exp", f"rows{number}", f"pooled{number}"),
            node("Reshape", f"index{number} column", f"column{number}"),
            node("Shape", f"pooled{number}", f"shape{number}"),
            node("Expand", f"column{number} shape{number}", f"expanded{number}"),
            node(
                "ScatterElements",
                f"result{number} expanded{number} pooled{number}",
                f"result{number + 1}",
                axis=0,
                **({} if reduction == "none" else {"reduction": reduction}),
            ),
        ]
    nodes.append(node("ReduceMax", f"result{LEVELS}", "y", keepdims=0))
    weights = [
        *(tensor(f"level{number}", number, np.int64) for number in range(LEVELS)),
        tensor("first", [0], np.int64),
        tensor("row", ROW, np.int64),
        tensor("column", [-1, *(1 for _ in ROW)], np.int64),
    ]
    inputs = [value("level", TensorProto.INT64, ["n"]), value("features", shape=["n", *ROW])]
    outputs = [value("y", shape=[])]
    graph = helper.make_graph(nodes, "pyramid", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_a_pyramid_of_features(reduction: str) -> None:
    model = pyramid(reduction)
    module = graft.compile(model, target=["host"], strict=True, threads=2)
    calls = labels(module.program)
    assert calls.count("scatter_nd") == LEVELS
    assert not {"copy", "broadcast_to", "scatter_elements"}.intersection(calls)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for count in (1, 40, 3):
        random = np.random.default_rng(count)
        features = random.standard_normal((count, *ROW)).astype(np.float32)
        feeds = {"level": random.integers(0, LEVELS + 1, count), "features": features}
        (found,), (wanted,) = module.run(None, feeds), session.run(None, feeds)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def scatter(g: Builder, *operands: Value) -> Value:
    return g("scatter_nd", *operands, reduction="add")


def chained(g: Builder, x: Value, indices: Value, updates: Value) -> Value:
    """In place, through a view, twice."""
    first = scatter(g, g("exp", x), indices, updates)
    flat = g("reshape", first, shape=[64])
    again = scatter(g, g("reshape", flat, shape=[16, 4]), indices, updates)
    return g("negative", again)


def of_input(g: Builder, x: Value, indices: Value, updates: Value) -> Value:
    return g("negative", scatter(g, x, indices, updates))


def of_constant(g: Builder, x: Value, indices: Value, updates: Value) -> Value:
    ones = g.constant(np.ones((16, 4), np.float32))
    return g("add", scatter(g, ones, indices, updates), x)


def read_again(g: Builder, x: Value, indices: Value, updates: Value) -> Value:
    data = g("exp", x)
    return g("nn.dense", scatter(g, data, indices, updates), data)


def seen_through_a_view(g: Builder, x: Value, indices: Value, updates: Value) -> Value:
    data = g("exp", x)
    changed = g("reshape", scatter(g, data, indices, updates), shape=[8, 8])
    return g("nn.softmax", g("add", changed, g("reshape", data, shape=[8, 8])))


def returned(g: Builder, x: Value, indices: Value, updates: Value) -> tuple[Value, ...]:
    data = g("exp", x)
    return g("negative", scatter(g, data, indices, updates)), data


def by_itself(g: Builder, x: Value, indices: Value, _updates: Value) -> Value:
    data = g("exp", x)
    every = g("concatenate", *[indices] * 5, indices, axis=0)
    return g("negative", scatter(g, data, g("strided_slice", every, begin=[0], end=[16]), data))


def into_an_output(g: Builder, x: Value, indices: Value, updates: Value) -> Value:
    return scatter(g, g("exp", x), indices, updates)


def joined(g: Builder, x: Value, indices: Value, updates: Value) -> Value:
    parts = [scatter(g, g(op, x), indices, updates) for op in ("exp", "abs")]
    whole = g("concatenate", *parts, axis=0)
    return g("nn.dense", whole, whole)


@pytest.mark.parametrize(
    ("build", "copies"),
    [
        (chained, 0),
        (of_input, 1),
        (of_constant, 1),
        (read_again, 1),
        (seen_through_a_view, 1),
        (returned, 1),
        (by_itself, 1),
        (into_an_output, 1),
        (joined, 2),
    ],
)
def test_what_is_read_elsewhere_is_copied(build: Build, copies: int) -> None:
    graph = graph_of(build, DATA, INDICES, UPDATES)
    random = np.random.default_rng(0)
    inputs: list[Array] = [
        random.standard_normal((16, 4)).astype(np.float32),
        np.array([[4], [-6], [4]]),
        random.standard_normal((3, 4)).astype(np.float32),
    ]
    feeds = {value.name: array for value, array in zip(graph.inputs, inputs, strict=True)}
    for threads in (1, 2):
        built = HostBackend(Settings(threads=threads)).build(graph)
        assert labels(built.program).count("copy") == copies
        for _ in range(2):
            results = built.session.run(None, feeds)
            for found, wanted in zip(results, evaluate(graph, inputs), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", [6, -7])
def test_an_index_of_a_slice_that_is_out_of_range(place: int) -> None:
    nodes = [
        node("Exp", "x", "data"),
        node("Shape", "updates", "shape"),
        node("Expand", "indices shape", "expanded"),
        it("ScatterElements", ["data", "expanded", "updates"], axis=0),
    ]
    inputs = [
        value("x", shape=[6, 3]),
        value("indices", TensorProto.INT64, ["n", 1]),
        value("updates", shape=["n", 3]),
    ]
    graph = helper.make_graph(nodes, "one", inputs, [value("y", shape=[6, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    module = graft.compile(model, target=["host"], strict=True)
    assert "scatter_nd" in labels(module.program)
    zeros = np.zeros((6, 3), np.float32)
    for count in (0, 1, 9):
        indices = np.arange(count)[:, np.newaxis] % 12 - 6
        feeds = {"x": zeros, "indices": indices, "updates": np.full((count, 3), 7, np.float32)}
        np.testing.assert_array_equal(module.run(None, feeds)[0], session.run(None, feeds)[0])
    with pytest.raises(
        EvaluationError, match=f"index {place} is out of range for axis 0 of extent 6"
    ):
        module.run(None, {**feeds, "indices": np.where(indices == 2, place, indices)})
