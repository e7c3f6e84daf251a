"""The part of the native driver that executes programs: instructions in, their effects out.

`graft_execute` runs a frame (`program/layout.py`) from its program counter on until it ends, fails or
needs Python, and says which. It is written with `assembler` and compiled with the rest of the
driver when a model is compiled.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.runtime.assembler import WORD, Code, Flag, Variable, Word
from graft.program.layout import (
    BUFFER_BYTES,
    EXECUTE,
    OPERANDS,
    STACK_WORDS,
    VALUE_WORDS,
    Buffer,
    Header,
    Opcode,
    Segment,
    Stack,
    Status,
    Value,
)
from graft.program.guards import INSIDE

_ALIGNMENT = 64
_HUGE_BYTES, _HUGE_PAGES = 1 << 22, 14  # from where on the system is asked for huge pages, and how
_SERIAL = 1
_RECORD_BYTES = 40
_FURTHER = 40  # a further thread adds this part of what two cost
_CALL_WORK = 10_000  # what a call of a kernel counts at least towards an interruption
_UNKNOWN_WORK = (1 << 62) - 1


def vm_text() -> str:
    """All functions as LLVM text."""
    writers = (
        _allocate, _release, _retain, _size, _threads, _known, _prepare, _run, _segment, _guards
    )
    operations = [_operation(opcode) for opcode in _OPERATIONS]
    functions = [*(writer() for writer in writers), *operations, _execute()]
    return "\n".join([_DECLARATIONS, *functions])


_DECLARATIONS = """
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare {i64, i1} @llvm.sadd.with.overflow.i64(i64, i64)
declare {i64, i1} @llvm.smul.with.overflow.i64(i64, i64)
"""


def _at(code: Code, base: Word, word: int) -> Word:
    return code.load(base, word * WORD)


def _put(code: Code, value: Word | int, base: Word, word: int) -> None:
    code.store(value, base, word * WORD)


def _item(code: Code, base: Word, index: Word | int, width: int = 1, word: int = 0) -> Word:
    """A word of an entry of a list."""
    if isinstance(index, int):
        return code.load(base, (index * width + word) * WORD)
    return code.load(base + index * (width * WORD), word * WORD)


def _allocate() -> str:
    """Memory of so many bytes from buffers that nobody uses, or from the system; 0: none."""
    code = Code("vm.allocate", ("frame", "bytes"), "i64")
    frame, wanted = code["frame"], code["bytes"]
    place = code.variable(frame + Header.FREE * WORD)  # the word that leads to the buffer
    with code.repeat() as loop:
        buffer = code.load(place.now)
        code.leave(loop, buffer.is_("eq", 0))
        capacity = _at(code, buffer, Buffer.CAPACITY)
        fits = capacity.is_("sge", wanted)
        is_close = capacity.is_("sle", wanted * 2 + 4096)
        with code.when(code.both(fits, is_close)):
            code.store(_at(code, buffer, Buffer.NEXT), place.now)
            _put(code, 1, buffer, Buffer.REFERENCES)
            code.give(buffer + BUFFER_BYTES)
        place.become(buffer + Buffer.NEXT * WORD)
    capacity = (wanted + (wanted >> 3) + (_ALIGNMENT - 1)) & -_ALIGNMENT
    with code.when(wanted.is_("sgt", 1 << 48)):
        code.give(0)
    total = capacity + BUFFER_BYTES
    made = code.make("ptr", f"call ptr @aligned_alloc(i64 {_ALIGNMENT}, i64 {total.text})")
    buffer = code.make("i64", f"ptrtoint ptr {made.text} to i64")
    with code.when(buffer.is_("eq", 0)):
        code.give(0)
    with code.when(capacity.is_("sge", _HUGE_BYTES)):
        page = (buffer + 4095) & -4096
        left = total - (page - buffer)
        advised = f"call i32 @madvise(ptr {code.pointer(page)}, i64 {left.text}, i32 {_HUGE_PAGES})"
        code.make("i32", advised)
    _put(code, 1, buffer, Buffer.REFERENCES)
    _put(code, capacity, buffer, Buffer.CAPACITY)
    code.give(buffer + BUFFER_BYTES)
    return code.text


def _release() -> str:
    """One user less of a buffer, if it is one; the last one leaves it to others."""
    code = Code("vm.release", ("frame", "buffer"))
    frame, buffer = code["frame"], code["buffer"]
    with code.when(buffer.is_("ne", 0)):
        left = _at(code, buffer, Buffer.REFERENCES) - 1
        _put(code, left, buffer, Buffer.REFERENCES)
        with code.when(left.is_("eq", 0)):
            _put(code, _at(code, frame, Header.FREE), buffer, Buffer.NEXT)
            _put(code, buffer, frame, Header.FREE)
    return code.text


def _retain() -> str:
    """One user more of a buffer, if it is one."""
    code = Code("vm.retain", ("buffer",))
    buffer = code["buffer"]
    with code.when(buffer.is_("ne", 0)):
        _put(code, _at(code, buffer, Buffer.REFERENCES) + 1, buffer, Buffer.REFERENCES)
    return code.text


def _size() -> str:
    """The product of so many extents and of the bytes of an element."""
    code = Code("vm.size", ("extents", "rank", "bytes"), "i64")
    total = code.variable(code["bytes"])
    with code.count(code["rank"]) as axis:
        total.become(total.now * _item(code, code["extents"], axis))
    code.give(total.now)
    return code.text


def _clear(code: Code, frame: Word, value: Word) -> None:
    """Let a value be nothing."""
    code.call("vm.release", frame, _at(code, value, Value.OWNER), result="void")
    _put(code, 0, value, Value.OWNER)
    _put(code, 0, value, Value.DATA)


def _provide(code: Code, frame: Word, value: Word, bytes_: Word, failure: Callable[[], None]) -> None:
    """Memory for a value: what somebody has given it, or a buffer."""
    with code.when(_at(code, value, Value.OWNER).is_("ne", 0)):
        _clear(code, frame, value)
    with code.when(_at(code, value, Value.DATA).is_("eq", 0)):
        data = code.call("vm.allocate", frame, bytes_)
        with code.when(data.is_("eq", 0)):
            _put(code, bytes_, frame, Header.DETAIL)
            failure()
        _put(code, data, value, Value.DATA)
        _put(code, data - BUFFER_BYTES, value, Value.OWNER)


def _threads() -> str:
    """How many threads are fastest for some calls: `graft.runtime.threads` says the same."""
    code = Code("vm.threads", ("frame", "work", "calls"), "i64")
    frame, work = code["frame"], code["work"]
    threads = _at(code, frame, Header.THREADS)
    price = _at(code, frame, Header.CALLING) + code["calls"] * _at(code, frame, Header.MEETING)
    with code.when(code.either(threads.is_("slt", 2), (work >> 1).is_("sle", price))):
        code.give(1)
    # One more thread spares work / (n (n + 1)) and costs a part of the price.
    best = code.variable(2)
    with code.repeat() as loop:
        now = best.now
        code.leave(loop, now.is_("sge", threads))
        cost = code.operation("sdiv", price * now * (now + 1), _FURTHER)
        code.leave(loop, work.is_("sle", cost))
        best.become(now + 1)
    code.give(best.now)
    return code.text


def _prepare() -> str:
    """A segment's threads and words, as far as they have changed; then its outputs' memory.

    Gives a status."""
    code = Code("vm.prepare", ("frame", "segment"), "i64")
    frame, segment = code["frame"], code["segment"]
    is_new = _at(code, segment, Segment.THREADS).is_("eq", 0)
    with code.when(is_new):
        keys, seen = _at(code, segment, Segment.KEY), _at(code, segment, Segment.SEEN)
        with code.count(_at(code, segment, Segment.KEYS)) as index:
            code.store(code.load(_item(code, keys, index)), seen + index * WORD)
        _add_up(code, frame, segment)
    arena = code.load(_at(code, segment, Segment.ARENA_BYTES))
    scratch = code.load(_at(code, segment, Segment.SCRATCH_BYTES))
    needed = arena + scratch * _at(code, frame, Header.THREADS)
    with code.when(needed.is_("sgt", _at(code, frame, Header.ARENA_BYTES))):
        _grow(code, frame, needed)
    base = _at(code, frame, Header.ARENA)
    moved = base.is_("ne", _at(code, segment, Segment.BASE))
    with code.when(code.either(moved, is_new)):
        _put(code, base, segment, Segment.BASE)
        _lead_to_memory(code, segment, base + arena, scratch)
    outputs = _at(code, segment, Segment.OUTPUT)
    with code.count(_at(code, segment, Segment.OUTPUTS)) as index:
        value, rank = _item(code, outputs, index, 4), _item(code, outputs, index, 4, 1)
        bytes_ = code.load(_item(code, outputs, index, 4, 2))
        _provide(code, frame, value, bytes_, lambda: code.give(Status.MEMORY))
        code.copy(value + VALUE_WORDS * WORD, _item(code, outputs, index, 4, 3), rank * WORD)
    values = _at(code, segment, Segment.VALUE)
    with code.count(_at(code, segment, Segment.VALUES)) as index:
        data = _at(code, _item(code, values, index, 2, 1), Value.DATA)
        code.store(data, _item(code, values, index, 2))
    code.give(Status.DONE)
    return code.text


def _lead_to_memory(code: Code, segment: Word, scratches: Word, scratch: Word) -> None:
    """Write the words by which kernels find slots and scratch memory."""
    slots = _at(code, segment, Segment.SLOT)
    with code.count(_at(code, segment, Segment.SLOTS)) as index:
        start = code.load(_item(code, slots, index, 3, 1))
        offset = code.load(_item(code, slots, index, 3, 2))
        code.store(start + offset, _item(code, slots, index, 3))
    owned = _at(code, segment, Segment.SCRATCH)
    with code.count(_at(code, segment, Segment.SCRATCHES)) as index:
        own = scratch * _item(code, owned, index, 2, 1)
        code.store(scratches + own, _item(code, owned, index, 2))


def _known() -> str:
    """Whether a segment's numbers are those for the symbols of now; otherwise they are no more."""
    code = Code("vm.known", ("segment",), "i64")
    segment = code["segment"]
    keys, seen = _at(code, segment, Segment.KEY), _at(code, segment, Segment.SEEN)
    with code.count(_at(code, segment, Segment.KEYS)) as index:
        now, before = code.load(_item(code, keys, index)), _item(code, seen, index)
        with code.when(now.is_("ne", before)):
            _put(code, 0, segment, Segment.THREADS)
    code.give(code.select(_at(code, segment, Segment.THREADS).is_("ne", 0), 1, 0))
    return code.text


