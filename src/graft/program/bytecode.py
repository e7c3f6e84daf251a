"""A program in the form that the native driver executes: a program and a number of threads in, the
image of a frame out.

An image is words, of which some hold addresses that are known only when it is loaded: of the frame
itself, of functions, of constants. Every run in progress has a copy of it, a frame, and the driver
needs nothing else. docs/bytecode.md lists the instructions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dims import AnyDim, Unknown, bare_symbol, symbols_of
from graft.base.dtypes import Array, DType
from graft.base.errors import Place
from graft.program.bytecode_segments import (
    WORK_PER_OPERATION,
    SegmentWriter,
    new_segment,
    segment_symbols,
)
from graft.program.extents import Refused, SizeCheck, Test, Verdict
from graft.program.instructions import (
    NOWHERE,
    Alias,
    Assert,
    BindSymbol,
    Block,
    If,
    Instruction,
    Loop,
    Scan,
    Segment,
    Slice,
    Switch,
    blocks,
    reads,
    writes,
)
from graft.program.layout import (
    HEADER_WORDS,
    STACK_WORDS,
    VALUE_WORDS,
    Opcode,
)
from graft.program.layout import Value as Field
from graft.program.numbers import Number, Numbers
from graft.program.program import Program, Value
from graft.program.words import Address, Label, Words

_MOST = (1 << 63) - 1
_FLAG_BYTES, _COUNT_BYTES = 1, 8


@dataclass(frozen=True, slots=True)
class Assign:
    """Values that native code does not hold become what others are."""

    targets: tuple[int, ...]
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadItem:
    """The first element of a value that native code does not hold goes to a register."""

    value: int
    register: int  # its position


@dataclass(frozen=True, slots=True)
class Collect:
    """A value that native code does not hold is one more slice of an output that is stacked."""

    output: int
    value: int


@dataclass(frozen=True, slots=True)
class JoinSlices:
    """What has been collected for an output is stacked along an axis; `row` is what a slice is."""

    output: int
    row: int
    axis: int
    backwards: bool


@dataclass(frozen=True, slots=True)
class SizeFailure:
    """What a type rule has against sizes, and the symbols that they depend on."""

    refused: Refused
    check: SizeCheck
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShapeFailure:
    """A value has another shape than the program says."""

    value: int
    location: Place | None


@dataclass(frozen=True, slots=True)
class StackFailure:
    """Slices that are to be stacked differ in shape."""

    value: int
    location: Place


@dataclass(frozen=True, slots=True)
class SymbolFailure:
    """A number is read for a symbol that stands for another."""

    instruction: BindSymbol


PythonWork = Instruction | Assign | ReadItem | Collect | JoinSlices
Failure = SizeFailure | ShapeFailure | StackFailure | SymbolFailure | Assert
# Which instruction: its position in its block, preceded by that of the one around it, and so on.
Path = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Image:
    """A frame before it is loaded. Positions count words."""

    words: Array
    addresses: Array  # positions of words that hold positions, to become addresses
    functions: Sequence[tuple[int, str]]  # positions, and functions whose addresses go there
    constants: Sequence[tuple[int, int]]  # positions, and values whose memory is meant
    values: Mapping[int, int]  # positions of the values that native code holds
    registers: Mapping[str, int]  # positions of symbols
    work: Sequence[tuple[PythonWork, Path]]  # what Python does, by number
    failures: Sequence[Failure]  # what checks say, by number
    segments: Sequence[tuple[Segment, Path]]  # by number
    direct: frozenset[int]  # outputs that segments write where the caller wants them
    entry: int  # the position of the first instruction
    locations: Sequence[tuple[int, Place | None]]  # of nodes, from these positions on

    def location(self, position: int) -> Place | None:
        """The node that an instruction comes from."""
        found = bisect_right([first for first, _ in self.locations], position)
        return self.locations[found - 1][1] if found else None


def encode(program: Program, threads: int) -> Image:
    """The image of a program for a pool of so many threads."""
    return _Encoder(program, threads).image()


def is_native(value: Value) -> bool:
    """Whether native code holds a value: a tensor of known rank in the host's memory."""
    is_tensor = value.dtype is not None and value.dtype is not DType.STRING
    return is_tensor and value.shape is not None and not value.space


