"""Programs run right with any number of threads, thousands of times, and end cleanly."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.kernels import (
    chain,
    chain_meaning,
    environment,
    float32,
    kernels,
    native,
    program_of,
    total,
    with_python,
)

from graft.base.cores import available_cores
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, UserError
from graft.llvm.barrier import YIELD_OFFSET
from graft.llvm.claim import CLAIM_BYTES, CLAIMS_OFFSET
from graft.program.bytecode_segments import SCRATCH_GAP
from graft.program.instructions import KernelCall, RegionCall
from graft.program.layout import Header
from graft.program.program import ProgramError, Value
from graft.runtime import frames, thread_pool
from graft.runtime.evaluated import SuppliedFunctions
from graft.runtime.memory import address_of
from graft.runtime.session import Session
from graft.runtime.thread_pool import GIVE_AWAY, THREAD_POOL_BYTES

SHARED = 256  # where in a thread pool's memory kernels have a barrier of their own
THREADS = [1, 2, 3]
every_number_of_threads = pytest.mark.parametrize("threads", THREADS)


def numbers(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-50, 50, n).astype(np.float32)


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("graft-")]


@every_number_of_threads
def test_results_are_right_thousands_of_times(threads: int) -> None:
    """Each step reads what other threads wrote in the step before: a race would show."""
    session = Session(chain(101, rounds=5), threads=threads)
    inputs = [numbers(101, seed) for seed in range(8)]
    expected = [chain_meaning(x, 5) for x in inputs]
    for index in range(3000):
        (y,) = session.run(None, {"x": inputs[index % 8]})
        assert np.array_equal(y, expected[index % 8])


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize(("looks", "offers"), [(0, 0), (1, 0), (0, 2), (1_000, 0)])
def test_no_wake_up_is_lost(
    threads: int, looks: int, offers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that sleep at once, soon or hardly ever; a lost wake-up would hang the test."""
    for name in ("_LOOKS", "_LOOKS_WHEN_CROWDED"):
        monkeypatch.setattr(thread_pool, name, looks)
    monkeypatch.setattr(thread_pool, "_OFFERS", offers)
    sessions = [Session(chain(31, rounds=4), threads), Session(total(31), threads)]
    x = numbers(31)
    expected = [chain_meaning(x, 4), x.sum()]
    for index in range(200):
        result = sessions[index % 2].run(None, {"x": x})[0]
        assert np.array_equal(result, expected[index % 2])


@every_number_of_threads
@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_sizes_that_do_not_divide_evenly(threads: int, n: int) -> None:
    session = Session(chain(n, rounds=3), threads=threads)
    x = numbers(n)
    for _ in range(20):
        assert np.array_equal(session.run(None, {"x": x})[0], chain_meaning(x, 3))


@every_number_of_threads
def test_kernels_have_scratch_memory_and_barriers_of_their_own(threads: int) -> None:
    session = Session(total(1003), threads=threads)
    x = numbers(1003)
    for _ in range(1000):
        assert session.run(None, {"x": x})[0] == x.sum()


@every_number_of_threads
def test_one_thread_runs_a_serial_kernel(threads: int) -> None:
    """The counter takes no care of other threads, so that any second caller would show."""
    calls = (KernelCall("count", (0,), serial=True),) * 500
    session = Session(native((), (Value("y", DType.INT64, ()),), calls), threads=threads)
    count = np.array(0)
    for _ in range(20):
        session.run(None, {}, {"y": count})
    assert count == 500 * 20


@every_number_of_threads
def test_independent_steps_need_not_meet(threads: int) -> None:
    calls = [KernelCall("add", (0, 0, number), (64,), overlaps=True) for number in (1, 2)]
    outputs = float32("y", 64), float32("z", 64)
    session = Session(native((float32("x", 64),), outputs, calls), threads=threads)
    x = numbers(64)
    for _ in range(1000):
        y, z = session.run(None, {"x": x})
        assert np.array_equal(y, x + x)
        assert np.array_equal(z, x + x)


def test_a_program_may_have_no_steps() -> None:
    program = native((float32("x", 0),), (float32("y", 0),), ())
    assert Session(program, threads=2).run(None, {"x": numbers(0)})[0].shape == (0,)


@pytest.mark.parametrize("threads", [1, 2])
def test_two_sessions_run_from_four_python_threads(threads: int) -> None:
    sessions = [Session(chain(77, rounds=r), threads=threads) for r in (2, 3)]

    def work(seed: int) -> int:
        x = numbers(77, seed)
        expected = [chain_meaning(x, rounds) for rounds in (2, 3)]
        for index in range(300):
            which = (index + seed) % 2
            if not np.array_equal(sessions[which].run(None, {"x": x})[0], expected[which]):
                return index
        return -1

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [-1] * 4


