"""Counting windows: numbers against brute force, symbols against numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from graft.base.dims import evaluate_dim, symbol
from graft.ops.conv import ConvAttrs
from graft.ops.window import WindowAttrs, for_rank, padded, window_counts

SMALL = st.integers(0, 4)
STEP = st.integers(1, 4)


@given(st.integers(0, 12), STEP, STEP, STEP, SMALL, SMALL, st.booleans())
def test_counts(
    extent: int, kernel: int, stride: int, dilation: int, begin: int, end: int, ceil_mode: bool
) -> None:
    span = (kernel - 1) * dilation + 1
    room = extent + begin + end - span
    assume(room >= 0)
    if ceil_mode:
        starts = range(0, min(room + stride, extent + begin), stride)
    else:
        starts = range(0, room + 1, stride)
    attrs = WindowAttrs((stride,), (begin, end), (dilation,))
    assert window_counts(attrs, (extent,), (kernel,), ceil_mode) == (len(starts),)
    (symbolic,) = window_counts(attrs, (symbol("n"),), (kernel,), ceil_mode)
    assert evaluate_dim(symbolic, {"n": extent}) == len(starts)


@given(st.integers(0, 5), st.integers(-5, 5), st.integers(-5, 5))
def test_padding_is_cutting_where_it_is_negative(extent: int, begin: int, end: int) -> None:
    assume(extent + begin + end >= 0)
    data = np.arange(1, extent + 1)
    places = range(-begin, extent + end)
    expected = [data[place] if 0 <= place < extent else -1 for place in places]
    assert padded(data, [(begin, end)], -1).tolist() == expected


def test_defaults_follow_the_rank() -> None:
    cls = for_rank(ConvAttrs, 3)
    assert cls.__name__ == "Conv3DAttrs"
    assert issubclass(cls, ConvAttrs)
    assert dataclasses.asdict(cls()) == {
        "strides": (1, 1, 1),
        "padding": (0,) * 6,
        "dilation": (1, 1, 1),
        "groups": 1,
    }
