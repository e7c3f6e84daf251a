"""Tables of kernels: one call per match, with arrays for wildcards and attributes by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import BackendError, UserError
from graft.byoc import JsonBackend, Limits, Refusal, is_constant, is_op, op, wildcard
from graft.byoc.annotate import register_pattern_table, tables_of, unregister
from graft.byoc.boundary import wished
from graft.byoc.contract import Match, PatternTable
from graft.byoc.discover import register_backend, unregister_backend
from graft.byoc.kit import conformance
from graft.byoc.probe import shape_at
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, tensor
from graft.runtime.incidents import Fault, RegionWarning
from graft.runtime.json_graph import ALL, JsonNode, attributes_of, layout_transform, unpack

IMAGE = tensor("float32", 2, 3, 9, 7)
draw = np.random.default_rng(0)


def conv_bias_relu(x: Array, w: Array, b: Array | None, strides: Any, padding: Any) -> Array:
    """Images and weights with their channels last."""
    top, left, bottom, right = padding
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    windows = sliding_window_view(padded, w.shape[1:3], axis=(1, 2))
    windows = windows[:, :: strides[0], :: strides[1]].astype(np.float32)
    y = np.einsum("nhwcij,oijc->nhwo", windows, w.astype(np.float32))
    return np.asarray(np.maximum(y if b is None else y + b, 0), x.dtype)


class Library(JsonBackend):
    """Convolutions with whatever follows, channels last."""

    name = "library"
    version = "1"
    limits = Limits(layout="NHWC")
    kernels = MappingProxyType({"conv": conv_bias_relu})
    simulated = True  # not raced against the host, which would win

    def patterns(self) -> PatternTable:
        conv = is_op("nn.conv2d")(wildcard(), wildcard())
        biased = conv.optional(lambda x: is_op("nn.bias_add")(x, wildcard()))
        return [("conv", is_op("nn.relu")(biased))]

    def supports(self, match: Match) -> Refusal | None:
        if any(not isinstance(dim, int) for dim in (match.root.output.shape or ())[1:]):
            return Refusal("only the batch may be symbolic")
        return super().supports(match)


class Half(Library):
    """The same in float16."""

    name = "half"
    limits = Limits(layout="NHWC", dtype=DType.FLOAT16)


class Recorder(JsonBackend):
    """Hands the operands of every call to the test, and gives back what the reference would."""

    name = "recorder"
    version = "1"

    def __init__(self, pattern: Any, kernel: Callable[..., Any]) -> None:
        self._pattern = pattern
        self.kernels = {"pattern": kernel}

    def patterns(self) -> PatternTable:
        return [("pattern", self._pattern)]


@pytest.fixture(params=[Library, Half])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    backend: Library = request.param()
    register_backend(backend)
    yield backend
    unregister_backend(backend.name)


def run(backend: JsonBackend, graph: Graph, *arrays: Array) -> list[Array]:
    outputs = [np.empty(shape_at(v, {}), v.dtype.numpy) for v in graph.outputs]
    results = backend.runner(graph)(list(arrays), outputs)
    return outputs if results is None else list(results)


def binary(name: str, swapped: bool = False) -> Graph:
    """relu(x) and exp(y), joined by an operator."""
    build = Builder()
    x, y = (build.input(name, tensor("float32", 5)) for name in "xy")
    operands = [build("nn.relu", x), build("exp", y)]
    return build.build(build(name, *reversed(operands) if swapped else operands))


X, Y = (draw.standard_normal(5, dtype=np.float32) for _ in "xy")
RELU, EXP = is_op("nn.relu")(wildcard()), is_op("exp")(wildcard())


@pytest.mark.parametrize("swapped", [False, True])
def test_operands_come_in_the_order_of_the_pattern(swapped: bool) -> None:
    def kernel(y: Array, x: Array) -> Array:
        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(y, Y)
        return np.asarray(np.exp(y) + np.maximum(x, 0))

    graph = binary("add", swapped)
    (found,) = run(Recorder(is_op("add")(EXP, RELU), kernel), graph, *_in_order(graph))
    np.testing.assert_allclose(found, np.exp(Y) + np.maximum(X, 0), rtol=1e-6)


def _in_order(graph: Graph) -> list[Array]:
    return [{"x": X, "y": Y}[value.name] for value in graph.inputs]


def test_operands_of_what_does_not_commute() -> None:
    graph = binary("subtract")
    backend = Recorder(is_op("subtract")(RELU, EXP), lambda x, y: np.maximum(x, 0) - np.exp(y))
    (found,) = run(backend, graph, *_in_order(graph))
    np.testing.assert_allclose(found, np.maximum(X, 0) - np.exp(Y), rtol=1e-6)


def test_a_value_read_twice_is_two_operands() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 5))
    graph = build.build(build("multiply", x, x))
    backend = Recorder(is_op("multiply")(wildcard(), wildcard()), lambda a, b: a * b)
    np.testing.assert_array_equal(run(backend, graph, X)[0], X * X)


def test_a_formula_is_a_function_of_its_parameters() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 5))
    y = build.constant(Y)
    graph = build.build(build("add", build("multiply", x, build("sigmoid", x)), y))
    backend = Recorder(lambda y, x: x * op.sigmoid(x) + y, lambda y, x: y + x / (1 + np.exp(-x)))
    np.testing.assert_allclose(run(backend, graph, X)[0], Y + X / (1 + np.exp(-X)), rtol=1e-5)


def test_constants_are_arrays_and_numbers_of_the_pattern_are_not_operands() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 5))
    scaled = build("multiply", x, build.constant(np.float32(2)))
    graph = build.build(build("add", scaled, build.constant(Y)))
    pattern = is_op("add")(is_op("multiply")(wildcard(), is_constant(2)), is_constant())
    backend = Recorder(pattern, lambda x, y: 2 * x + y)
    np.testing.assert_allclose(run(backend, graph, X)[0], 2 * X + Y, rtol=1e-6)


def test_open_operands_are_those_of_the_node() -> None:
    build = Builder()
    x, y = (build.input(name, tensor("float32", 5)) for name in "xy")
    graph = build.build(build("concatenate", x, y, x, axis=0))
    backend = Recorder(is_op("concatenate"), lambda *xs, axis: np.concatenate(xs, axis))
    np.testing.assert_array_equal(run(backend, graph, X, Y)[0], np.concatenate([X, Y, X]))


def layers(count: int, bias: bool = True, **attrs: Any) -> Graph:
    build = Builder()
    value: Value = build.input("x", IMAGE)
    for _ in range(count):
        weight = build.constant(draw.standard_normal((3, 3, 3, 3), dtype=np.float32) / 5)
        value = build("nn.conv2d", value, weight, padding=(1, 1, 1, 1), **attrs)
        if bias:
            value = build("nn.bias_add", value, build.constant(np.ones(3, np.float32)))
        value = build("nn.relu", value)
    return build.build(build("tanh", value))


@pytest.mark.parametrize("bias", [True, False])
def test_a_match_is_one_call(library: Library, bias: bool) -> None:
    graph = layers(2, bias)
    pins = [f"{n.output.name}={library.name}" for n in graph.nodes if n.op.name == "nn.conv2d"]
    module = graft.compile(graph, library.name, pins=pins)
    (region,) = module.placement.regions
    assert len(region.nodes) == (6 if bias else 4)
    x = draw.standard_normal((2, 3, 9, 7), dtype=np.float32)
    (expected,) = evaluate(graph, [x])
    error = 2e-2 if library.limits.dtype is DType.FLOAT16 else 1e-5
    np.testing.assert_allclose(module.run(None, {"x": x})[0], expected, atol=error)
    assert module.incidents == []


def test_nothing_converts_between_calls_that_agree() -> None:
    backend = Half()
    graph = layers(2)
    body = wished(Graph("r", graph.inputs, graph.nodes[:-1], graph.nodes[-1].args), backend.limits)
    stored = unpack(backend.code(body))
    assert [node.op for node in stored.nodes] == ["conv", "conv"]
    assert [part.op for part in stored.nodes[0].parts] == ["nn.conv2d", "nn.bias_add", "nn.relu"]
    assert {str(array.dtype) for array in stored.constants.values()} == {"float16"}


@pytest.mark.parametrize("backend", [Library(), Half()], ids=lambda b: b.name)
def test_conformance(backend: Library) -> None:
    report = conformance(backend, examples=20)
    report.assert_ok()
    (pattern,) = report.patterns
    assert pattern.symbolic
    assert "float32" in pattern.dtypes


def test_attributes_that_a_kernel_is_not_told_are_refused() -> None:
    graph = layers(1, dilation=(2, 2))
    explained = graft.compile(graph, target="host")
    assert explained.placement.regions == ()
    register_backend(Library)
    try:
        with pytest.raises(graft.UserError, match="the kernel has no parameter 'dilation'"):
            graft.compile(graph, "library", pins=["relu=library"])
    finally:
        unregister_backend("library")


def test_what_kernels_may_ask_for() -> None:
    def asks(x: Array, node: JsonNode, threads: int | None, **attrs: Any) -> Array:
        asked.append((node.op, threads, attrs))
        return x

    asked: list[Any] = []
    backend = Recorder(is_op("nn.softmax"), asks)
    build = Builder()
    graph = build.build(build("nn.softmax", build.input("x", tensor("float32", 2, 3)), axis=0))
    runner = backend.loaded(backend.code(graph), threads=3)
    runner([np.ones((2, 3), np.float32)], [np.ones((2, 3), np.float32)])
    assert asked == [("pattern", 3, {"axis": 0})]


def test_what_parts_disagree_on_is_told_by_part() -> None:
    build = Builder()
    first = build("nn.softmax", build.input("x", tensor("float32", 2, 3)), axis=0)
    graph = build.build(build("nn.softmax", first, axis=1))
    pattern = is_op("nn.softmax")(is_op("nn.softmax")(wildcard()))
    refusing = Recorder(pattern, lambda x, axis: x)
    with pytest.raises(NotImplementedError, match=r"there is no kernel for nn\.softmax"):
        refusing.load(refusing.compile(graph))

    def twice(x: Array, node: JsonNode, **_attrs: Any) -> Array:
        assert node.ops == ("nn.softmax", "nn.softmax")
        for part in node.parts:
            x = np.exp(x) / np.exp(x).sum(part.attrs["axis"], keepdims=True)
        return x

    x = draw.standard_normal((2, 3), dtype=np.float32)
    (found,) = run(Recorder(pattern, twice), graph, x)
    np.testing.assert_allclose(found, evaluate(graph, [x])[0], rtol=1e-5)


def test_a_pattern_without_a_kernel() -> None:
    backend = Recorder(is_op("tanh"), np.tanh)
    backend.kernels = {"tanh": np.tanh}
    build = Builder()
    graph = build.build(build("tanh", build.input("x", tensor("float32", 5))))
    with pytest.raises(BackendError, match="the pattern 'pattern' has no kernel"):
        backend.code(graph)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nn.rleu", "; did you mean nn.relu?"),
        ("Relu", "; did you mean nn.relu?"),
        ("Dense", "; did you mean nn.dense?"),
        ("conv_relu", "; did you mean conv_bias_relu?"),
        ("zzz", ""),
    ],
)
def test_a_kernel_that_nothing_calls(name: str, meant: str) -> None:
    class Misspelt(JsonBackend):
        name = "misspelt"
        version = "1"

        def patterns(self) -> PatternTable:
            return [("conv_bias_relu", is_op("nn.conv2d")), *super().patterns()]

    backend = Misspelt()
    backend.kernels = {"add": np.add, "conv_bias_relu": conv_bias_relu, name: np.exp}
    expected = f"the kernel '{name}' is neither a pattern of misspelt nor an operator{meant}"
    expected = f"misspelt.patterns raised UserError: {expected}"
    with pytest.raises(BackendError) as raised:
        tables_of(backend)
    assert raised.value.message.startswith(f"{expected}, at ")
    report = conformance(backend, 1)
    assert [failure.reason for failure in report.failures] == [raised.value.message]


def test_kernels_of_registered_patterns() -> None:
    backend = Recorder(is_op("tanh"), np.tanh)
    backend.kernels = {"pattern": np.tanh, "registered": np.exp}
    register_pattern_table("recorder", [("registered", is_op("exp"))])
    try:
        assert [entry.name for entry in tables_of(backend)] == ["pattern", "registered"]
    finally:
        unregister("recorder")


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (lambda x: None, "the kernel 'nn.softmax' returned None instead of an array"),
        (lambda x, axis: (x, x), "the kernel 'nn.softmax' returned a tuple or list of 2, not of 1"),
        (
            lambda x, axes: x,
            "the kernel 'nn.softmax' has a parameter 'axes', which is neither one of 1 operands nor"
            " an attribute: nn.softmax has axis (beside node and threads)",
        ),
    ],
)
def test_the_kit_names_mistakes_of_kernels(kernel: Callable[..., Any], expected: str) -> None:
    class Hasty(JsonBackend):
        name = "hasty"
        version = "1"
        kernels = MappingProxyType({"nn.softmax": kernel})

    failures = conformance(Hasty(), 4).failures
    assert any(expected in failure.reason for failure in failures), failures


def test_an_axis_from_the_end_is_the_default_one() -> None:
    build = Builder()
    image, bias = build.input("x", IMAGE), build.input("b", tensor("float32", 3))
    graph = build.build(build("nn.bias_add", image, bias, axis=-3))
    backend = Recorder(is_op("nn.bias_add"), lambda x, b: x + b[:, None, None])
    x, b = (draw.standard_normal(shape, dtype=np.float32) for shape in ((2, 3, 9, 7), 3))
    (found,) = run(backend, graph, x, b)
    np.testing.assert_allclose(found, evaluate(graph, [x, b])[0], rtol=1e-6)


def test_symbolic_extents_of_a_node_are_text_at_run_time() -> None:
    nodes: list[JsonNode] = []

    def tanh(x: Array, node: JsonNode) -> Array:
        nodes.append(node)
        return np.asarray(np.tanh(x))

    build = Builder()
    graph = build.build(build("tanh", build.input("x", tensor("float32", symbol("batch"), 5))))
    runner = Recorder(is_op("tanh"), tanh).runner(graph)
    runner([np.zeros((3, 5), np.float32)], [np.empty((3, 5), np.float32)])
    assert nodes[0].outputs[0].shape == ("batch", 5)
    assert nodes[0].op == "pattern"
    assert nodes[0].ops == ("tanh",)


def test_parameters_beyond_operands() -> None:
    assert attributes_of(np.add, 2) == frozenset()
    assert attributes_of(max, 2) == frozenset()
    assert attributes_of(lambda x, axis, *, keepdims=0: x, 1) == {"axis", "keepdims"}
    assert attributes_of(lambda x, **rest: x, 1) == {ALL}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW8c"])
def test_layouts_there_and_back(layout: str) -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 2, 16, 3, 5))
    moved = build("layout_transform", x, src_layout="NCHW", dst_layout=layout)
    array = draw.standard_normal((2, 16, 3, 5), dtype=np.float32)
    there = layout_transform(array, "NCHW", layout)
    np.testing.assert_array_equal(there, evaluate(build.build(moved), [array])[0])
    np.testing.assert_array_equal(layout_transform(there, layout, "NCHW"), array)


class Picky(JsonBackend):
    """Adds, unless it is told to take offence at operands."""

    name = "picky"
    version = "1"
    offence: Exception | None = None

    def __init__(self) -> None:
        self.kernels = {"add": self._add, "nn.relu": lambda x: np.maximum(x, 0)}

    def _add(self, x: Array, y: Array) -> Array:
        if self.offence is not None:
            raise self.offence
        return np.add(x, y)


@pytest.fixture
def picky() -> Iterator[Picky]:
    backend = Picky()
    register_backend(backend)
    yield backend
    unregister_backend("picky")


def sum_relu() -> Graph:
    """relu(x + y), twice as long as the first operand is high."""
    build = Builder()
    x = build.input("x", TensorType(DType.FLOAT32, (symbol("n"), 3)))
    total = build("add", x, build.input("y", tensor("float32", 3)))
    return build.build(build("nn.relu", total))


FEEDS = {"x": np.ones((2, 3), np.float32), "y": np.ones(3, np.float32)}


def test_what_a_kernel_raises_names_the_call_and_its_operands(picky: Picky) -> None:
    module = graft.compile(sum_relu(), "picky", pins=["*=picky"])
    assert len(module.placement.regions) == 1
    picky.offence = ValueError("too tall")
    with pytest.warns(RegionWarning, match="the region 'picky_0' failed on picky") as caught:
        np.testing.assert_array_equal(module.run(None, FEEDS)[0], np.full((2, 3), 2))
    wanted = "the kernel 'add' for %add raised ValueError: too tall for float32[2, 3], float32[3]"
    assert wanted in str(caught[0].message)
    assert Path(__file__).name in str(caught[0].message)  # the author's line
    assert caught[0].filename == __file__  # the user's


def test_a_pin_that_breaks_names_the_call_too(picky: Picky) -> None:
    picky.offence = ValueError("too tall")
    with pytest.raises(UserError, match=r"cannot hold for %.*: picky_0: the kernel 'add' for %add"):
        graft.compile(sum_relu(), "picky", pins=["*=picky"])


def test_a_missing_package_is_named_and_no_failure(picky: Picky) -> None:
    module = graft.compile(sum_relu(), "picky", pins=["*=picky"])
    picky.offence = ModuleNotFoundError("No module named 'driver'", name="driver")
    with pytest.warns(RegionWarning, match="'picky_0' runs on the host: .*'driver'") as caught:
        module.run(None, FEEDS)
    assert "failed" not in str(caught[0].message)
    assert [incident.fault for incident in module.incidents] == [Fault.NOT_LOADED]


def test_what_cannot_be_raced_is_not_even_compiled(
    picky: Picky, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By plans: the chosen one, here the host's alone, and all that can be offloaded."""
    monkeypatch.setattr(Picky, "limits", Limits(launch_seconds=1.0))
    compiled: list[Graph] = []
    monkeypatch.setattr(Picky, "compile", lambda _, region: compiled.append(region))
    module = graft.compile(sum_relu(), "picky", report=lambda stage: None)
    assert module.placement.regions == ()
    assert compiled == []
