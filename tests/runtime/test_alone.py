"""Programs with little to do are run by the caller alone, whatever the number of threads."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.kernels import chain, chain_meaning, crowd, total

import graft
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.types import tensor
from graft.program.instructions import Segment
from graft.program.layout import Header
from graft.program.program import Program
from graft.runtime import frames
from graft.runtime.context import RuntimeContext
from graft.runtime.executor import Executor, SuppliedFunctions
from graft.runtime.session import Session


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What calling and meeting threads costs is what it costs users."""
    real = vars(frames.sharing_work)["__wrapped__"]  # which tests/conftest.py puts out of force
    monkeypatch.setattr(frames, "sharing_work", real)


DENORMAL = np.finfo(np.float32).tiny  # below which results are zeros


def numbers(n: int) -> Array:
    return np.random.default_rng(n).integers(-50, 50, n).astype(np.float32)


def workers() -> int:
    gc.collect()  # those of sessions that nobody holds any more are gone
    return sum(thread.name.startswith("graft-") for thread in threading.enumerate())


def with_work(program: Program, **changes: int | bool) -> Program:
    """The program with other facts about its steps."""
    (segment,) = program.body.instructions
    assert isinstance(segment, Segment)
    calls = tuple(replace(call, **changes) for call in segment.calls)  # type: ignore[arg-type]
    body = replace(program.body, instructions=(replace(segment, calls=calls),))
    return replace(program, body=body)


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
    busy = np.array([one.busy for one in profile.calls])
    assert busy.shape == (4, 2)
    assert np.all(busy[:, 0] > 0)
    assert np.all(busy[:, 1] == 0)


def test_several_python_threads() -> None:
    session = Session(chain(777, rounds=2), threads=2)
    x = numbers(777)
    wanted = chain_meaning(x, 2)

    def work(_: int) -> bool:
        return all(np.array_equal(session.run(None, {"x": x})[0], wanted) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def threads_of_runs(session: Session, busy: int, runs: int) -> list[int]:
    """How many threads ran each of some runs."""
    feeds = {"busy": np.array([busy])}
    return [int(session.run(None, feeds)[0][0]) for _ in range(runs)]


def test_sharing_is_compared_with_one_thread() -> None:
    session = Session(crowd(), threads=2)
    assert threads_of_runs(session, 0, 8) == [2, 2, 2, 2, 1, 1, 2, 2]


def test_the_caller_works_alone_where_sharing_takes_longer() -> None:
    session = Session(crowd(), threads=2)
    assert threads_of_runs(session, 1, 8)[4:] == [1, 1, 2, 2]
    later = threads_of_runs(session, 1, 200)
    assert later[0] == 1  # after two slow runs in a row
    assert 0 < later.count(2) < 50  # it is tried again and again, less and less often
    session.run(None, {"busy": np.array([0])})
    deadline = time.monotonic() + 60
    while threads_of_runs(session, 0, 20).count(2) < 15:  # shared again when the core is free
        assert time.monotonic() < deadline


def test_what_slows_one_thread_as_much_is_no_reason_to_work_alone() -> None:
    """As after a pause, when nothing is in the caches."""
    session = Session(crowd(), threads=2)
    assert threads_of_runs(session, 2, 8) == [2, 2, 2, 2, 1, 1, 2, 2]
    # What one thread takes is measured anew.
    assert threads_of_runs(session, 3, 8) == [2, 2, 1, 1, 2, 2, 2, 2]


def test_profiles_are_shared_and_compare_nothing() -> None:
    session = Session(crowd(), threads=2)
    for _ in range(8):
        profile = session.profile({"busy": np.array([0])})
        assert profile.outputs[0][0] == 2


@pytest.mark.parametrize("claims", [False, True])
def test_teams_of_changing_size(claims: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who sit a job out, awake or asleep, come back for later ones and find all as it is."""
    x = numbers(10_007)
    program, wanted = chain(10_007, rounds=2), chain_meaning(x, 2)
    if claims:
        program, wanted = _compiled(10_007), np.exp(x) / np.exp(x).sum()
    context, executors, before = RuntimeContext(program, 5), [], workers()
    for threads in range(1, 6):
        executors.append(Executor(program, context, SuppliedFunctions()))
        words = executors[-1].linked.words
        words[Header.THREADS], words[Header.CALLING] = threads, -(1 << 40)  # which pays for all
        executors[-1]([x])
    alone = executors[0]([x])[0]
    np.testing.assert_allclose(alone.reshape(-1), wanted, rtol=1e-5, atol=DENORMAL)
    for number, choice in enumerate(np.random.default_rng(7).integers(0, 5, 300).tolist()):
        assert np.array_equal(executors[choice]([x])[0], alone)
        if number % 20 == 0:
            time.sleep(0.002)  # until they sleep
    assert workers() == before + 4


def _compiled(n: int) -> Program:
    """Kernels of the compiler, whose threads claim iterations: a softmax over all of x."""
    g = Builder()
    x = g.input("x", tensor("float32", n))
    powers = g("exp", x)
    graph = g.build(g("divide", powers, g("sum", powers, axes=(0,), keepdims=True)))
    return graft.compile(graph, strict=True).program
