"""Quantised models on the host: integer arithmetic where it belongs, and the numbers it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.host.test_image_resize import MODES

import graft
from graft.backends.host.lowering.assemble import NativeStep, assemble
from graft.backends.host.passes.fold_depth import fold_depth
from graft.backends.host.passes.pipeline import prepare
from graft.backends.host.passes.use_integers import use_integers
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import host_target

GENERATOR = np.random.default_rng(3)


class Quantised:
    """Builds models in which tensors are quantised and dequantised."""

    def __init__(self, *shape: Any) -> None:
        self.g = Builder()
        self.input = self.g.input("x", tensor("float32", *shape))

    def through(self, x: Value, scale: float, zero: int, dtype: str = "uint8") -> Value:
        """Quantised and dequantised."""
        g = self.g
        parameters = g.constant(np.float32(scale)), g.constant(np.array(zero, dtype))
        return g("qnn.dequantize", g("qnn.quantize", x, *parameters, dtype=dtype), *parameters)

    def weights(self, *shape: int, per_channel: bool = True, zero: int = 0) -> Value:
        array = GENERATOR.integers(-100, 100, shape).astype(np.int8)
        count = shape[0] if per_channel else 1
        scale = GENERATOR.uniform(0.002, 0.004, count).astype(np.float32)
        zeros = np.full(count, zero, np.int8)
        if not per_channel:
            scale, zeros = scale.reshape(()), zeros.reshape(())
        self.scale = scale
        g = self.g
        return g("qnn.dequantize", *map(g.constant, (array, scale, zeros)), axis=0)

    def bias(self, units: int, scale: float) -> Value:
        """In units of the data's scale times that of the last weights."""
        whole = GENERATOR.integers(-3000, 3000, units).astype(np.int32)
        factor = np.float32(scale) * self.scale
        g = self.g
        return g("qnn.dequantize", g.constant(whole), g.constant(factor), axis=0)


def _names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def _agrees(model: Quantised, result: Value, scale: float, shape: tuple[int, ...] = ()) -> Graph:
    """Natively within one step of what the reference gives, and almost everywhere the same."""
    graph = model.g.build(result)
    made = use_integers(graph)
    shape = shape or tuple(int(dim) for dim in model.input.tensor.shape or ())
    x = GENERATOR.standard_normal(shape).astype(np.float32)
    (wanted,) = evaluate(graph, [x])
    (found,) = graft.compile(graph, strict=True).run(None, {"x": x})
    away = np.abs(np.asarray(found, np.float64) - wanted) / scale
    assert away.max(initial=0) < 1.01
    assert (away > 0.5).mean() < 0.01 if away.size else True
    return made


@pytest.mark.each_value
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 117), ("int8", -9)])
@pytest.mark.parametrize("channels", [3, 16, 24])
def test_convolution(channels: int, dtype: str, zero: int, per_channel: bool) -> None:
    model = Quantised(2, channels, 9, 11)
    x = model.through(model.input, 0.02, zero, dtype)
    weights = model.weights(16, channels, 3, 3, per_channel=per_channel)
    y = model.g("nn.conv2d", x, weights, strides=(2, 1), padding=(1, 1, 0, 1))
    y = model.g("nn.bias_add", y, model.bias(16, 0.02))
    made = _agrees(model, model.through(model.g("nn.relu", y), 0.05, 0), 0.05)
    assert "nn.conv2d" not in _names(made)
    assert "nn.relu" not in _names(made)  # the limits of uint8 are enough
    assert _names(made).count("nn.pad") == (channels == 3)


@pytest.mark.parametrize("channels", [3, 16])
def test_convolution_of_signals(channels: int) -> None:
    """On images one row high, by the same kernel."""
    model = Quantised(2, channels, 37)
    x = model.through(model.input, 0.02, 117)
    y = model.g("nn.conv1d", x, model.weights(24, channels, 5), strides=(2,), padding=(2, 1))
    y = model.g("nn.bias_add", y, model.bias(24, 0.02))
    made = _agrees(model, model.through(model.g("nn.relu", y), 0.05, 0), 0.05)
    assert "qnn.conv1d" in _names(made)
    assert made.nodes[-1].op.name != "nn.relu"
    fused = prepare(made, host_target())
    labels = [node.attrs.label for node in fused.nodes if node.op.name == "composite"]
    (layer,) = (label for label in labels if "qnn.conv2d" in label)
    assert "qnn.saturate" in layer


