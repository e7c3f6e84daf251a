"""Resizing of blocked images."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from tests.backends.host.flows import check_flow
from tests.backends.host.images import Case, case, check

import graft
from graft.backends.host.kernels.images.resize import NEAREST, image_resize
from graft.backends.host.lowering.assemble import NativeStep, assemble
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, tensor
from graft.passes.group_fusion import group_fusion
from graft.target.target import host_target, named_target

MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)


def resized(
    shape: tuple[int, ...], block: int = 16, dtype: str = "float32", **attrs: object
) -> Case:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor(dtype, *shape))
        return builder("resize", data, **attrs)

    layout = {"data": (block, (1, 0, 2, 1)), "result": (block, (0, 1, 1, 2))}
    return case(write, layout)


@pytest.mark.each_value
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["nearest_neighbor", "linear", "cubic"])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((1, 16, 7, 9), (14, 18)),
        ((2, 32, 5, 6), (13, 3)),
        ((1, 16, 1, 1), (4, 5)),
        ((2, 16, 6, 4), (1, 4)),
        ((1, 16, 4, 3), (4, 31)),
    ],
)
def test_sizes(shape: tuple[int, ...], sizes: tuple[int, ...], method: str, mode: str) -> None:
    attrs = {"method": method, "coordinate_transformation_mode": mode}
    check(resized(shape, sizes=sizes, axes=(2, 3), **attrs), image_resize, 2)


@pytest.mark.parametrize("rounding", ["round_prefer_ceil", "floor", "ceil", "simple"])
def test_roundings_of_nearest(rounding: str) -> None:
    attrs = {"scales": (1.0, 1.0, 2.5, 0.6), "rounding_method": rounding}
    check(resized((2, 8, 5, 11), 8, **attrs), image_resize)


@pytest.mark.parametrize("block", [16, 8, 5, 1])
def test_blocks(block: int) -> None:
    attrs = {"scales": (1.0, 1.0, 1.5, 2.0), "method": "linear"}
    for machine in ("host", "x86-64-v3"):
        check(resized((2, 80, 6, 7), block, **attrs), image_resize, 3, target=named_target(machine))


@pytest.mark.parametrize("block", [16, 8, 5])
@pytest.mark.parametrize("sizes", [(14, 18), (3, 4), (7, 30), (20, 9)])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_bytes(dtype: str, sizes: tuple[int, int], block: int) -> None:
    """Interpolated as floats, or moved."""

    def write(op: str, method: str, g: Builder) -> Value:
        data = g.input("data", tensor(dtype, 2, 40, 7, 9))
        return g(op, data, sizes=sizes, axes=(2, 3), method=method)

    limits = np.iinfo(dtype)
    draw = np.random.default_rng(block)
    image = draw.integers(limits.min, limits.max, (2, 40, 7, 9), dtype, endpoint=True)
    layout = {"data": (block, (1, 0, 2, 1)), "result": (block, (0, 1, 1, 2))}
    for call in (("qnn.resize", "linear"), ("qnn.resize", "cubic"), ("resize", NEAREST)):
        made = case(partial(write, *call), layout)
        for machine in ("host", "x86-64-v3"):
            check(made, image_resize, 3, [image], named_target(machine))


def test_antialiasing_and_weights_of_what_is_inside() -> None:
    attrs = {"sizes": (2, 3), "axes": (2, 3), "method": "linear"}
    check(resized((1, 16, 4, 6), antialias=True, **attrs), image_resize)
    check(
        resized((1, 16, 4, 6), exclude_outside=True, **{**attrs, "method": "cubic"}), image_resize
    )
    made = resized((1, 16, 40, 60), antialias=True, **attrs)
    assert made.refusal(image_resize) == "a pixel is made of 1600 others"


def test_what_follows() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 2, 16, 5, 6))
        lateral = builder.input("lateral", tensor("float32", 2, 16, 10, 12))
        large = builder("resize", data, scales=(1.0, 1.0, 2.0, 2.0), method="linear")
        bias = builder.constant(np.arange(16, dtype=np.float32))
        return builder("nn.relu", builder("nn.bias_add", builder("add", lateral, large), bias))

    layout = {"data": 8, "lateral": (8, (1, 1, 1, 1)), "result": (8, (1, 1, 1, 1))}
    check(case(write, layout), image_resize, 2)


def test_a_single_pixel_in_rows() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 2, 32, 1, 1))
        return builder("resize", data, sizes=(5, 6), axes=(2, 3), method="linear")

    check(case(write, {"result": 16}), image_resize)


def test_not_a_number_stays_where_it_is_looked_at() -> None:
    made = resized((1, 16, 4, 4), scales=(1.0, 1.0, 2.0, 2.0), method="linear")
    image = np.ones((1, 16, 4, 4), np.float32)
    image[0, 3, 1, 2], image[0, 7, 0, 0] = np.nan, np.inf
    check(made, image_resize, inputs=[image])


def test_refusals() -> None:
    cropped = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "roi": (0.1,) * 2 + (0.9,) * 2,
    }
    reasons = {
        "the image is cropped": resized((1, 16, 4, 4), sizes=(3, 3), axes=(2, 3), **cropped),
        "images of float64 are not resized in blocks": resized(
            (1, 16, 4, 4), dtype="float64", sizes=(3, 3), axes=(2, 3)
        ),
        "more than rows and columns is resized": resized((1, 8, 4, 4), 8, sizes=(1, 16, 4, 4)),
    }
    for reason, made in reasons.items():
        assert made.refusal(image_resize) == reason


def network(channels: int, shape: tuple[Dim, ...], **attrs: object) -> Graph:
    """A resized image between convolutions, added to another one."""
    build = Builder()
    random = np.random.default_rng(0)

    def weight(*extents: int) -> Value:
        return build.constant(random.standard_normal(extents).astype(np.float32) / 8)

    data = build.input("x", TensorType(tensor("float32").dtype, shape))
    small = build("nn.conv2d", data, weight(channels, 8, 1, 1))
    scale = {"scales": (1.0, 1.0, 2.0, 2.0), **attrs}
    large = build("nn.relu", build("resize", small, **scale))
    lateral = build(
        "resize", build("nn.conv2d", data, weight(channels, 8, 3, 3), padding=(1,) * 4), **scale
    )
    both = build("concatenate", large, build("add", lateral, large), axis=1)
    return build.build(build("nn.conv2d", both, weight(8, 2 * channels, 3, 3), padding=(1,) * 4))


N, H, W = symbol("n"), symbol("h"), symbol("w")


METHODS, SOME_MODES = ("nearest_neighbor", "linear", "cubic"), MODES[:1] + MODES[3:5]


# Where nothing is known of the sizes, every mode; with some of them known, each once.
@pytest.mark.parametrize(
    ("shape", "method", "mode"),
    [
        *(((N, 8, H, W), *pair) for pair in product(METHODS, SOME_MODES)),
        *(((N, 8, 6, 7), *pair) for pair in zip(METHODS, SOME_MODES, strict=True)),
        *(((1, 8, H, 5), *pair) for pair in zip(METHODS, SOME_MODES[::-1], strict=True)),
    ],
)
def test_sizes_known_at_run_time(shape: tuple[Dim, ...], method: str, mode: str) -> None:
    graph = network(20, shape, method=method, coordinate_transformation_mode=mode)
    random = np.random.default_rng(1)
    sizes = [[e if isinstance(e, int) else n for e, n in zip(shape, (1, 8, 6, 7), strict=True)]]
    sizes += [[e if isinstance(e, int) else n for e, n in zip(shape, (2, 8, 1, 9), strict=True)]]
    images = [random.standard_normal(size).astype(np.float32) for size in sizes]
    check_flow(graph, *([image] for image in images), tolerance=1e-4)


@pytest.mark.parametrize("channels", [20, 24, 5, 32])
def test_no_copies_around_it(channels: int) -> None:
    graph = network(channels, (2, 8, 6, 7), method="linear")
    module = graft.compile(graph, strict=True, threads=1)
    image = np.random.default_rng(1).standard_normal((2, 8, 6, 7), np.float32)
    (found,) = module.run(None, {"x": image})
    np.testing.assert_allclose(found, evaluate(graph, [image])[0], rtol=1e-4, atol=1e-4)
    steps = assemble(group_fusion(graph), host_target()).steps
    labels = [step.label for step in steps if isinstance(step, NativeStep)]
    assert labels.count("relayout") == 2  # the input into blocks, and the result out of them
