"""Small random networks through the whole host compiler: layouts, copies, memory and threads.

Single kernels are tested in `test_templates.py`; here it is how they are put together: which tensor
lies in which blocks, who repacks it for whom, and where results go.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.host.property.pointwise import tail
from tests.backends.host.property.sketch import Shape, Sketch
from tests.examples import examples

import graft
from graft.backends.host.storage import static_shape
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor

# Errors grow from layer to layer; a wrong element is off by about 1.
TOLERANCE = 1e-3

Layer = Callable[[Sketch, Value], Value]


def _weight(s: Sketch, *shape: int) -> Value:
    """Weights that keep magnitudes as they are."""
    return s.constant(s.array(shape) / np.float32(np.prod(shape[1:]) ** 0.5))


def _made(s: Sketch, op: str, *operands: Value, **attrs: object) -> Value:
    return s(op, *operands, bound=4.0, error=1.0, **attrs)


def _conv(s: Sketch, value: Value) -> Value:
    channels = static_shape(value)[1]
    outputs, size = s.pick((8, 16, 5, 24, 32, 12)), s.pick((1, 3, 3, 2))
    stride = s.pick((1, 1, 2))
    padding = tuple(s.pick((size // 2, size - 1)) for _ in range(4))
    weight = _weight(s, outputs, channels, size, size)
    attrs = {"strides": (stride, stride), "padding": padding}
    return _made(s, "nn.conv2d", value, weight, **attrs)


def _depthwise(s: Sketch, value: Value) -> Value:
    channels = static_shape(value)[1]
    weight = _weight(s, channels, 1, 3, 3)
    return _made(s, "nn.conv2d", value, weight, padding=(1, 1, 1, 1), groups=channels)


def _pool(s: Sketch, value: Value) -> Value:
    op = s.pick(("nn.max_pool2d", "nn.avg_pool2d"))
    stride = s.pick((1, 2))
    attrs = {"pool_size": (3, 3), "strides": (stride, stride), "padding": (1, 1, 1, 1)}
    return _made(s, op, value, **attrs)


def _join(s: Sketch, value: Value) -> Value:
    """The value beside another that was made from it."""
    batch, _, rows, columns = static_shape(value)
    other = s.input((batch, s.pick((1, 3, 8, 16)), rows, columns))
    parts = [value, other if s.chance(50) else s.pick((_depthwise, _gate))(s, value)]
    return _made(s, "concatenate", *(parts if s.chance(50) else parts[::-1]), axis=1)


def _gate(s: Sketch, value: Value) -> Value:
    """A factor per channel, from the mean of each."""
    mean = _made(s, "mean", value, axes=(2, 3), keepdims=True)
    return _made(s, "multiply", value, _made(s, "sigmoid", mean))


def _residual(s: Sketch, value: Value) -> Value:
    return _made(s, "add", value, _depthwise(s, value))


def _turned(s: Sketch, value: Value) -> Value:
    """Rows and columns change places, or channels are cut and put back the other way round."""
    if s.chance(50):
        return _made(s, "transpose", value, axes=(0, 1, 3, 2))
    parts = s.builder.call("split", value, axis=1, sections=2)
    return _made(s, "concatenate", *reversed(parts), axis=1)


def _tail(s: Sketch, value: Value) -> Value:
    return tail(s, value, axis=1, most=3)


LAYERS: tuple[Layer, ...] = (
    *(_conv, _conv, _conv, _tail, _tail, _depthwise, _pool),
    *(_join, _gate, _residual, _turned),
)


def _head(s: Sketch, value: Value) -> Value:
    mean = _made(s, "mean", value, axes=(2, 3), keepdims=False)
    weight = _weight(s, s.number(1, 20), static_shape(value)[1])
    return _made(s, "nn.dense", mean, weight)


@st.composite
def networks(draw: st.DrawFn) -> tuple[Graph, list[Array]]:
    """A graph of a few layers, and data for its inputs."""
    s = Sketch(draw, small=True)
    shape: Shape = (s.number(1, 3), s.pick((1, 3, 8, 16)), s.number(3, 9), s.number(3, 9))
    value = s.input(shape)
    outputs: list[Value] = []
    for _ in range(s.number(1, 5)):
        value = s.pick(LAYERS)(s, value)
        if static_shape(value)[1] > 1 and s.chance(15):
            outputs.append(value)
    value = _head(s, value) if s.chance(30) else value
    return s.builder.build(*dict.fromkeys((*outputs, value))), s.data


@settings(max_examples=examples(200, short=10))
@given(networks(), st.integers(1, 3))
def test_network(network: tuple[Graph, list[Array]], threads: int) -> None:
    graph, data = network
    wanted = evaluate(graph, data)
    module = graft.compile(graph, target=["host"], threads=threads)
    feeds = {value.name: array for value, array in zip(graph.inputs, data, strict=True)}
    for _ in range(2):  # the second time in memory that was used before
        found = module.run(None, feeds)
        for position, (mine, right) in enumerate(zip(found, wanted, strict=True)):
            scale = max(1.0, float(np.abs(right).max()))
            what = f"output {position}"
            np.testing.assert_allclose(mine, right, rtol=0, atol=TOLERANCE * scale, err_msg=what)


def test_truth_values_of_an_image_stay_in_rows() -> None:
    """They are read beside a blocked image, but never blocked themselves."""
    g = Builder()
    x = g.input("x", tensor("float32", 2, 8, 6, 7))
    chosen = g.input("chosen", tensor("bool", 2, 16, 6, 7))
    random = np.random.default_rng(0)
    weight = g.constant(random.standard_normal((16, 8, 3, 3), dtype=np.float32))
    y = g("nn.conv2d", x, weight, padding=(1, 1, 1, 1))
    graph = g.build(g("where", chosen, y, g("negative", y)))
    data = [random.standard_normal((2, 8, 6, 7), dtype=np.float32), random.random(16 * 84) < 0.5]
    data[1] = data[1].reshape(2, 16, 6, 7)
    module = graft.compile(graph, target=["host"], strict=True)
    (found,) = module.run(None, {"x": data[0], "chosen": data[1]})
    np.testing.assert_allclose(found, evaluate(graph, data)[0], rtol=1e-4, atol=1e-4)