@pytest.mark.each_value
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(3, 16, 1), (16, 24, 1), (16, 16, 16), (16, 8, 4)]
)
@pytest.mark.parametrize(
    "attrs",
    [
        {"padding": (1,) * 6},
        {"padding": (0, 1, 1, 1, 1, 0), "strides": (2, 1, 2)},
        {"padding": (2, 1, 1, 2, 1, 1), "dilation": (2, 1, 1)},
    ],
)
def test_convolution_of_volumes(
    batch: int, channels: int, outputs: int, groups: int, attrs: dict[str, Any]
) -> None:
    """On the slices of a volume, by the kernels of images."""
    model = Quantised(batch, channels, 7, 5, 6)
    x = model.through(model.input, 0.02, 117)
    weights = model.weights(outputs, channels // groups, 3, 3, 3)
    y = model.g("nn.conv3d", x, weights, groups=groups, **attrs)
    y = model.g("nn.relu", model.g("nn.bias_add", y, model.bias(outputs, 0.02)))
    made = _agrees(model, model.through(y, 0.05, 0), 0.05)
    assert "qnn.conv3d" in _names(made)
    nodes = prepare(made, host_target()).nodes
    labels = [node.attrs.label for node in nodes if node.op.name == "composite"]
    assert "qnn.conv3d" not in {node.op.name for node in nodes}
    assert sum("qnn.conv2d" in one and "qnn.saturate" in one for one in labels) == 1


def test_layers_of_volumes_stay_slices() -> None:
    """Residual blocks too: nothing is transposed but data and result."""
    model = Quantised(1, 8, 5, 6, 7)
    x = model.through(model.input, 0.02, 117)
    y = model.g("nn.conv3d", x, model.weights(8, 8, 3, 3, 3), padding=(1,) * 6)
    first = model.through(y, 0.05, 100)
    y = model.g("nn.conv3d", first, model.weights(8, 8, 1, 1, 1))
    y = model.g("add", model.through(y, 0.05, 90), first)
    made = _agrees(model, model.through(y, 0.043, 30), 0.043)
    folded = fold_depth(made)
    assert _names(folded).count("transpose") == 2


def test_bias_of_a_dense_layer_on_four_axes() -> None:
    """The outputs of a dense layer are the last axis, whatever the rank."""
    model = Quantised(2, 8, 3, 16)
    x = model.through(model.input, 0.02, 117)
    y = model.g("nn.dense", x, model.weights(8, 16))
    y = model.g("add", y, model.bias(8, 0.02))
    _agrees(model, model.through(y, 0.05, 20), 0.05)


@pytest.mark.parametrize("op", ["nn.conv2d", "nn.dense"])
def test_sums_that_overflow_with_their_bias(op: str) -> None:
    """Weights of a channel that are next to nothing leave a bias that is large in their steps."""
    model = Quantised(*((2, 8, 3, 3) if op == "nn.conv2d" else (2, 8)))
    g, x = model.g, model.through(model.input, 0.02, 117)
    y = g(op, x, model.weights(4, 8, *((1, 1) if op == "nn.conv2d" else ()), per_channel=False))
    whole = np.array([2**31 - 1, -(2**31), 2**30, 7], np.int32)
    factor = np.float32(0.02) * model.scale
    bias = g("qnn.dequantize", g.constant(whole), g.constant(factor), axis=0)
    y = g("nn.bias_add", y, bias, axis=1)
    scale = float(factor) * 2**25
    made = _agrees(model, model.through(y, scale, 120), scale)
    assert op.replace("nn.", "qnn.") in _names(made)


def test_resizing_to_the_nearest_moves_codes() -> None:
    model = Quantised(1, 16, 5, 6)
    x = model.through(model.input, 0.02, 100)
    attrs: dict[str, Any] = {"scales": (1.0, 1.0, 2.0, 2.0)}
    made = _agrees(model, model.through(model.g("resize", x, **attrs), 0.02, 100), 0.02)
    (resized,) = (node for node in made.nodes if node.op.name == "resize")
    assert str(resized.output.dtype) == "uint8"


def _interpolated(
    dtype: str, shape: tuple[Any, ...], after: tuple[float, int], **attrs: Any
) -> Graph:
    """Bytes that are dequantised, resized and quantised, by a scale of 0.02 at first."""
    g = Builder()
    scale, zero = g.constant(np.float32(0.02)), g.constant(np.array(7, dtype))
    x = g("qnn.dequantize", g.input("x", tensor(dtype, *shape)), scale, zero)
    parameters = g.constant(np.float32(after[0])), g.constant(np.array(after[1], dtype))
    return g.build(g("qnn.quantize", g("resize", x, **attrs), *parameters, dtype=dtype))


def _is_rounded(graph: Graph, x: Array, after: tuple[float, int]) -> None:
    """Natively the nearest codes to what interpolation in float64 gives. In float32, the last bit
    of the reference decides where that is halfway between two codes."""
    (found,) = graft.compile(graph, strict=True).run(None, {"x": x})
    (node,) = (node for node in graph.nodes if node.op.name == "resize")
    real = (x.astype(np.float64) - 7) * float(np.float32(0.02))
    exact = node.op.evaluate(node.attrs, real, None, None, None)
    exact = exact / float(np.float32(after[0])) + after[1]
    limits = np.iinfo(found.dtype)
    away = np.abs(found - np.clip(exact, limits.min, limits.max))
    assert found.size
    assert away.max() < 0.5 + 1e-3
    (wanted,) = evaluate(graph, [x])
    is_clear = np.abs(np.abs(exact - np.floor(exact)) - 0.5) > 1e-3
    np.testing.assert_array_equal(found[is_clear], wanted[is_clear])


@pytest.mark.each_value
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("sizes", [(14, 18), (56, 72), (4, 3), (7, 20), (1, 1), (15, 4)])
@pytest.mark.parametrize("after", [(0.02, 7), (0.017, -3), (0.3, 0)])
def test_interpolation_of_bytes(
    mode: str, method: str, dtype: str, sizes: tuple[int, int], after: tuple[float, int]
) -> None:
    after = (after[0], abs(after[1])) if dtype == "uint8" else after
    attrs = {"method": method, "coordinate_transformation_mode": mode}
    graph = _interpolated(dtype, (2, 20, 7, 9), after, sizes=sizes, axes=(2, 3), **attrs)
    limits = np.iinfo(dtype)
    x = GENERATOR.integers(limits.min, limits.max, (2, 20, 7, 9), dtype, endpoint=True)
    _is_rounded(graph, x, after)


@pytest.mark.parametrize(
    "attrs",
    [
        {"antialias": True, "sizes": (4, 3)},
        {"exclude_outside": True, "method": "cubic", "sizes": (13, 20)},
        {
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "roi": (-0.2, 0.3, 0.9, 1.2),
            "extrapolation_value": 0.75,
            "sizes": (6, 5),
        },
        {"keep_aspect_ratio_policy": "not_larger", "sizes": (20, 20)},
    ],
)
def test_interpolation_of_bytes_by_other_rules(attrs: dict[str, Any]) -> None:
    after = (0.017, 12)
    graph = _interpolated(
        "uint8", (1, 16, 7, 9), after, axes=(2, 3), **{"method": "linear"} | attrs
    )
    x = GENERATOR.integers(0, 255, (1, 16, 7, 9), np.uint8, endpoint=True)
    _is_rounded(graph, x, after)


def test_interpolation_at_sizes_known_at_run_time() -> None:
    attrs = {"scales": (1.0, 1.0, 2.0, 1.5), "method": "linear"}
    shape = (symbol("n"), 16, symbol("h"), symbol("w"))
    graph = _interpolated("uint8", shape, (0.013, 9), **attrs)
    for sizes in ((1, 16, 5, 6), (2, 16, 1, 4), (1, 16, 0, 4)):
        x = GENERATOR.integers(0, 255, sizes, np.uint8, endpoint=True)
        (found,) = graft.compile(graph, strict=True).run(None, {"x": x})
        away = np.abs(found.astype(int) - evaluate(graph, [x])[0])
        assert away.max(initial=0) <= 1
        assert (away > 0).mean() < 0.05 if away.size else found.shape[2] == 0


def test_only_bytes_lie_between_layers_and_interpolation() -> None:
    """Without a copy from one layout to another."""
    model = Quantised(1, 32, 6, 7)
    g = model.g
    y = model.through(model.input, 0.02, 117)
    y = model.through(g("nn.conv2d", y, model.weights(32, 32, 1, 1)), 0.05, 90)
    y = g("resize", y, scales=(1.0, 1.0, 8.0, 8.0), method="linear")
    y = model.through(g("nn.relu", y), 0.05, 0)
    y = model.through(g("nn.conv2d", y, model.weights(16, 32, 1, 1)), 0.1, 80)
    graph = g.build(y)
    fused = prepare(graph, host_target())
    labels = [n.attrs.label for n in fused.nodes if n.op.name == "composite"]
    (resize,) = (label for label in labels if "resize" in label)
    assert resize.startswith("qnn.resize")
    assert resize.endswith("qnn.saturate")
    between = [str(n.output.dtype) for n in fused.nodes if n.op.name != "constant"][:-1]
    assert {*between} == {"uint8"}
    steps = assemble(fused, host_target()).steps
    names = [step.label for step in steps if isinstance(step, NativeStep)]
    assert names.count("relayout") == 2


def test_a_dequantised_image_is_resized_from_bytes() -> None:
    """As at the end of a segmentation, whose scores stay in float."""
    model = Quantised(1, 21, 6, 7)
    y = model.through(model.input, 0.02, 117)
    y = model.g("resize", y, scales=(1.0, 1.0, 8.0, 8.0), method="linear")
    graph = model.g.build(y)
    assert "qnn.resize" in _names(use_integers(graph))
    x = GENERATOR.standard_normal((1, 21, 6, 7)).astype(np.float32)
    (found,) = graft.compile(graph, strict=True).run(None, {"x": x})
    np.testing.assert_allclose(found, evaluate(graph, [x])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("zero", [0, 30])
def test_residual_block_is_two_kernels(zero: int) -> None:
    """Depthwise, then pointwise with everything up to the next quantisation behind it."""
    model = Quantised(1, 32, 7, 7)
    g = model.g
    x = model.through(model.input, 0.02, 100)
    y = g("nn.conv2d", x, model.weights(32, 1, 3, 3), groups=32, padding=(1, 1, 1, 1))
    y = model.through(g("clip", y, a_min=0.0, a_max=6.0), 6 / 255, 0)
    y = g("nn.conv2d", y, model.weights(32, 32, 1, 1))
    y = g("add", model.through(y, 0.03, 90), x)
    graph = g.build(model.through(y, 0.043, zero))  # 0.04 has ties, which a last bit decides
    fused = prepare(graph, host_target())
    labels = [n.attrs.label for n in fused.nodes if n.op.name == "composite"]
    assert sum("qnn.conv2d" in label for label in labels) == 2
    assert not any("qnn.dequantize" in label for label in labels)
    _agrees(model, graph.outputs[0], 0.043)


def test_dense_layer_with_turned_weights() -> None:
    model = Quantised(5, 64)
    x = model.through(model.input, 0.02, 100)
    g = model.g
    array = GENERATOR.integers(-128, 127, (64, 33)).astype(np.int8)
    scale = g.constant(np.float32(0.003))
    turned = g("transpose", g("qnn.dequantize", g.constant(array), scale), axes=(1, 0))
    made = _agrees(model, model.through(g("nn.dense", x, turned), 0.05, 128), 0.05)
    assert "qnn.dense" in _names(made)
    assert "nn.dense" not in _names(made)


def test_pooling_moves_codes() -> None:
    model = Quantised(1, 16, 9, 9)
    x = model.through(model.input, 0.02, 100)
    pooled = model.g("nn.max_pool2d", x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    made = _agrees(model, model.through(pooled, 0.02, 100), 0.02)
    pools = [node for node in made.nodes if node.op.name == "nn.max_pool2d"]
    assert str(pools[0].output.dtype) == "uint8"


def test_mean_of_bytes() -> None:
    model = Quantised(1, 16, 7, 5)
    x = model.through(model.input, 0.02, 100)
    mean = model.g("mean", x, axes=(2, 3), keepdims=True)
    _agrees(model, model.through(mean, 0.005, 120), 0.005)


def test_sizes_known_at_run_time() -> None:
    model = Quantised(symbol("batch"), 12, symbol("height"), 8)
    x = model.through(model.input, 0.02, 100)
    y = model.g("nn.conv2d", x, model.weights(8, 12, 3, 3), padding=(1, 1, 1, 1))
    _agrees(model, model.through(y, 0.05, 3), 0.05, (3, 12, 5, 8))


def test_weights_that_need_more_than_8_bits_stay_floats() -> None:
    model = Quantised(1, 16, 5, 5)
    g = model.g
    x = model.through(model.input, 0.02, 100)
    stored = g.constant(GENERATOR.integers(0, 255, (8, 16, 1, 1)).astype(np.uint8))
    zero = g.constant(np.array(20, np.uint8))
    weights = g("qnn.dequantize", stored, g.constant(np.float32(0.003)), zero)
    made = _agrees(model, model.through(g("nn.conv2d", x, weights), 0.05, 3), 0.05)
    assert "nn.conv2d" in _names(made)


def _exact(write: Callable[[Builder, Value], Value], shape: tuple[Any, ...], x: Array) -> None:
    g = Builder()
    graph = g.build(write(g, g.input("x", tensor(str(x.dtype), *shape))))
    (found,) = graft.compile(graph, strict=True).run(None, {"x": x})
    np.testing.assert_array_equal(found, evaluate(graph, [x])[0])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("rows", [4, symbol("n")])
def test_zero_point_known_at_run_time(dtype: str, rows: Any) -> None:
    weight = GENERATOR.integers(-128, 127, (9, 20)).astype(np.int16)

    def write(g: Builder, x: Value) -> Value:
        zero = g("max", x)
        return g("qnn.dense", x, g.constant(weight), zero)

    x = GENERATOR.integers(0, 100, (4, 20)).astype(dtype)
    _exact(write, (rows, 20), x)


@pytest.mark.each_value
@pytest.mark.parametrize("weights", [np.int8, np.int16])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_plain_integer_convolutions(rank: int, weights: Any) -> None:
    kernel = GENERATOR.integers(-120, 120, (6, 5, *(3,) * rank)).astype(weights)

    def write(g: Builder, x: Value) -> Value:
        zero = g.constant(np.array(7, np.uint8))
        padding = (1,) * (2 * rank)
        return g(f"qnn.conv{rank}d", x, g.constant(kernel), zero, padding=padding)

    shape = (2, 5, *(6,) * rank)
    _exact(write, shape, GENERATOR.integers(0, 256, shape).astype(np.uint8))


def test_scales_along_an_axis_of_nothing() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 0, symbol("n")))
    scale = g.constant(np.zeros(0, np.float32))
    graph = g.build(g("qnn.quantize", x, scale, axis=0, dtype="uint8"))
    native = graft.compile(graph, strict=True)
    for count in (0, 3):
        (found,) = native.run(None, {"x": np.zeros((0, count), np.float32)})
        assert found.shape == (0, count)
        assert found.dtype == np.uint8