@every_number_of_threads
def test_profile_is_plausible(threads: int) -> None:
    session = Session(chain(200_000, rounds=3), threads=threads)
    x = numbers(200_000)
    session.run(None, {"x": x})
    before = time.perf_counter()
    profile = session.profile({"x": x})
    elapsed = time.perf_counter() - before
    assert np.array_equal(profile.outputs[0], chain_meaning(x, 3))
    labels = [getattr(one.step, "label", "") for one in profile.calls]
    assert labels == ["add", "scale"] * 3
    seconds = np.array([one.seconds for one in profile.calls])
    busy = np.array([one.busy for one in profile.calls])
    assert busy.shape == (6, threads)
    assert np.all(seconds > 0)
    assert seconds.sum() <= profile.seconds <= elapsed
    assert np.all(busy >= 0)
    assert np.all(busy[:, 0] <= seconds)
    # Two hundred thousand elements take some time wherever they are added.
    assert busy.sum() > 6e-6


def test_workers_write_no_times_once_the_caller_may_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The array is freed with the profile: what comes later lands in somebody else's memory."""
    lent: list[Array] = []

    def lend(array: Array) -> int:
        if array.ndim == 2:
            lent.append(array)
        return address_of(array)

    monkeypatch.setattr(frames, "address_of", lend)
    session = Session(chain(1000, rounds=2), threads=3)
    for _ in range(20):
        session.profile({"x": numbers(1000)})
    time.sleep(0.05)  # enough for the slowest worker
    lent = [times for times in lent if times.any()]  # without the last look, at nothing
    assert len(lent) == 20
    for times in lent:
        assert times.shape == (3, 9)
        assert (times[:, :-1] > 0).all()
        assert list(times[:, -1] > 0) == [True, False, False]


@every_number_of_threads
def test_python_steps_run_between_kernels(threads: int) -> None:
    seen = []

    def negate(arguments: Any, _homes: Any) -> list[Array]:
        (x,) = arguments
        seen.append(x.flags.writeable)
        return [-x]

    session = Session(
        with_python(33), threads=threads, supplied=SuppliedFunctions({"negate": negate})
    )
    x = numbers(33)
    expected = -chain_meaning(x)
    for _ in range(50):
        assert np.array_equal(session.run(None, {"x": x})[0], expected)
    profile = session.profile({"x": x})
    assert np.array_equal(profile.outputs[0], expected)
    assert all(one.seconds > 0 for one in profile.moments)
    assert not any(seen)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([], "'negate' gave 0 results instead of 1"),
        ([np.zeros(33)], r"result 0 of 'negate' is float64\[33\] instead of float32\[33\]"),
        ([np.zeros((3, 11), np.float32)], r"is float32\[3, 11\] instead of float32\[33\]"),
    ],
)
def test_wrong_results_of_python_steps_are_refused(result: list[Array], message: str) -> None:
    session = Session(
        with_python(33),
        threads=2,
        supplied=SuppliedFunctions({"negate": lambda arguments, homes: result}),
    )
    for _ in range(2):
        with pytest.raises(EvaluationError, match=message):
            session.run(None, {"x": numbers(33)})


def test_functions_see_every_kind_of_memory() -> None:
    """Zero elements, scalars and constants included."""
    step = RegionCall("f", (0, 2, 3), (1,))
    program = program_of(
        (float32("x", 2),),
        (float32("y"),),
        (step,),
        (np.array([7], np.float32), np.zeros((0, 3), np.float32)),
    )

    def function(arguments: Any, _outputs: Any) -> list[Array]:
        data, seven, nothing = arguments
        return [np.asarray(data.sum() + seven[0] + nothing.size, np.float32)]

    session = Session(program, threads=1, supplied=SuppliedFunctions({"f": function}))
    assert session.run(None, {"x": np.array([1, 2], np.float32)})[0] == 10.0


def test_python_functions_have_to_be_given() -> None:
    with pytest.raises(UserError, match="calls the function 'negate', which is not given"):
        Session(with_python(3))


def test_workers_start_late_and_end_with_their_session() -> None:
    before = len(workers())
    session = Session(chain(5), threads=3)
    assert len(workers()) == before
    session.run(None, {"x": numbers(5)})
    session.run(None, {"x": numbers(5)})
    assert len(workers()) == before + 2
    del session
    gc.collect()
    assert len(workers()) == before


