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
    TIMES = 5  # where a profiled segment's times go; 0: nowhere
    ARENA = 6
    ARENA_BYTES = 7
    BUDGET = 8  # work left before the driver comes back, so that Python can see to Ctrl-C
    LONG = 9  # work after which a segment is interrupted for that
    CALLING = 10  # what it costs to call the other threads, as work
    MEETING = 11  # what it costs to meet them after a kernel
    FREE = 12  # unused buffers, linked
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
    """What an instruction does; `operands` words follow it. Registers and numbers are addresses."""

    operands: int

    def __new__(cls, number: int, operands: int) -> Opcode:
        opcode = int.__new__(cls, number)
        opcode._value_, opcode.operands = number, operands
        return opcode

    END = 0, 0
    PYTHON = 1, 1  # number: Python does something
    SEGMENT = 2, 1  # segment
    JUMP = 3, 1  # target
    CHANGED = 4, 2  # segment, target: goes there if it has its numbers for the symbols of now
    DIFFER = 5, 3  # number, number, target: goes there if they differ
    UPTO = 6, 3  # number, number, target: goes there if the first has reached the second
    FAIL = 7, 1  # check
    COPY = 8, 2  # register, number
    PLUS = 9, 3  # register, number, number; so the next ones
    TIMES = 10, 3
    DIVIDE = 11, 3  # rounded down
    MODULO = 12, 3
    LEAST = 13, 3
    MOST = 14, 3
    BROADCAST = 15, 3
    EXTENT = 16, 3  # register, value, axis
    ITEM = 17, 4  # register, value, bytes of an element, index: an element
    SCALAR = 18, 3  # value, number, bytes of an element: lets it be its only element
    CHECK = 19, 4  # value, axis, number, check: fails if the extent is another
    MOVE = 20, 3  # to, from, rank: the same memory
    FREE = 21, 1  # value
    SLICE = 22, 4  # to, from, counts, rank: as many rows as the last count says, the same memory
    PUSH = 23, 6  # stack, value, rank, bytes of an element, number of rows that may come, check
    STACK = 24, 7  # to, stack, rank of a row, bytes, axis, backwards, numbers if there is no row
    ROW = 25, 6  # to, from, number, rank of a row, bytes of an element, backwards
    AXIS = 26, 5  # to, from, rank, bytes of an element, axis: a copy with the axis in front
    ALLOCATE = 27, 2  # value, number of bytes
    PLACE = 28, 5  # value, value, offset, rank, list of numbers: the extents
    # Lists. Positions are numbers; in place: whether this is the list's last use.
    INSERT = 29, 8  # to, from, element, position, its rank, bytes of its element, in place, check
    ERASE = 30, 6  # to, from, position, rank of an element, in place, check
    AT = 31, 5  # to, from, position, rank, check: the same memory
    SPLIT = 32, 10  # to, from, rank, bytes, axis, keeps it, step or 0, sizes or 0, bytes, check
    JOIN = 33, 7  # to, from, rank of an element, bytes of its element, axis, is a new one, check


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
    SHARING = 23  # a `Sharing`
    RUNS = 24  # since `SHARING` changed, while runs are counted
    ALONE_SECONDS = 25  # nanoseconds that one thread takes
    ALONE_WORK = 26  # for this much work, in units of the driver's
    RETRY = 27  # the time (monotonic, nanoseconds) from which sharing is tried again
    BACKOFF = 28  # nanoseconds between two comparisons


SEGMENT_WORDS = 29


class Sharing(IntEnum):
    """By whom a segment is run whose kernels may be shared: all threads, or the caller alone.

    The first three states are passed in this order to compare the two: at first, and again, from
    the second on, when two runs in a row took longer than one thread, or when a pause is over."""

    WARMING = 0  # by all
    MEASURING = 1  # by the caller, to know what one thread takes
    PROBING = 2  # by all, to compare
    SHARED = 3  # by all
    SLOWER = 4  # by all, and the last run took longer than one thread
    ALONE = 5  # by the caller, until it is time to compare again


class Value(IntEnum):
    """Words of a value, before its extents."""

    DATA = 0
    OWNER = 1  # the buffer that holds it; 0: the caller's memory


VALUE_WORDS = 2


class Buffer(IntEnum):
    """Words of a buffer, before its memory."""

    REFERENCES = 0
    CAPACITY = 1
    NEXT = 2  # among the unused ones
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
