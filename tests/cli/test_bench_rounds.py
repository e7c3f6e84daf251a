from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graft.byoc import cores
from graft.byoc.cores import Watch, cores_given
from graft.cli.bench.rounds import (
    LEAST_ROUNDS,
    ContenderError,
    Limits,
    Ratio,
    Sample,
    Slice,
    Summary,
    measure,
    ratio,
    summarize,
)


def test_summary_of_few_and_many_times() -> None:
    assert summarize([2.0]) == Summary(1, 2.0, 2.0, 2.0, 2.0)
    found = summarize([float(n) for n in range(100, -1, -1)])
    assert found == Summary(101, 50.0, 0.0, 10.0, 90.0)


def test_ratio_is_that_of_the_rounds_whatever_else_happens() -> None:
    """The machine slows down a hundredfold, and one round is spoilt: neither shows."""
    drift = np.geomspace(1, 100, 21)
    mine, other = 3 * drift, 2 * drift
    mine[4] *= 50
    found = ratio(list(mine), list(other))
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.uncertainty == pytest.approx(0)


def test_too_few_rounds_give_no_interval() -> None:
    assert ratio([3.0] * 5, [2.0] * 5) == Ratio(1.5, None, None)
    assert ratio([3.0] * 5, [2.0] * 5).uncertainty == float("inf")
    assert ratio([3.0] * 6, [2.0] * 6) == Ratio(1.5, 1.5, 1.5)


@pytest.mark.parametrize("rounds", [10, 25])
def test_intervals_mostly_hold_the_truth(rounds: int) -> None:
    """Drawn 200 times with 10 % noise on both sides, and a quarter of the rounds much slower."""
    generator = np.random.default_rng(1)
    held, widths = 0, []
    for _ in range(200):
        noise = generator.lognormal(0, 0.1, (2, rounds))
        noise[0, generator.random(rounds) < 0.12] *= 3
        noise[1, generator.random(rounds) < 0.12] *= 3
        found = ratio(list(0.8 * noise[0]), list(noise[1]))
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value <= found.high
        held += found.low <= 0.8 <= found.high
        widths.append(found.uncertainty)
    assert held >= 180
    assert np.median(widths) < 0.3


ALWAYS = Watch(1, 0.0)


def constant(seconds: float, runs: int = 3) -> Callable[[Slice], Sample]:
    return lambda portion: Sample((seconds,) * runs, 2 * seconds * runs)


def test_rounds_end_when_the_ratio_is_known() -> None:
    runs = {"graft": constant(0.5), "a": constant(1.0), "b": constant(0.25)}
    found = measure(runs, Limits(1000, 1000.0), Slice(), ALWAYS)
    assert len(found.rounds) == LEAST_ROUNDS
    assert found.ratio("graft", "a") == Ratio(0.5, 0.5, 0.5)
    assert found.ratio("graft", "b").value == 2.0
    assert found.times("a") == [1.0] * 3 * LEAST_ROUNDS
    assert found.cores_used("a") == 2.0


def test_graft_alone_runs_until_its_time_is_known() -> None:
    found = measure({"graft": constant(0.5)}, Limits(1000, 1000.0), Slice(), ALWAYS)
    assert len(found.rounds) == LEAST_ROUNDS
    assert found.times("graft") == [0.5] * 3 * LEAST_ROUNDS


def test_rounds_end_at_the_limits() -> None:
    generator = np.random.default_rng(0)

    def noisy(portion: Slice) -> Sample:
        return Sample((float(generator.lognormal(0, 1)),), 1.0)

    runs = {"graft": noisy, "a": noisy}
    assert len(measure(runs, Limits(30, 1000.0), Slice(), ALWAYS).rounds) == 30
    assert len(measure(runs, Limits(1000, 0.0), Slice(), ALWAYS).rounds) == 1


def test_everyone_has_one_turn_a_round_in_changing_order() -> None:
    turns: list[str] = []

    def recorded(name: str) -> Callable[[Slice], Sample]:
        def run(portion: Slice) -> Sample:
            turns.append(name)
            return Sample((1.0,), 1.0)

        return run

    names = ["graft", "a", "b"]
    measure({name: recorded(name) for name in names}, Limits(8, 1000.0), Slice(), ALWAYS)
    rounds = [tuple(turns[start : start + 3]) for start in range(0, 24, 3)]
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert len(set(rounds)) > 2


def failing_after(count: int) -> Callable[[Slice], Sample]:
    left = iter(range(count))

    def run(portion: Slice) -> Sample:
        if next(left, None) is None:
            raise ContenderError("broke", hint="mend it")
        return Sample((1.0,), 1.0)

    return run


def test_one_that_fails_is_dropped_altogether() -> None:
    runs = {"graft": constant(1.0), "a": failing_after(2), "b": constant(2.0)}
    found = measure(runs, Limits(5, 1000.0), Slice(), ALWAYS)
    assert len(found.rounds) == 5
    assert all(set(one) == {"graft", "b"} for one in found.rounds)
    assert (found.failures["a"].message, found.failures["a"].hint) == ("broke", "mend it")


@pytest.mark.parametrize("who", ["graft", "a"])
def test_without_graft_or_any_peer_there_is_no_race(who: str) -> None:
    runs = {"graft": constant(1.0), "a": constant(1.0), who: failing_after(2)}
    assert len(measure(runs, Limits(50, 1000.0), Slice(), ALWAYS).rounds) == 3


def test_rounds_count_only_while_all_cores_are_there() -> None:
    given = iter([2.0, 2.0, 1.0, 2.0, 1.0, 2.0])  # before and after, and once more before
    watch = Watch(2, 1000.0, lambda threads: next(given, 2.0))
    runs = {"graft": constant(0.5), "a": constant(1.0)}
    found = measure(runs, Limits(2, 1000.0), Slice(), watch)
    assert (len(found.rounds), found.disturbed) == (2, 1)
    assert 0.4 < watch.lost < 100.0


def test_patience_ends() -> None:
    watch = Watch(2, 0.1, lambda threads: 1.0)
    found = measure({"graft": constant(0.5), "a": constant(1.0)}, Limits(3, 9.0), Slice(), watch)
    assert (len(found.rounds), found.disturbed) == (3, 0)


def test_cores_given_are_work_done_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_busy_seconds", {1: 2.0, 4: 5.0}.__getitem__)
    assert cores_given(1) == 1.0
    assert cores_given(4) == 4 * 2.0 / 5.0
