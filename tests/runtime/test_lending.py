"""Memory that is used again, and never while somebody holds it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from graft.base.dtypes import Array
from graft.runtime import memory
from graft.runtime.memory import ResultPool, address_of

FLOAT = np.dtype(np.float32)
SHAPE = (100, 1000)


def test_results_that_nobody_holds_are_used_again() -> None:
    results = ResultPool()
    places = set()
    for _ in range(10):
        array = results.empty(SHAPE, FLOAT)
        assert array.shape == SHAPE
        assert array.flags.writeable
        assert address_of(array) % 64 == 0
        places.add(address_of(array))
        del array
    assert len(places) == 1


def test_those_that_grow_bit_by_bit_are_used_again() -> None:
    results = ResultPool()
    places = {address_of(results.empty((100, 1000 + n), FLOAT)) for n in range(20)}
    assert len(places) == 1


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array,
        lambda array: array[3:, ::2],
        lambda array: array.T.reshape(-1)[5:7] if array.ndim == 1 else array.T[5:7],
        lambda array: memoryview(array),
        lambda array: array.view(np.int32),
        lambda array: array.reshape(-1)[:1].data,
    ],
)
def test_results_that_somebody_holds_are_not(hold: object) -> None:
    assert callable(hold)
    results = ResultPool()
    first = results.empty(SHAPE, FLOAT)
    place = address_of(first)
    held = hold(first)
    del first
    for _ in range(3):
        assert address_of(results.empty(SHAPE, FLOAT)) != place
    del held
    places = {address_of(results.empty(SHAPE, FLOAT)) for _ in range(3)}
    assert place in places


def test_many_held_at_once_and_let_go_in_turns() -> None:
    """As caches of attention are: the new ones are made while the old ones are read."""
    results = ResultPool()
    seen: set[int] = set()
    old: list[Array] = []
    for _ in range(20):
        new = [results.empty(SHAPE, FLOAT) for _ in range(8)]
        assert not {address_of(one) for one in new} & {address_of(one) for one in old}
        seen |= {address_of(one) for one in new}
        old = new
    assert len(seen) <= 24


def test_no_two_threads_get_the_same() -> None:
    results = ResultPool()

    def work(number: int) -> bool:
        for turn in range(300):
            array = results.empty(SHAPE, FLOAT)
            array.fill(number * 1000 + turn)
            if not (array == number * 1000 + turn).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_not_more_is_remembered_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MOST_BYTES", 1 << 20)
    results = ResultPool()
    held = [results.empty(SHAPE, FLOAT) for _ in range(5)]
    assert results._bytes <= 1 << 20
    assert len({address_of(one) for one in held}) == 5
    assert results.empty((1 << 20,), FLOAT).nbytes == 1 << 22  # larger than all that is remembered
    assert results.empty((3,), FLOAT).shape == (3,)
