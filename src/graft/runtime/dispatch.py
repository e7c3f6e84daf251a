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
from functools import lru_cache, partial
from textwrap import indent
from types import CodeType
from typing import Any

import numpy as np

from graft.base.dims import bare_symbol
from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.program.extents import Extents
from graft.program.instructions import RegionCall, Transfer, writes
from graft.program.layout import VALUE_WORDS, Status
from graft.program.layout import Value as Field
from graft.program.program import Value
from graft.runtime.executor import Executor
from graft.runtime.frames import Frame
from graft.runtime.memory import address_of, is_usable
from graft.runtime.run import Run

# Sizes that are remembered.
REMEMBERED = 64

_STRINGS, _OBJECT = "tensor(string)", np.dtype(object)

# What a model that is bound to arrays is: calling it runs the model and gives the results.
Binding = Callable[[], list[Any]]
Shapes = tuple[tuple[int, ...], ...]


class Sizes:
    """What follows from the shapes of the inputs: words of the frame, and arrays for outputs.

    `allocate` makes these, `specs` are their shapes; both lack outputs of which only data tell."""

    def __init__(
        self,
        words: Sequence[tuple[int, int]],
        allocate: Mapping[int, Callable[[], Array]],
        specs: Mapping[int, tuple[int, ...]],
    ) -> None:
        self.words, self.allocate, self.specs = words, allocate, specs

    def write(self, frame: Frame) -> None:
        """Let a frame have them."""
        words = frame.words
        for position, word in self.words:
            words[position] = word
        frame.sizes = self


class SizeTable:
    """Sizes of a program, by the shapes of its inputs; those that came last are remembered."""

    def __init__(self, executor: Executor) -> None:
        self.ready: dict[Shapes, Sizes] = {}
        self._executor, self._lock = executor, threading.Lock()

    def prepare(self, shapes: Shapes) -> Sizes | None:
        """What follows from shapes that are new; None where the ordinary way tells what is wrong
        with them."""
        try:
            sizes = self.measured(shapes)
        except GraftError:
            return None
        with self._lock:
            self.ready[shapes] = sizes
            if len(self.ready) > REMEMBERED:
                del self.ready[next(iter(self.ready))]
        return sizes

    def measured(self, shapes: Shapes) -> Sizes:
        """What follows from shapes."""
        executor, body = self._executor, self._executor.program.body
        places, values = executor.linked.image.values, executor.program.values
        symbols: dict[str, int] = {}
        words: list[tuple[int, int]] = []
        for number, shape in zip(body.inputs, shapes, strict=True):
            dims = values[number].shape
            if dims is None:
                continue
            if len(dims) != len(shape):
                raise UserError("an input has another rank")
            if number in places:
                first = places[number] + VALUE_WORDS
                words += [(first + axis, extent) for axis, extent in enumerate(shape)]
            for dim, extent in zip(dims, shape, strict=True):
                name = bare_symbol(dim)
                known = dim if name is None else symbols.setdefault(name, extent)
                if isinstance(known, int) and known != extent:
                    raise UserError("an input has another extent")
        extents = Extents(symbols)
        allocate: dict[int, Callable[[], Array]] = {}
        specs: dict[int, tuple[int, ...]] = {}
        for number, value in executor.sized:
            assert value.dtype is not None
            specs[number] = shape = tuple([extents[dim] for dim in value.shape or ()])
            if min(shape, default=0) < 0:
                raise UserError("an output would have a negative extent")
            how = value.dtype.numpy, value.alignment
            allocate[number] = executor.context.results.allocator(shape, *how)
            words.append((places[number] + Field.OWNER, 0))
        return Sizes(words, allocate, specs)


class Dispatcher:
    """Runs feeds that need no conversion. Safe to use from several threads.

    `run(feeds)` gives all results, or None where the ordinary way has to be taken. Nothing of it
    refers back to it, so that a model's threads and memory go with the last reference."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._program = executor, executor.program
        self._places = executor.linked.image.values
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
            if number in self._places:
                place = self._places[number] + Field.DATA
                lines.append(f"words[{place}] = address_of(x{position})")
            else:
                beside.append(f"{number}: x{position}")
        before, after = self._output_lines()
        # A run that fails does not give its frame back; the next one makes another.
        lines += [*before, "status = execute(frame.base)"]
        if beside or any(number not in self._places for number in body.outputs):
            lines += [f"run = finish(frame, status, {{{', '.join(beside)}}})"]
        else:  # what the run holds is needed until results have been copied
            lines += ["if status:", "    run = finish(frame, status, {})"]
        results = ", ".join(f"r{number}" for number in body.outputs)
        lines += [*after, "free.append(frame)", f"return [{results}]"]
        return define(["feeds"], lines, names)

    def _output_lines(self) -> tuple[list[str], list[str]]:
        """What is done for outputs before a run, and after it."""
        before, after = ["allocate = sizes.allocate"] if self._sized else [], []
        for number in dict.fromkeys(self._program.body.outputs):
            if number not in self._places:
                after += [f"r{number} = run.values.objects[{number}]"]
                continue
            place = self._places[number] + Field.DATA
            if number in self._sized:
                before += [
                    f"r{number} = allocate[{number}]()",
                    f"words[{place}] = address_of(r{number})",
                ]
            else:
                before += [f"if not words[{place + Field.OWNER}]:", f"    words[{place}] = 0"]
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
        results: dict[int, Array] = {}
        for number, name in zip(numbers, self._program.output_names, strict=True):
            value, output = self._program.values[number], outputs.get(name)
            assert value.dtype is not None
            if output is not None:
                check_output(name, sizes.specs[number], value.dtype.numpy, output)
                apart = not any(np.may_share_memory(output, array) for array in inputs)
                if number in results or not (apart and is_usable(output, value.alignment)):
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


def define(
    parameters: Sequence[str], lines: Sequence[str], names: Mapping[str, object]
) -> Callable[..., Any]:
    """Make a function of these lines. Whatever belongs to a model comes by `names`, never as text.

    Loops over one input and one output, and the lists that they fill, take longer than what is done
    in them: what every run goes through is written out for the inputs and outputs of the model."""
    scope: dict[str, Any] = dict(names)
    source = f"def run({', '.join(parameters)}):\n{indent(chr(10).join(lines), '    ')}\n"
    exec(_compiled(source), scope)
    # Not to stay there: what a function holds should go as soon as the function does.
    function: Callable[..., Any] = scope.pop("run")
    return function


@lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    """The same program at another size has the same lines."""
    return compile(source, "<graft run>", "exec")
