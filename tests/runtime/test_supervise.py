"""Foreign code in a thread of ours: what it raises, and what it would leave behind."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from contextvars import ContextVar

import numpy as np
import pytest

from graft.base.callbacks import described
from graft.runtime.supervise import StrayExitError, contained, within

TINY = np.float32(1e-40)  # denormal
UPWARDS = 0x800 if platform.machine() == "x86_64" else 0x400000
_variable: ContextVar[int] = ContextVar("variable", default=0)
_C = ctypes.PyDLL(None)


def ways() -> list[Callable[..., object]]:
    return [contained, lambda task: within(60.0, task)]


@pytest.mark.parametrize("way", ways())
def test_modes_are_restored(way: Callable[..., object]) -> None:
    before = _C.fegetround(), np.geterr(), _variable.get()

    def foreign() -> object:
        _C.fesetround(UPWARDS)
        np.seterr(all="raise")
        _variable.set(7)
        return _C.fegetround(), _variable.get()

    assert way(foreign) == (UPWARDS, 7)
    assert (_C.fegetround(), np.geterr(), _variable.get()) == before
    # nor are they there for the next task of the same thread
    assert way(lambda: (_C.fegetround(), np.geterr(), _variable.get())) == before


@pytest.mark.skipif(platform.machine() != "x86_64", reason="where the word is differs")
def test_denormals_are_kept() -> None:
    def foreign() -> float:
        modes = (ctypes.c_uint32 * 16)()
        _C.fegetenv(modes)
        modes[7] |= 0x8040  # of MXCSR: flush to zero, and denormals are zero
        _C.fesetenv(modes)
        return float(np.multiply(TINY, np.float32(1)))

    assert contained(foreign) == 0.0
    assert np.multiply(TINY, np.float32(1)) == TINY


class Panic(BaseException):
    pass


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("error", [Panic("a"), SystemExit("a"), GeneratorExit("a")])
def test_what_is_no_exception_becomes_one(error: BaseException, way: Callable[..., object]) -> None:
    def foreign() -> None:
        raise error

    with pytest.raises(StrayExitError, match=f"{type(error).__name__}: a"):
        way(foreign)


def test_interrupts_are_the_users_in_the_main_thread_alone() -> None:
    def foreign() -> None:
        raise KeyboardInterrupt

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        contained(foreign)
    with pytest.raises(StrayExitError, match="KeyboardInterrupt"):
        within(60.0, foreign)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ways())
def test_children_do_not_come_back(way: Callable[..., object]) -> None:
    child = way(os.fork)
    assert isinstance(child, int)
    assert child
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_errors_in_words() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert described(ValueError("no")) == "ValueError: no"
    assert described(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert described(OddError()) == "OddError: its message cannot be read"
    assert len(described(ValueError("x" * 10**6))) <= 2000