def _add_up(code: Code, frame: Word, segment: Word) -> None:
    """A segment's work, and the threads for it."""
    total, shared = code.variable(0), code.variable(0)
    work, records = _at(code, segment, Segment.WORK), _at(code, segment, Segment.RECORDS)
    with code.count(_at(code, segment, Segment.CALLS)) as index:
        own = _item(code, work, index)
        flags = code.load(records + index * _RECORD_BYTES, 4 * WORD)
        total.become(_at_most(code, total.now + own, _UNKNOWN_WORK))
        with code.when((flags & _SERIAL).is_("eq", 0)):
            shared.become(_at_most(code, shared.now + own, _UNKNOWN_WORK))
    _put(code, total.now, segment, Segment.TOTAL)
    calls = _at(code, segment, Segment.CALLS)
    threads = code.call("vm.threads", frame, shared.now, calls)
    _put(code, threads, segment, Segment.THREADS)


def _at_most(code: Code, word: Word, limit: int) -> Word:
    return code.select(word.is_("sgt", limit), limit, word)


def _grow(code: Code, frame: Word, needed: Word) -> None:
    """Let the arena be larger."""
    old = _at(code, frame, Header.ARENA)
    with code.when(old.is_("ne", 0)):
        code.call("vm.release", frame, old - BUFFER_BYTES, result="void")
        _put(code, 0, frame, Header.ARENA)
        _put(code, 0, frame, Header.ARENA_BYTES)
    data = code.call("vm.allocate", frame, needed)
    with code.when(data.is_("eq", 0)):
        _put(code, needed, frame, Header.DETAIL)
        code.give(Status.MEMORY)
    _put(code, data, frame, Header.ARENA)
    capacity = code.load(data - BUFFER_BYTES, Buffer.CAPACITY * WORD)
    _put(code, capacity, frame, Header.ARENA_BYTES)


