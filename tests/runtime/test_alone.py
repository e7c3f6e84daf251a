"""Programs with little to do are run by the caller alone, whatever the number of threads."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.kernels import chain, chain_meaning, total

from graft.base.dtypes import Array
from graft.runtime import prepared
from graft.runtime.program import KernelCall, Program
from graft.runtime.session import Session


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What calling and meeting threads costs is what it costs users."""
    monkeypatch.setattr(prepared, "CALLING", 20e-6)
    monkeypatch.setattr(prepared, "MEETING", 2e-6)


def numbers(n: int) -> Array:
    return np.random.default_rng(n).integers(-50, 50, n).astype(np.float32)


def workers() -> int:
    gc.collect()  # those of sessions that nobody holds any more are gone
    return sum(thread.name.startswith("graft-") for thread in threading.enumerate())


def with_work(program: Program, **changes: int | bool) -> Program:
    """The program with other facts about its steps."""
    steps = (replace(step, **changes) for step in program.steps if isinstance(step, KernelCall))
    return replace(program, steps=tuple(steps))


@pytest.mark.parametrize("n", [0, 1, 77, 1000])
def test_little_work_wakes_nobody(n: int) -> None:
    before = workers()
    session = Session(chain(n, rounds=3), threads=3)
    x = numbers(n)
    assert np.array_equal(session.run(None, {"x": x})[0], chain_meaning(x, 3))
    known = n > 0  # nobody can tell how long steps of no work take
    assert workers() == before + (0 if known else 2)
    assert session.threads == 3


def test_much_work_is_shared() -> None:
    before = workers()
    session = Session(chain(400_000, rounds=3), threads=2)
    x = numbers(400_000)
    assert np.array_equal(session.run(None, {"x": x})[0], chain_meaning(x, 3))
    assert workers() == before + 1


def test_work_that_nobody_has_told_is_shared() -> None:
    before = workers()
    session = Session(total(1003), threads=2)
    assert session.run(None, {"x": numbers(1003)})[0] == numbers(1003).sum()
    assert workers() == before + 1


def test_serial_work_is_nothing_to_share() -> None:
    """However long it takes."""
    before = workers()
    program = with_work(chain(50), serial=True, flops=10**12)
    x = numbers(50)
    assert np.array_equal(Session(program, threads=2).run(None, {"x": x})[0], chain_meaning(x))
    assert workers() == before


def test_kernels_that_meet_within_themselves() -> None:
    """One thread alone passes their barriers."""
    session = Session(with_work(total(1003), flops=1003), threads=3)
    assert session.run(None, {"x": numbers(1003)})[0] == numbers(1003).sum()


def test_profiles_have_a_row_for_every_thread() -> None:
    session = Session(chain(1000, rounds=2), threads=2)
    profile = session.profile({"x": numbers(1000)})
    assert profile.busy.shape == (2, 4)
    assert np.all(profile.busy[0] > 0)
    assert np.all(profile.busy[1] == 0)


def test_several_python_threads() -> None:
    session = Session(chain(777, rounds=2), threads=2)
    x = numbers(777)
    wanted = chain_meaning(x, 2)

    def work(_: int) -> bool:
        return all(np.array_equal(session.run(None, {"x": x})[0], wanted) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
