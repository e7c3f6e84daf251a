"""Segments as words: kernel calls in; records, tables of addresses and numbers for them out."""

from __future__ import annotations

from collections.abc import Mapping

from graft.base.dims import Unknown, symbols_of
from graft.program.instructions import KernelCall, Scratch, Segment, Slot
from graft.program.layout import SEGMENT_WORDS, Header
from graft.program.layout import Segment as Field
from graft.program.numbers import Number, Numbers
from graft.program.program import ALIGNMENT, Value, segment_dims
from graft.program.words import Address, Words

_WORD_BYTES = 8
# Between the scratch memories of threads, and before the first. Processors that read ahead across
# the end of one take lines from the thread that writes there, which waits to get them back: with
# this gap, two threads of a Zen 5 take 73 instead of 85 µs for an int8 convolution of 64 channels
# at 56 x 56 by Winograd's algorithm. 64 KiB gave 79. Nothing ever touches these pages.
SCRATCH_GAP = 1 << 18
SERIAL, OVERLAPS = 1, 2  # flags of a kernel call
# Work of a kernel whose work is unknown: enough for all threads.
UNKNOWN_WORK = (1 << 62) - 1
# Work is counted in parts of an operation, so that a byte is a whole number of them.
WORK_PER_OPERATION = 16


class SegmentWriter:
    """Writes the words of one segment, and the code that fills in numbers for its symbols."""

    def __init__(
        self,
        words: Words,
        numbers: Numbers,
        addresses: Mapping[int, Address],  # of values
        values: tuple[Value, ...],
        constants: frozenset[int],  # values that are
        pool: Address,  # the value that is the program's pool
        threads: int,
        work_per_byte: int,
    ) -> None:
        self._work_per_byte = work_per_byte
        self._words, self._numbers, self._addresses = words, numbers, addresses
        self._values, self._constants, self._threads = values, constants, threads
        self._pool = pool
        self._slots: list[Address] = []
        self._uses: list[Address] = []
        self._scratches: list[int | Address] = []

    def write(self, address: Address, segment: Segment, number: int) -> None:
        """The segment at a place; numbers are computed by code that is emitted right here."""
        numbers = self._numbers
        sizes = [numbers.largest(map(numbers.of, pool)) for pool in segment.pools]
        rounded = [numbers.rounded(size, ALIGNMENT) for size in sizes]
        starts: list[Number] = [0]
        for size in rounded:
            starts.append(numbers.plus(starts[-1], size))
        records, work = self._calls(segment, starts)
        outputs = self._outputs(segment)
        indices = None if segment.guard_indices is None else self._addresses[segment.guard_indices]
        scratch = numbers.rounded(numbers.largest(map(numbers.of, segment.scratch)), ALIGNMENT)
        if self._threads > 1 and scratch != 0:
            starts[-1], scratch = (
                numbers.plus(size, SCRATCH_GAP) for size in (starts[-1], scratch)
            )
        fields: dict[Field, int | Address] = {
            Field.NUMBER: number,
            Field.RECORDS: records,
            Field.CALLS: len(segment.calls),
            Field.WORK: work,
            Field.SLOTS: len(self._slots) // 3,
            Field.SLOT: self._words.put(*self._slots),
            Field.VALUES: len(self._uses) // 2,
            Field.VALUE: self._words.put(*self._uses),
            Field.SCRATCHES: len(self._scratches) // 2,
            Field.SCRATCH: self._words.put(*self._scratches),
            Field.ARENA_BYTES: numbers.cells([starts[-1]]),
            Field.SCRATCH_BYTES: numbers.cells([scratch]),
            Field.OUTPUTS: len(outputs) // 4,
            Field.OUTPUT: self._words.put(*outputs),
            Field.GUARD_INDICES: 0 if indices is None else indices,
            Field.GUARDS: len(segment.guards),
        }
        for field, word in fields.items():
            self._words.change(address + field, word)

    def _calls(self, segment: Segment, starts: list[Number]) -> tuple[Address, Address]:
        numbers, words = self._numbers, self._words
        records: list[int | Address] = []
        symbols: list[str] = []
        for call in segment.calls:
            scalars = numbers.cells([numbers.of(scalar) for scalar in call.scalars])
            own = any(isinstance(buffer, Scratch) for buffer in call.buffers)
            table = self._table(call, starts, self._threads if own else 1)
            stride = len(call.buffers) * _WORD_BYTES if own else 0
            flags = SERIAL * call.serial | OVERLAPS * call.overlaps
            records += [0, table, scalars, stride, flags]
            symbols.append(call.symbol)
        address = words.put(*records)
        for index, symbol in enumerate(symbols):
            words.functions.append((address.position + 5 * index, symbol))
        return address, numbers.cells([self._work(call) for call in segment.calls])

    def _work(self, call: KernelCall) -> Number:
        numbers = self._numbers
        flops, moved = (0 if isinstance(n, Unknown) else n for n in (call.flops, call.bytes))
        if flops == 0 and moved == 0 and not call.serial:
            return UNKNOWN_WORK
        arithmetic = numbers.times(numbers.of(flops), WORK_PER_OPERATION)
        return numbers.plus(arithmetic, numbers.times(numbers.of(moved), self._work_per_byte))

    def _table(self, call: KernelCall, starts: list[Number], threads: int) -> Address:
        """Words by which threads find a call's buffers; one table each, if they differ."""
        table = self._words.put(*[0] * (len(call.buffers) * threads))
        numbers = self._numbers
        for thread in range(threads):
            for index, buffer in enumerate(call.buffers):
                word = table + (thread * len(call.buffers) + index)
                match buffer:
                    case Slot(pool, offset, _):
                        base = Address(Header.ARENA) if pool else self._pool
                        start = starts[pool - 1] if pool else 0
                        position = numbers.plus(start, numbers.of(offset))
                        self._slots += [word, base, numbers.cells([position])]
                    case Scratch():
                        self._scratches += [word, thread]
                    case number if number in self._constants:
                        self._words.constants.append((word.position, number))
                    case number:
                        self._uses += [word, self._addresses[number]]
        return table

    def _outputs(self, segment: Segment) -> list[int | Address]:
        numbers = self._numbers
        outputs: list[int | Address] = []
        indices = () if segment.guard_indices is None else (segment.guard_indices,)
        for number in (*segment.outputs, *indices):
            value = self._values[number]
            assert value.dtype is not None
            assert value.shape is not None
            extents = [numbers.of(dim) for dim in value.shape]
            size: Number = value.dtype.numpy.itemsize
            for extent in extents:
                size = numbers.times(size, extent)
            addresses = numbers.cells([size]), numbers.cells(extents)
            outputs += [self._addresses[number], len(extents), *addresses]
        return outputs


def segment_symbols(segment: Segment, values: tuple[Value, ...]) -> list[str]:
    """The symbols that a segment's numbers depend on, in order."""
    return sorted({name for dim in segment_dims(segment, values) for name in symbols_of(dim)})


def new_segment(words: Words, keys: list[Address]) -> Address:
    """Words for a segment whose numbers depend on these registers; none is known yet."""
    listed, seen = words.put(*keys), words.put(*[-1] * len(keys))
    address = words.put(*[0] * SEGMENT_WORDS)
    for field, word in ((Field.KEYS, len(keys)), (Field.KEY, listed), (Field.SEEN, seen)):
        words.change(address + field, word)
    return address
