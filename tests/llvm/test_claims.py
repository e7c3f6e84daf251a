"""Threads claim iterations of a parallel loop: each is run once, whoever comes late."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from tests.llvm.kernels import compiled

from graft.base.dtypes import DType
from graft.llvm.claim import CLAIM_BYTES, CLAIMS_OFFSET
from graft.llvm.load import _ENTRY, aligned, aligned_empty
from graft.loop.ir import (
    AtomicAdd,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Function,
    LoopKind,
    Stmt,
    Var,
)

N, ROW, TURN = Var("n"), Var("row"), Var("turn")
C = Buffer("c", DType.INT64, (N,))
COUNTS = [0, 1, 2, 3, 7, 8, 33, 1000]


def counting(count: Expr = N) -> For:
    """Adds one to so many elements."""
    return For(ROW, Const(0), count, AtomicAdd(C, (ROW,), Const(1)), LoopKind.PARALLEL)


class Team:
    """Threads that call kernels one at a time, in any order."""

    def __init__(self, threads: int, count: int) -> None:
        self.threads, self.count = threads, np.array([count], np.int64)
        self.done = aligned(np.zeros(count, np.int64))
        self.shared = aligned_empty(CLAIMS_OFFSET + CLAIM_BYTES * threads, 64)
        self.shared[:] = 0

    def run(self, thread: int, body: Stmt) -> list[int]:
        """The thread's part of a kernel; gives how often each element has been counted so far."""
        kernel = compiled(Function("counting", (C, N), body))
        table = (ctypes.c_void_p * 2)(self.done.ctypes.data, 0)
        scalars, shared = self.count.ctypes.data, self.shared.ctypes.data
        _ENTRY(kernel.address)(table, scalars, thread, self.threads, shared)
        return self.done.tolist()


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("count", COUNTS)
def test_every_iteration_is_run_once(count: int, threads: int) -> None:
    done = aligned(np.zeros(count, np.int64))
    kernel = compiled(Function("counting", (C, N), counting()))
    for times in range(1, 6):
        kernel({"c": done, "n": count}, threads)
        assert done.tolist() == [times] * count


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("count", COUNTS)
def test_nobody_waits_for_a_thread_that_comes_late(count: int, threads: int) -> None:
    """Not even if it is two loops behind."""
    team = Team(threads, count)
    assert team.run(1, counting()) == [1] * count
    assert team.run(1, counting()) == [2] * count
    for thread in (0, *range(2, threads)):
        assert team.run(thread, counting()) == [2] * count
        assert team.run(thread, counting()) == [2] * count
    assert team.run(0, counting()) == [3] * count


def test_one_thread_needs_no_memory_to_claim_in() -> None:
    team = Team(1, 9)
    assert team.run(0, counting()) == [1] * 9
    assert not team.shared.any()


@pytest.mark.parametrize(
    "body",
    [For(TURN, Const(0), Const(1), counting()), Block((counting(), counting(Const(0))))],
    ids=["repeated", "several"],
)
def test_threads_keep_to_their_shares_where_they_may_rely_on_it(body: Stmt) -> None:
    assert Team(2, 10).run(1, body) == [0] * 5 + [1] * 5


@pytest.mark.parametrize("threads", [1, 2])
def test_negative_counts_are_no_iterations(threads: int) -> None:
    done = aligned(np.zeros(4, np.int64))
    compiled(Function("none", (C, N), counting(Const(-3))))({"c": done, "n": 4}, threads)
    assert not done.any()
