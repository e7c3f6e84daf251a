"""Loops run natively from the first iteration to the last, with the evaluator's results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.backends.host.test_flow import LOOP, agree, both, numbers
from tests.runtime.kernels import said_by

from graft.base.errors import EvaluationError
from graft.program.layout import Status
from graft.runtime.executor import Executor
from graft.runtime.run import Run


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    """What the driver has come back for, other than to end or to start threads."""
    found: list[Status] = []
    finish = Executor.finish

    def noted(self: Executor, run: Run, status: Status) -> None:
        if status not in (Status.DONE, Status.START):
            found.append(status)
        finish(self, run, status)

    monkeypatch.setattr(Executor, "finish", noted)
    return found


def test_one_native_call_for_all_iterations_of_a_loop(returns: list[Status]) -> None:
    pair = both(LOOP)
    for count in (3, 1000):
        agree(pair, turns=np.array(count), go=np.array(True), x=np.full(7, 5, np.float32))
        assert returns == []
    agree(pair, turns=np.array(0), go=np.array(True), x=numbers(7))
    agree(pair, turns=np.array(3), go=np.array(False), x=numbers(7))
    agree(pair, turns=np.array(3), go=np.array(True), x=numbers(0))
    assert returns == []


def test_loops_without_a_limit(returns: list[Status]) -> None:
    text = """
        net (float[2] x, int64 most) => (float[2] y, int64[k] all, float[k, 2] before) {
            y, all, before = Loop ("", "", x) <
                body = one (int64 i, bool c, float[2] v)
                        => (bool again, float[2] w, int64 number, float[2] old) {
                    one = Constant <value = float {1}> ()
                    w = Add (v, one)
                    two = Constant <value = int64 {2}> ()
                    number = Mul (i, two)
                    again = Less (number, most)
                    old = Neg (v)
                }
            >
        }
    """
    agree(both(text), x=numbers(2), most=np.array(700))
    assert returns == []


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("backwards", [0, 1])
def test_scans_along_any_axis_either_way(axis: int, backwards: int, returns: list[Status]) -> None:
    text = f"""
        net (float[p, q] start, float[a, b, c] data, int32[t] more)
                => (float[p, q] last, float[d, e, f] sums, int32[t] counts) {{
            last, sums, counts = Scan <num_scan_inputs = 2,
                    scan_input_axes = [{axis}, 0], scan_input_directions = [{backwards}, 1],
                    scan_output_axes = [{axis}, 0], scan_output_directions = [1, {backwards}],
                body = one (float[p, q] state, float[p, q] slice, int32 m)
                        => (float[p, q] next, float[p, q] next2, int32 n) {{
                    next = Add (state, slice)
                    next2 = Identity (next)
                    n = Add (m, m)
                }}
            > (start, data, more)
        }}
    """
    data = numbers(4, 5, 6)
    start = np.moveaxis(data, axis, 0)[0] * 2
    more = np.arange(data.shape[axis], dtype=np.int32)
    agree(both(text), start=start, data=data, more=more)
    assert returns == []


def test_what_a_body_gives_twice_or_hands_on(returns: list[Status]) -> None:
    text = """
        net (int64 turns, float[3] x, float[3] kept, float[3] z)
                => (float[3] y, float[3] same, float[3] twin, float[k, 3] a, float[k, 3] b) {
            y, same, twin, a, b = Loop (turns, "", x, kept, z) <
                body = one (int64 i, bool c, float[3] v, float[3] k, float[3] t)
                        => (bool d, float[3] w, float[3] l, float[3] u, float[3] p, float[3] q) {
                    d = Identity (c)
                    l = Identity (k)
                    s = Add (v, k)
                    m = Mul (s, t)
                    w = Tanh (m)
                    u = Identity (w)
                    p = Identity (w)
                    q = Identity (w)
                }
            >
        }
    """
    pair = both(text)
    for turns in (1, 2, 5):
        feeds = {name: numbers(3, seed=seed) for seed, name in enumerate(("x", "kept", "z"))}
        agree(pair, turns=np.array(turns), **feeds)
    assert returns == []


def test_values_that_change_places(returns: list[Status]) -> None:
    text = """
        net (int64 turns, float[3] x, float[3] z) => (float[3] y, float[3] w) {
            y, w = Loop (turns, "", x, z) <
                body = one (int64 i, bool c, float[3] v, float[3] k)
                        => (bool d, float[3] l, float[3] m) {
                    d = Identity (c)
                    l = Identity (k)
                    m = Tanh (v)
                }
            >
        }
    """
    agree(both(text), turns=np.array(5), x=numbers(3), z=numbers(3, seed=1))
    assert returns == []


def test_sizes_that_change(returns: list[Status]) -> None:
    text = """
        net (int64 turns, float[n] x) => (float[m] y) {
            y = Loop (turns, "", x) <
                body = one (int64 i, bool c, float[p] v) => (bool d, float[q] w) {
                    d = Identity (c)
                    w = Concat <axis = 0> (v, x)
                }
            >
        }
    """
    agree(both(text), turns=np.array(5), x=numbers(3))
    assert returns == []


def test_indices_outside_are_found_in_whichever_iteration(returns: list[Status]) -> None:
    text = """
        net (int64 turns, float[n, 2] x) => (float[2] y) {
            start = Constant <value = float[2] {0.0, 1.0}> ()
            y = Loop (turns, "", start) <
                body = one (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                    d = Identity (c)
                    row = Gather (x, i)
                    w = Add (row, v)
                }
            >
        }
    """
    pair = both(text)
    agree(pair, turns=np.array(7), x=numbers(7, 2))
    for module in pair:
        with pytest.raises(EvaluationError, match="index 7 is out of range for axis 0 of extent 7"):
            module.run(None, {"turns": np.array(9), "x": numbers(7, 2)})
    assert returns == [Status.GUARDED]


MATRIX = """
    net (int64 turns, float[n, 96] x, float[96, 96] w) => (float[n, 96] y, float[k, n, 96] all) {
        y, all = Loop (turns, "", x) <
            body = one (int64 i, bool c, float[n, 96] v)
                    => (bool d, float[n, 96] u, float[n, 96] p) {
                d = Identity (c)
                product = MatMul (v, w)
                u = Tanh (product)
                p = Relu (u)
            }
        >
    }
