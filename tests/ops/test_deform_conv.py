"""Deformable convolution against plain convolution and against interpolation by loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of

from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import TypeRuleError, UserError
from graft.ir.builder import Builder
from graft.ir.types import tensor

RANDOM = np.random.default_rng(3)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def pixel(image: Array, down: float, right: float) -> float:
    """One channel at a place between its elements; zeros lie around it."""
    total = 0.0
    top, left = int(np.floor(down)), int(np.floor(right))
    for row, column in itertools.product((top, top + 1), (left, left + 1)):
        share = (1 - abs(down - row)) * (1 - abs(right - column))
        if share > 0 and 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
            total += share * image[row, column]
    return total


def by_loops(
    x: Array,
    w: Array,
    offset: Array,
    mask: Array | None,
    strides: Any,
    pads: Any,
    dilations: Any,
    group: int,
    offset_group: int,
) -> Array:
    batch, channels = x.shape[:2]
    height, width = offset.shape[2:]
    kernel = w.shape[2:]
    offset = offset.reshape(batch, offset_group, *kernel, 2, height, width)
    factors = np.ones((batch, offset_group, *kernel, height, width))
    if mask is not None:
        factors = mask.reshape(factors.shape)
    result = np.zeros((batch, w.shape[0], height, width))
    depth, share = w.shape[1], w.shape[0] // group
    places = itertools.product(*map(range, (batch, w.shape[0], depth, *kernel, height, width)))
    for n, output, inner, i, j, row, column in places:
        channel = output // share * depth + inner
        part = channel // (channels // offset_group)
        shift = offset[n, part, i, j, :, row, column]
        down = row * strides[0] - pads[0] + i * dilations[0] + shift[0]
        right = column * strides[1] - pads[1] + j * dilations[1] + shift[1]
        value = (
            pixel(x[n, channel], float(down), float(right)) * factors[n, part, i, j, row, column]
        )
        result[n, output, row, column] += value * w[output, inner, i, j]
    return result


@pytest.mark.parametrize(
    ("group", "offset_group", "with_mask", "strides", "dilations"),
    [
        (1, 1, False, [1, 1], [1, 1]),
        (1, 2, True, [2, 1], [1, 2]),
        (2, 1, True, [1, 2], [2, 1]),
        (2, 4, False, [2, 2], [1, 1]),
    ],
)
def test_deform_conv(
    group: int, offset_group: int, with_mask: bool, strides: Any, dilations: Any
) -> None:
    x, w = floats(2, 4, 6, 5), floats(4, 4 // group, 2, 3)
    pads = [1, 0, 2, 1]
    spans = [dilations[0] + 1, 2 * dilations[1] + 1]
    height, width = ((6 + 3 - spans[0]) // strides[0] + 1, (5 + 1 - spans[1]) // strides[1] + 1)
    offset = floats(2, offset_group * 12, height, width) * 2
    mask = floats(2, offset_group * 6, height, width) if with_mask else None
    expected = by_loops(x, w, offset, mask, strides, pads, dilations, group, offset_group)
    bias = floats(4)
    expected += bias.reshape(1, 4, 1, 1)
    feeds = {"x": x, "w": w, "offset": offset, "bias": bias, "mask": mask}
    steps = {"strides": strides, "pads": pads, "dilations": dilations}
    for shape in ((2, 4, 6, 5), ["n", 4, "h", "w"], None):
        options: dict[str, Any] = {"shapes": {"x": shape, "offset": None}, **steps}
        found = by_graft("DeformConv", feeds, 22, group=group, offset_group=offset_group, **options)
        assert_same(found, [expected.astype(np.float32)], 1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_without_offset_it_is_a_convolution(dtype: str) -> None:
    """Even beside an infinity, since a corner that has no share is not read."""
    kind = DType(dtype).numpy
    x, w = (RANDOM.integers(-4, 5, s).astype(kind) for s in ((1, 2, 4, 4), (3, 2, 2, 2)))
    x[0, 0, 1, 1] = np.inf
    w[:, 0] = 1
    feeds = {"x": x, "w": w}
    plain = {name: array.astype(np.float32) for name, array in feeds.items()}
    (expected,) = by_runtime("Conv", plain, 11)
    still = by_graft("DeformConv", {**feeds, "offset": np.zeros((1, 8, 3, 3), kind)}, 19)
    assert_same(still, [expected.astype(kind)], 0)


@pytest.mark.parametrize("far", [np.nan, np.inf, -np.inf, 1e30, -1.0, 4.0])
def test_places_outside_read_zero(far: float) -> None:
    x, w = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 1, 1), np.float32)
    offset = np.zeros((1, 2, 4, 4), np.float32)
    offset[0, 0, 0, 0] = far
    (result,) = by_graft("DeformConv", {"x": x, "w": w, "offset": offset}, 19)
    assert result[0, 0, 0, 0] == 0
    assert result.sum() == 15


def test_nothing_to_read() -> None:
    for batch, channels in ((0, 2), (1, 0)):
        x, w = np.ones((batch, channels, 4, 4), "f"), np.ones((3, channels, 2, 2), "f")
        offset = np.zeros((batch, 8, 3, 3), "f")
        (result,) = by_graft("DeformConv", {"x": x, "w": w, "offset": offset}, 19)
        assert result.shape == (batch, 3, 3, 3)
        assert not result.any()


def test_type_and_work() -> None:
    builder = Builder()
    n, h = symbol("n"), symbol("h")
    x = builder.input("x", tensor("float32", n, 4, h, 8))
    offset = builder.input("offset", tensor("float32", n, 18, h - 2, 6))
    w = builder.input("w", tensor("float32", 6, 4, 3, 3))
    y = builder("nn.deformable_conv2d", x, offset, w)
    assert y.type == tensor("float32", n, 6, h - 2, 6)
    (node,) = builder.build(y).nodes
    work = node.op.work(node.attrs, [x.type, offset.type, w.type], [y.type])
    assert work.macs == n * 6 * (h - 2) * 6 * 4 * 9


@pytest.mark.parametrize(
    ("offset", "mask", "given", "message"),
    [
        (
            (1, 8, 3, 3),
            None,
            {},
            "extents of the offset and of the other operands differ: 8 and 18",
        ),
        (
            (1, 18, 3, 2),
            None,
            {},
            "extents of the offset and of the other operands differ: 2 and 3",
        ),
        ((1, 18, 3, 3), (1, 18, 3, 3), {}, "extents of the mask .* differ: 18 and 9"),
        ((1, 18, 3, 3), None, {"deformable_groups": 3}, "4 channels do not make 3 groups"),
    ],
)
def test_refusals(offset: Any, mask: Any, given: dict[str, Any], message: str) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", 1, 4, 5, 5))
    w = builder.input("w", tensor("float32", 6, 4, 3, 3))
    moved = builder.input("offset", tensor("float32", *offset))
    factors = builder.input("mask", tensor("float32", *mask)) if mask else None
    with pytest.raises(TypeRuleError, match=message):
        builder("nn.deformable_conv2d", x, moved, w, factors, **given)


def test_one_spatial_axis_is_not_served() -> None:
    feeds = {"x": floats(1, 1, 5), "w": floats(1, 1, 3), "offset": floats(1, 3, 3)}
    with pytest.raises(UserError, match="DeformConv has 1 spatial axes; 2 are supported"):
        graph_of("DeformConv", feeds, 19)
