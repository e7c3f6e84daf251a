"""Products of bytes that are both data: exact, whatever their sizes, signs and zero points are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tests.backends.host.row_kernels import Case, refusal

import graft
from graft.backends.host.kernels.batch_matmul import batch_matmul
from graft.backends.host.passes.pipeline import prepare
from graft.backends.host.passes.use_integers import use_integers
from graft.backends.host.storage import static_shape
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import host_target

GENERATOR = np.random.default_rng(23)
DTYPES = [(left, right) for left in ("uint8", "int8") for right in ("uint8", "int8")]
SHAPES = [
    ((2, 3, 5, 8), (2, 3, 8, 7)),
    ((3, 1, 17, 9), (2, 9, 33)),
    ((1, 4, 64), (5, 64, 40)),
    ((6, 7), (3, 7, 1)),
    ((2, 1, 1), (2, 1, 1)),
    ((4, 50, 197), (4, 197, 24)),
]


def whole(dtype: str, shape: tuple[int, ...]) -> Array:
    limits = np.iinfo(dtype)
    return GENERATOR.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def is_byte_product(graph: Graph) -> bool:
    return "qnn.batch_matmul" in [node.op.name for node in use_integers(graph).nodes]


def model_of(node: Any, inputs: dict[str, Array], shapes: dict[str, Any] | None = None) -> Any:
    given = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            (shapes or {}).get(name, array.shape),
        )
        for name, array in inputs.items()
    ]
    graph = helper.make_graph([node], "one", given, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.each_value
@pytest.mark.parametrize(("left", "right"), DTYPES)
@pytest.mark.parametrize("shapes", SHAPES)
def test_integer_products(left: str, right: str, shapes: Any) -> None:
    """With zero points that are known, that are data, and without."""
    a, b = whole(left, shapes[0]), whole(right, shapes[1])
    zeros = {"p": np.array(3, left), "q": np.array(-5 if right == "int8" else 200, right)}
    for names in (["a", "b"], ["a", "b", "p", "q"], ["a", "b", "", "q"], ["a", "b", "p"]):
        node = helper.make_node("MatMulInteger", names, ["y"])
        everything = {"a": a, "b": b, **zeros}
        feeds = {name: everything[name] for name in names if name}
        model = model_of(node, feeds)
        graph = import_model(model)
        assert is_byte_product(graph)
        (wanted,) = evaluate(graph, list(feeds.values()))
        exact = [everything[name].astype(np.int64) for name in ("a", "b")]
        less = [int(everything[name]) if name in names else 0 for name in ("p", "q")]
        np.testing.assert_array_equal(wanted, (exact[0] - less[0]) @ (exact[1] - less[1]))
        for threads in (1, 2):
            module = graft.compile(model, target=["host"], strict=True, threads=threads)
            np.testing.assert_array_equal(module.run(None, feeds)[0], wanted)


def test_onnx_runtime_gives_the_same() -> None:
    a, b = whole("uint8", (2, 3, 13, 18)), whole("uint8", (2, 3, 18, 21))
    feeds = {"a": a, "b": b, "p": np.array(128, np.uint8), "q": np.array(7, np.uint8)}
    model = model_of(helper.make_node("MatMulInteger", list(feeds), ["y"]), feeds)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = graft.compile(model, target=["host"], strict=True).run(None, feeds)
    np.testing.assert_array_equal(found, session.run(None, feeds)[0])


def test_sizes_known_at_run_time() -> None:
    a, b = whole("uint8", (2, 5, 9)), whole("int8", (2, 9, 6))
    feeds = {"a": a, "b": b, "p": np.array(9, np.uint8)}
    shapes = {"a": ["n", "m", "k"], "b": ["n", "k", "c"]}
    model = model_of(helper.make_node("MatMulInteger", list(feeds), ["y"]), feeds, shapes)
    (found,) = graft.compile(model, target=["host"], strict=True).run(None, feeds)
    np.testing.assert_array_equal(found, (a.astype(np.int32) - 9) @ b.astype(np.int32))


def test_a_zero_point_per_row_is_left_to_others() -> None:
    a, b = whole("uint8", (5, 8)), whole("uint8", (3, 8, 6))
    feeds = {"a": a, "b": b, "p": whole("uint8", (5,))}
    model = model_of(helper.make_node("MatMulInteger", list(feeds), ["y"]), feeds)
    assert not is_byte_product(import_model(model))
    (found,) = graft.compile(model, target=["host"], strict=True).run(None, feeds)
    wanted = (a.astype(np.int32) - feeds["p"].astype(np.int32)[:, None]) @ b.astype(np.int32)
    np.testing.assert_array_equal(found, wanted)


def through(g: Builder, x: Value, scale: float, zero: int, dtype: str) -> Value:
    """Quantised and dequantised."""
    step, offset = g.constant(np.float32(scale)), g.constant(np.array(zero, dtype))
    return g("qnn.dequantize", g("qnn.quantize", x, step, offset, dtype=dtype), step, offset)


@pytest.mark.parametrize(
    ("left", "right", "rows", "depth", "columns"),
    [
        ("uint8", "uint8", 17, 10, 37),
        ("uint8", "int8", 5, 64, 8),
        ("int8", "uint8", 1, 4, 70),
        ("int8", "int8", 3, 6, 16),
    ],
)
def test_keys_are_not_transposed_in_memory(
    left: str, right: str, rows: int, depth: int, columns: int
) -> None:
    """Queries times keys that lie as the queries do, whatever their zero points."""
    g = Builder()
    offsets = {"uint8": 255, "int8": -128}
    q = g.input("q", tensor("float32", 2, 3, rows, depth))
    k = g.input("k", tensor("float32", 2, 3, columns, depth))
    turned = g("transpose", through(g, k, 0.02, offsets[right], right), axes=(0, 1, 3, 2))
    product = g("nn.batch_matmul", through(g, q, 0.03, offsets[left], left), turned)
    graph = g.build(product)
    made = use_integers(graph)
    (product,) = (node for node in made.nodes if node.op.name == "qnn.batch_matmul")
    assert product.attrs.transpose_b
    assert "transpose" not in [node.op.name for node in made.nodes]
    draw = np.random.default_rng(8)
    shapes = ((2, 3, rows, depth), (2, 3, columns, depth))
    arrays = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    (wanted,) = evaluate(graph, arrays)
    (found,) = graft.compile(graph, strict=True).run(None, dict(zip("qk", arrays, strict=True)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.each_value
@pytest.mark.parametrize(("left", "right"), DTYPES)
@pytest.mark.parametrize("extents", [(2, 3, 17, 10, 21), (1, 2, 8, 64, 8)])
def test_attention_between_quantisations(left: str, right: str, extents: Any) -> None:
    """Scores of queries and keys, and what follows them up to the next quantisation."""
    batch, heads, rows, depth, columns = extents
    g = Builder()
    q = g.input("q", tensor("float32", batch, heads, rows, depth))
    k = g.input("k", tensor("float32", batch, heads, depth, columns))
    offsets = {"uint8": 119, "int8": -9}
    operands = (
        through(g, q, 0.03, offsets[left], left),
        through(g, k, 0.02, offsets[right], right),
    )
    scores = through(g, g("nn.batch_matmul", *operands), 0.1, offsets[left], left)
    graph = g.build(scores)
    fused = prepare(graph, host_target())
    labels = [node.attrs.label for node in fused.nodes if node.op.name == "composite"]
    (product,) = (label for label in labels if "qnn.batch_matmul" in label)
    assert "qnn.saturate" in product  # everything up to the quantisation
    feeds = {
        value.name: GENERATOR.standard_normal(static_shape(value)).astype(np.float32)
        for value in graph.inputs
    }
    (wanted,) = evaluate(graph, list(feeds.values()))
    (found,) = graft.compile(graph, strict=True).run(None, feeds)
    away = np.abs(found - wanted) / 0.1
    assert away.max() < 1.01
    assert (away > 0.5).mean() < 0.01


@pytest.mark.parametrize("rows", [6, symbol("n")])
def test_qlinear_matmul(rows: Any) -> None:
    a, b = whole("uint8", (2, 6, 30)), whole("int8", (2, 30, 19))
    one = np.array(0.02, np.float32)
    half, eight = np.array(0.01, np.float32), np.array(0.16, np.float32)
    feeds = {"a": a, "s": one, "p": np.array(120, np.uint8)}
    feeds |= {"b": b, "t": half, "q": np.array(3, np.int8)}
    feeds |= {"u": eight, "z": np.array(130, np.uint8)}
    shapes = {"a": [2, 6 if rows == 6 else "n", 30]}
    model = model_of(helper.make_node("QLinearMatMul", list(feeds), ["y"]), feeds, shapes)
    (wanted,) = evaluate(import_model(model), list(feeds.values()))
    (found,) = graft.compile(model, target=["host"], strict=True).run(None, feeds)
    np.testing.assert_array_equal(found, wanted)
    (peer,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    assert np.abs(found.astype(int) - peer.astype(int)).max() <= 1


def test_what_the_kernel_refuses() -> None:
    case = Case()
    a, b = case.input(2, 3, 6, dtype="uint8"), case.input(2, 6, 3, dtype="int8")
    assert "6 steps are no fours" in refusal(batch_matmul, case, case("qnn.batch_matmul", a, b))
    case = Case()
    a, b = case.input(2, 8, 3, dtype="uint8"), case.input(2, 8, 3, dtype="int8")
    product = case("qnn.batch_matmul", a, b, transpose_a=True)
    assert "is transposed" in refusal(batch_matmul, case, product)