class _Encoder:
    def __init__(self, program: Program, threads: int) -> None:
        self._program, self._threads = program, threads
        flops, moved = program.target.core
        self._work_per_byte = max(1, round(WORK_PER_OPERATION * flops / moved))
        self._words = Words()
        self._numbers = Numbers(self._words)
        self._places: dict[int, Address] = {}
        self._constants = frozenset(number for number, _ in program.constants)
        self._counters: set[int] = set()  # values whose memory is in the frame
        self._work: list[tuple[PythonWork, Path]] = []
        self._failures: list[Failure] = []
        self._segments: list[tuple[Segment, Path]] = []
        self._path: Path = ()
        self._location: Place | None = None
        self._direct: set[int] = set()
        self._united: dict[int, int] = {}  # values that are another one's from the beginning
        self._words.put(*[0] * HEADER_WORDS)
        for symbol in dict.fromkeys(_symbols(program)):
            self._numbers.registers[symbol] = self._words.put(-1)
        for number, value in enumerate(program.values):
            if is_native(value):
                self._places[number] = self._described(value)
        for number in self._constants & self._places.keys():
            self._words.constants.append((self._places[number].position, number))
        self._shelf = self._words.put(*[0] * VALUE_WORDS)

    def image(self) -> Image:
        """The whole."""
        known: set[str] = set()
        body = self._program.body
        self._bind(body.inputs, known)
        self._lay_out_shelf()
        self._block(body, known, keep=body.inputs)
        self._words.emit(Opcode.END)
        entry = self._words.finish()
        words = self._words
        return Image(
            np.array(words.words, np.int64),
            np.array(words.addresses, np.int64),
            words.functions,
            words.constants,
            {number: place.position for number, place in self._places.items()},
            {name: place.position for name, place in self._numbers.registers.items()},
            self._work,
            self._failures,
            self._segments,
            frozenset(self._direct & {*body.outputs}),
            entry.position,
            words.locations,
        )

    def _described(self, value: Value) -> Address:
        extents = [dim if isinstance(dim, int) else 0 for dim in value.shape or ()]
        return self._words.put(0, 0, *extents)

    def _lay_out_shelf(self) -> None:
        """Memory for values that live across segments, and where in it each of them is."""
        numbers, words = self._numbers, self._words
        if not self._program.shelf:
            return
        size = numbers.largest([numbers.of(dim) for dim in self._program.shelf])
        words.emit(Opcode.ALLOCATE, self._shelf, numbers.address(size))
        for number, value in enumerate(self._program.values):
            if value.slot is not None and number in self._places:
                offset = numbers.address(numbers.of(value.slot.offset))
                extents = [numbers.address(numbers.of(dim)) for dim in value.shape or ()]
                listed = words.put(*extents)
                place = self._places[number]
                words.emit(Opcode.PLACE, place, self._shelf, offset, len(extents), listed)

    def _python(self, work: PythonWork) -> None:
        self._words.emit(Opcode.PYTHON, len(self._work))
        self._work.append((work, self._path))
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

    # Values

    def _bind(self, numbers: Iterable[int], known: set[str]) -> None:
        """Symbols get their numbers from the shapes of values; other extents are checked."""
        native = [number for number in numbers if number in self._places]
        bound: set[tuple[int, int]] = set()
        for number in native:
            for axis, dim in enumerate(self._program.values[number].shape or ()):
                name = bare_symbol(dim)
                if name is not None and name not in known:
                    known.add(name)
                    bound.add((number, axis))
                    register = self._numbers.registers[name]
                    self._words.emit(Opcode.EXTENT, register, self._places[number], axis)
        self._numbers.forget()
        for number in native:
            for axis, dim in enumerate(self._program.values[number].shape or ()):
                if (number, axis) in bound or isinstance(dim, Unknown):
                    continue
                if known.issuperset(symbols_of(dim)):
                    expected = self._numbers.address(self._numbers.of(dim))
                    failure = self._failure(ShapeFailure(number, self._location))
                    self._words.emit(Opcode.CHECK, self._places[number], axis, expected, failure)

    def _assign(self, targets: Sequence[int], sources: Sequence[int]) -> None:
        """Values become what others are."""
        others = []
        for target, source in zip(targets, sources, strict=True):
            if target in self._places and source in self._places:
                self._move(self._places[target], self._places[source], self._rank(target))
            elif target != source:
                others.append((target, source))
        if others:
            self._python(Assign(*zip(*others, strict=True)))

    def _move(self, target: Address, source: Address, rank: int) -> None:
        if target != source:
            self._words.emit(Opcode.MOVE, target, source, rank)

    def _rank(self, number: int) -> int:
        return len(self._program.values[number].shape or ())

    def _itemsize(self, number: int) -> int:
        dtype = self._program.values[number].dtype
        assert dtype is not None
        return dtype.numpy.itemsize

    def _free(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._places and number not in self._constants | self._counters:
                self._words.emit(Opcode.FREE, self._places[number])

    def _item(self, register: Address, value: int, index: int = 0) -> None:
        """An element of a value goes to a register."""
        if value in self._places:
            size = self._itemsize(value)
            self._words.emit(Opcode.ITEM, register, self._places[value], size, index)
        else:
            self._python(ReadItem(value, register.position))

    # Blocks

    def _block(self, block: Block, known: set[str], keep: Sequence[int] = ()) -> None:
        """The instructions of a block; after each of them, values go that nobody needs any more.

        Its outputs stay, and whatever else is to be kept."""
        kept = {*block.outputs, *keep}
        own = {*block.inputs}
        last: dict[int, int] = {}
        for position, instruction in enumerate(block.instructions):
            own.update(writes(instruction))
            for number in (*_all_reads(instruction), *writes(instruction)):
                last[number] = position
        ending: dict[int, list[int]] = {}
        for number, position in last.items():
            if number in own and number not in kept:
                ending.setdefault(position, []).append(number)
        around, location = self._path, self._location
        for position, instruction in enumerate(block.instructions):
            self._path = (*around, position)
            where = getattr(instruction, "location", NOWHERE)
            self._locate(location if where == NOWHERE else where)
            self._instruction(instruction, known)
            self._free(ending.get(position, ()))
        self._path = around
        self._locate(location)

    def _locate(self, location: Place | None) -> None:
        """What is emitted from here on belongs to a node."""
        self._location = location
        self._words.note(location)

    def _results(self, block: Block, outputs: Sequence[int]) -> None:
        """What an instruction takes from a block, whose own values then go."""
        self._assign(outputs, block.outputs)
        own = {number for one in block.instructions for number in writes(one)}
        gone = dict.fromkeys(number for number in block.outputs if number not in self._united)
        self._free(number for number in gone if number in own)

    def _instruction(self, instruction: Instruction, known: set[str]) -> None:
        match instruction:
            case Segment():
                self._segment(instruction)
            case BindSymbol():
                self._bind_symbol(instruction, known)
            case Slice():
                self._slice(instruction, known)
            case Alias():
                self._alias(instruction, known)
            case Assert():
                self._assert(instruction)
            case If():
                self._if(instruction, known)
            case Switch():
                self._switch(instruction, known)
            case Loop():
                self._loop(instruction, known)
            case Scan():
                self._scan(instruction, known)
            case _:
                self._python(instruction)
                self._bind(writes(instruction), known)

    def _segment(self, segment: Segment) -> None:
        words, numbers = self._words, self._numbers
        symbols = segment_symbols(segment, self._program.values)
        place = new_segment(words, [numbers.registers[name] for name in symbols])
        writer = SegmentWriter(
            words,
            numbers,
            self._places,
            self._program.values,
            self._constants,
            self._shelf,
            self._threads,
            self._work_per_byte,
        )
        ready = Label()
        numbers.forget()
        if symbols:
            words.emit(Opcode.CHANGED, place, ready)
        for check in segment.checks:
            self._size_check(check, check.test, ())
        writer.write(place, segment, len(self._segments))
        self._mark(ready)
        words.emit(Opcode.SEGMENT, place)
        self._segments.append((segment, self._path))
        self._direct |= {*segment.outputs}

    def _size_check(self, check: SizeCheck, verdict: Verdict, asked: tuple[AnyDim, ...]) -> None:
        """A tree of tests; whatever ends in a refusal fails."""
        if isinstance(verdict, Refused):
            names = sorted({name for dim in asked for name in symbols_of(dim)})
            failure = self._failure(SizeFailure(verdict, check, tuple(names)))
            self._words.emit(Opcode.FAIL, failure)
        elif isinstance(verdict, Test):
            numbers = self._numbers
            left, right = numbers.of(verdict.left), numbers.of(verdict.right)
            different, after = Label(), Label()
            places = numbers.address(left), numbers.address(right)
            self._words.emit(Opcode.DIFFER, *places, different)
            asked = (*asked, verdict.left, verdict.right)
            self._size_check(check, verdict.equal, asked)
            self._words.emit(Opcode.JUMP, after)
            self._mark(different)
            self._size_check(check, verdict.different, asked)
            self._mark(after)

    def _bind_symbol(self, instruction: BindSymbol, known: set[str]) -> None:
        register = self._numbers.registers[instruction.symbol]
        if instruction.symbol not in known:
            known.add(instruction.symbol)
            self._item(register, instruction.value)
            self._numbers.forget()
            return
        found, fails, after = self._register(), Label(), Label()
        self._item(found, instruction.value)
        self._words.emit(Opcode.DIFFER, found, register, fails)
        self._words.emit(Opcode.JUMP, after)
        self._mark(fails)
        self._words.emit(Opcode.FAIL, self._failure(SymbolFailure(instruction)))
        self._mark(after)

    def _slice(self, instruction: Slice, known: set[str]) -> None:
        numbers = (instruction.output, instruction.value, instruction.counts)
        if all(number in self._places for number in numbers):
            places = [self._places[number] for number in numbers]
            self._words.emit(Opcode.SLICE, *places, self._rank(instruction.value))
        else:
            self._python(instruction)
        self._bind(writes(instruction), known)

    def _alias(self, instruction: Alias, known: set[str]) -> None:
        value, output = instruction.value, instruction.output
        if self._program.values[output].slot is not None:  # it lies there already
            return
        both = value in self._places and output in self._places
        if both and self._rank(value) == self._rank(output):
            self._assign([output], [value])
        elif both and self._program.values[output].is_static:
            self._words.emit(Opcode.MOVE, self._places[output], self._places[value], 0)
            return
        else:
            self._python(instruction)
        self._bind([output], known)

    def _assert(self, instruction: Assert) -> None:
        found, fails, after = self._register(), Label(), Label()
        self._item(found, instruction.condition)
        expected = self._numbers.address(0)
        first, second = (after, fails) if instruction.expected else (fails, after)
        self._words.emit(Opcode.DIFFER, found, expected, first)
        self._words.emit(Opcode.JUMP, second)
        self._mark(fails)
        self._words.emit(Opcode.FAIL, self._failure(instruction))
        self._mark(after)
        self._assign([instruction.output], [instruction.value])

    def _if(self, instruction: If, known: set[str]) -> None:
        flag, then, after = self._register(), Label(), Label()
        self._item(flag, instruction.condition)
        self._words.emit(Opcode.DIFFER, flag, self._numbers.address(0), then)
        self._branch(instruction.otherwise, instruction.outputs, known)
        self._words.emit(Opcode.JUMP, after)
        self._mark(then)
        self._branch(instruction.then, instruction.outputs, known)
        self._mark(after)
        self._note_direct([instruction.otherwise, instruction.then], instruction.outputs)
        self._bind(instruction.outputs, known)

    def _note_direct(self, branches: Sequence[Block], outputs: Sequence[int]) -> None:
        """Outputs that segments write in every branch are direct."""
        for position, output in enumerate(outputs):
            if all(self._united.get(one.outputs[position]) == output for one in branches):
                self._direct.add(output)

    def _branch(self, block: Block, outputs: Sequence[int], known: set[str]) -> None:
        self._numbers.forget()
        self._unite(block, outputs)
        self._block(block, {*known})
        self._results(block, outputs)

    def _unite(self, block: Block, outputs: Sequence[int]) -> None:
        """What a segment of a block makes for the instruction around it is that instruction's
        output from the beginning, so that nothing has to be moved."""
        made = {n for one in block.instructions if isinstance(one, Segment) for n in one.outputs}
        for output, number in zip(outputs, block.outputs, strict=True):
            once = block.outputs.count(number) == 1
            if number in made and once and output in self._places:
                self._places[number] = self._places[output]
                self._united[number] = output

    def _switch(self, instruction: Switch, known: set[str]) -> None:
        after = Label()
        for sizes, block in instruction.cases:
            other = Label()
            for name, size in zip(instruction.symbols, sizes, strict=True):
                register = self._numbers.registers[name]
                self._words.emit(Opcode.DIFFER, register, self._numbers.address(size), other)
            self._branch(block, instruction.outputs, known)
            self._words.emit(Opcode.JUMP, after)
            self._mark(other)
        self._branch(instruction.default, instruction.outputs, known)
        self._mark(after)
        branches = [instruction.default, *(block for _, block in instruction.cases)]
        self._note_direct(branches, instruction.outputs)
        self._bind(instruction.outputs, known)

    # Loops

    def _loop(self, instruction: Loop, known: set[str]) -> None:
        body, after, head = instruction.body, Label(), Label()
        index, limit, flag = self._register(), self._register(_MOST), self._register()
        self._copy(index, 0)
        if instruction.limit is not None:
            self._item(limit, instruction.limit)
        inner = {*known}
        count = len(instruction.carried)
        iteration, condition, *carried = body.inputs
        for value in (iteration, condition):
            self._counter(value)
        self._copy(flag, 1)
        if instruction.condition is not None:
            self._item(flag, instruction.condition)
        self._assign(carried, instruction.carried)
        own = {*inner}
        self._bind(carried, own)
        self._words.emit(Opcode.DIFFER, flag, self._numbers.address(1), after)
        self._mark(head)
        self._words.emit(Opcode.UPTO, index, limit, after)
        for value, register in ((iteration, index), (condition, flag)):
            if value in self._places:
                size = self._itemsize(value)
                self._words.emit(Opcode.SCALAR, self._places[value], register, size)
        self._block(body, {*own}, keep=body.inputs)
        rows = body.outputs[1 + count :]
        stacks = self._collect(rows, instruction.outputs[count:], limit, instruction.location)
        self._item(flag, body.outputs[0])
        self._carry(body, carried, body.outputs[1 : 1 + count])
        self._bind(carried, {*inner})
        self._words.emit(Opcode.PLUS, index, index, self._numbers.address(1))
        self._words.emit(Opcode.DIFFER, flag, self._numbers.address(1), after)
        self._words.emit(Opcode.JUMP, head)
        self._mark(after)
        self._assign(instruction.outputs[:count], carried)
        self._free(carried)
        self._join(stacks, rows, instruction.outputs[count:], own)
        self._bind(instruction.outputs, known)

    def _scan(self, instruction: Scan, known: set[str]) -> None:
        body, after, head = instruction.body, Label(), Label()
        index, limit = self._register(), self._register()
        count = len(instruction.carried)
        carried, slices = body.inputs[:count], body.inputs[count:]
        self._copy(index, 0)
        sources = self._scanned(instruction, limit)
        self._assign(carried, instruction.carried)
        inner = {*known}
        own = {*inner}
        self._rows(instruction, slices, sources, index)  # also of a scan without iterations: shapes
        self._bind(body.inputs, own)
        self._mark(head)
        self._words.emit(Opcode.UPTO, index, limit, after)
        self._rows(instruction, slices, sources, index)
        self._block(body, {*own}, keep=body.inputs)
        axes = instruction.result_axes, instruction.result_backwards
        rows = body.outputs[count:]
        stacks = self._collect(rows, instruction.outputs[count:], limit, instruction.location)
        self._carry(body, carried, body.outputs[:count])
        self._bind(carried, {*inner})
        self._words.emit(Opcode.PLUS, index, index, self._numbers.address(1))
        self._words.emit(Opcode.JUMP, head)
        self._mark(after)
        self._assign(instruction.outputs[:count], carried)
        self._free(body.inputs)
        for place, _ in sources:
            self._words.emit(Opcode.FREE, place)
        self._join(stacks, rows, instruction.outputs[count:], own, *axes)
        self._bind(instruction.outputs, known)

    def _counter(self, value: int) -> None:
        """A value that the driver writes a number into has its memory in the frame."""
        if value in self._places:
            place = self._places[value]
            self._words.change(place + Field.DATA, self._words.put(0))
            for axis in range(self._rank(value)):
                self._words.change(place + VALUE_WORDS + axis, 1)
            self._counters.add(value)

    def _carry(self, body: Block, carried: Sequence[int], results: Sequence[int]) -> None:
        """What an iteration gives is what the next one takes.

        Values that change places with each other are held elsewhere meanwhile."""
        given = {*carried}
        moved: list[int | Address] = []
        for target, source in zip(carried, results, strict=True):
            if source in given and source != target and source in self._places:
                rank = self._rank(source)
                aside = self._words.put(*[0] * (VALUE_WORDS + rank))
                self._move(aside, self._places[source], rank)
                moved.append(aside)
            else:
                moved.append(source)
        for target, held in zip(carried, moved, strict=True):
            if isinstance(held, Address):
                self._move(self._places[target], held, self._rank(target))
                self._words.emit(Opcode.FREE, held)
            else:
                self._assign([target], [held])
        own = {number for one in body.instructions for number in writes(one)}
        self._free(number for number in dict.fromkeys(body.outputs) if number in own)

    def _collect(
        self, rows: Sequence[int], outputs: Sequence[int], limit: Address, location: Place
    ) -> list[Address | None]:
        """One more slice of each output that is stacked; gives the stacks that native code has."""
        stacks: list[Address | None] = []
        for row, output in zip(rows, outputs, strict=True):
            if row not in self._places or output not in self._places:
                self._python(Collect(output, row))
                stacks.append(None)
                continue
            rank = self._rank(row)
            stack = self._words.put(*[0] * (STACK_WORDS + rank))
            failure = self._failure(StackFailure(row, location))
            how = rank, self._itemsize(row), limit, failure
            self._words.emit(Opcode.PUSH, stack, self._places[row], *how)
            stacks.append(stack)
        return stacks

    def _join(
        self,
        stacks: Sequence[Address | None],
        rows: Sequence[int],
        outputs: Sequence[int],
        known: set[str],
        axes: Sequence[int] | None = None,
        backwards: Sequence[bool] | None = None,
    ) -> None:
        """Slices become outputs. Extents that only an iteration would have told are zero."""
        axes, backwards = axes or [0] * len(rows), backwards or [False] * len(rows)
        for position, stack in enumerate(stacks):
            row, output, axis = rows[position], outputs[position], axes[position]
            if stack is None:
                self._python(JoinSlices(output, row, axis, backwards[position]))
                continue
            rank = self._rank(row)
            extents = [
                self._numbers.of(dim) if _is_known(dim, known) else 0
                for dim in self._program.values[row].shape or ()
            ]
            listed = self._words.put(*map(self._numbers.address, extents))
            where = axis % (rank + 1), int(backwards[position]), listed
            size = self._itemsize(row)
            self._words.emit(Opcode.STACK, self._places[output], stack, rank, size, *where)

    def _scanned(self, instruction: Scan, limit: Address) -> list[tuple[Address, int]]:
        """Tensors with their scanned axes in front, and their ranks; they are of one length."""
        sources: list[tuple[Address, int]] = []
        for position, number in enumerate(instruction.scanned):
            rank = self._rank(number)
            axis, place = instruction.axes[position] % rank, self._places[number]
            if position:
                failure = self._failure(ShapeFailure(number, self._location))
                self._words.emit(Opcode.CHECK, place, axis, limit, failure)
            else:
                self._words.emit(Opcode.EXTENT, limit, place, axis)
            held = self._words.put(*[0] * (VALUE_WORDS + rank))
            if axis:
                self._words.emit(Opcode.AXIS, held, place, rank, self._itemsize(number), axis)
            else:
                self._words.emit(Opcode.MOVE, held, place, rank)
            sources.append((held, rank))
        return sources

    def _rows(
        self,
        instruction: Scan,
        slices: Sequence[int],
        sources: Sequence[tuple[Address, int]],
        index: Address,
    ) -> None:
        """The slices of one iteration."""
        for position, (held, rank) in enumerate(sources):
            row, back = slices[position], int(instruction.backwards[position])
            size = self._itemsize(row)
            self._words.emit(Opcode.ROW, self._places[row], held, index, rank - 1, size, back)


def _is_known(dim: AnyDim, known: set[str]) -> bool:
    return not isinstance(dim, Unknown) and known.issuperset(symbols_of(dim))


def _all_reads(instruction: Instruction) -> Iterator[int]:
    """The values that an instruction and all blocks inside it read."""
    yield from reads(instruction)
    for block in blocks(instruction):
        yield from block.outputs
        for inner in block.instructions:
            yield from _all_reads(inner)


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
            case Switch():
                yield from instruction.symbols
