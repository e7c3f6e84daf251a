"""Pooling over boxes as native code: both modes, any number of samples, odd boxes, in rows and in
blocks."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.backends.host.images import Case, case, run
from tests.backends.host.nets import Net
from tests.backends.host.symbolic import Sizes, check

import graft
from graft.backends.host.kernels.roi_align import blocked_roi_align
from graft.backends.host.layout import choose_layout
from graft.backends.host.storage import NO_HALO, Halo, Storage
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.llvm.load import aligned
from graft.target.target import host_target, named_target

COUNTS = [{"n": n} for n in (0, 1, 3, 20)]


def pooling(data: tuple[Any, ...], dtype: str = "float32", **attrs: Any) -> Any:
    def build(s: Sizes) -> Value:
        shape = [getattr(s, dim) if isinstance(dim, str) else dim for dim in data]
        boxes, images = s.input(s.n, 4, dtype=dtype), s.input(s.n, dtype="int64")
        return s("vision.roi_align", s.input(*shape, dtype=dtype), boxes, images, **attrs)

    return build


def drawn(value: Value) -> Array:
    """Boxes inside, across the edge, far outside, tiny, empty and turned around; images 0 and 1."""
    shape = tuple(dim for dim in value.shape or () if isinstance(dim, int))
    random = np.random.default_rng([*shape, 3])
    if value.dtype is DType.INT64:
        return random.integers(0, 2, shape)
    if len(shape) == 4:
        return random.standard_normal(shape).astype(value.dtype.numpy)
    first = random.uniform(-6, 26, (shape[0], 2))
    sizes = random.uniform(0, 20, (shape[0], 2))
    sizes[::5], sizes[1::7], first[2::6] = 0, -sizes[1::7], 60
    # Halves that any dtype holds, so that how many samples a box has is not a matter of rounding.
    return (np.round(np.hstack([first, first + sizes]) * 2) / 2).astype(value.dtype.numpy)


MODES = list(product(["avg", "max"], [0, 1, 2, 3], [True, False]))


@pytest.mark.parametrize(("mode", "ratio", "aligned"), MODES)
def test_modes(mode: str, ratio: int, aligned: bool) -> None:
    attrs = {"pooled_size": (3, 5), "mode": mode, "sample_ratio": ratio, "aligned": aligned}
    check(pooling((2, 70, 11, 19), spatial_scale=0.5, **attrs), *COUNTS, draw=drawn)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_dtypes(dtype: str, mode: str) -> None:
    attrs = {"pooled_size": (2, 2), "mode": mode, "sample_ratio": 2, "spatial_scale": 1.0}
    check(pooling((2, 3, 20, 24), dtype, **attrs), *COUNTS, draw=drawn)


def test_images_of_any_size() -> None:
    sizes = [(1, 1, 1), (3, 2, 1), (65, 7, 7), (2, 40, 33)]
    bindings = [{"n": 6, "c": c, "h": h, "w": w} for c, h, w in sizes]
    for ratio in (0, 2):
        build = pooling((2, "c", "h", "w"), pooled_size=(7, 7), sample_ratio=ratio)
        check(build, *bindings, draw=drawn)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_infinite_pixels_stay_in_their_bins(mode: str) -> None:
    def odd(value: Value) -> Array:
        found = drawn(value)
        if found.ndim == 4:
            found[0, 0, 3, 4], found[0, 1, 5, 6], found[1, 2, 0, 0] = np.inf, -np.inf, np.nan
        return found

    attrs = {"pooled_size": (4, 4), "mode": mode, "sample_ratio": 2, "aligned": False}
    check(pooling((2, 3, 12, 13), **attrs), *COUNTS, draw=odd)


Shape = tuple[int, int, int, int]


def blocked(
    shape: Shape, boxes: int, place: tuple[int, Halo], dtype: str = "float32", **attrs: Any
) -> Case:
    def write(build: Builder) -> Value:
        data = build.input("data", tensor(dtype, *shape))
        rois = build.input("rois", tensor(dtype, boxes, 4))
        images = build.input("images", tensor("int64", boxes))
        return build("vision.roi_align", data, rois, images, **attrs)

    return case(write, {"data": place})


def strange(value: Value) -> Array:
    """As above, with infinite corners, corners that are no numbers, and pixels of either kind."""
    array = drawn(value)
    if array.ndim == 2:
        corners = array.reshape(-1)
        corners[3::11], corners[5::17], corners[6::23] = np.nan, np.inf, -np.inf
    elif array.ndim == 4:
        array[0, 0, -1, -1], array[-1, -1, 0, 0], array[0, 0, 0, -1] = np.inf, np.nan, -np.inf
    return array


def packed(storage: Storage, array: Array) -> Array:
    """An image as memory has it, with a number that must not be used wherever there is no pixel."""
    ones = storage.pack(np.ones_like(array))
    return aligned(np.where(ones == 1, storage.pack(array), np.float32(np.nan)))


def check_blocks(one: Case, inputs: list[Array], machine: str = "host", threads: int = 2) -> None:
    target, (data, *_) = named_target(machine), one.graph.inputs
    memory = {data: packed(one.stores[data], inputs[0])}
    kernel = one.kernel(blocked_roi_align, target)
    result = run(one, kernel, inputs, threads, target, memory)
    pixels, rois, images = inputs
    is_finite = np.isfinite(rois)
    (expected,) = evaluate(one.graph, [pixels, np.where(is_finite, rois, 0), images])
    expected[~is_finite.all(axis=1)] = 0  # samples that are nowhere weigh nothing
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


# Images whose channels fill blocks or do not, as narrow as a pixel, or as boxes, or wide.
SHAPES: list[Shape] = [(2, 5, 9, 13), (2, 32, 20, 41), (3, 41, 3, 2), (2, 17, 1, 1)]
ATTRIBUTES: list[dict[str, Any]] = [
    {"pooled_size": (7, 7), "sample_ratio": 2, "aligned": False},
    {"pooled_size": (7, 7), "sample_ratio": 0, "aligned": True},
    {"pooled_size": (2, 1), "sample_ratio": 1, "aligned": True},
    {"pooled_size": (3, 5), "sample_ratio": 0, "aligned": False},
    {"pooled_size": (1, 1), "sample_ratio": 3, "aligned": True},
]


@pytest.mark.parametrize("machine", ["host", "x86-64-v3"])
@pytest.mark.parametrize("place", [(16, NO_HALO), (8, (1, 2, 3, 1))])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks(shape: Shape, place: tuple[int, Halo], machine: str) -> None:
    for attrs in ATTRIBUTES:
        one = blocked(shape, 11, place, spatial_scale=0.5, **attrs)
        check_blocks(one, [drawn(value) for value in one.graph.inputs], machine)


@pytest.mark.parametrize("is_aligned", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_strange_boxes_and_pixels_in_blocks(shape: Shape, is_aligned: bool) -> None:
    attrs = {"pooled_size": (4, 3), "sample_ratio": 2, "aligned": is_aligned}
    one = blocked(shape, 20, (16, (1, 0, 0, 1)), **attrs)
    with np.errstate(invalid="ignore"):
        check_blocks(one, [strange(value) for value in one.graph.inputs])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("boxes", [0, 1, 30])
def test_blocks_among_threads(boxes: int, threads: int) -> None:
    one = blocked((2, 100, 12, 15), boxes, (16, NO_HALO), pooled_size=(7, 7), sample_ratio=2)
    check_blocks(one, [drawn(value) for value in one.graph.inputs], threads=threads)


def test_what_blocks_are_not_for() -> None:
    place = (16, NO_HALO)
    most = blocked((1, 16, 4, 4), 2, place, pooled_size=(2, 2), mode="max")
    assert "maxima" in most.refusal(blocked_roi_align)
    short = blocked((1, 16, 4, 4), 2, place, dtype="float16", pooled_size=(2, 2))
    assert "float16" in short.refusal(blocked_roi_align)


def _pooled(n: Net, data: Value, boxes: Dim, mode: str = "avg") -> Value:
    rois = n.builder.input("rois", tensor("float32", boxes, 4))
    images = n.builder.input("images", tensor("int64", boxes))
    attrs = {"pooled_size": (7, 7), "sample_ratio": 2, "mode": mode}
    return n("vision.roi_align", data, rois, images, **attrs)


def _block_read(graph: Graph) -> int:
    """The blocks in which the boxes take from the image."""
    constants = {n.output: n.attrs.value for n in graph.nodes if n.op.name == "constant"}
    layout = choose_layout(graph, constants, host_target())
    (node,) = (node for node in graph.nodes if node.op.name == "vision.roi_align")
    return layout.candidates[node].requirements[0].blocks[0]


@pytest.mark.parametrize("boxes", [1, 1000, symbol("boxes")])
def test_images_that_convolutions_make_are_read_as_they_are(boxes: Dim) -> None:
    n = Net()
    image = n.conv(n.input(1, 64, 50, 50), 64)
    assert _block_read(n.graph(_pooled(n, image, boxes))) == 16


@pytest.mark.parametrize(
    ("boxes", "size", "block"),
    [(1, 50, 0), (1000, 50, 16), (symbol("boxes"), 50, 16), (symbol("boxes"), 2000, 0)],
)
def test_rows_are_copied_for_many_boxes_alone(boxes: Dim, size: int, block: int) -> None:
    """If their number is not known, there are too few to copy very large images for."""
    n = Net()
    assert _block_read(n.graph(_pooled(n, n.input(1, 64, size, size), boxes))) == block


def test_maxima_are_taken_from_rows() -> None:
    n = Net()
    image = n.conv(n.input(1, 64, 50, 50), 64)
    assert _block_read(n.graph(_pooled(n, image, 1000, "max"))) == 0


def test_boxes_of_a_convolution_of_any_size() -> None:
    n = Net()
    data = n.builder.input("data", tensor("float32", 1, 16, symbol("h"), symbol("w")))
    weight = n.builder.constant(n.array(24, 16, 3, 3))
    image = n("nn.conv2d", data, weight, padding=(1, 1, 1, 1))
    graph = n.graph(_pooled(n, image, symbol("boxes")))
    module, random = graft.compile(graph, strict=True), np.random.default_rng(0)
    for height, width, boxes in ((3, 2, 1), (7, 33, 0), (20, 16, 9)):
        values = (
            random.standard_normal((1, 16, height, width)),
            random.uniform(0, 20, (boxes, 4)),
            np.zeros(boxes),
        )
        inputs = [
            array.astype(value.dtype.numpy)
            for array, value in zip(values, graph.inputs, strict=True)
        ]
        named = dict(zip((value.name for value in graph.inputs), inputs, strict=True))
        (result,) = module.run(None, named)
        (expected,) = evaluate(graph, inputs)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
