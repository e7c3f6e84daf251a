"""Histograms of constant size, and the ranges that are chosen from them."""

from __future__ import annotations

import numpy as np
import pytest

from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.quantize.ranges import METHODS, Histogram, Range, fake_quantized
from graft.quantize.scheme import BYTES, Scheme

GENERATOR = np.random.default_rng(7)


def _histogram(*arrays: object) -> Histogram:
    histogram = Histogram()
    for array in arrays:
        histogram.add(np.asarray(array, np.float32))
    return histogram


def test_counts_survive_widening() -> None:
    """Values that come late may be a thousand times larger than the first ones."""
    small, large = GENERATOR.normal(size=1000), GENERATOR.normal(size=500) * 1000
    histogram = _histogram(small, large)
    assert histogram.counts.sum() == 1500
    width = histogram.limit / (len(histogram.counts) // 2)
    edges = np.arange(-histogram.limit, histogram.limit + width / 2, width)
    both = np.concatenate([small, large]).astype(np.float32)
    exact, _ = np.histogram(both, edges)
    assert np.abs(exact - histogram.counts).sum() <= 4  # values on edges


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["normal", "relu", "negative", "outlier", "zero", "one value"])
def test_ranges_hold_zero_and_lie_within_what_was_seen(method: str, kind: str) -> None:
    normal = GENERATOR.normal(size=20_000).astype(np.float32)
    data = {
        "normal": normal,
        "relu": np.maximum(normal, 0),
        "negative": -np.abs(normal),
        "outlier": np.append(normal, 1e4),
        "zero": np.zeros(100),
        "one value": np.full(100, 3.0),
    }[kind]
    histogram = _histogram(data)
    found = METHODS[method](histogram, BYTES)
    room = [8 * histogram.tail(sign) if method == "mse" else 0.0 for sign in (-1, 1)]
    assert histogram.low - room[0] <= found.low <= 0 <= found.high <= histogram.high + room[1]
    assert max(room) < 4 or kind == "outlier"
    assert found.scale > 0
    assert 0 <= found.zero_point <= 255
    assert fake_quantized(np.zeros(3), found).tolist() == [0, 0, 0]


def test_squared_error_beats_the_extremes_on_heavy_tails() -> None:
    data = GENERATOR.standard_t(2, size=50_000).astype(np.float32)
    histogram = _histogram(data)

    def error(method: str) -> float:
        return float(np.mean((fake_quantized(data, METHODS[method](histogram, BYTES)) - data) ** 2))

    assert error("mse") < error("minmax")


@pytest.mark.parametrize("count", [20, 150, 2000])
def test_few_values_leave_room_for_the_next_ones(count: int) -> None:
    """Of the same distribution many more have less error than within the range of what was seen."""
    better = []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        histogram = _histogram(draw.normal(size=count))
        unseen = draw.normal(size=100_000)

        def error(method: str, given: Histogram = histogram, data: Array = unseen) -> float:
            found = METHODS[method](given, BYTES)
            return float(np.mean((fake_quantized(data, found) - data) ** 2))

        better.append(error("minmax") / error("mse"))
    assert np.median(better) > 1.5


def test_many_values_are_what_is_to_be_expected() -> None:
    histogram = _histogram(GENERATOR.normal(size=1_000_000))
    assert METHODS["mse"](histogram, BYTES).high < histogram.high


def test_what_ends_sharply_has_no_tail() -> None:
    clipped = _histogram(np.clip(GENERATOR.normal(size=1000), 0, 1))
    assert clipped.tail(1) < 0.01
    assert clipped.tail(-1) == 0
    assert _histogram(np.full(100, 3.0)).tail(1) == 0


def test_of_uniform_data_all_is_kept() -> None:
    histogram = _histogram(GENERATOR.uniform(-1, 1, 50_000))
    found = METHODS["mse"](histogram, BYTES)
    assert found.high - found.low > 1.95


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(wrong: float) -> None:
    with pytest.raises(UserError, match="NaN or infinite"):
        _histogram([1.0, wrong])


def test_empty_arrays_say_nothing() -> None:
    assert METHODS["minmax"](_histogram(np.zeros((0, 3))), BYTES) == Range(0.0, 0.0)


@pytest.mark.parametrize("width", [1e-44, 1e-38, 1e38])
def test_extreme_widths_have_usable_scales(width: float) -> None:
    found = METHODS["minmax"](_histogram([width]), BYTES)
    assert np.isfinite(found.scale)
    assert np.isfinite(1 / found.scale)


@pytest.mark.parametrize(
    ("scheme", "low", "high", "zero"),
    [
        (Scheme(), -1.0, 3.0, 64),
        (Scheme(DType.INT8), -1.0, 3.0, -64),
        (Scheme(DType.INT8, symmetric=True), -1.0, 3.0, 0),
        (Scheme(DType.UINT8, symmetric=True), -1.0, 3.0, 128),
        (Scheme(DType.INT16, symmetric=True), -1.0, 3.0, 0),
        (Scheme(DType.UINT16), 0.0, 3.0, 0),
    ],
)
def test_codes_of_schemes(scheme: Scheme, low: float, high: float, zero: int) -> None:
    """Zero is exact, and nothing within the range is off by more than half a step."""
    found = Range(low, high, scheme)
    assert found.zero_point == zero
    values = np.linspace(low, high, 1001)
    error = np.abs(fake_quantized(values, found) - values).max()
    assert error <= float(found.scale) * 0.5001
    assert fake_quantized(np.zeros(1), found)[0] == 0
