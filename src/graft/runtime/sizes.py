"""What follows from the shapes of a program's inputs: extents for frames, and shapes of outputs.

In a model whose sizes grow, as a decoder's with a cache, every run has new ones: extents are
computed by Python that is generated for the program, the same ones once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from graft.base.dims import AnyDim, IndexExpr, bare_symbol, evaluate_call
from graft.base.errors import GraftError, InternalError, UserError
from graft.base.polynomials import Atom
from graft.program.layout import VALUE_WORDS
from graft.program.layout import Value as Field
from graft.program.program import Value
from graft.runtime.executor import Executor
from graft.runtime.frames import Frame
from graft.runtime.generated import define
from graft.runtime.memory import Allocator

# Sizes that are remembered.
REMEMBERED = 64

Shapes = tuple[tuple[int, ...], ...]


class Sizes:
    """What follows from the shapes of the inputs: words of the frame, and arrays for outputs.

    Outputs are of some *kinds*, each of one shape, dtype and alignment. `shapes` are those of the
    kinds, and `allocate` makes arrays; both lack outputs of which only data tell."""

    __slots__ = ("_positions", "_words", "allocate", "shapes")

    def __init__(
        self,
        positions: Sequence[int],
        words: Sequence[int],
        shapes: Shapes,
        allocate: Sequence[Allocator],
    ) -> None:
        self._positions, self._words = positions, words
        self.shapes, self.allocate = shapes, allocate

    def write(self, frame: Frame) -> None:
        """Let a frame have them."""
        words = frame.words
        for position, word in zip(self._positions, self._words, strict=True):
            words[position] = word
        frame.sizes = self


class SizeTable:
    """Sizes of a program, by the shapes of its inputs; those that came last are remembered."""

    def __init__(self, executor: Executor) -> None:
        self.ready: dict[Shapes, Sizes] = {}
        self._lock = threading.Lock()
        values, body = executor.program.values, executor.program.body
        addresses = executor.linked.image.values
        inputs = [number for number in body.inputs if values[number].shape is not None]
        extents = [
            addresses[number] + VALUE_WORDS + axis
            for number in inputs
            if number in addresses
            for axis in range(len(values[number].shape or ()))
        ]
        owners = [addresses[number] + Field.OWNER for number, _ in executor.sized]
        self._positions = (*extents, *owners)
        kinds: dict[tuple[object, ...], int] = {}
        # By the number of an output, its kind.
        self.kinds = {n: kinds.setdefault(_kind(value), len(kinds)) for n, value in executor.sized}
        by_kind = {self.kinds[number]: value for number, value in executor.sized}
        results = executor.context.results
        self._allocators = [
            partial(results.allocator, dtype=_dtype(value), alignment=value.alignment)
            for value in by_kind.values()
        ]
        self._measure = _written_out(executor, [*by_kind.values()], len(owners))

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
            words, outputs = self._measure(*shapes)
        except (ValueError, TypeError):
            raise UserError("an input has another rank") from None
        allocate = [make(shape) for make, shape in zip(self._allocators, outputs, strict=True)]
        return Sizes(self._positions, words, outputs, allocate)


def _kind(value: Value) -> tuple[object, ...]:
    return value.shape, value.dtype, value.alignment


def _dtype(value: Value) -> Any:
    assert value.dtype is not None
    return value.dtype.numpy


def _written_out(
    executor: Executor, outputs: Sequence[Value], owners: int
) -> Callable[..., tuple[Sequence[int], Shapes]]:
    """Shapes of the inputs in; words for the frame, zeros for so many owners among them, and shapes
    for outputs out."""
    program, addresses = executor.program, executor.linked.image.values
    names: dict[str, object] = {"refuse": _refuse_extent}
    symbols: dict[str, str] = {}  # and the variables that hold their numbers
    lines, tests, words = [], [], []
    for position, number in enumerate(program.body.inputs):
        dims = program.values[number].shape
        if dims is None:
            continue
        variables = [f"a{position}_{axis}" for axis in range(len(dims))]
        lines.append(f"[{', '.join(variables)}] = s{position}")
        words += variables if number in addresses else []
        for dim, variable in zip(dims, variables, strict=True):
            name = bare_symbol(dim)
            expected = str(dim) if isinstance(dim, int) else symbols.get(name or "")
            if expected is not None:
                tests.append(f"{variable} == {expected}")
            elif name is not None:
                symbols[name] = variable
    if tests:
        lines += [f"if not ({' and '.join(tests)}):", "    refuse()"]
    writer = _DimWriter(symbols, names, lines)
    shapes = [_tuple([writer.extent(dim) for dim in value.shape or ()]) for value in outputs]
    lines.append(f"return {_tuple([*words, *['0'] * owners])}, {_tuple(shapes)}")
    return define([f"s{n}" for n in range(len(program.inputs))], lines, names)


def _tuple(items: Sequence[str]) -> str:
    return f"({''.join(f'{item}, ' for item in items)})"


def _refuse_extent() -> None:
    raise UserError("an input or an output has another extent")


class _DimWriter:
    """Dims as Python: lines that compute them, and what they are called from then on."""

    def __init__(
        self, symbols: Mapping[str, str], names: dict[str, object], lines: list[str]
    ) -> None:
        self._symbols, self._names, self._lines = symbols, names, lines
        self._extents: dict[AnyDim, str] = {}
        self._calls: dict[Atom, str] = {}

    def extent(self, dim: AnyDim) -> str:
        """An extent of an output, which is refused if it is negative."""
        if isinstance(dim, int) or bare_symbol(dim) is not None:
            return self._text(dim)
        variable = self._extents.get(dim)
        if variable is None:
            text = self._text(dim)
            variable = self._extents[dim] = f"x{len(self._extents)}"
            self._lines += [f"{variable} = {text}", f"if {variable} < 0:", "    refuse()"]
        return variable

    def _text(self, dim: AnyDim) -> str:
        if isinstance(dim, int):
            return str(dim)
        if not isinstance(dim, IndexExpr):
            raise InternalError("the size of an output that is known is unknown")
        terms = []
        for monomial, factor in dim.terms:
            factors = [self._atom(atom, dim) for atom in monomial]
            terms.append(" * ".join([str(factor), *factors] if factor != 1 else factors or ["1"]))
        return " + ".join(terms)

    def _atom(self, atom: Atom, dim: IndexExpr) -> str:
        if not atom.is_call:
            return self._symbols[atom.name]
        variable = self._calls.get(atom)
        if variable is None:
            arguments = ", ".join([self._text(argument) for argument in atom.arguments])
            variable = self._calls[atom] = f"c{len(self._calls)}"
            self._names[f"call_{variable}"] = partial(evaluate_call, atom.name, dim=dim)
            self._lines.append(f"{variable} = call_{variable}([{arguments}])")
        return variable
