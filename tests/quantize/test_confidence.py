"""Bounds on errors: they hold for data that were not seen, and few samples make them wide."""

from __future__ import annotations

import math

import numpy as np
import pytest

from graft.base.dtypes import Array, DType
from graft.quantize.confidence import CONFIDENCE, OutputError, least_share, student_quantile
from graft.quantize.report import Budget, Quality


@pytest.mark.parametrize(
    ("freedom", "level", "quantile"),
    [
        *((1, 0.99, 31.8205), (2, 0.99, 6.96456), (3, 0.99, 4.54070), (6, 0.99, 3.14267)),
        *((30, 0.99, 2.45726), (1000, 0.99, 2.33008), (3, 0.95, 2.35336), (10, 0.95, 1.81246)),
    ],
)
def test_quantiles_are_those_of_the_tables(freedom: int, level: float, quantile: float) -> None:
    assert student_quantile(freedom, level) == pytest.approx(quantile, rel=1e-5)


def test_shares_are_certain_with_many_hits() -> None:
    assert least_share(0, 7) == 0
    assert least_share(16, 16) == pytest.approx(0.01 ** (1 / 16))
    assert least_share(458, 458) < 0.99 < least_share(459, 459)
    assert least_share(995, 1000) == pytest.approx(0.98694, abs=1e-5)
    assert least_share(90, 100) < least_share(900, 1000) < 0.9


def outputs(count: int, seed: int, spread: float = 0.3) -> list[tuple[Array, Array]]:
    """Exact results and others whose error power differs from sample to sample: 0.01 on average."""
    draw = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        exact = draw.normal(size=200)
        share = 0.1 * math.sqrt(max(draw.normal(1, spread), 0.01))
        pairs.append((exact, exact + share * draw.normal(size=200)))
    return pairs


def error_of(pairs: list[tuple[Array, Array]]) -> OutputError:
    error = OutputError()
    for exact, other in pairs:
        error.add([exact], [other])
    return error


@pytest.mark.parametrize(("count", "beside"), [(2, 3), (4, 4), (16, 0), (64, 4)])
def test_unseen_data_are_within_the_bound(count: int, beside: int) -> None:
    runs = 400
    held = [
        error_of(outputs(count, seed)).bound(error_of(outputs(beside, seed + runs))) >= 0.1
        for seed in range(runs)
    ]
    # Of 400 runs, 4 are expected to miss; more than 11 would be in one of 2000 cases.
    assert sum(held) >= runs * CONFIDENCE - 7


def noisy(level: float, noise: Array) -> OutputError:
    """Samples whose squared relative error is a level on average."""
    error = OutputError()
    for factor in noise:
        other = 1 + math.sqrt(level * max(float(factor), 0.01))
        error.add([np.ones(1)], [np.array([other])])
    return error


def broken_promises(tries: int, likeness: float, steers: bool, runs: int = 1500) -> float:
    """How often a search over six programs takes one whose error is over the budget (1).

    Each program is to use the budget up by what the last one's bound was, or, at worst, is just
    over it. What samples do to the errors of two programs is alike to some extent."""
    broken = 0
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        common, level = draw.normal(size=20), draw.uniform(0.5, 1.5) if steers else 1.0001
        accepted = 0.0
        for _ in range(6):
            own = draw.normal(size=20)
            noise = 1 + 0.3 * (math.sqrt(likeness) * common + math.sqrt(1 - likeness) * own)
            bound = noisy(level, noise[:16]).bound(noisy(level, noise[16:]), tries)
            if bound <= 1:
                accepted = max(accepted, level)
            level /= bound**2 * (1 + 1e-9) if steers else 1
        broken += accepted > 1
    return broken / runs


@pytest.mark.parametrize("steers", [True, False])
@pytest.mark.parametrize("likeness", [0.0, 0.6, 1.0])
def test_searches_keep_the_promise(likeness: float, steers: bool) -> None:
    # Of 1500, 15 are expected at most; more than 29 would be in one of 2000 cases.
    assert broken_promises(6, likeness, steers) <= 29 / 1500


