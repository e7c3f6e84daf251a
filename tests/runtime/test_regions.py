"""Regions that fail: results stay right, and whoever runs the model is told."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, UserError
from graft.runtime.regions import Policy, Region, RegionWarning

X = np.arange(4, dtype=np.float32)


def doubled(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    outputs[0][...] = 2 * inputs[0]


def region(runner: object, policy: Policy = Policy()) -> Region:  # noqa: B008
    return Region("r", "acc", runner, lambda: doubled, policy)  # type: ignore[arg-type]


def result(of: Region) -> Array:
    out = np.full(4, -1, np.float32)
    of([X], [out])
    return out


def raises(_inputs: Sequence[Array], _outputs: Sequence[Array]) -> None:
    raise RuntimeError("out of memory")


def wrong_shape(_inputs: Sequence[Array], _outputs: Sequence[Array]) -> list[Array]:
    return [np.zeros(3, np.float32)]


def wrong_dtype(_inputs: Sequence[Array], _outputs: Sequence[Array]) -> list[Array]:
    return [np.zeros(4, np.float64)]


def too_many(_inputs: Sequence[Array], _outputs: Sequence[Array]) -> list[Array]:
    return [X, X]


def slow(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    time.sleep(0.5)
    outputs[0][...] = 7


def test_an_accelerator_that_works() -> None:
    working = region(doubled)
    np.testing.assert_array_equal(result(working), 2 * X)
    assert working.incidents == []


def test_results_may_be_returned_instead() -> None:
    np.testing.assert_array_equal(result(region(lambda inputs, _: [inputs[0] * 2])), 2 * X)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (raises, "out of memory"),
        (wrong_shape, r"float32\[3\] instead of float32\[4\]"),
        (wrong_dtype, r"float64\[4\] instead of float32\[4\]"),
        (too_many, "2 results instead of 1"),
    ],
)
def test_the_host_stands_in(fault: object, reason: str) -> None:
    failing = region(fault)
    with pytest.warns(RegionWarning, match=reason):
        np.testing.assert_array_equal(result(failing), 2 * X)
    (incident,) = failing.incidents
    assert (incident.region, incident.backend) == ("r", "acc")


def test_the_breaker_opens_after_three_failures_in_a_row() -> None:
    calls = []

    def counted(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        calls.append(1)
        raise RuntimeError("no")

    failing = region(counted)
    with pytest.warns(RegionWarning):
        results = [result(failing) for _ in range(5)]
    np.testing.assert_array_equal(results, [2 * X] * 5)
    assert len(calls) == 3
    assert failing.open
    assert len(failing.incidents) == 3


def test_a_success_in_between_keeps_it_closed() -> None:
    turn = iter([0, 1, 0, 1, 0, 1, 0, 1])

    def flaky(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if next(turn):
            doubled(inputs, outputs)
        else:
            raise RuntimeError("no")

    failing = region(flaky)
    with pytest.warns(RegionWarning):
        results = [result(failing) for _ in range(8)]
    np.testing.assert_array_equal(results, [2 * X] * 8)
    assert not failing.open


def test_a_missed_deadline_opens_the_breaker_at_once() -> None:
    failing = region(slow, Policy(deadline=0.05))
    with pytest.warns(RegionWarning, match="no answer within"):
        out = result(failing)
    np.testing.assert_array_equal(out, 2 * X)
    assert failing.open
    time.sleep(0.6)  # what comes too late must not be written over the result
    np.testing.assert_array_equal(out, 2 * X)


def test_fallback_error() -> None:
    with pytest.raises(EvaluationError, match="the region 'r' failed on acc: RuntimeError: out of"):
        result(region(raises, Policy("error")))


def test_an_unknown_fallback_is_refused() -> None:
    with pytest.raises(UserError, match="fallback is one of host, error, not 'maybe'"):
        Policy("maybe")