def _run() -> str:
    """Some calls of a segment, by so many threads."""
    code = Code("vm.run", ("frame", "records", "count", "threads"))
    frame = code["frame"]
    job = frame + Header.JOB * WORD
    pool = _at(code, frame, Header.POOL)
    words = (pool, code["records"], code["count"], code["threads"], _at(code, frame, Header.TIMES))
    for number, word in enumerate(words):
        code.store(word, job, number * WORD)
    shared = code["threads"].is_("sgt", 1)
    with code.when(shared):
        code.call_text(f"call void @lock_pool(ptr {code.pointer(pool)})")
    code.call_text(f"call void @graft_run(ptr {code.pointer(job)})")
    with code.when(shared):
        code.call_text(f"call void @unlock_pool(ptr {code.pointer(pool)})")
    return code.text


def _segment() -> str:
    """A segment, from the call on where it was interrupted. Gives a status."""
    code = Code("vm.segment", ("frame", "segment"), "i64")
    frame, segment = code["frame"], code["segment"]
    first = code.variable(_at(code, segment, Segment.NEXT))
    with code.when(first.now.is_("eq", 0)):
        status = code.call("vm.prepare", frame, segment)
        with code.when(status.is_("ne", Status.DONE)):
            code.give(status)
    threads, count = _at(code, segment, Segment.THREADS), _at(code, segment, Segment.CALLS)
    unstarted = _at(code, frame, Header.STARTED).is_("eq", 0)
    with code.when(code.both(threads.is_("sgt", 1), unstarted)):
        code.give(Status.START)
    records, work = _at(code, segment, Segment.RECORDS), _at(code, segment, Segment.WORK)
    long = _at(code, frame, Header.LONG)
    last = code.variable(count)
    total = code.variable(_at(code, segment, Segment.TOTAL))
    is_known = total.now.is_("slt", _UNKNOWN_WORK)
    with code.when(code.both(total.now.is_("sge", long), is_known)):
        total.become(0)
        last.become(first.now)
        with code.repeat() as loop:
            code.leave(loop, last.now.is_("sge", count))
            code.leave(loop, total.now.is_("sge", long))
            total.become(total.now + _item(code, work, last.now))
            last.become(last.now + 1)
    begin = records + first.now * _RECORD_BYTES
    code.call("vm.run", frame, begin, last.now - first.now, threads, result="void")
    known = code.select(total.now.is_("slt", _UNKNOWN_WORK), total.now, 0)
    budget = _at(code, frame, Header.BUDGET) - known - (last.now - first.now) * _CALL_WORK
    _put(code, budget, frame, Header.BUDGET)
    with code.when(last.now.is_("slt", count)):
        _put(code, last.now, segment, Segment.NEXT)
        code.give(Status.PAUSE)
    _put(code, 0, segment, Segment.NEXT)
    code.give(code.call("vm.guards", frame, segment))
    return code.text


