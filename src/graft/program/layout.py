"""What the native driver and the encoder of programs agree on: opcodes, and words in memory.

All is 64-bit words in one piece of memory, a frame, which one run at a time works in: a header,
registers, values, segments, tables for kernels, and the code. docs/bytecode.md explains it to
people. Whoever changes one of these changes `container.FORMAT`, too.
"""

from __future__ import annotations

from enum import IntEnum

EXECUTE, ALLOCATE, DISCARD = "graft_execute", "graft_allocate", "graft_discard"


class Header(IntEnum):
    """Words at the beginning of a frame."""

    THREAD_POOL = 0  # the thread pool's memory
    THREADS = 1  # that the pool has
    STARTED = 2  # whether its workers have been started
    PC = 3  # the address of the next instruction
    DETAIL = 4  # what the status is about
    TIMES = 5  # where a profiled segment's times go; 0: nobody wants them
    ARENA = 6
    ARENA_BYTES = 7
    BUDGET = 8  # work left before the driver comes back, so that Python can see to Ctrl-C
    LONG = 9  # work after which a segment is interrupted for that
    CALLING = 10  # what it costs to call the other threads, as work
    MEETING = 11  # what it costs to meet them after a kernel
    FREE = 12  # buffers that nobody uses, linked
    BUFFERS = 13  # all of them, linked
    LIMIT = 14  # bytes that nothing may take
    ENTRY = 15  # the address of the first instruction, with which the next run begins
    JOB = 16  # five words: what the driver of kernels is given


HEADER_WORDS = 21


class Status(IntEnum):
    """Why the driver comes back."""

    DONE = 0
    PYTHON = 1  # an instruction is Python's; the detail is its number
    PAUSE = 2  # so that Python can see to Ctrl-C
    START = 3  # workers are needed, and none have been started
    PROFILED = 4  # times of a segment have been taken; the detail is its number
    FAILED = 5  # a check has failed; the detail is its number
    GUARDED = 6  # an index lies outside of an axis; the detail is the segment's number
    MEMORY = 7  # there is none for so many bytes as the detail says
    NUMBER = 8  # a size has no value, or none that a word holds


class Opcode(IntEnum):
    """What an instruction does; its operands follow as words, `OPERANDS` of them. Registers and
    numbers are given by their addresses."""

    END = 0
    PYTHON = 1  # number: Python does something
    SEGMENT = 2  # segment
    JUMP = 3  # target
    CHANGED = 4  # segment, target: goes there if it has its numbers for the symbols of now
    DIFFER = 5  # number, number, target: goes there if they differ
    UPTO = 6  # number, number, target: goes there if the first has reached the second
    FAIL = 7  # check
    COPY = 8  # register, number
    PLUS = 9  # register, number, number; so the next ones
    TIMES = 10
    DIVIDE = 11  # rounded down
    MODULO = 12
    LEAST = 13
    MOST = 14
    BROADCAST = 15
    EXTENT = 16  # register, value, axis
    ITEM = 17  # register, value, bytes of an element, index: an element
    SCALAR = 18  # value, number, bytes of an element: lets it be its only element
    CHECK = 19  # value, axis, number, check: fails if the extent is another
    MOVE = 20  # to, from, rank: the same memory
    FREE = 21  # value
    SLICE = 22  # to, from, counts, rank: as many rows as the last count says, the same memory
    PUSH = 23  # stack, value, rank, bytes of an element, number of rows that may come, check
    STACK = 24  # to, stack, rank of a row, bytes of an element, axis, backwards, numbers if no row
    ROW = 25  # to, from, number, rank of a row, bytes of an element, backwards
    AXIS = 26  # to, from, rank, bytes of an element, axis: a copy with the axis in front
    ALLOCATE = 27  # value, number of bytes
    PLACE = 28  # value, value, offset, rank, list of numbers: the extents
    # Lists. Positions are numbers; in place: whether nobody reads the list after this.
    INSERT = 29  # to, from, element, position, its rank, bytes of its element, in place, check
    ERASE = 30  # to, from, position, rank of an element, in place, check
    AT = 31  # to, from, position, rank, check: the same memory
    SPLIT = 32  # to, from, rank, bytes, axis, keeps it, step or 0, sizes or 0, their bytes, check
    JOIN = 33  # to, from, rank of an element, bytes of its element, axis, is a new one, check


