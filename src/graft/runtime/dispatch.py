"""The fast path of a run: feeds like those of earlier runs in, results of the driver out.

Feeds are looked at in one pass, input by input: plain NumPy arrays that kernels can use where they
lie, of the very dtype. Whatever else comes (subclasses, lists, tensors of other libraries, other
layouts, byte orders and types, arrays that are read-only or misaligned, wrong names) is left to the
ordinary way, which converts it or says what is wrong with it, as it does with sizes that do not fit
together. Hence nothing is refused here, and no error is worded twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.program.instructions import RegionCall, Transfer, writes
from graft.program.layout import Status
from graft.program.layout import Value as Field
from graft.program.program import Value
from graft.runtime.executor import Executor
from graft.runtime.frames import Frame
from graft.runtime.generated import define
from graft.runtime.memory import address_of, is_usable
from graft.runtime.run import Run
from graft.runtime.sizes import Sizes, SizeTable

_STRINGS, _OBJECT = "tensor(string)", np.dtype(object)

# What a model that is bound to arrays is: calling it runs the model and gives the results.
Binding = Callable[[], list[Any]]


class Dispatcher:
    """Runs feeds that need no conversion. Safe to use from several threads.

    `run(feeds)` gives all results, or None where the ordinary way has to be taken. Nothing of it
    refers back to it, so that a model's threads and memory go with the last reference."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._program = executor, executor.program
        self._addresses = executor.linked.image.values
        self._table = SizeTable(executor)
        # The outputs that can be wherever the caller wants them; others are copied from the frame.
        self._sized = [number for number, _ in executor.sized]
        self.run: Callable[[Mapping[str, Any]], list[Any] | None] = self._written_out()

    @classmethod
    def of(cls, executor: Executor) -> Dispatcher | None:
        """The short way of a program; None where it takes other things than tensors, gives
        something that it has not made, or calls regions, whose devices may be lost on the way."""
        program = executor.program
        if any(isinstance(one, RegionCall | Transfer) for one in program.instructions):
            return None
        inputs = [value.dtype is not None or value.type == _STRINGS for value in program.inputs]
        own = {number for one in program.body.instructions for number in writes(one)}
        return cls(executor) if all(inputs) and own.issuperset(program.body.outputs) else None

    def _written_out(self) -> Callable[..., Any]:
        """`run`, written out for the inputs and outputs of this program."""
        executor, body = self._executor, self._program.body
        names: dict[str, object] = {
            "ndarray": np.ndarray,
            "address_of": address_of,
            "ready": self._table.ready,
            "prepare": self._table.prepare,
            "free": executor.frames,
            "new": executor.take_frame,
            "execute": executor.linked.execute,
            "finish": partial(_finish, executor),
        }
        lines = [f"if len(feeds) != {len(body.inputs)}:", "    return None"]
        for position, value in enumerate(self._program.inputs):
            lines += _accepted(position, value, names)
        shapes = "".join(f"x{position}.shape, " for position in range(len(body.inputs)))
        lines += [
            f"sizes = ready.get(({shapes}))",
            "if sizes is None:",
            f"    sizes = prepare(({shapes}))",
            "    if sizes is None:",
            "        return None",
            "try:",
            "    frame = free.pop()",
            "except IndexError:",
            "    frame = new()",
            "words = frame.words",
            "if frame.sizes is not sizes:",
            "    sizes.write(frame)",
        ]
        beside = []  # inputs that are not in the frame
        for position, number in enumerate(body.inputs):
            if number in self._addresses:
                address = self._addresses[number] + Field.DATA
                lines.append(f"words[{address}] = address_of(x{position})")
            else:
                beside.append(f"{number}: x{position}")
        before, after = self._output_lines()
        # A run that fails does not give its frame back; the next one makes another.
        lines += [*before, "status = execute(frame.base)"]
        if beside or any(number not in self._addresses for number in body.outputs):
            lines += [f"run = finish(frame, status, {{{', '.join(beside)}}})"]
        else:  # what the run holds is needed until results have been copied
            lines += ["if status:", "    run = finish(frame, status, {})"]
        results = ", ".join(f"r{number}" for number in body.outputs)
        lines += [*after, "free.append(frame)", f"return [{results}]"]
        return define(["feeds"], lines, names)

    def _output_lines(self) -> tuple[list[str], list[str]]:
        """What is done for outputs before a run, and after it."""
        before, after = ["allocate = sizes.allocate"] if self._sized else [], []
        kinds = self._table.kinds
        for number in dict.fromkeys(self._program.body.outputs):
            if number not in self._addresses:
                after += [f"r{number} = run.values.objects[{number}]"]
                continue
            address = self._addresses[number] + Field.DATA
            if number in self._sized:
                before.append(f"r{number}, words[{address}] = allocate[{kinds[number]}]()")
            else:
                before += [f"if not words[{address + Field.OWNER}]:", f"    words[{address}] = 0"]
                after += [f"r{number} = frame.copied({number})"]
        return before, after

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Array]) -> Binding | None:
        """What runs on these very arrays, which have been checked as far as one can without their
        sizes; None where that needs the ordinary way."""
        inputs = [feeds[value.name] for value in self._program.inputs]
        for array, value in zip(inputs, self._program.inputs, strict=True):
            if not isinstance(array, np.ndarray) or value.dtype is None:
                return None
            if array.dtype != value.dtype.numpy:
                return None
            if not is_usable(array, value.alignment):
                return None
        numbers = self._program.body.outputs
        if not {*self._sized}.issuperset(numbers):
            return None
        sizes = self._table.measured(tuple(array.shape for array in inputs))
        kinds, results = self._table.kinds, dict[int, Array]()
        for number, name in zip(numbers, self._program.output_names, strict=True):
            value, output = self._program.values[number], outputs.get(name)
            assert value.dtype is not None
            if output is not None:
                check_output(name, sizes.shapes[kinds[number]], value.dtype.numpy, output)
                apart = not any(np.may_share_memory(output, array) for array in inputs)
                if number in results or not (apart and is_usable(output, value.alignment)):
                    return None
                results[number] = output
            else:
                results.setdefault(number, sizes.allocate[kinds[number]]()[0])
        return self._bound(sizes, inputs, results)

    def _bound(
        self, sizes: Sizes, inputs: Sequence[Array], results: Mapping[int, Array]
    ) -> Binding:
        executor, body = self._executor, self._program.body
        frame = Frame(executor.linked)
        sizes.write(frame)
        arrays = [*zip(body.inputs, inputs, strict=True), *results.items()]
        for number, array in arrays:
            frame.words[self._addresses[number] + Field.DATA] = address_of(array)
        ordered = [results[number] for number in body.outputs]
        execute, base, finish = frame.execute, frame.base, partial(_finish, executor)
        lock = threading.Lock()

        def run(_held: object = (frame, arrays)) -> list[Array]:
            with lock:
                status = execute(base)
                if status:
                    finish(frame, status, {})
            return ordered.copy()

        return run


def _finish(executor: Executor, frame: Frame, status: int, beside: Mapping[int, Any]) -> Run:
    """Run to the end; `beside` are values that are not in the frame."""
    run = executor.run_in(frame)
    run.values.objects.update(beside)
    executor.finish(run, Status(status))
    return run


def _accepted(position: int, value: Value, names: dict[str, object]) -> list[str]:
    """Lines that take an input from the feeds, if it needs no conversion."""
    dtype = _OBJECT if value.dtype is None else value.dtype.numpy
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