def _guards() -> str:
    """Whether guards have found indices outside of their axes. Gives a status."""
    code = Code("vm.guards", ("frame", "segment"), "i64")
    frame, segment = code["frame"], code["segment"]
    value = _at(code, segment, Segment.FOUND)
    with code.when(value.is_("eq", 0)):
        code.give(Status.DONE)
    found = _at(code, value, Value.DATA)
    with code.count(_at(code, segment, Segment.GUARDS)) as index:
        with code.when(_item(code, found, index).is_("ne", INSIDE)):
            _put(code, _at(code, segment, Segment.NUMBER), frame, Header.DETAIL)
            code.give(Status.GUARDED)
    code.give(Status.DONE)
    return code.text


class _Operands:
    """The words behind an opcode."""

    def __init__(self, code: Code) -> None:
        self.code, self.frame = code, code["frame"]

    def __getitem__(self, number: int) -> Word:
        return self.code.load(self.code["pc"], (1 + number) * WORD)

    def fail(self, status: Status, detail: Word | int) -> None:
        """Come back with a status."""
        _put(self.code, detail, self.frame, Header.DETAIL)
        self.code.give(status)

    def provide(self, value: Word, bytes_: Word) -> None:
        """Memory for a value."""
        _provide(self.code, self.frame, value, bytes_, lambda: self.code.give(Status.MEMORY))


