"""Small kernels that measure what passes between two cores: processors in, seconds out.

A thread on each of two cores, which share a few lines of memory. Every measurement is the best of
many short runs: whatever disturbs one, as another process on either core, only makes it longer.
Waking a sleeping thread is the exception: it has no best case worth counting on, and its lower
quartile is taken. Nothing waits without end: after some tenth of a second a probe gives up, which
is an error. All together take some 40 milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from graft.target.machine import LINE_BYTES
from graft.target.probe import address_of, aligned, linked

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3)
_SHARED_BYTES = 512  # three words, two lines apart: what one prefetcher brings
_BATCHES, _ROUNDS = 40, 100
_READS, _WAKES = 30, 40
_ASLEEP = 2e-4  # seconds after which a thread that waits for a pipe is sure to sleep
_PARTNERS = 3  # cores that are measured, where there are so many
_PATIENCE = 1 << 26  # looks at a word, some tenth of a second


class ThreadProbes:
    """The kernels, linked into this process, and the cores to run them on: the first of the
    processors, and others of those, near ones and far ones. Numbers are their medians."""

    def __init__(self, processors: Sequence[int], features: Sequence[str]) -> None:
        first, *others = processors
        step = max(1, -(-len(others) // _PARTNERS))
        self._pairs = [(first, other) for other in others[::-step]]
        names = ("meet", "send", "answer", "touch", "wake", "doze")
        self._library = linked(_TEXT, names, features)
        self._entries = {name: _ENTRY(self._library[name]) for name in names}

    def meeting(self) -> float:
        """Seconds in which two threads meet at a barrier like that of the native driver."""
        return self._median(self._meeting)

    def crossing(self, size: int) -> float:
        """Bytes per second, read of so many that another core has just written."""
        return self._median(lambda pair: self._crossing(pair, size))

    def calling(self) -> float:
        """Seconds until a thread that sleeps has been woken and does something."""
        return self._median(self._calling)

    def _median(self, measure: Callable[[_Pair], float]) -> float:
        return statistics.median(measure(_Pair(self._entries, *pair)) for pair in self._pairs)

    def _meeting(self, pair: _Pair) -> float:
        def run() -> list[float]:
            starts = range(0, _BATCHES * _ROUNDS, _ROUNDS)
            return [pair.timed("meet", 0, start, _ROUNDS) for start in starts]

        return min(pair.together(run, "meet", 0, 0, _BATCHES * _ROUNDS)) / _ROUNDS

    def _crossing(self, pair: _Pair, size: int) -> float:
        pair.memory = aligned(size)
        lines = size // LINE_BYTES

        def run() -> list[float]:
            times = []
            for index in range(_READS):
                pair.timed("send", 0, index, 1)
                times.append(pair.timed("touch", lines, 0, 0))
            return times

        call = min(pair.timed("touch", 0, 0, 0) for _ in range(_READS))
        return size / max(min(pair.together(run, "answer", lines, 0, _READS)) - call, 1e-9)

    def _calling(self, pair: _Pair) -> float:
        def run() -> list[float]:
            times = []
            try:
                for index in range(_WAKES):
                    time.sleep(_ASLEEP)
                    times.append(pair.timed("wake", write, index, 1))
            finally:
                os.close(write)  # whoever still reads gets nothing, and ends
            return times

        read, write = os.pipe()
        try:
            return statistics.quantiles(pair.together(run, "doze", read, 0, _WAKES))[0]
        finally:
            os.close(read)


class _Pair:
    """Two processors, and the memory that their threads share."""

    def __init__(self, entries: dict[str, Any], first: int, second: int) -> None:
        self._entries, self._first, self._second = entries, first, second
        self._shared = aligned(_SHARED_BYTES)
        self._shared[:] = 0
        self.memory = aligned(LINE_BYTES)

    def together(self, run: Callable[[], list[float]], name: str, *numbers: int) -> list[float]:
        """What `run` gives on the first processor, while a kernel runs on the second, which ends
        where nobody answers it any more."""

        def partner() -> None:
            os.sched_setaffinity(0, {self._second})  # of this thread alone
            self._call(name, numbers)

        allowed = os.sched_getaffinity(0)
        thread = threading.Thread(target=partner, name="graft-probe")
        try:
            os.sched_setaffinity(0, {self._first})
            thread.start()
            return run()
        finally:
            os.sched_setaffinity(0, allowed)
            thread.join()

    def timed(self, name: str, *numbers: int) -> float:
        """Seconds of a kernel."""
        start = time.perf_counter()
        has_ended = self._call(name, numbers)
        seconds = time.perf_counter() - start
        if not has_ended:
            raise RuntimeError("another core does not answer")
        return seconds

    def _call(self, name: str, numbers: Sequence[int]) -> bool:
        memory = address_of(self._shared), address_of(self.memory)
        return bool(self._entries[name](*memory, *numbers))


def _kernel(name: str, step: str, blocks: str = "") -> str:
    """A function that does `step` for rounds `%first` to `%first + %count` and gives 1, or 0 where
    it has waited in vain. A step ends by going to `%next` or `%failed`, and has three words:
    `%request`, `%answer` and `%spare`; `%round` counts from 1. `blocks` follow the loop."""
    return f"""
