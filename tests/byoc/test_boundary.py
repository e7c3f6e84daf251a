"""Forms at the borders of regions: what backends wish for, what is converted, and what cancels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import Fake, flat

import graft
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError
from graft.byoc.boundary import HOST_FORM, Form, form_of, in_wished_form, wished, with_wishes
from graft.byoc.candidates import placeable
from graft.byoc.contract import Limits
from graft.byoc.discover import register_backend, unregister_backend
from graft.byoc.formats.onnx_model import to_onnx
from graft.byoc.outline import outline
from graft.byoc.place import carry_seconds, converts
from graft.byoc.region import region_graph
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.rewrite.pattern import is_op

SHAPE = (1, 32, 5, 7)
X = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
NHWC = Limits(layout="NHWC")
HALF = Limits(dtype=DType.FLOAT16)
BOTH = Limits(layout="NCHW16c", dtype=DType.FLOAT16)


def chain(*ops: str) -> Graph:
    build = Builder()
    value = build.input("x", tensor("float32", *SHAPE))
    for op in ops:
        value = build(op, value)
    return build.build(value)


def parted(graph: Graph, limits: dict[str, Limits], *regions: tuple[str, Sequence[int]]) -> Graph:
    """The graph with some nodes, by number, as regions of backends with these wishes."""
    planned = [(name, [graph.nodes[n] for n in numbers]) for name, numbers in regions]
    return verify(with_wishes(outline(graph, planned), limits))


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def same(graph: Graph, after: Graph, rtol: float = 0.0) -> None:
    for ours, theirs in zip(evaluate(after, [X]), evaluate(graph, [X]), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=rtol, atol=rtol)


FORMS = [
    (tensor("float32", *SHAPE), NHWC, Form("NHWC")),
    (tensor("float32", *SHAPE), HALF, Form("NCHW", DType.FLOAT16)),
    (tensor("float32", *SHAPE), BOTH, Form("NCHW16c", DType.FLOAT16)),
    (tensor("int8", *SHAPE), BOTH, Form("NCHW16c")),
    (tensor("float32", 1, 20, 5, 7), BOTH, Form("NCHW", DType.FLOAT16)),  # no whole blocks
    (tensor("float32", 3, 5), NHWC, HOST_FORM),
    (tensor("int64", 3, 5), HALF, HOST_FORM),
    (tensor("float32", *SHAPE), Limits(), HOST_FORM),
]


@pytest.mark.parametrize(("type_", "limits", "form"), FORMS)
def test_wishes(type_: object, limits: Limits, form: Form) -> None:
    value = Value("v", type_)  # type: ignore[arg-type]
    assert form_of(value, limits) == form
    assert converts(value, limits) is (form != HOST_FORM)


@pytest.mark.parametrize("limits", [NHWC, HALF, BOTH])
def test_a_region_means_what_it_meant(limits: Limits) -> None:
    graph = chain("nn.relu", "exp", "tanh")
    after = parted(graph, {"acc": limits}, ("acc", [1]))
    same(graph, after, 0.0 if limits is NHWC else 4e-3)
    (region,) = [node for node in after.nodes if node.op.name == "region"]
    (inner,) = region.attrs.body.inputs
    assert inner.type == region.args[0].type
    layouts = {"NHWC": (1, 5, 7, 32), "NCHW": SHAPE, "NCHW16c": (1, 2, 5, 7, 16)}
    assert inner.tensor.shape == layouts[limits.layout]
    assert inner.dtype is limits.dtype


def test_outside_is_the_inverse_of_inside() -> None:
    graph = chain("nn.relu", "exp", "tanh")
    after = parted(graph, {"acc": BOTH}, ("acc", [1]))
    outside = ["cast", "layout_transform", "region", "layout_transform", "cast"]
    assert names(after) == ["nn.relu", *outside, "tanh"]
    body = after.nodes[3].attrs.body
    assert names(body) == ["layout_transform", "cast", "exp", "cast", "layout_transform"]


def test_nothing_is_changed_where_nothing_is_wished() -> None:
    outlined = outline(graph := chain("nn.relu", "exp"), [("acc", [graph.nodes[0]])])
    assert with_wishes(outlined, {"acc": Limits()}) is outlined


def test_neighbours_that_agree_hand_over_what_they_have() -> None:
    graph = chain("exp", "nn.relu", "tanh")
    limits = {"one": NHWC, "other": replace(NHWC, space="far")}
    after = parted(graph, limits, ("one", [0]), ("other", [1]), ("one", [2]))
    assert names(after) == ["layout_transform", *["region"] * 3, "layout_transform"]
    same(graph, after)


def test_neighbours_that_differ_meet_at_home() -> None:
    graph = chain("exp", "nn.relu")
    after = parted(graph, {"one": NHWC, "other": HALF}, ("one", [0]), ("other", [1]))
    assert names(after) == [
        *("layout_transform", "region", "layout_transform"),
        *("cast", "region", "cast"),
    ]
    same(graph, after, 4e-3)


@pytest.mark.parametrize("limits", [NHWC, HALF, BOTH])
def test_wishes_hold_in_bodies(limits: Limits) -> None:
    build = Builder("then")
    inner = build.input("x", tensor("float32", *SHAPE))
    relu = build("nn.relu", inner)
    then = build.build(build("exp", relu))
    other = Builder("else")
    other_branch = other.build(other.input("x", tensor("float32", *SHAPE)))
    outer = Builder()
    x = outer.input("x", tensor("float32", *SHAPE))
    branches = {"then_branch": then, "else_branch": other_branch}
    graph = outer.build(outer("if", outer.constant(np.array(True)), x, **branches))
    region = [node for node in then.nodes if node.op.name == "nn.relu"]
    after = verify(with_wishes(outline(graph, [("acc", region)]), {"acc": limits}))
    (branch,) = (node for node in after.nodes if node.op.name == "if")
    assert "region" in names(branch.attrs.then_branch)
    assert len(names(branch.attrs.then_branch)) > 2  # conversions on both sides
    same(graph, after, 0.0 if limits is NHWC else 2e-3)


def test_who_wishes_for_nothing_gets_what_the_graph_has() -> None:
    graph = chain("exp", "nn.relu")
    after = parted(graph, {"one": NHWC, "plain": Limits()}, ("one", [0]), ("plain", [1]))
    assert names(after) == ["layout_transform", "region", "layout_transform", "region"]
    same(graph, after)


def test_what_several_read_is_converted_once() -> None:
    """Two regions and the host read one value, which a region made; it is an output, too."""
    build = Builder()
    first = build("exp", build.input("x", tensor("float32", *SHAPE)))
    ends = [build("tanh", first), build("nn.relu", first), build("sigmoid", first)]
    graph = build.build(*ends, first)
    after = parted(graph, {"acc": NHWC}, ("acc", [0]), ("acc", [1]), ("acc", [2]))
    # x in, and out again what the regions made: three values for the host
    assert names(after).count("layout_transform") == 4
    same(graph, after)


def test_a_region_by_itself() -> None:
    graph = chain("nn.relu", "exp")
    region = verify(wished(region_graph(graph.nodes, graph), NHWC))
    (result,) = evaluate(region, [X.transpose(0, 2, 3, 1)])
    np.testing.assert_allclose(result, np.exp(np.maximum(X, 0)).transpose(0, 2, 3, 1), rtol=1e-6)


def shown(graph: Graph, limits: Limits, *ops: str) -> tuple[list[str], list[Array]]:
    """The operators of a region in the wished form, and what it gives for X in that form."""
    region = wished(region_graph(graph.nodes, graph), limits)
    after = in_wished_form(region, limits, ops)
    assert [v.type for v in after.inputs] == [v.type for v in region.inputs]
    assert [v.type for v in after.outputs] == [v.type for v in region.outputs]
    x = X.transpose(0, 2, 3, 1) if limits.layout == "NHWC" else X
    feeds = [x.astype(limits.dtype.numpy)]
    found = [np.asarray(item) for item in evaluate(after, feeds)]
    rtol = 2e-2 if limits.dtype is DType.FLOAT16 else 1e-6
    for ours, theirs in zip(found, evaluate(region, feeds), strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=rtol, atol=rtol)
    return [name for name in names(after) if name != "constant"], found


BOTH_NHWC = Limits(layout="NHWC", dtype=DType.FLOAT16)


@pytest.mark.parametrize("limits", [NHWC, HALF, BOTH_NHWC])
def test_conversions_are_taken_out(limits: Limits) -> None:
    graph = chain("nn.relu", "exp", "tanh")
    assert shown(graph, limits, *names(graph))[0] == ["nn.relu", "exp", "tanh"]


def test_other_operators_get_conversions_around_them() -> None:
    graph = chain("nn.relu", "exp", "tanh")
    home, there = ["layout_transform", "cast"], ["cast", "layout_transform"]
    assert shown(graph, NHWC, "nn.relu", "tanh")[0] == [
        "nn.relu",
        "layout_transform",
        "exp",
        "layout_transform",
        "tanh",
    ]
    assert shown(graph, BOTH_NHWC, "exp")[0] == [
        *(*home, "nn.relu", *there),
        "exp",
        *(*home, "tanh", *there),
    ]


def test_constants_are_converted_once() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", *SHAPE))
    scale = build.constant(np.arange(32, dtype=np.float32).reshape(1, 32, 1, 1))
    graph = build.build(build("nn.relu", build("multiply", x, scale)))
    for limits in (NHWC, HALF, BOTH_NHWC):
        assert shown(graph, limits, "multiply", "nn.relu")[0] == ["multiply", "nn.relu"]


def quantized_layer() -> Graph:
    """A convolution on bytes with a bias, in Q/DQ form, and a sum with its operand."""
    build, draw = Builder(), np.random.default_rng(0)
    x = build.input("x", tensor("uint8", 1, 3, 5, 7))
    scale, zero = build.constant(np.float32(0.1)), build.constant(np.uint8(128))
    weight = build.constant(draw.integers(-128, 128, (3, 3, 3, 3)).astype(np.int8))
    scales = build.constant(np.float32([0.001, 0.002, 0.003]))
    kernel = build("qnn.dequantize", weight, scales, axis=0)
    data = build("qnn.dequantize", x, scale, zero)
    layer = build("nn.conv2d", data, kernel, padding=(1, 1, 1, 1))
    layer = build("nn.bias_add", layer, build.constant(np.float32([1, 2, 3])))
    return build.build(build("qnn.quantize", layer, scale, zero, dtype="uint8"))


def test_quantised_units_in_nhwc_have_no_transforms_left() -> None:
    """Bytes cross the border as bytes, with the channels last; so do weights, once."""
    graph = quantized_layer()
    outside = verify(with_wishes(outline(graph, [("npu", placeable(graph))]), {"npu": NHWC}))
    inner = [name for name in names(outside) if name != "constant"]
    assert inner == ["layout_transform", "region", "layout_transform"]
    region = wished(region_graph(graph.nodes, graph), NHWC)
    units = {"qnn.dequantize", "nn.conv2d", "nn.bias_add", "qnn.quantize"}
    after = in_wished_form(region, NHWC, units)
    assert "layout_transform" not in names(after)
    assert [str(value.type) for value in (*after.inputs, *after.outputs)] == [
        "uint8[1, 5, 7, 3]"
    ] * 2
    (weight,) = (
        n.output for n in after.nodes if n.op.name == "constant" and n.output.tensor.rank == 4
    )
    assert str(weight.type) == "int8[3, 3, 3, 3]"
    original = next(n.attrs.value.array for n in graph.nodes if n.output.dtype is DType.INT8)
    stored = after.producers[weight].attrs.value.array
    np.testing.assert_array_equal(stored, original.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [({"dtype": "int8"}, "limits.dtype is int8"), ({"layout": "NWHC"}, "'NWHC' is no layout")],
)
def test_wishes_that_mean_nothing(wishes: dict[str, Any], reason: str) -> None:
    with pytest.raises(GraftError, match=reason):
        Limits(**wishes)


def test_values_that_leave_in_the_middle() -> None:
    build = Builder()
    first = build("exp", build.input("x", tensor("float32", *SHAPE)))
    graph = build.build(first, build("tanh", first), build("nn.relu", first))
    assert shown(graph, BOTH_NHWC, "exp", "tanh", "nn.relu")[0] == ["exp", "tanh", "nn.relu"]


def test_a_region_without_conversions_gets_them() -> None:
    graph = chain("exp")
    after = in_wished_form(graph, NHWC, ("exp",))
    assert names(after) == ["layout_transform", "exp", "layout_transform"]
    same(graph, after)
    assert in_wished_form(graph, Limits(), ("exp",)) is graph


def test_prices_count_what_is_run() -> None:
    """From a kernel's blocked image: into rows, and from there into the form; from an input of the
    model only the latter. The bus carries what has been converted."""
    image = Value("v", tensor("float32", *SHAPE))
    size = 4 * X.size
    host = Limits(peak_flops=1e9, peak_bytes_per_second=1e7)
    once = 2 * size / 1e7
    assert carry_seconds(image, NHWC, host) == pytest.approx(2 * once)
    assert carry_seconds(image, NHWC, host, in_rows=True) == pytest.approx(once)
    far = Limits(space="far", dtype=DType.FLOAT16, bytes_per_second=1e6)
    assert carry_seconds(image, far, host, in_rows=True) == pytest.approx(once + size / 2 / 1e6)


class Wishful(Fake):
    """Gets rid of conversions that it asked for, and knows one operator in its own layout."""

    version = "1"

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            "wishful",
            [("exp", is_op("exp")), ("tanh", is_op("tanh"))],
            price=flat(1e-9),
            limits=limits,
            simulated=True,  # not raced against the host, which would win
        )
        self.processed: list[list[str]] = []

    def process(self, region: Graph) -> Graph:
        """Elementwise operators do not care about layouts: compute on what comes in."""
        moved = {n.output: n.args[0] for n in region.nodes if n.op.name == "layout_transform"}
        build = Builder()
        known: dict[Value, Value] = {v: build.input(v.name, v.type) for v in region.inputs}
        for node in region.nodes:
            source = known[node.args[0]]
            known[node.output] = source if node.output in moved else build(node.op.name, source)
        made = build.build(*(known[value] for value in region.outputs))
        self.processed.append(names(made))
        return made


@pytest.fixture
def wishful() -> Iterator[Wishful]:
    backend = Wishful(NHWC)
    register_backend(backend)
    yield backend
    unregister_backend("wishful")


def pins(nodes: Sequence[Node]) -> list[str]:
    return [f"{n.output.name}=wishful" for n in nodes if n.op.name in ("exp", "tanh")]


def run(graph: Graph, target: str, **options: object) -> tuple[graft.Module, Array]:
    module = graft.compile(graph, target, **options)  # type: ignore[arg-type]
    (result,) = module.run(None, {"x": X})
    return module, np.asarray(result)


def test_a_backend_gets_its_wish_and_absorbs_the_rest(wishful: Wishful) -> None:
    graph = chain("nn.relu", "exp", "tanh", "sigmoid")
    module, result = run(graph, "wishful", pins=pins(graph.nodes))
    np.testing.assert_allclose(result, run(graph, "host")[1], rtol=1e-5)
    assert wishful.processed == [["exp", "tanh"]]
    # what is only there for the border is nobody's node
    assert module.placement.nodes == {"host": 2, "wishful": 2}
    assert [region.nodes for region in module.placement.regions] == [("exp", "tanh")]
    assert module.placement.demotions == ()
    assert module.incidents == []


@pytest.mark.parametrize("limits", [HALF, BOTH, Limits(layout="NCHW8c")])
def test_other_wishes_run_natively(limits: Limits) -> None:
    """Without a `process` of its own; strict mode says that all conversions are native."""
    backend = Fake("plain", [("exp", is_op("exp"))], None, flat(1e-9), limits, simulated=True)
    backend.version = "1"
    register_backend(backend)
    try:
        graph = chain("nn.relu", "exp", "sigmoid")
        module, result = run(graph, "plain", pins=["exp=plain"], strict=True)
        assert len(module.placement.regions) == 1
        np.testing.assert_allclose(result, run(graph, "host")[1], rtol=4e-3)
    finally:
        unregister_backend("plain")


@pytest.mark.parametrize("layout", ["NHWC", "NCHW16c"])
def test_conversions_as_onnx(layout: str) -> None:
    build = Builder()
    there = build(
        "layout_transform",
        build.input("x", tensor("float32", *SHAPE)),
        src_layout="NCHW",
        dst_layout=layout,
    )
    graph = build.build(there)
    (result,) = graft.compile(to_onnx(graph), target="reference").run(None, {"x": X})
    np.testing.assert_array_equal(result, evaluate(graph, [X])[0])