def _extents(value: Word) -> Word:
    return value + VALUE_WORDS * WORD


def _python(code: Code, given: _Operands) -> None:
    given.fail(Status.PYTHON, given[0])


def _move(code: Code, given: _Operands) -> None:
    target, source, rank = given[0], given[1], given[2]
    _share(code, given.frame, target, source)
    code.copy(_extents(target), _extents(source), rank * WORD)


def _share(code: Code, frame: Word, target: Word, source: Word) -> None:
    """A value is where another one is. Memory that somebody has given it is written instead."""
    owner = _at(code, source, Value.OWNER)
    code.call("vm.retain", owner, result="void")
    data = _at(code, source, Value.DATA)
    code.call("vm.release", frame, _at(code, target, Value.OWNER), result="void")
    _put(code, owner, target, Value.OWNER)
    _put(code, data, target, Value.DATA)


def _free(code: Code, given: _Operands) -> None:
    _clear(code, given.frame, given[0])


def _fail(code: Code, given: _Operands) -> None:
    given.fail(Status.FAILED, given[0])


def _copy(code: Code, given: _Operands) -> None:
    code.store(code.load(given[1]), given[0])


def _plus(code: Code, given: _Operands) -> None:
    _checked(code, given, "sadd")


def _times(code: Code, given: _Operands) -> None:
    _checked(code, given, "smul")


def _checked(code: Code, given: _Operands, name: str) -> None:
    """Arithmetic whose result has to fit into a word."""
    left, right = code.load(given[1]), code.load(given[2])
    operands = f"i64 {left.text}, i64 {right.text}"
    pair = code.make("", f"call {{i64, i1}} @llvm.{name}.with.overflow.i64({operands})")
    result = code.make("i64", f"extractvalue {{i64, i1}} {pair.text}, 0")
    overflow = code.make("i1", f"extractvalue {{i64, i1}} {pair.text}, 1")
    with code.when(Flag(overflow.text)):
        given.fail(Status.NUMBER, 0)
    code.store(result, given[0])


def _divide(code: Code, given: _Operands) -> None:
    code.store(_divided(code, given)[0], given[0])


def _modulo(code: Code, given: _Operands) -> None:
    code.store(_divided(code, given)[1], given[0])


def _divided(code: Code, given: _Operands) -> tuple[Word, Word]:
    """The quotient, rounded down, and what is left, with the sign of the divisor."""
    left, right = code.load(given[1]), code.load(given[2])
    with code.when(right.is_("eq", 0)):
        given.fail(Status.NUMBER, 0)
    quotient = code.operation("sdiv", left, right)
    rest = left - quotient * right
    opposed = code.operation("xor", rest, right).is_("slt", 0)
    inexact = code.both(rest.is_("ne", 0), opposed)
    return code.select(inexact, quotient - 1, quotient), code.select(inexact, rest + right, rest)


