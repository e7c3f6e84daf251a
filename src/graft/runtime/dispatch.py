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
from functools import lru_cache, partial
from textwrap import indent
from types import CodeType
from typing import Any

import numpy as np

from graft.base.dims import AnyDim, bare_symbol
from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.program.extents import Extents
from graft.program.instructions import RegionCall, Transfer, writes
from graft.program.layout import VALUE_WORDS, Status
from graft.program.layout import Value as Field
from graft.program.program import Value
from graft.runtime.executor import Executor
from graft.runtime.frames import Frame
from graft.runtime.memory import ResultPool, address_of, is_usable
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
        self._lock = threading.Lock()
        self._extents = self._written_out(executor)
        addresses = executor.linked.image.values
        inputs = [(n, executor.program.values[n].shape) for n in executor.program.body.inputs]
        self._positions = [
            addresses[number] + VALUE_WORDS + axis
            for number, dims in inputs
            if number in addresses and dims is not None
            for axis in range(len(dims))
        ]
        self._owners = [(addresses[number] + Field.OWNER, 0) for number, _ in executor.sized]
        self._allocators = [
            (number, partial(_allocator, executor.context.results, value))
            for number, value in executor.sized
        ]

    def prepare(self, shapes: Shapes) -> Sizes | None:
        """What follows from new shapes; None where the checked path has to say what is wrong
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
        try:
            extents, outputs = self._extents(*shapes)
        except (ValueError, TypeError):
            raise UserError("an input has another rank") from None
        words = [*zip(self._positions, extents, strict=True), *self._owners]
        specs = {
            number: shape for (number, _), shape in zip(self._allocators, outputs, strict=True)
        }
        allocate = {number: make(specs[number]) for number, make in self._allocators}
        return Sizes(words, allocate, specs)

    def _written_out(self, executor: Executor) -> Callable[..., Any]:
        """Shapes of the inputs in; extents for the frame and shapes of the outputs out. Written out
        for this program, since in a model whose sizes grow every run has new ones."""
        program, addresses = executor.program, executor.linked.image.values
        names: dict[str, object] = {"refuse": _refuse_extent, "Extents": Extents}
        symbols: dict[str, str] = {}  # and the variables that hold their numbers
        lines, tests, extents = [], [], []
        for position, number in enumerate(program.body.inputs):
            dims = program.values[number].shape
            if dims is None:
                continue
            variables = [f"a{position}_{axis}" for axis in range(len(dims))]
            lines.append(f"[{', '.join(variables)}] = s{position}")
            extents += variables if number in addresses else []
            for dim, variable in zip(dims, variables, strict=True):
                name = bare_symbol(dim)
                expected = str(dim) if isinstance(dim, int) else symbols.get(name or "")
                if expected is not None:
                    tests.append(f"{variable} == {expected}")
                elif name is not None:
                    symbols[name] = variable
        if tests:
            lines += [f"if not ({' and '.join(tests)}):", "    refuse()"]
        outputs = self._output_shapes(executor, symbols, names, lines)
        lines.append(f"return [{', '.join(extents)}], [{outputs}]")
        return define([f"s{n}" for n in range(len(program.inputs))], lines, names)

    def _output_shapes(
        self,
        executor: Executor,
        symbols: Mapping[str, str],
        names: dict[str, object],
        lines: list[str],
    ) -> str:
        """The shapes of the outputs as Python's text; adds what computes extents to the lines."""
        computed: dict[AnyDim, str] = {}
        shapes = []
        for _, value in executor.sized:
            items = []
            for dim in value.shape or ():
                variable = symbols.get(bare_symbol(dim) or "")
                if variable is None and not isinstance(dim, int):
                    variable = computed.setdefault(dim, f"x{len(computed)}")
                items.append(str(dim) if variable is None else variable)
            shapes.append(f"({''.join(f'{item}, ' for item in items)})")
        if computed:
            names["names"] = tuple(symbols)
            lines.append(f"extents = Extents(dict(zip(names, ({', '.join(symbols.values())},))))")
        for expression, variable in computed.items():
            names[f"dim_{variable}"] = expression
            lines += [
                f"{variable} = extents[dim_{variable}]",
                f"if {variable} < 0:",
                "    refuse()",
            ]
        return ", ".join(shapes)


def _refuse_extent() -> None:
    raise UserError("an input or an output has another extent")


def _allocator(results: ResultPool, value: Value, shape: tuple[int, ...]) -> Callable[[], Array]:
    assert value.dtype is not None
    return results.allocator(shape, value.dtype.numpy, value.alignment)


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
        for number in dict.fromkeys(self._program.body.outputs):
            if number not in self._addresses:
                after += [f"r{number} = run.values.objects[{number}]"]
                continue
            address = self._addresses[number] + Field.DATA
            if number in self._sized:
                before += [
                    f"r{number} = allocate[{number}]()",
                    f"words[{address}] = address_of(r{number})",
                ]
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
