"""The short way of a run: feeds as earlier runs had them in, results of a native call out.

Feeds are looked at in one pass, input by input: plain NumPy arrays that kernels can use where they
lie, of the very dtype, and by their shapes a program that is ready to be called. Whatever else
comes (subclasses, lists, tensors of other libraries, other layouts, byte orders and types, arrays
that are read-only or misaligned, wrong names and sizes) is left to the ordinary way, which converts
it or says what is wrong with it. Hence nothing is refused here, and no error is worded twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.runtime.memory import address_of, is_usable
from graft.runtime.native_call import NativeCall

# Sizes that stay ready.
REMEMBERED = 8

Shapes = tuple[tuple[int, ...], ...]
# The name of an input, its dtype, and how its address has to be aligned.
Expected = tuple[str, np.dtype[Any], int]


class Dispatcher:
    """Finds the native call for feeds. Safe to use from several threads.

    `prepare` makes it for inputs of sizes that have not been seen: None where there is none, an
    error where these sizes do not fit together."""

    def __init__(
        self,
        inputs: Sequence[Expected],
        outputs: Sequence[str],
        prepare: Callable[[Sequence[Array]], NativeCall | None],
    ) -> None:
        self.inputs, self._outputs, self._prepare = tuple(inputs), outputs, prepare
        self._count = len(inputs)
        self._calls: dict[Shapes, NativeCall] = {}
        self._lock = threading.Lock()

    def __call__(self, feeds: Mapping[str, Any]) -> list[Array] | None:
        """All results, or None where the ordinary way has to be taken."""
        if len(feeds) != self._count:
            return None
        arrays, shapes, addresses = [], [], []
        for name, dtype, alignment in self.inputs:
            array = feeds.get(name)
            # By NumPy's words a "carray" is contiguous, aligned as its dtype asks, and writable.
            if type(array) is not np.ndarray or array.dtype is not dtype or not array.flags.carray:
                return None
            address = address_of(array)
            if address % alignment:
                return None
            arrays.append(array)  # held here, whatever becomes of the feeds meanwhile
            shapes.append(array.shape)
            addresses.append(address)
        call = self._calls.get(tuple(shapes))
        if call is None:
            try:
                call = self.find(arrays)
            except GraftError:
                return None
            if call is None:
                return None
        return call(addresses)

    def find(self, inputs: Sequence[Array]) -> NativeCall | None:
        """The native call for inputs of these sizes; dtypes and layouts have been checked."""
        shapes = tuple([array.shape for array in inputs])
        with self._lock:
            call = self._calls.get(shapes)
            if call is None:
                call = self._prepare(inputs)
                if call is not None:
                    self._calls[shapes] = call
                    if len(self._calls) > REMEMBERED:
                        del self._calls[next(iter(self._calls))]
        return call

    def bind(
        self, feeds: Mapping[str, Any], homes: Mapping[str, Array]
    ) -> Callable[[], list[Array]] | None:
        """What runs on these very arrays, which have been checked as far as one can without their
        sizes; None where that needs the ordinary way."""
        inputs = [feeds[name] for name, *_ in self.inputs]
        for array, (_, dtype, alignment) in zip(inputs, self.inputs, strict=True):
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                return None
            if not is_usable(array, alignment):
                return None
        call = self.find(inputs)
        if call is None:
            return None
        own: list[Array | None] = []
        for name, (shape, dtype, alignment) in zip(self._outputs, call.results, strict=True):
            home = homes.get(name)
            own.append(home)
            if home is not None:
                check_home(name, shape, dtype, home)
                apart = not any(np.may_share_memory(home, array) for array in inputs)
                if not (apart and is_usable(home, alignment)):
                    return None
        return call.bind(inputs, own)


def check_home(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], home: Array) -> None:
    """Refuse an array that an output of this shape and dtype cannot be written into."""
    if shape != home.shape:
        shapes = [f"[{', '.join(map(str, one))}]" for one in (shape, home.shape)]
        raise UserError(
            f"the output '{name}' came out as {shapes[0]}, and its array is {shapes[1]}"
        )
    if dtype != home.dtype:
        raise UserError(f"the output '{name}' is {dtype}, and its array is {home.dtype}")


class Binding:
    """A model bound to arrays: each call runs it on what they hold by then, and gives the results.

    Calls from several threads take turns."""

    def __init__(self, run: Callable[[], list[Any]]) -> None:
        self._run, self._lock = run, threading.Lock()

    def __call__(self) -> list[Any]:
        with self._lock:
            return self._run()


def bound(
    run: Callable[..., list[Any]],
    dispatcher: Dispatcher | None,
    feeds: Mapping[str, Any],
    homes: Mapping[str, Array] | None,
) -> Binding:
    """A binding to feeds and homes, which have been checked as far as one can without their sizes;
    `run` is the ordinary way of names, feeds and homes."""
    call = None if dispatcher is None else dispatcher.bind(feeds, homes or {})
    return Binding(call or partial(run, None, dict(feeds), homes and dict(homes)))