def _least(code: Code, given: _Operands) -> None:
    left, right = code.load(given[1]), code.load(given[2])
    code.store(code.select(left.is_("slt", right), left, right), given[0])


def _most(code: Code, given: _Operands) -> None:
    left, right = code.load(given[1]), code.load(given[2])
    code.store(code.select(left.is_("sgt", right), left, right), given[0])


def _broadcast(code: Code, given: _Operands) -> None:
    left, right = code.load(given[1]), code.load(given[2])
    one = code.either(left.is_("eq", 1), right.is_("eq", 1))
    fits = code.either(one, left.is_("eq", right))
    with code.when(code.compare("eq", code.select(fits, 1, 0), 0)):
        given.fail(Status.NUMBER, 0)
    code.store(code.select(left.is_("eq", 1), right, left), given[0])


def _extent(code: Code, given: _Operands) -> None:
    code.store(_item(code, _extents(given[1]), given[2]), given[0])


def _read(code: Code, given: _Operands) -> None:
    data, bytes_ = _at(code, given[1], Value.DATA), given[2]
    for width in (1, 2, 4, 8):
        with code.when(bytes_.is_("eq", width)):
            code.store(code.load_signed(data, f"i{8 * width}"), given[0])


def _scalar(code: Code, given: _Operands) -> None:
    data, bytes_ = _at(code, given[0], Value.DATA), given[2]
    for width in (1, 2, 4, 8):
        with code.when(bytes_.is_("eq", width)):
            code.store(code.load(given[1]), data, 0, f"i{8 * width}")


def _check(code: Code, given: _Operands) -> None:
    extent = _item(code, _extents(given[0]), given[1])
    with code.when(extent.is_("ne", code.load(given[2]))):
        given.fail(Status.FAILED, given[3])


def _slice(code: Code, given: _Operands) -> None:
    target, source, counts, rank = given[0], given[1], given[2], given[3]
    _share(code, given.frame, target, source)
    code.copy(_extents(target), _extents(source), rank * WORD)
    last = code.load(_extents(counts)) - 1
    code.store(_item(code, _at(code, counts, Value.DATA), last), _extents(target))


def _push(code: Code, given: _Operands) -> None:
    stack, value, rank = given[0], given[1], given[2]
    row = code.call("vm.size", _extents(value), rank, given[3])
    rows = _at(code, stack, Stack.ROWS)
    extents = stack + STACK_WORDS * WORD
    with code.when(rows.is_("eq", 0)):
        code.copy(extents, _extents(value), rank * WORD)
    with code.count(rank) as axis:
        differs = _item(code, extents, axis).is_("ne", _item(code, _extents(value), axis))
        with code.when(differs):
            given.fail(Status.SHAPES, 0)
    with code.when(rows.is_("sge", _at(code, stack, Stack.CAPACITY))):
        expected = code.load(given[4])
        more = code.select(rows.is_("eq", 0), 16, rows * 2)
        # So many at once only where they are known to come and are not much memory.
        few = code.operation("sdiv", 1 << 26, row + 1)
        modest = code.both(expected.is_("sgt", more), expected.is_("slt", few))
        capacity = code.select(modest, expected, more)
        data = code.call("vm.allocate", given.frame, capacity * row)
        with code.when(data.is_("eq", 0)):
            given.fail(Status.MEMORY, capacity * row)
        old = _at(code, stack, Stack.DATA)
        with code.when(rows.is_("ne", 0)):
            code.copy(data, old, rows * row)
        code.call("vm.release", given.frame, _at(code, stack, Stack.OWNER), result="void")
        _put(code, data, stack, Stack.DATA)
        _put(code, data - BUFFER_BYTES, stack, Stack.OWNER)
        _put(code, capacity, stack, Stack.CAPACITY)
    place = _at(code, stack, Stack.DATA) + rows * row
    code.copy(place, _at(code, value, Value.DATA), row)
    _put(code, rows + 1, stack, Stack.ROWS)