OPERANDS = {
    Opcode.END: 0,
    Opcode.PYTHON: 1,
    Opcode.SEGMENT: 1,
    Opcode.JUMP: 1,
    Opcode.CHANGED: 2,
    Opcode.DIFFER: 3,
    Opcode.UPTO: 3,
    Opcode.FAIL: 1,
    Opcode.COPY: 2,
    Opcode.PLUS: 3,
    Opcode.TIMES: 3,
    Opcode.DIVIDE: 3,
    Opcode.MODULO: 3,
    Opcode.LEAST: 3,
    Opcode.MOST: 3,
    Opcode.BROADCAST: 3,
    Opcode.EXTENT: 3,
    Opcode.ITEM: 4,
    Opcode.SCALAR: 3,
    Opcode.CHECK: 4,
    Opcode.MOVE: 3,
    Opcode.FREE: 1,
    Opcode.SLICE: 4,
    Opcode.PUSH: 6,
    Opcode.STACK: 7,
    Opcode.ROW: 6,
    Opcode.AXIS: 5,
    Opcode.ALLOCATE: 2,
    Opcode.PLACE: 5,
    Opcode.INSERT: 8,
    Opcode.ERASE: 6,
    Opcode.AT: 5,
    Opcode.SPLIT: 10,
    Opcode.JOIN: 7,
}


class Segment(IntEnum):
    """Words of a segment."""

    NUMBER = 0
    KEYS = 1  # how many symbols its numbers depend on
    KEY = 2  # a list of their registers
    SEEN = 3  # what they held when the numbers were computed
    THREADS = 4  # to run with; 0: nothing is known of it yet
    RECORDS = 5
    CALLS = 6  # how many there are
    WORK = 7  # numbers, per call
    SLOTS = 8  # how many words lead to slots
    SLOT = 9  # a list of these words, where the base is, and the offset
    VALUES = 10  # how many words lead to values
    VALUE = 11  # a list of these words and of the values
    SCRATCHES = 12  # how many words lead to scratch memory
    SCRATCH = 13  # a list of these words, and the threads that they are for
    ARENA_BYTES = 14  # a number
    SCRATCH_BYTES = 15  # a number, per thread
    OUTPUTS = 16
    OUTPUT = 17  # a list: value, rank, number of bytes, numbers that are its extents
    BASE = 18  # of the arena when the words were written
    TOTAL = 19  # work of all calls
    NEXT = 20  # the call to go on with
    GUARD_INDICES = 21  # the value that guards write; 0: there are none
    GUARDS = 22  # how many there are


SEGMENT_WORDS = 23


class Value(IntEnum):
    """Words of a value, before its extents."""

    DATA = 0
    OWNER = 1  # the buffer that holds it; 0: it is somebody else's


VALUE_WORDS = 2


class Buffer(IntEnum):
    """Words of a buffer, before its memory."""

    REFERENCES = 0
    CAPACITY = 1
    NEXT = 2  # among those that nobody uses
    BEFORE = 3  # among all of the frame
    ELEMENTS = 4  # that a list has whose table lies in it
    WIDTH = 5  # bytes of such an element; 0: it holds no table


BUFFER_BYTES = 64


class Stack(IntEnum):
    """Words of rows that are being stacked, before the extents of a row."""

    DATA = 0
    OWNER = 1
    ROWS = 2
    CAPACITY = 3  # in rows


STACK_WORDS = 4
