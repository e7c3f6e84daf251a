"""Pooling over boxes as native code: both modes, any number of samples, odd boxes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.backends.host.symbolic import Sizes, check

from graft.base.dtypes import Array, DType
from graft.ir.graph import Value

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
