"""A segment at one size, ready to be called: inputs in, results out.

Everything is settled beforehand that does not change from run to run: tables that serve this
segment at this size only, the job for the driver, and what allocates the results. Small models
spend most of their time on the way to a kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.program.guards import INSIDE, check_guards
from graft.runtime.context import RuntimeContext
from graft.runtime.frame import Frame
from graft.runtime.lending import KEPT_BYTES
from graft.runtime.memory import address_of, aligned_empty
from graft.runtime.prepare import Prepared
from graft.runtime.straight_line import define

# Preparing a call takes as long as it saves in some runs: so many are to come before one of a
# segment at some size, since the next may well be at another.
RUNS_BEFORE = 4

_BYTE, _WORD = np.dtype(np.uint8), np.dtype(np.int64)


class NativeCall:
    """A segment at one size. Safe to call from several threads: each run has tables of its own.

    A call has `count` inputs. `sources` says per input of the segment where it comes from: its
    position among these, or an array that is the same in every run. `order` says which of the
    segment's results, all different, a call returns."""

    def __init__(
        self,
        prepared: Prepared,
        context: RuntimeContext,
        count: int,
        sources: Sequence[int | Array],
        order: Sequence[int],
    ) -> None:
        self._prepared, self._context, self._count = prepared, context, count
        self._order = order
        self.results = [prepared.results[number] for number in order]
        layout = prepared.layout
        # Words of the tables with the input of a call that they lead to, or the array of every run.
        self._inputs: list[tuple[int, int]] = []
        self._fixed: list[tuple[int, Array]] = []
        for source, number in zip(sources, layout.inputs, strict=True):
            words = layout.tables.values[number]
            if isinstance(source, int):
                self._inputs += [(word, source) for word in words]
            else:
                self._fixed += [(word, source) for word in words]
        allocators = [context.results.allocator(*spec) for spec in prepared.results]
        positions = [layout.tables.values[number] for number in layout.results]
        self._outputs = [*zip(positions, allocators, strict=True)]
        self.run = self._written_out()

    def _written_out(self) -> Callable[..., list[Array]]:
        """`run(*inputs)`: run on these arrays, which the caller has checked."""
        new = partial(_new_frame, self._prepared, self._context, self._fixed)
        names: dict[str, object] = {"free": [], "new": new, "address_of": address_of}
        lines = [
            "try:",
            "    frame = free.pop()",
            "except IndexError:",
            "    frame = new()",
            "words, call, _ = frame",
        ]
        for number in range(self._count):
            own = [f"words[{word}] = " for word, source in self._inputs if source == number]
            if own:
                lines += [f"{''.join(own)}address_of(x{number})"]
        for number, (words, allocate) in enumerate(self._outputs):
            names[f"allocate{number}"] = allocate
            lines += [f"result{number} = allocate{number}()"]
            if words:
                targets = " = ".join(f"words[{word}]" for word in words)
                lines += [f"{targets} = address_of(result{number})"]
        results = ", ".join(f"result{number}" for number in self._order)
        # A run that fails does not give its frame back; the next one makes another.
        lines += ["call()", "free.append(frame)", f"return [{results}]"]
        return define([f"x{number}" for number in range(self._count)], lines, names)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> Callable[[], list[Array]]:
        """What runs on these arrays, with its results in `outputs`, or, for None, in arrays of its
        own. The caller has checked them all. Calls from several threads wait for each other."""
        frame = _CallFrame(self._prepared, self._context, self._fixed)
        for word, number in self._inputs:
            frame.words[word] = address_of(inputs[number])
        given = dict(zip(self._order, outputs, strict=True))
        results = []
        for number, (own, allocate) in enumerate(self._outputs):
            output = given.get(number)
            results.append(allocate() if output is None else output)
            for word in own:
                frame.words[word] = address_of(results[-1])
        ordered, lock = [results[number] for number in self._order], threading.Lock()
        call, arrays = frame.call, (*inputs, *results)

        def run(_held: object = (frame, arrays)) -> list[Array]:
            with lock:
                call()
            return ordered.copy()

        return run


def _new_frame(*arguments: Any) -> tuple[memoryview, Callable[[], object], _CallFrame]:
    frame = _CallFrame(*arguments)
    return frame.words, frame.call, frame


class _CallFrame:
    """What one run at a time needs: tables, which lead to its memory, and jobs for the driver."""

    def __init__(
        self, prepared: Prepared, context: RuntimeContext, fixed: Sequence[tuple[int, Array]]
    ) -> None:
        self._prepared, self._team = prepared, context.team
        self._context = context  # which holds the constants that tables lead to
        self._frame = frame = Frame(prepared)
        self.words = frame.words
        for word, array in fixed:
            self.words[word] = address_of(array)
        # Little memory is the frame's own. Much is shared with all that does not run just now.
        self._borrows = frame.nbytes > KEPT_BYTES
        if not self._borrows:
            frame.lie_in(aligned_empty((frame.nbytes,), _BYTE))
        self._found: Array | None = None  # by guards
        found = prepared.layout.segment.found
        if found is not None:
            self._found = aligned_empty((prepared.guarded,), _WORD)
            for word in prepared.layout.tables.values[found]:
                self.words[word] = address_of(self._found)
            self._nothing_found = np.full(prepared.guarded, INSIDE, _WORD).tobytes()
        self._jobs = [frame.job(launch) for launch in prepared.launches]
        # Most small programs are one job for the caller alone, in memory of the frame's own.
        is_alone = len(self._jobs) == 1 and self._jobs[0].threads == 1 and not self._borrows
        self._run_alone = self._team.alone(self._jobs[0]) if is_alone else None

    @property
    def call(self) -> Callable[[], object]:
        """The shortest way to run once, for those who hold the frame."""
        return self.run if self._run_alone is None or self._found is not None else self._run_alone

    def run(self) -> None:
        """Run once; refuses results that come from indices outside of what they point into."""
        if self._run_alone is not None:
            self._run_alone()
        else:
            self._run_all()
        if self._found is not None and self._found.tobytes() != self._nothing_found:
            check_guards(lambda: self._prepared.guards, self._found)

    def _run_all(self) -> None:
        if self._borrows:
            memory = self._context.memory.borrow(self._frame.nbytes)
            self._frame.lie_in(memory)
        shared = any(job.threads > 1 for job in self._jobs)
        with self._team.turn() if shared else nullcontext():
            for job in self._jobs:
                self._team.run(job)
        if self._borrows:
            self._context.memory.give_back(memory)