def _stack(code: Code, given: _Operands) -> None:
    target, stack, rank, bytes_, axis, backwards = (given[number] for number in range(6))
    rows = _at(code, stack, Stack.ROWS)
    extents = stack + STACK_WORDS * WORD
    with code.when(rows.is_("eq", 0)):
        _gather(code, extents, given[6], rank)
    row = code.call("vm.size", extents, rank, bytes_)
    inner = code.call("vm.size", extents + axis * WORD, rank - axis, bytes_)
    outer = code.call("vm.size", extents, axis, 1)
    given.provide(target, rows * row)
    new = _extents(target)
    code.copy(new, extents, axis * WORD)
    code.store(rows, new + axis * WORD)
    code.copy(new + (axis + 1) * WORD, extents + axis * WORD, (rank - axis) * WORD)
    data, source = _at(code, target, Value.DATA), _at(code, stack, Stack.DATA)
    with code.count(rows) as index:
        forward = backwards.is_("eq", 0)
        position = code.select(forward, index, rows - 1 - index)
        with code.count(outer) as block:
            place = data + (block * rows + position) * inner
            code.copy(place, source + index * row + block * inner, inner)
    code.call("vm.release", given.frame, _at(code, stack, Stack.OWNER), result="void")
    for word in (Stack.DATA, Stack.OWNER, Stack.ROWS, Stack.CAPACITY):
        _put(code, 0, stack, word)


def _row(code: Code, given: _Operands) -> None:
    target, source, register, rank, bytes_, backwards = (given[number] for number in range(6))
    _share(code, given.frame, target, source)
    extents = _extents(source)
    code.copy(_extents(target), extents + WORD, rank * WORD)
    row = code.call("vm.size", extents + WORD, rank, bytes_)
    index = code.load(register)
    last = code.load(extents) - 1
    position = code.select(backwards.is_("eq", 0), index, last - index)
    _put(code, _at(code, source, Value.DATA) + position * row, target, Value.DATA)


def _axis(code: Code, given: _Operands) -> None:
    target, source, rank, bytes_, axis = (given[number] for number in range(5))
    extents, new = _extents(source), _extents(target)
    outer = code.call("vm.size", extents, axis, 1)
    inner = code.call("vm.size", extents + (axis + 1) * WORD, rank - axis - 1, bytes_)
    count = _item(code, extents, axis)
    given.provide(target, outer * inner * count)
    code.store(count, new)
    code.copy(new + WORD, extents, axis * WORD)
    behind = (axis + 1) * WORD
    code.copy(new + behind, extents + behind, (rank - axis - 1) * WORD)
    data, old = _at(code, target, Value.DATA), _at(code, source, Value.DATA)
    with code.count(count) as index:
        with code.count(outer) as block:
            place = data + (index * outer + block) * inner
            code.copy(place, old + (block * count + index) * inner, inner)


def _allocate_value(code: Code, given: _Operands) -> None:
    given.provide(given[0], code.load(given[1]))


def _place(code: Code, given: _Operands) -> None:
    value, shelf = given[0], given[1]
    _put(code, _at(code, shelf, Value.DATA) + code.load(given[2]), value, Value.DATA)
    _gather(code, _extents(value), given[4], given[3])


def _gather(code: Code, target: Word, addresses: Word, count: Word) -> None:
    """Numbers that lie at so many addresses, one behind the other."""
    with code.count(count) as index:
        code.store(code.load(_item(code, addresses, index)), target + index * WORD)


