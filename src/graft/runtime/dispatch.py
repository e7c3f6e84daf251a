"""The short way of a run: feeds as earlier runs had them in, results of the driver out.

Feeds are looked at in one pass, input by input: plain NumPy arrays that kernels can use where they
lie, of the very dtype. Whatever else comes (subclasses, lists, tensors of other libraries, other
layouts, byte orders and types, arrays that are read-only or misaligned, wrong names) is left to the
ordinary way, which converts it or says what is wrong with it, as it does with sizes that do not fit
together. Hence nothing is refused here, and no error is worded twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from graft.base.dim_functions import function_of
from graft.base.dims import bare_symbol
from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.runtime.memory import address_of, is_usable
from graft.runtime.straight_line import define

# Sizes that are remembered.
_REMEMBERED = 64

# What a model that is bound to arrays is: calling it runs the model and gives the results.
Binding = Callable[[], list[Any]]
Shapes = tuple[tuple[int, ...], ...]
# The name of an input, its dtype, and how its address has to be aligned.
Expected = tuple[str, np.dtype[Any], int]


class Call(Protocol):
    """What runs a model at some sizes, on arrays that have been checked."""

    @property
    def run(self) -> Callable[..., list[Any] | None]: ...


class Sizes:
    """What follows from the shapes of the inputs: words of the frame, and arrays for outputs.

    `allocate` makes these, `specs` are their shapes; both lack outputs of which only data tell."""

    def __init__(
        self,
        words: Sequence[tuple[int, int]],
        allocate: Mapping[int, Callable[[], Array]],
        specs: Mapping[int, tuple[int, ...]],
    ) -> None:
        self.inputs, self._outputs = inputs, outputs
        self._calls = Calls(prepare, sizes_change)
        self.find = self._calls.find
        self.run: Callable[[Mapping[str, Any]], list[Any] | None] = _run(inputs, self._calls)

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Array]) -> Binding | None:
        """What runs on these very arrays, which have been checked as far as one can without their
        sizes; None where that needs the ordinary way."""
        inputs = [feeds[value.name] for value in self._program.inputs]
        for array, value in zip(inputs, self._program.inputs, strict=True):
            assert value.dtype is not None
            if not isinstance(array, np.ndarray) or array.dtype != value.dtype.numpy:
                return None
            if not is_usable(array, value.alignment):
                return None
        numbers = self._program.body.outputs
        if not {*self._sized}.issuperset(numbers):
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
                results[number] = output
            else:
                results.setdefault(number, sizes.allocate[number]())
        return self._bound(sizes, inputs, results)

    def _bound(
        self, sizes: Sizes, inputs: Sequence[Array], results: Mapping[int, Array]
    ) -> Binding:
        executor, body = self._executor, self._program.body
        frame = Frame(executor.linked)
        sizes.write(frame)
        arrays = [*zip(body.inputs, inputs, strict=True), *results.items()]
        for number, array in arrays:
            frame.words[self._places[number] + Field.DATA] = address_of(array)
        ordered = [results[number] for number in body.outputs]
        execute, base, finish = frame.execute, frame.base, self._finish
        lock = threading.Lock()

        def run(_held: object = (frame, arrays)) -> list[Array]:
            with lock:
                status = execute(base)
                if status:
                    finish(frame, status)
            return ordered.copy()

        return run


def _accepted(position: int, value: Value, names: dict[str, object]) -> list[str]:
    """Lines that take an input from the feeds, if it needs no conversion."""
    assert value.dtype is not None
    dtype = value.dtype.numpy
    names[f"name{position}"], names[f"dtype{position}"] = value.name, dtype
    # By NumPy's words a "carray" is contiguous, aligned as its dtype asks, and writable.
    lines = [
        f"x{position} = feeds.get(name{position})",
        f"if type(x{position}) is not ndarray or x{position}.dtype is not dtype{position}"
        f" or not x{position}.flags.carray:",
        "    return None",
    ]
    if value.alignment > dtype.alignment:
        lines += [f"if address_of(x{position}) % {value.alignment}:", "    return None"]
    return lines


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
