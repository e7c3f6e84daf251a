"""A program of kernels alone, ready to be called: addresses of inputs in, results out.

It does what `Executor` does for any program, with everything settled beforehand that does not
change from run to run: tables that serve this program at this size only, the job for the driver,
and what allocates the results. Small models spend most of their time on the way to a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.context import Context
from graft.runtime.engine import Engine
from graft.runtime.guards import INSIDE, check_guards
from graft.runtime.lending import KEPT_BYTES, ResultSpec
from graft.runtime.memory import address_of, aligned_empty
from graft.runtime.prepared import Prepared, Stretch
from graft.runtime.spaces import Device

_BYTE, _WORD = np.dtype(np.uint8), np.dtype(np.int64)
_NO_DEVICES: Mapping[str, Device] = {}


class NativeCall:
    """A program at one size. Safe to call from several threads: each run has tables of its own.

    `sources` says per input of the program where it comes from: its position among the inputs of a
    call, or an array that is the same in every run. `specs` are those of the program's results, and
    `order` says which of them, all different, a call returns."""

    def __init__(
        self,
        prepared: Prepared,
        engine: Engine,
        sources: Sequence[int | Array],
        specs: Sequence[ResultSpec],
        order: Sequence[int],
    ) -> None:
        self._prepared, self._engine = prepared, engine
        self._order, self._is_ordered = order, [*order] == [*range(len(specs))]
        self.results = [specs[number] for number in order]
        # Words of the tables with the input of a call that they lead to, or the array of every run.
        self._inputs: list[tuple[int, int]] = []
        self._fixed: list[tuple[int, Array]] = []
        for source, words in zip(sources, prepared.tables.inputs, strict=True):
            if isinstance(source, int):
                self._inputs += [(word, source) for word in words]
            else:
                self._fixed += [(word, source) for word in words]
        allocators = [engine.results.allocator(*spec) for spec in specs]
        # Without the last one where that is what guards have found.
        self._outputs = [*zip(prepared.tables.outputs, allocators, strict=False)]
        self._free: list[_Frame] = []

    def __call__(self, addresses: Sequence[int]) -> list[Array]:
        """Run on inputs at these addresses. The caller has checked them and holds the arrays."""
        try:
            frame = self._free.pop()
        except IndexError:
            frame = _Frame(self._prepared, self._engine, self._fixed)
        words, results = frame.words, []
        for word, number in self._inputs:
            words[word] = addresses[number]
        for own, allocate in self._outputs:
            array = allocate()
            address = address_of(array)
            for word in own:
                words[word] = address
            results.append(array)
        frame.run()
        self._free.append(frame)  # unless it failed: the next run makes another one
        return results if self._is_ordered else [results[number] for number in self._order]

    def bind(
        self, inputs: Sequence[Array], homes: Sequence[Array | None]
    ) -> Callable[[], list[Array]]:
        """What runs on these arrays, one call at a time, with its results in `homes`, or, for None,
        in arrays of its own. The caller has checked them all."""
        frame = _Frame(self._prepared, self._engine, self._fixed)
        for word, number in self._inputs:
            frame.words[word] = address_of(inputs[number])
        given = dict(zip(self._order, homes, strict=True))
        results = []
        for number, (own, allocate) in enumerate(self._outputs):
            home = given.get(number)
            results.append(allocate() if home is None else home)
            for word in own:
                frame.words[word] = address_of(results[-1])
        returned, held = [results[number] for number in self._order], (*inputs, *results)

        def run(_held: object = held) -> list[Array]:
            frame.run()
            return returned.copy()

        return run


class _Frame:
    """What one run at a time needs: tables, which lead to its memory, and jobs for the driver."""

    def __init__(
        self, prepared: Prepared, engine: Engine, fixed: Sequence[tuple[int, Array]]
    ) -> None:
        self._guards, self._memory, self._team = prepared.guards, engine.memory, engine.team
        self._context = context = Context(prepared, _NO_DEVICES)
        self.words = context.words
        for word, array in fixed:
            self.words[word] = address_of(array)
        # Little memory is the frame's own. Much is shared with all that does not run just now.
        self._borrows = context.nbytes > KEPT_BYTES
        if not self._borrows:
            context.lie_in(aligned_empty((context.nbytes,), _BYTE))
        self._found: Array | None = None  # by guards
        if prepared.guarded:
            self._found = aligned_empty((prepared.guarded,), _WORD)
            for word in prepared.tables.outputs[-1]:
                self.words[word] = address_of(self._found)
            self._nothing_found = np.full(prepared.guarded, INSIDE, _WORD).tobytes()
        stretches = [item for item in prepared.plan if isinstance(item, Stretch)]
        self._jobs = [context.job(stretch) for stretch in stretches]
        self._is_shared = any(stretch.shared for stretch in stretches)

    def run(self) -> None:
        """Run once; refuses results that come from indices outside of what they point into."""
        if self._borrows:
            memory = self._memory.borrow(self._context.nbytes)
            self._context.lie_in(memory)
        if self._is_shared:
            with self._team.turn():
                for job in self._jobs:
                    self._team.run(job)
        else:
            for job in self._jobs:
                self._team.run(job)
        if self._borrows:
            self._memory.give_back(memory)
        if self._found is not None and self._found.tobytes() != self._nothing_found:
            check_guards(self._guards, self._found)