define i64 @{name}(ptr %request, ptr %memory, i64 %number, i64 %first, i64 %count) nounwind {{
entry:
  %answer = getelementptr i8, ptr %request, i64 128
  %spare = getelementptr i8, ptr %request, i64 256
  %file = trunc i64 %number to i32
  %end = add i64 %first, %count
  br label %loop
loop:
  %before = phi i64 [ %first, %entry ], [ %round, %next ]
  %round = add i64 %before, 1
{step}
next:
  %more = icmp slt i64 %round, %end
  br i1 %more, label %loop, label %done
done:
  ret i64 1
failed:
  ret i64 0
{blocks}}}
"""


def _lines(access: str) -> str:
    """A loop over `%number` lines of memory, behind block `lines`, which ends in block `over`."""
    return f"""
lines:
  %line = phi i64 [ 0, %begin ], [ %following, %access ]
  %is.left = icmp slt i64 %line, %number
  br i1 %is.left, label %access, label %over
access:
  %offset = mul i64 %line, {LINE_BYTES}
  %at = getelementptr i8, ptr %memory, i64 %offset
  {access}
  %following = add i64 %line, 1
  br label %lines
"""


_AWAIT = f"""
declare i64 @read(i32, ptr, i64)
declare i64 @write(i32, ptr, i64)

define internal i1 @await(ptr %word, i64 %value) nounwind {{
entry:
  br label %look
look:
  %looks = phi i64 [ 0, %entry ], [ %more, %again ]
  %now = load atomic i64, ptr %word acquire, align 8
  %is.there = icmp sge i64 %now, %value
  br i1 %is.there, label %done, label %again
again:
  %more = add i64 %looks, 1
  %is.patient = icmp slt i64 %more, {_PATIENCE}
  br i1 %is.patient, label %look, label %done
done:
  ret i1 %is.there
}}
"""
_AWAIT_ANSWER = """
  %ok = call i1 @await(ptr %answer, i64 %round)
  br i1 %ok, label %next, label %failed"""
_ANSWER = """
  store atomic i64 %round, ptr %answer release, align 8
  br label %next"""

_TEXT = "\n".join(
    [
        _AWAIT,
        # The words are those of the driver's barrier: arrivals, the gate, who sleeps.
        _kernel(
            "meet",
            """
  %others = atomicrmw add ptr %request, i64 1 acq_rel
  %is.last = icmp eq i64 %others, 1
  br i1 %is.last, label %open, label %wait""",
            f"""
open:
  store atomic i64 0, ptr %request monotonic, align 8
  %old = atomicrmw xchg ptr %answer, i64 %round seq_cst
  %sleepers = load atomic i64, ptr %spare seq_cst, align 8
  br label %next
wait:{_AWAIT_ANSWER}
""",
        ),
        _kernel("send", f"  store atomic i64 %round, ptr %request release, align 8{_AWAIT_ANSWER}"),
        _kernel(
            "answer",
            """
  %ok = call i1 @await(ptr %request, i64 %round)
  br i1 %ok, label %begin, label %failed""",
            f"""
begin:
  br label %lines
{_lines("store volatile i64 %round, ptr %at, align 8")}
over:{_ANSWER}
""",
        ),
        _kernel(
            "touch",
            "  br label %begin",
            f"""
begin:
  br label %lines
{_lines("%value = load volatile i64, ptr %at, align 8")}
over:
  br label %next
""",
        ),
        _kernel(
            "wake", f"  %written = call i64 @write(i32 %file, ptr %memory, i64 1){_AWAIT_ANSWER}"
        ),
        _kernel("doze", f"  %read = call i64 @read(i32 %file, ptr %memory, i64 1){_ANSWER}"),
    ]
)