def test_idle_workers_sleep() -> None:
    session = Session(chain(5), threads=3)
    session.run(None, {"x": numbers(5)})
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05
    assert np.array_equal(session.run(None, {"x": numbers(5)})[0], chain_meaning(numbers(5)))


def test_a_forked_child_runs_too() -> None:
    session = Session(chain(50, rounds=2), threads=2)
    x = numbers(50)
    expected = chain_meaning(x, 2)
    session.run(None, {"x": x})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            runs = [session.run(None, {"x": x})[0] for _ in range(100)]
            status = 0 if all(np.array_equal(y, expected) for y in runs) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(session.run(None, {"x": x})[0], expected)


SCRIPT = """
import atexit, os, signal, sys, threading, time
import numpy as np
from graft.base.errors import UserError
from graft.runtime.session import Session
from tests.runtime.kernels import chain, chain_meaning
SIZE = 100_000  # memory that goes back to the system as soon as it is released
session = Session(chain(SIZE, rounds=2), threads=3)
x = np.ones(SIZE, np.float32)
def late():
    try:
        y, = session.run(None, {"x": x})
        print("late", np.array_equal(y, chain_meaning(x, 2)))
    except UserError as error:  # since Python 3.12 no thread starts any more
        print("late", "cannot be started" in str(error))
if sys.argv[1] == "late":
    atexit.register(late)  # before anything that the first run registers, so it comes after
session.run(None, {"x": x})
if sys.argv[1] == "interrupt":
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            session.run(None, {"x": x})
    except KeyboardInterrupt:
        assert np.array_equal(session.run(None, {"x": x})[0], chain_meaning(x, 2))
        print("interrupted")
elif sys.argv[1] == "daemon":
    def forever():
        while True:
            session.run(None, {"x": x})
    threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.1)
print("done")
"""


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("plain", "done\n"),
        ("interrupt", "interrupted\ndone\n"),
        ("daemon", "done\n"),
        ("late", "done\nlate True\n"),
    ],
)
def test_processes_end_cleanly(how: str, expected: str) -> None:
    """With idle workers, after Ctrl-C, while another thread is still running programs, and when
    programs run although the workers have been sent home."""
    outcome = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, expected, "")


def test_threads_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers that did start go home, and a later run starts anew."""
    session = Session(chain(5), threads=4)
    before = len(workers())
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "graft-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(UserError, match="3 more threads cannot be started") as error:
            session.run(None, {"x": numbers(5)})
    assert error.value.hint == "ask for fewer with threads="
    assert len(workers()) == before
    assert np.array_equal(session.run(None, {"x": numbers(5)})[0], chain_meaning(numbers(5)))
    assert len(workers()) == before + 3


def test_kernels_own_barriers_can_give_the_processor_away() -> None:
    """Where the emitter's barrier looks for it, beyond the pool's own barrier."""
    memory = thread_pool._pool_memory(2)
    assert SHARED + YIELD_OFFSET == GIVE_AWAY
    address = int(memory[GIVE_AWAY // 8])
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 0


def test_kernels_claim_iterations_behind_all_barriers() -> None:
    """Where the emitter looks for the claims of each thread."""
    assert SHARED + CLAIMS_OFFSET == THREAD_POOL_BYTES
    assert thread_pool._pool_memory(3).nbytes == THREAD_POOL_BYTES + 3 * CLAIM_BYTES


def test_default_is_one_thread_per_core() -> None:
    assert Session(chain(1)).threads == available_cores()
    wish = available_cores() + 7
    assert Session(replace(chain(1), threads=wish)).threads == available_cores()
    assert Session(replace(chain(1), threads=1)).threads == 1
    assert Session(replace(chain(1), threads=1), threads=wish).threads == wish
    with pytest.raises(ProgramError, match="it wants 0 threads"):
        Session(replace(chain(1), threads=0))
    with pytest.raises(UserError, match="threads=0: at least one thread"):
        Session(chain(1), threads=0)


def test_a_missing_kernel_is_named() -> None:
    program = replace(chain(3), objects=kernels()[1:])
    with pytest.raises(UserError, match="does not define 'add'"):
        Session(program)


@pytest.mark.parametrize(("threads", "gaps"), [(1, 0), (2, 3), (3, 4)])
def test_scratch_memories_of_threads_lie_apart(threads: int, gaps: int) -> None:
    """What one thread reads ahead beyond its own does not touch that of another."""
    session = Session(total(1000), threads=threads)
    x = numbers(1000)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x.sum(), rtol=1e-5)
    (frame,) = session.executor.frames
    size = frame.words[Header.ARENA_BYTES]
    assert gaps * SCRATCH_GAP <= size < (gaps + 1) * SCRATCH_GAP
