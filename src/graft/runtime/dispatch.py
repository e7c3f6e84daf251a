"""The short way of a run: feeds as earlier runs had them in, results of a prepared call out.

Feeds are looked at in one pass, input by input: plain NumPy arrays that kernels can use where they
lie, of the very dtype, and by their shapes a program that is ready to be called. Whatever else
comes (subclasses, lists, tensors of other libraries, other layouts, byte orders and types, arrays
that are read-only or misaligned, wrong names and sizes) is left to the ordinary way, which converts
it or says what is wrong with it. Hence nothing is refused here, and no error is worded twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.runtime.memory import address_of, is_usable
from graft.runtime.native_call import RUNS_BEFORE, NativeCall
from graft.runtime.straight_line import define

# Sizes that stay ready, and the last ones of which it is counted how often they came.
REMEMBERED = 8

# What a model that is bound to arrays is: calling it runs the model and gives the results.
Binding = Callable[[], list[Any]]
Shapes = tuple[tuple[int, ...], ...]
# The name of an input, its dtype, and how its address has to be aligned.
Expected = tuple[str, np.dtype[Any], int]


class Call(Protocol):
    """What runs a model at some sizes, on arrays that have been checked."""

    @property
    def run(self) -> Callable[..., list[Any] | None]: ...


class Calls:
    """The calls of a model, by the shapes of its inputs.

    `prepare` makes one for inputs of sizes that are new: None where there is none, an error where
    these sizes do not fit together. Where sizes change, that waits until they have come a few
    times."""

    def __init__(
        self, prepare: Callable[[Sequence[Array]], Call | None], sizes_change: bool
    ) -> None:
        self.ready: dict[Shapes, Call] = {}
        self._prepare = prepare
        self._runs: dict[Shapes, int] = {}  # so far, by the ordinary way
        self._runs_before = RUNS_BEFORE if sizes_change else 0
        self._lock = threading.Lock()

    def find(self, inputs: Sequence[Array]) -> Call | None:
        """The call for inputs of these sizes; dtypes and layouts have been checked."""
        shapes = tuple([array.shape for array in inputs])
        with self._lock:
            call = self.ready.get(shapes)
            if call is None:
                call = self._prepare(inputs)
                if call is not None:
                    self.ready[shapes] = call
                    _forget(self.ready, REMEMBERED)
        return call

    def find_at_last(self, inputs: Sequence[Array]) -> Call | None:
        """The same for sizes that have come often enough, and without errors."""
        shapes = tuple([array.shape for array in inputs])
        with self._lock:
            runs = self._runs.pop(shapes, 0)
            if runs < self._runs_before:
                self._runs[shapes] = runs + 1
                _forget(self._runs, REMEMBERED)
                return None
        try:
            return self.find(inputs)
        except GraftError:
            return None  # the ordinary way tells


class Dispatcher:
    """Finds the call for feeds and calls it. Safe to use from several threads.

    `run(feeds)` gives all results, or None where the ordinary way has to be taken. `prepare` and
    `sizes_change` are as for `Calls`. Nothing of it refers back to whoever holds it, so that a
    model's threads and memory go with the last reference to it."""

    def __init__(
        self,
        inputs: Sequence[Expected],
        outputs: Sequence[str],
        prepare: Callable[[Sequence[Array]], Call | None],
        sizes_change: bool = True,
    ) -> None:
        self.inputs, self._outputs = inputs, outputs
        self._calls = Calls(prepare, sizes_change)
        self.find = self._calls.find
        self.run: Callable[[Mapping[str, Any]], list[Any] | None] = _run(inputs, self._calls)

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Array]) -> Binding | None:
        """What runs on these very arrays, which have been checked as far as one can without their
        sizes; None where that needs the ordinary way."""
        inputs = [feeds[name] for name, *_ in self.inputs]
        for array, (_, dtype, alignment) in zip(inputs, self.inputs, strict=True):
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                return None
            if not is_usable(array, alignment):
                return None
        call = self.find(inputs)
        if not isinstance(call, NativeCall):
            return None
        own: list[Array | None] = []
        for name, (shape, dtype, alignment) in zip(self._outputs, call.results, strict=True):
            output = outputs.get(name)
            own.append(output)
            if output is not None:
                check_output(name, shape, dtype, output)
                apart = not any(np.may_share_memory(output, array) for array in inputs)
                if not (apart and is_usable(output, alignment)):
                    return None
        return call.bind(inputs, own)


def _run(inputs: Sequence[Expected], calls: Calls) -> Callable[..., Any]:
    """`Dispatcher.run`, written out for these inputs."""
    names: dict[str, object] = {
        "ndarray": np.ndarray,
        "address_of": address_of,
        "ready": calls.ready,
        "find": calls.find_at_last,
    }
    lines = [f"if len(feeds) != {len(inputs)}:", "    return None"]
    for number, (name, dtype, alignment) in enumerate(inputs):
        names[f"name{number}"], names[f"dtype{number}"] = name, dtype
        # By NumPy's words a "carray" is contiguous, aligned as its dtype asks, and writable.
        lines += [
            f"x{number} = feeds.get(name{number})",
            f"if type(x{number}) is not ndarray or x{number}.dtype is not dtype{number}"
            f" or not x{number}.flags.carray:",
            "    return None",
        ]
        if alignment > dtype.alignment:
            lines += [f"if address_of(x{number}) % {alignment}:", "    return None"]
    arrays = [f"x{number}" for number in range(len(inputs))]
    lines += [
        f"call = ready.get(({''.join(f'{array}.shape, ' for array in arrays)}))",
        "if call is None:",
        f"    call = find([{', '.join(arrays)}])",
        "    if call is None:",
        "        return None",
        f"return call.run({', '.join(arrays)})",
    ]
    return define(["feeds"], lines, names)


def _forget(entries: dict[Shapes, Any], most: int) -> None:
    """Keep so many at most: the oldest goes."""
    if len(entries) > most:
        del entries[next(iter(entries))]


def check_output(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], array: Array) -> None:
    """Refuse an array that an output of this shape and dtype cannot be written into."""
    if shape != array.shape:
        shapes = [f"[{', '.join(map(str, one))}]" for one in (shape, array.shape)]
        raise UserError(
            f"the output '{name}' came out as {shapes[0]}, and its array is {shapes[1]}"
        )
    if dtype != array.dtype:
        raise UserError(f"the output '{name}' is {dtype}, and its array is {array.dtype}")


def bind(
    run: Callable[..., list[Any]],
    dispatcher: Dispatcher | None,
    feeds: Mapping[str, Any],
    outputs: Mapping[str, Array] | None,
) -> Binding:
    """What runs a model on these very arrays, which have been checked as far as one can without
    their sizes; `run` is the ordinary way, with names, feeds and arrays for outputs."""
    call = None if dispatcher is None else dispatcher.bind(feeds, outputs or {})
    if call is not None:
        return call
    own, lock = (dict(feeds), dict(outputs or {})), threading.Lock()

    def run_again() -> list[Any]:
        with lock:
            return run(None, *own)

    return run_again