def test_searches_may_break_it_by_bounds_of_single_programs() -> None:
    assert broken_promises(1, 0.0, steers=False) > 0.03


def test_several_outputs_need_no_wider_bound() -> None:
    """The largest of ten errors is below the largest of their bounds as often as promised."""
    runs, levels = 1500, np.linspace(0.9, 1.0, 10)
    missed = 0
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        error = OutputError()
        for _ in range(8):
            factors = levels * np.maximum(draw.normal(1, 0.3, size=10), 0.01)
            others = [np.array([1 + math.sqrt(factor)]) for factor in factors]
            error.add([np.ones(1)] * 10, others)
        missed += error.bound() < 1
    assert missed <= 29


def test_more_tries_make_bounds_wider() -> None:
    error = error_of(outputs(16, 3))
    bounds = [error.bound(tries=tries) for tries in (1, 2, 7)]
    assert bounds == sorted(bounds)
    assert least_share(95, 100, 7) < least_share(95, 100)


def test_the_margin_shrinks_with_more_samples() -> None:
    bounds = [error_of(outputs(count, 3)).bound() for count in (3, 12, 48, 192)]
    assert bounds == sorted(bounds, reverse=True)
    assert 0.1 < bounds[-1] < 0.107


def test_two_samples_say_nothing_of_others() -> None:
    one, two = outputs(1, 0), outputs(1, 1)
    assert error_of(one).bound(error_of(two)) == math.inf
    assert math.isfinite(error_of(one).bound(error_of(outputs(2, 1))))


def test_exact_results_have_no_margin_and_others_no_end() -> None:
    exact = np.ones(3, np.float32)
    same, shorter = OutputError(), OutputError()
    same.add([exact], [exact])
    shorter.add([exact], [exact[:2]])
    assert same.bound() == 0
    assert shorter.bound() == shorter.relative == math.inf


def test_nan_and_infinity_are_no_error_where_both_have_them() -> None:
    """Masks have them. The NaN of one output must not hide the error of another one either."""
    masked = np.array([3, -np.inf, np.nan, 4], np.float32)
    same, other, added = OutputError(), OutputError(), OutputError()
    same.add([masked], [masked.copy()])
    assert same.power == 0
    other.add([masked], [masked + np.float32([0.5, 0, 0, 0])])
    assert other.relative == pytest.approx(0.1)
    added.add([np.ones(4, np.float32), np.ones(4, np.float32)], [masked, np.ones(4, np.float32)])
    assert added.power == math.inf
    lost = OutputError()
    lost.add([masked], [np.float32([3, -np.inf, 0, 4])])
    assert lost.power == math.inf


def test_floats_of_16_bits_count() -> None:
    error = OutputError()
    one = np.ones(4, np.float32)
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        error.add([one.astype(dtype.numpy)], [(2 * one).astype(dtype.numpy)])
        assert error.relative == 1


def test_the_worst_output_counts() -> None:
    error = OutputError()
    for seed in range(8):
        (good,), (bad,) = outputs(1, seed), outputs(1, seed)
        error.add([good[0], bad[0]], [good[1], bad[0] + 3 * (bad[1] - bad[0])])
    assert error.relative == pytest.approx(0.3, rel=0.1)
    assert error.bound() > error.relative


def test_what_meets_a_budget() -> None:
    budget, share = Budget(error=0.05), Budget(agreement=0.99)
    assert Quality(0.04, 0.049).meets(budget)
    assert not Quality(0.04, 0.051).meets(budget)
    assert not Quality(0.04, 0.05).meets(share)
    assert Quality(0.04, 0.05, 0.996, 0.991).meets(share)
    assert not Quality(0.04, 0.05, 0.996, 0.98).meets(share)
    assert Quality(0.04, 0.05, 1.0, 0.3).meets(share)  # too few rows to prove it