_OPERATIONS: dict[Opcode, Callable[[Code, _Operands], None]] = {
    Opcode.PYTHON: _python,
    Opcode.FAIL: _fail,
    Opcode.COPY: _copy,
    Opcode.PLUS: _plus,
    Opcode.TIMES: _times,
    Opcode.DIVIDE: _divide,
    Opcode.MODULO: _modulo,
    Opcode.LEAST: _least,
    Opcode.MOST: _most,
    Opcode.BROADCAST: _broadcast,
    Opcode.EXTENT: _extent,
    Opcode.ITEM: _read,
    Opcode.SCALAR: _scalar,
    Opcode.CHECK: _check,
    Opcode.MOVE: _move,
    Opcode.FREE: _free,
    Opcode.SLICE: _slice,
    Opcode.PUSH: _push,
    Opcode.STACK: _stack,
    Opcode.ROW: _row,
    Opcode.AXIS: _axis,
    Opcode.ALLOCATE: _allocate_value,
    Opcode.PLACE: _place,
}


def _operation(opcode: Opcode) -> str:
    """A function that does what an instruction says. Gives a status."""
    code = Code(f"vm.{opcode.name.lower()}.do", ("frame", "pc"), "i64")
    _OPERATIONS[opcode](code, _Operands(code))
    code.give(Status.DONE)
    return code.text


def _execute() -> str:
    """Instruction after instruction."""
    code = Code(EXECUTE, ("frame",), "i64", public=True)
    frame = code["frame"]
    place = code.variable(_at(code, frame, Header.PC))
    with code.repeat():
        pc = place.now
        opcode = code.load(pc)
        with code.when(opcode.is_("eq", Opcode.SEGMENT)):
            _execute_segment(code, frame, place)
        for kind in _OPERATIONS:
            with code.when(opcode.is_("eq", kind)):
                after = pc + (1 + OPERANDS[kind]) * WORD
                status = code.call(f"vm.{kind.name.lower()}.do", frame, pc)
                with code.when(status.is_("ne", Status.DONE)):
                    _put(code, after, frame, Header.PC)
                    code.give(status)
                place.become(after)
        _jumps(code, opcode, pc, place)
        with code.when(opcode.is_("eq", Opcode.END)):
            _put(code, pc, frame, Header.PC)
            code.give(Status.DONE)
    code.give(Status.DONE)
    return code.text


def _execute_segment(code: Code, frame: Word, place: Variable) -> None:
    pc = place.now
    segment = code.load(pc, WORD)
    status = code.call("vm.segment", frame, segment)
    again = code.either(status.is_("eq", Status.PAUSE), status.is_("eq", Status.START))
    after = pc + 2 * WORD
    with code.when(status.is_("ne", Status.DONE)):
        _put(code, code.select(again, pc, after), frame, Header.PC)
        code.give(status)
    place.become(after)
    with code.when(_at(code, frame, Header.TIMES).is_("ne", 0)):
        _put(code, after, frame, Header.PC)
        _put(code, _at(code, segment, Segment.NUMBER), frame, Header.DETAIL)
        code.give(Status.PROFILED)
    with code.when(_at(code, frame, Header.BUDGET).is_("sle", 0)):
        _put(code, after, frame, Header.PC)
        code.give(Status.PAUSE)


def _jumps(code: Code, opcode: Word, pc: Word, place: Variable) -> None:
    def operand(number: int) -> Word:
        return code.load(pc, (1 + number) * WORD)

    def after(kind: Opcode) -> Word:
        return pc + (1 + OPERANDS[kind]) * WORD

    with code.when(opcode.is_("eq", Opcode.JUMP)):
        place.become(operand(0))
    with code.when(opcode.is_("eq", Opcode.DIFFER)):
        differ = code.load(operand(0)).is_("ne", code.load(operand(1)))
        place.become(code.select(differ, operand(2), after(Opcode.DIFFER)))
    with code.when(opcode.is_("eq", Opcode.CHANGED)):
        known = code.call("vm.known", operand(0))
        place.become(code.select(known.is_("ne", 0), operand(1), after(Opcode.CHANGED)))
    with code.when(opcode.is_("eq", Opcode.UPTO)):
        reached = code.load(operand(0)).is_("sge", code.load(operand(1)))
        place.become(code.select(reached, operand(2), after(Opcode.UPTO)))
