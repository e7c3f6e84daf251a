"""`layout_transform`: what it means, what it refuses, and the same from native code."""

from __future__ import annotations

import numpy as np
import pytest

import graft
from graft.base.dims import symbol
from graft.base.errors import TypeRuleError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import TensorType, tensor

LAYOUTS = ("NCHW", "NHWC", "NCHW16c")
SHAPES = {"NCHW": (2, 32, 5, 7), "NHWC": (2, 5, 7, 32), "NCHW16c": (2, 2, 5, 7, 16)}
PAIRS = [(source, target) for source in LAYOUTS for target in LAYOUTS]


def transform(source: str, target: str, type_: TensorType | None = None) -> Graph:
    build = Builder()
    x = build.input("x", type_ or tensor("float32", *SHAPES[source]))
    return build.build(build("layout_transform", x, src_layout=source, dst_layout=target))


def image(layout: str) -> np.ndarray:
    """Where every element says where it belongs."""
    plain = np.arange(2 * 32 * 5 * 7, dtype=np.float32).reshape(2, 32, 5, 7)
    if layout == "NHWC":
        return np.moveaxis(plain, 1, 3).copy()
    if layout == "NCHW16c":
        return np.moveaxis(plain.reshape(2, 2, 16, 5, 7), 2, 4).copy()
    return plain


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_meaning(source: str, target: str) -> None:
    graph = transform(source, target)
    assert graph.outputs[0].tensor.shape == SHAPES[target]
    (result,) = evaluate(graph, [image(source)])
    np.testing.assert_array_equal(result, image(target))


@pytest.mark.each_value
@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_native(source: str, target: str, dtype: str) -> None:
    graph = transform(source, target, tensor(dtype, *SHAPES[source]))
    module = graft.compile(graph, strict=True)
    data = image(source).astype(dtype)
    (result,) = module.run(None, {"x": data})
    np.testing.assert_array_equal(result, image(target).astype(dtype))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_native_of_symbolic_images(source: str, target: str) -> None:
    names = {"N": symbol("n"), "H": symbol("h"), "W": symbol("w")}
    letters = "NCHWc" if source == "NCHW16c" else source
    shape = [names.get(*one) for one in zip(letters, SHAPES[source], strict=True)]
    module = graft.compile(transform(source, target, tensor("float32", *shape)), strict=True)
    (result,) = module.run(None, {"x": image(source)})
    np.testing.assert_array_equal(result, image(target))


def test_native_with_what_is_around_it() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 1, 16, 3, 5))
    there = build("layout_transform", build("nn.relu", x), src_layout="NCHW", dst_layout="NHWC")
    graph = build.build(build("exp", there))
    data = np.random.default_rng(0).standard_normal((1, 16, 3, 5), dtype=np.float32)
    (result,) = graft.compile(graph, strict=True).run(None, {"x": data})
    np.testing.assert_allclose(result, np.exp(np.maximum(data, 0)).transpose(0, 2, 3, 1), rtol=1e-6)


def test_no_elements() -> None:
    graph = transform("NCHW", "NCHW16c", tensor("float32", 0, 16, 4, 4))
    assert graph.outputs[0].tensor.shape == (0, 1, 4, 4, 16)
    (result,) = evaluate(graph, [np.zeros((0, 16, 4, 4), np.float32)])
    assert np.asarray(result).shape == (0, 1, 4, 4, 16)


def test_extents_known_at_run_time_only() -> None:
    n, h = symbol("n"), symbol("h")
    graph = transform("NCHW", "NHWC", TensorType(tensor("float32").dtype, (n, 3, h, 7)))
    assert graph.outputs[0].tensor.shape == (n, h, 7, 3)
    back = transform("NCHW16c", "NCHW", TensorType(tensor("float32").dtype, (n, 2, h, 7, 16)))
    assert back.outputs[0].tensor.shape == (n, 32, h, 7)


REFUSED = [
    ("NCWH", "NCHW", (1, 2, 3, 4), "'NCWH' is no layout: NCHW, NHWC or NCHW16c"),
    ("NCHW", "NCHW0c", (1, 2, 3, 4), "'NCHW0c' is no layout"),
    ("NCHW", "NCHW16c", (1, 20, 3, 4), "20 channels are no whole number of blocks of 16"),
    ("NCHW", "NHWC", (1, 20, 3), "NCHW has 4 axes, and the operand 3"),
    ("NCHW16c", "NHWC", (1, 2, 3, 4), "NCHW16c has 5 axes, and the operand 4"),
    ("NCHW16c", "NCHW", (1, 2, 3, 4, 8), "NCHW16c ends in 16, not 8"),
    ("NCHW8c", "NCHW16c", (1, 2, 3, 4, 8), "from NCHW8c to NCHW16c leads only NCHW"),
]


@pytest.mark.parametrize(("source", "target", "shape", "message"), REFUSED)
def test_refused(source: str, target: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        transform(source, target, tensor("float32", *shape))
