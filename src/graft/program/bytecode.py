"""A program in the form that the native driver executes: a program and a number of threads in, the
image of a frame out.

An image is words, of which some hold addresses that are known only when it is loaded: of the frame
itself, of functions, of constants. Every run in progress has a copy of it, a frame, and the driver
needs nothing else. docs/bytecode.md lists the instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from graft.base.dims import AnyDim, symbols_of
from graft.base.dtypes import Array
from graft.base.errors import Location, UnsupportedError
from graft.program.bytecode_lists import ListCode
from graft.program.bytecode_loops import LoopCode
from graft.program.bytecode_segments import (
    SegmentWriter,
    new_segment,
    segment_symbols,
)
from graft.program.bytecode_work import (
    Failure,
    Image,
    ShapeFailure,
    SizeFailure,
    SymbolFailure,
)
from graft.program.extents import Refused, SizeCheck, Test, Verdict
from graft.program.instructions import (
    NOWHERE,
    Alias,
    Assert,
    BindSymbol,
    Block,
    Element,
    If,
    Instruction,
    ListOp,
    Loop,
    Scan,
    Segment,
    SizeFunction,
    Slice,
    Switch,
    blocks,
    reads,
    writes,
)
from graft.program.layout import (
    Opcode,
)
from graft.program.program import Program
from graft.program.words import Address, Label, Words

_FAR = 1 << 62  # beyond any size


def _as_int64(words: Words) -> Array:
    """The words as an array; a model whose sizes are larger than that is refused."""
    try:
        return np.array(words.words, np.int64)
    except OverflowError:
        position = next(i for i, word in enumerate(words.words) if abs(word) >> 63)
        location = None
        for start, address in words.locations:
            location = address if start <= position else location
        raise UnsupportedError(
            f"a size of the model, {words.words[position]}, does not fit 64 bits", location
        ) from None


def encode(program: Program, threads: int) -> Image:
    """The image of a program for a pool of so many threads."""
    return _Encoder(program, threads).image()


class _Encoder(LoopCode, ListCode):
    """Writes blocks, and with them the whole."""

    # Of the size function that is being written: symbols that only it knows, and what it reads.
    _own_names: frozenset[str] = frozenset()
    _elements: tuple[Element, ...] = ()

    def image(self) -> Image:
        """The whole."""
        bound: set[str] = set()
        body, values = self._program.body, self._program.values
        self._bind(body.inputs, bound)
        self._lay_out_pool()
        self._block(body, bound)
        self._free(n for n in body.inputs if values[n].element and n not in body.outputs)
        self._words.emit(Opcode.END)
        entry = self._words.finish()
        words = self._words
        return Image(
            _as_int64(words),
            np.array(words.addresses, np.int64),
            words.functions,
            words.constants,
            {number: address.position for number, address in self._addresses.items()},
            {name: address.position for name, address in self._numbers.registers.items()},
            self._work,
            self._failures,
            self._segments,
            frozenset(self._direct & {*body.outputs}),
            entry.position,
            words.locations,
        )

    def _block(self, block: Block, bound: set[str]) -> None:
        """The instructions of a block; after each of them, values are freed that it was the last to
        read. Outputs stay; so do the program's inputs, whose memory is the caller's, and device
        tensors that come into a block, which others hold, too."""
        ending: dict[int, set[int]] = {}
        for number, position in self._last_uses(block).items():
            ending.setdefault(position, set()).add(number)
        around, location = self._path, self._location
        for position, instruction in enumerate(block.instructions):
            self._path = (*around, position)
            where = getattr(instruction, "location", NOWHERE)
            self._locate(location if where == NOWHERE else where)
            self._dying = frozenset(ending.get(position, ()))
            self._instruction(instruction, bound)
            self._free(sorted(ending.get(position, ())))
        self._path = around
        self._locate(location)

    def _last_uses(self, block: Block) -> dict[int, int]:
        """The position of the last instruction that reads or makes each value of a block."""
        own: set[int] = set()
        if block is not self._program.body:
            own.update(number for number in block.inputs if number in self._addresses)
        last: dict[int, int] = {}
        for position, instruction in enumerate(block.instructions):
            own.update(writes(instruction))
            for number in (*_all_reads(instruction), *writes(instruction)):
                last[number] = position
        own -= {*block.outputs}
        return {number: position for number, position in last.items() if number in own}

    def _locate(self, location: Location | None) -> None:
        """What is emitted from here on belongs to a node."""
        self._location = location
        self._words.note(location)

    def _results(self, block: Block, outputs: Sequence[int]) -> None:
        """What an instruction takes from a block, whose own values then go."""
        self._assign(outputs, block.outputs)
        own = {number for instruction in block.instructions for number in writes(instruction)}
        external = dict.fromkeys(number for number in block.outputs if number not in self._united)
        self._free(number for number in external if number in own)

    def _instruction(self, instruction: Instruction, bound: set[str]) -> None:
        match instruction:
            case Segment():
                self._segment(instruction)
            case BindSymbol():
                self._bind_symbol(instruction, bound)
            case Slice():
                self._slice(instruction, bound)
            case Alias():
                self._alias(instruction, bound)
            case Assert():
                self._assert(instruction)
            case If():
                self._if(instruction, bound)
            case Switch():
                self._switch(instruction, bound)
            case Loop():
                self._loop(instruction, bound)
            case Scan():
                self._scan(instruction, bound)
            case SizeFunction():
                self._size_function(instruction, bound)
            case ListOp():
                self._list_op(instruction)
                self._bind(instruction.outputs, bound)
            case _:
                self._python(instruction)
                self._bind(writes(instruction), bound)

    def _segment(self, segment: Segment) -> None:
        words, numbers = self._words, self._numbers
        symbols = segment_symbols(segment, self._program.values)
        address = new_segment(words, [numbers.registers[name] for name in symbols])
        writer = SegmentWriter(
            words,
            numbers,
            self._addresses,
            self._program.values,
            self._constants,
            self._pool,
            self._threads,
            self._work_per_byte,
        )
        ready = Label()
        numbers.forget()
        if symbols:
            words.emit(Opcode.CHANGED, address, ready)
        for check in segment.checks:
            self._size_check(check, check.test, ())
        writer.write(address, segment, len(self._segments))
        self._mark(ready)
        words.emit(Opcode.SEGMENT, address)
        self._segments.append((segment, self._path))
        self._direct |= {*segment.outputs}

    def _size_check(self, check: SizeCheck, verdict: Verdict, dims: tuple[AnyDim, ...]) -> None:
        """A tree of tests; whatever ends in a refusal fails."""
        if isinstance(verdict, Refused):
            names = {name for dim in dims for name in symbols_of(dim)} - self._own_names
            failure = SizeFailure(verdict, check, tuple(sorted(names)), self._elements)
            self._words.emit(Opcode.FAIL, self._failure(failure))
        elif isinstance(verdict, Test):
            numbers = self._numbers
            left, right = numbers.of(verdict.left), numbers.of(verdict.right)
            different, after = Label(), Label()
            addresses = numbers.address(left), numbers.address(right)
            self._words.emit(Opcode.DIFFER, *addresses, different)
            dims = (*dims, verdict.left, verdict.right)
            self._size_check(check, verdict.equal, dims)
            self._words.emit(Opcode.JUMP, after)
            self._mark(different)
            self._size_check(check, verdict.different, dims)
            self._mark(after)

    def _bind_symbol(self, instruction: BindSymbol, bound: set[str]) -> None:
        register = self._numbers.registers[instruction.symbol]
        if instruction.symbol not in bound:
            bound.add(instruction.symbol)
            self._item(register, instruction.value)
            self._numbers.forget()
            return
        count = self._register()
        self._item(count, instruction.value)
        self._require_equal(count, register, SymbolFailure(instruction))

    def _size_function(self, instruction: SizeFunction, bound: set[str]) -> None:
        numbers, emit = self._numbers, self._words.emit
        for number in instruction.numbers:
            positive, negative = (numbers.registers[n] for n in (number.positive, number.negative))
            self._item(positive, number.value, number.index)
            # Within bounds, so that arithmetic on it does not leave a word's range.
            emit(Opcode.MOST, positive, positive, numbers.address(-_FAR))
            emit(Opcode.LEAST, positive, positive, numbers.address(_FAR))
            emit(Opcode.TIMES, negative, positive, numbers.address(-1))
            emit(Opcode.MOST, negative, negative, numbers.address(0))
            emit(Opcode.MOST, positive, positive, numbers.address(0))
            bound |= {number.positive, number.negative}
        numbers.forget()
        for name, dim in instruction.lets:
            self._copy(numbers.registers[name], numbers.of(dim))
            bound.add(name)
        pairs = ((number.positive, number.negative) for number in instruction.numbers)
        names = {name for pair in pairs for name in pair} | {name for name, _ in instruction.lets}
        self._own_names, self._elements = frozenset(names), instruction.numbers
        for check in instruction.checks:
            self._size_check(check, check.test, ())
        self._own_names, self._elements = frozenset(), ()

    def _require_equal(self, left: Address, right: Address, failure: Failure) -> None:
        """Fail if two numbers differ."""
        fails, after = Label(), Label()
        self._words.emit(Opcode.DIFFER, left, right, fails)
        self._words.emit(Opcode.JUMP, after)
        self._mark(fails)
        self._words.emit(Opcode.FAIL, self._failure(failure))
        self._mark(after)

    def _slice(self, instruction: Slice, bound: set[str]) -> None:
        numbers = (instruction.output, instruction.value, instruction.counts)
        if all(number in self._addresses for number in numbers):
            addresses = [self._addresses[number] for number in numbers]
            self._words.emit(Opcode.SLICE, *addresses, self._rank(instruction.value))
        else:
            self._python(instruction)
        self._bind(writes(instruction), bound)

    def _alias(self, instruction: Alias, bound: set[str]) -> None:
        value, output = instruction.value, instruction.output
        if self._program.values[output].slot is not None:  # it lies there already
            return
        both = value in self._addresses and output in self._addresses
        if both and self._rank(value) == self._rank(output):
            self._assign([output], [value])
        elif both and self._program.values[output].is_static:
            if not self._program.values[value].is_static:
                self._require_elements(value, output)
            self._words.emit(Opcode.MOVE, self._addresses[output], self._addresses[value], 0)
            return
        else:
            self._python(instruction)
        self._bind([output], bound)

    def _require_elements(self, value: int, output: int) -> None:
        """Fail if a value has not as many elements as a static one."""
        count, extent = self._register(), self._register()
        self._copy(count, 1)
        for axis in range(self._rank(value)):
            self._words.emit(Opcode.EXTENT, extent, self._addresses[value], axis)
            self._words.emit(Opcode.TIMES, count, count, extent)
        elements = self._numbers.address(self._program.values[output].size)
        self._require_equal(count, elements, ShapeFailure(value, self._location))

    def _assert(self, instruction: Assert) -> None:
        condition, fails, after = self._register(), Label(), Label()
        self._item(condition, instruction.condition)
        expected = self._numbers.address(0)
        first, second = (after, fails) if instruction.expected else (fails, after)
        self._words.emit(Opcode.DIFFER, condition, expected, first)
        self._words.emit(Opcode.JUMP, second)
        self._mark(fails)
        self._words.emit(Opcode.FAIL, self._failure(instruction))
        self._mark(after)
        self._assign([instruction.output], [instruction.value])

    def _if(self, instruction: If, bound: set[str]) -> None:
        flag, then, after = self._register(), Label(), Label()
        self._item(flag, instruction.condition)
        self._words.emit(Opcode.DIFFER, flag, self._numbers.address(0), then)
        self._branch(instruction.otherwise, instruction.outputs, bound)
        self._words.emit(Opcode.JUMP, after)
        self._mark(then)
        self._branch(instruction.then, instruction.outputs, bound)
        self._mark(after)
        self._note_direct([instruction.otherwise, instruction.then], instruction.outputs)
        self._bind(instruction.outputs, bound)

    def _note_direct(self, branches: Sequence[Block], outputs: Sequence[int]) -> None:
        """Outputs that segments write in every branch are direct."""
        for position, output in enumerate(outputs):
            if all(self._united.get(branch.outputs[position]) == output for branch in branches):
                self._direct.add(output)

    def _branch(self, block: Block, outputs: Sequence[int], bound: set[str]) -> None:
        self._numbers.forget()
        self._unite(block, outputs)
        self._block(block, {*bound})
        self._results(block, outputs)

    def _unite(self, block: Block, outputs: Sequence[int]) -> None:
        """What a segment of a block makes for the instruction around it is that instruction's
        output from the beginning, so that nothing has to be moved."""
        segment_outputs = {
            n for one in block.instructions if isinstance(one, Segment) for n in one.outputs
        }
        for output, number in zip(outputs, block.outputs, strict=True):
            once = block.outputs.count(number) == 1
            if number in segment_outputs and once and output in self._addresses:
                self._addresses[number] = self._addresses[output]
                self._united[number] = output

    def _switch(self, instruction: Switch, bound: set[str]) -> None:
        after = Label()
        for sizes, block in instruction.cases:
            other = Label()
            for name, size in zip(instruction.symbols, sizes, strict=True):
                register = self._numbers.registers[name]
                self._words.emit(Opcode.DIFFER, register, self._numbers.address(size), other)
            self._branch(block, instruction.outputs, bound)
            self._words.emit(Opcode.JUMP, after)
            self._mark(other)
        self._branch(instruction.default, instruction.outputs, bound)
        self._mark(after)
        branches = [instruction.default, *(block for _, block in instruction.cases)]
        self._note_direct(branches, instruction.outputs)
        self._bind(instruction.outputs, bound)


def _all_reads(instruction: Instruction) -> Iterator[int]:
    """The values that an instruction and all blocks inside it read."""
    yield from reads(instruction)
    for block in blocks(instruction):
        yield from block.outputs
        for inner in block.instructions:
            yield from _all_reads(inner)