"""


def test_bodies_that_threads_share_and_several_callers() -> None:
    pair = both(MATRIX)
    w = numbers(96, 96, seed=3) / np.float32(10)
    feeds = [{"turns": np.array(9), "x": numbers(200 + n, 96, seed=n), "w": w} for n in range(4)]
    wanted = [agree(pair, **one) for one in feeds]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = pool.map(lambda given: pair[0].run(None, given), feeds)
            for found, right in zip(results, wanted, strict=True):
                for one, other in zip(found, right, strict=True):
                    np.testing.assert_array_equal(one, other)


def test_endless_loops_stop_for_ctrl_c() -> None:
    assert said_by(ENDLESS) == "interrupted\n"


ENDLESS = """
import os, signal, threading
import numpy as np
from tests.backends.host.test_flow import both
host, _ = both('''
    net (float[2] x) => (float[2] y) {
        y = Loop ("", "", x) <
            body = one (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                d = Identity (c)
                w = Cos (v)
            }
        >
    }
''')
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    host.run(None, {"x": np.ones(2, np.float32)})
except KeyboardInterrupt:
    print("interrupted")
"""


def test_carried_values_and_pieces_without_elements(returns: list[Status]) -> None:
    text = """
        net (int64 turns, float[0, 3] x) => (float[0, 3] y, float[k, 0, 3] all, float[k] sums) {
            y, all, sums = Loop (turns, "", x) <
                body = one (int64 i, bool c, float[0, 3] v)
                        => (bool d, float[0, 3] w, float[0, 3] p, float s) {
                    d = Identity (c)
                    w = Neg (v)
                    p = Identity (w)
                    s = ReduceSum <keepdims = 0> (w)
                }
            >
        }
    """
    agree(both(text), turns=np.array(3), x=numbers(0, 3))
    free = text.replace("float[0, 3]", "float[n, 3]").replace("float[k, 0, 3]", "float[k, n, 3]")
    agree(both(free), turns=np.array(3), x=numbers(0, 3))
    agree(both(free), turns=np.array(3), x=numbers(2, 3))
    assert returns == []


def test_a_condition_that_is_carried_too(returns: list[Status]) -> None:
    text = """
        net (int64 turns, bool go, float x) => (bool last, float y) {
            last, y = Loop (turns, go, go, x) <
                body = one (int64 i, bool c, bool f, float v) => (bool d, bool g, float w) {
                    one = Constant <value = float {1}> ()
                    step = Where (f, one, v)
                    w = Add (v, step)
                    most = Constant <value = float {6.5}> ()
                    g = Less (w, most)
                    d = Identity (g)
                }
            >
        }
    """
    pair = both(text)
    for start in (0.0, 1.0, 5.0, 9.0):
        agree(pair, turns=np.array(100), go=np.array(True), x=np.array(start, np.float32))
        assert returns == []
