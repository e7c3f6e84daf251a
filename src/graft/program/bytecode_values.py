"""Bytecode for values: their addresses, the symbols that their extents bind, and their release.

The first part of the encoder: loops (`bytecode_loops.py`) and blocks (`bytecode.py`) stand on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graft.base.dims import Unknown, bare_symbol, symbols_of
from graft.base.errors import Location
from graft.program.bytecode_segments import (
    WORK_PER_OPERATION,
    segment_symbols,
)
from graft.program.bytecode_work import (
    Assign,
    Failure,
    Path,
    PythonWork,
    ReadExtents,
    ReadItem,
    Release,
    ShapeFailure,
)
from graft.program.instructions import (
    BindSymbol,
    Segment,
    SizeFunction,
    Switch,
)
from graft.program.layout import (
    HEADER_WORDS,
    VALUE_WORDS,
    Opcode,
)
from graft.program.numbers import Number, Numbers
from graft.program.program import Program, Value
from graft.program.words import Address, Label, Words


class ValueCode:
    """Code about values: what they are, their extents, and when they go."""

    def __init__(self, program: Program, threads: int) -> None:
        self._program, self._threads = program, threads
        flops, moved = program.target.core
        self._work_per_byte = max(1, round(WORK_PER_OPERATION * flops / moved))
        self._words = Words()
        self._numbers = Numbers(self._words)
        self._addresses: dict[int, Address] = {}
        self._constants = frozenset(number for number, _ in program.constants)
        self._dying: frozenset[int] = frozenset()  # values that an instruction is the last to read
        self._work: list[tuple[PythonWork, Path, bool]] = []
        self._loops = 0  # around what is being written
        self._failures: list[Failure] = []
        self._segments: list[tuple[Segment, Path]] = []
        self._path: Path = ()
        self._location: Location | None = None
        self._direct: set[int] = set()
        self._united: dict[int, int] = {}  # values that are another one's from the beginning
        self._words.put(*[0] * HEADER_WORDS)
        for symbol in dict.fromkeys(_symbols(program)):
            self._numbers.registers[symbol] = self._words.put(-1)
        for number, value in enumerate(program.values):
            if value.is_native:
                self._addresses[number] = self._described(value)
        for number in self._constants & self._addresses.keys():
            self._words.constants.append((self._addresses[number].position, number))
        self._pool = self._words.put(*[0] * VALUE_WORDS)

    def _described(self, value: Value) -> Address:
        shape = (0,) if value.element is not None else value.shape or ()
        return self._words.put(0, 0, *(dim if isinstance(dim, int) else 0 for dim in shape))

    def _lay_out_pool(self) -> None:
        """Memory for values that live across segments, and where in it each of them is."""
        numbers, words = self._numbers, self._words
        if not self._program.pool:
            return
        size = numbers.largest([numbers.of(dim) for dim in self._program.pool])
        words.emit(Opcode.ALLOCATE, self._pool, numbers.address(size))
        for number, value in enumerate(self._program.values):
            if value.slot is not None and number in self._addresses:
                offset = numbers.address(numbers.of(value.slot.offset))
                extents = [numbers.address(numbers.of(dim)) for dim in value.shape or ()]
                listed = words.put(*extents)
                address = self._addresses[number]
                words.emit(Opcode.PLACE, address, self._pool, offset, len(extents), listed)

    def _python(self, work: PythonWork) -> None:
        self._words.emit(Opcode.PYTHON, len(self._work))
        self._work.append((work, self._path, self._loops > 0))
        self._numbers.forget()

    def _failure(self, failure: Failure) -> int:
        self._failures.append(failure)
        return len(self._failures) - 1

    def _mark(self, label: Label) -> None:
        self._words.mark(label)
        self._numbers.forget()

    def _register(self, number: int = 0) -> Address:
        return self._words.put(number)

    def _copy(self, register: Address, number: Number) -> None:
        self._words.emit(Opcode.COPY, register, self._numbers.address(number))

    def _bind(self, numbers: Iterable[int], bound_symbols: set[str]) -> None:
        """Symbols get their numbers from the shapes of values; other extents are checked."""
        native: list[int] = []
        for number in numbers:
            if number in self._addresses:
                native.append(number)
            elif not self._program.values[number].space:
                self._bind_beside(number, bound_symbols)
        bound: set[tuple[int, int]] = set()
        for number in native:
            for axis, dim in enumerate(self._program.values[number].shape or ()):
                name = bare_symbol(dim)
                if name is not None and name not in bound_symbols:
                    bound_symbols.add(name)
                    bound.add((number, axis))
                    register = self._numbers.registers[name]
                    self._words.emit(Opcode.EXTENT, register, self._addresses[number], axis)
        self._numbers.forget()
        for number in native:
            for axis, dim in enumerate(self._program.values[number].shape or ()):
                if (number, axis) in bound or isinstance(dim, Unknown):
                    continue
                if bound_symbols.issuperset(symbols_of(dim)):
                    expected = self._numbers.address(self._numbers.of(dim))
                    failure = self._failure(ShapeFailure(number, self._location))
                    self._words.emit(Opcode.CHECK, self._addresses[number], axis, expected, failure)

    def _bind_beside(self, number: int, bound_symbols: set[str]) -> None:
        """Symbols get their numbers from the shape of a value that native code does not hold."""
        registers: list[tuple[int, int]] = []
        for axis, dim in enumerate(self._program.values[number].shape or ()):
            name = bare_symbol(dim)
            if name is not None and name not in bound_symbols:
                bound_symbols.add(name)
                registers.append((axis, self._numbers.registers[name].position))
        if registers:
            self._python(ReadExtents(number, tuple(registers)))

    def _assign(self, targets: Sequence[int], sources: Sequence[int]) -> None:
        """Values become what others are."""
        others = []
        for target, source in zip(targets, sources, strict=True):
            if target in self._addresses and source in self._addresses:
                self._move(self._addresses[target], self._addresses[source], self._rank(target))
            elif target != source:
                others.append((target, source))
        if others:
            self._python(Assign(*zip(*others, strict=True)))

    def _move(self, target: Address, source: Address, rank: int) -> None:
        if target != source:
            self._words.emit(Opcode.MOVE, target, source, rank)

    def _rank(self, number: int) -> int:
        """How many extents a value has; of a list, the length is one."""
        value = self._program.values[number]
        return 1 if value.element is not None else len(value.shape or ())

    def _itemsize(self, number: int) -> int:
        dtype = self._program.values[number].dtype
        assert dtype is not None
        return dtype.numpy.itemsize

    def _free(self, numbers: Iterable[int]) -> None:
        """Values go; not those that have their places for good."""
        on_device: list[int] = []
        for number in numbers:
            if self._program.values[number].slot is not None:
                continue
            if number in self._addresses and number not in self._constants:
                self._words.emit(Opcode.FREE, self._addresses[number])
            elif self._program.values[number].space:
                on_device.append(number)
        if on_device:
            self._python(Release(tuple(on_device)))

    def _item(self, register: Address, value: int, index: int = 0) -> None:
        """An element of a value goes to a register."""
        if value in self._addresses:
            size = self._itemsize(value)
            for axis, dim in enumerate(self._program.values[value].shape or ()):
                if not isinstance(dim, int):  # which the verifier has looked at
                    failure = self._failure(ShapeFailure(value, self._location))
                    one = self._numbers.address(1)
                    self._words.emit(Opcode.CHECK, self._addresses[value], axis, one, failure)
            self._words.emit(Opcode.ITEM, register, self._addresses[value], size, index)
        else:
            self._python(ReadItem(value, register.position))

    def _store_number(self, value: int, register: Address) -> None:
        """A tensor of one element becomes the number in a register.

        Its memory is new each time: what shares the old one keeps the old number."""
        address, size = self._addresses[value], self._itemsize(value)
        self._words.emit(Opcode.ALLOCATE, address, self._numbers.address(size))
        self._words.emit(Opcode.SCALAR, address, register, size)


def _symbols(program: Program) -> Iterator[str]:
    """All symbols of a program."""
    for value in program.values:
        for dim in value.shape or ():
            yield from symbols_of(dim)
    for instruction in program.instructions:
        match instruction:
            case Segment():
                yield from segment_symbols(instruction, program.values)
            case BindSymbol():
                yield instruction.symbol
            case SizeFunction():
                for number in instruction.numbers:
                    yield from (number.positive, number.negative)
                yield from (name for name, _ in instruction.lets)
            case Switch():
                yield from instruction.symbols
