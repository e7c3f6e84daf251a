"""Segments, as a part of the native driver: their sizes, threads and memory, then their kernels.

What depends on sizes is done only where they have changed since the segment ran last in a frame.
"""

from __future__ import annotations

from graft.program.bytecode_segments import SERIAL, UNKNOWN_WORK
from graft.program.guards import INSIDE
from graft.program.layout import (
    ALLOCATE,
    BUFFER_BYTES,
    Buffer,
    Header,
    Segment,
    Sharing,
    Status,
    Value,
)
from graft.runtime.assembler import WORD, Code, Flag, Word
from graft.runtime.driver_memory import entry_of, extents_of, provide, put_word, word_of

_RECORD_BYTES = 40
_FURTHER = 40  # each further thread adds this part of what two cost
_CALL_WORK = 500_000  # what a call of a kernel counts at least towards an interruption

# Sharing is compared with one thread for segments of less work than this: some 0.1 s alone, which
# the first runs take. The reference's work is in units of 4096, times seconds it fits into a word.
_COMPARED_WORK, _COMPARED_SECONDS, _WORK_BITS = 1 << 35, 1 << 33, 12
# Runs until caches are warm and threads awake; runs alone, the best of which counts; runs that are
# shared again, the first of which wakes the threads, the second counts.
_WARM_RUNS, _ALONE_RUNS, _PROBES = 4, 2, 2
_FIRST_BACKOFF, _LAST_BACKOFF = 16, 256  # between comparisons, in times what one thread takes


def segments_text() -> str:
    """The functions as LLVM text."""
    functions = _threads, _known, _prepare, _run, _team, _compare, _segment, _guards
    return "\n".join(function() for function in functions)


def _threads() -> str:
    """How many threads are fastest for some calls: `graft.runtime.threads` says the same."""
    code = Code("graft.threads", ("frame", "work", "calls"), "i64")
    frame, work = code["frame"], code["work"]
    threads = word_of(code, frame, Header.THREADS)
    price = word_of(code, frame, Header.CALLING) + code["calls"] * word_of(
        code, frame, Header.MEETING
    )
    with code.when(threads.is_("slt", 2) | (work >> 1).is_("sle", price)):
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
    code = Code("graft.prepare", ("frame", "segment"), "i64")
    frame, segment = code["frame"], code["segment"]
    is_new = word_of(code, segment, Segment.THREADS).is_("eq", 0)
    with code.when(is_new):
        keys, seen = word_of(code, segment, Segment.KEY), word_of(code, segment, Segment.SEEN)
        with code.count(word_of(code, segment, Segment.KEYS)) as index:
            code.store(code.load(entry_of(code, keys, index)), seen + index * WORD)
        _add_up(code, frame, segment)
    arena = code.load(word_of(code, segment, Segment.ARENA_BYTES))
    scratch = code.load(word_of(code, segment, Segment.SCRATCH_BYTES))
    nbytes = arena + scratch * word_of(code, frame, Header.THREADS)
    with code.when(nbytes.is_("sgt", word_of(code, frame, Header.ARENA_BYTES))):
        _grow(code, frame, nbytes)
    base = word_of(code, frame, Header.ARENA)
    moved = base.is_("ne", word_of(code, segment, Segment.BASE))
    with code.when(moved | is_new):
        put_word(code, base, segment, Segment.BASE)
        _lead_to_memory(code, segment, base + arena, scratch)
    outputs = word_of(code, segment, Segment.OUTPUT)
    with code.count(word_of(code, segment, Segment.OUTPUTS)) as index:
        value, rank = entry_of(code, outputs, index, 4), entry_of(code, outputs, index, 4, 1)
        bytes_ = code.load(entry_of(code, outputs, index, 4, 2))
        provide(code, frame, value, bytes_, lambda: code.give(Status.MEMORY))
        code.copy(extents_of(value), entry_of(code, outputs, index, 4, 3), rank * WORD)
    values = word_of(code, segment, Segment.VALUE)
    with code.count(word_of(code, segment, Segment.VALUES)) as index:
        data = word_of(code, entry_of(code, values, index, 2, 1), Value.DATA)
        code.store(data, entry_of(code, values, index, 2))
    code.give(Status.DONE)
    return code.text


def _lead_to_memory(code: Code, segment: Word, scratches: Word, scratch: Word) -> None:
    """Write the words by which kernels find slots and scratch memory."""
    slots = word_of(code, segment, Segment.SLOT)
    with code.count(word_of(code, segment, Segment.SLOTS)) as index:
        start = code.load(entry_of(code, slots, index, 3, 1))
        offset = code.load(entry_of(code, slots, index, 3, 2))
        code.store(start + offset, entry_of(code, slots, index, 3))
    owned = word_of(code, segment, Segment.SCRATCH)
    with code.count(word_of(code, segment, Segment.SCRATCHES)) as index:
        own = scratch * entry_of(code, owned, index, 2, 1)
        code.store(scratches + own, entry_of(code, owned, index, 2))


def _known() -> str:
    """Whether a segment's numbers are those for the symbols of now; otherwise they are no more."""
    code = Code("graft.known", ("segment",), "i64")
    segment = code["segment"]
    keys, seen = word_of(code, segment, Segment.KEY), word_of(code, segment, Segment.SEEN)
    with code.count(word_of(code, segment, Segment.KEYS)) as index:
        now, before = code.load(entry_of(code, keys, index)), entry_of(code, seen, index)
        with code.when(now.is_("ne", before)):
            put_word(code, 0, segment, Segment.THREADS)
    code.give(word_of(code, segment, Segment.THREADS).is_("ne", 0).choose(1, 0))
    return code.text


def _add_up(code: Code, frame: Word, segment: Word) -> None:
    """A segment's work, and the threads for it."""
    total, shared = code.variable(0), code.variable(0)
    work, records = word_of(code, segment, Segment.WORK), word_of(code, segment, Segment.RECORDS)
    with code.count(word_of(code, segment, Segment.CALLS)) as index:
        own = entry_of(code, work, index)
        flags = code.load(records + index * _RECORD_BYTES, 4 * WORD)
        total.become(_at_most(code, total.now + own, UNKNOWN_WORK))
        with code.when((flags & SERIAL).is_("eq", 0)):
            shared.become(_at_most(code, shared.now + own, UNKNOWN_WORK))
    put_word(code, total.now, segment, Segment.TOTAL)
    calls = word_of(code, segment, Segment.CALLS)
    threads = code.call("graft.threads", frame, shared.now, calls)
    put_word(code, threads, segment, Segment.THREADS)


def _at_most(code: Code, word: Word, limit: Word | int) -> Word:
    return word.is_("sgt", limit).choose(limit, word)


def _grow(code: Code, frame: Word, nbytes: Word) -> None:
    """Let the arena be larger."""
    old = word_of(code, frame, Header.ARENA)
    with code.when(old.is_("ne", 0)):
        code.call("graft.release", frame, old - BUFFER_BYTES, result="void")
        put_word(code, 0, frame, Header.ARENA)
        put_word(code, 0, frame, Header.ARENA_BYTES)
    data = code.call(ALLOCATE, frame, nbytes)
    with code.when(data.is_("eq", 0)):
        put_word(code, nbytes, frame, Header.DETAIL)
        code.give(Status.MEMORY)
    put_word(code, data, frame, Header.ARENA)
    capacity = code.load(data - BUFFER_BYTES, Buffer.CAPACITY * WORD)
    put_word(code, capacity, frame, Header.ARENA_BYTES)


def _run() -> str:
    """Some calls of a segment, by so many threads."""
    code = Code("graft.run", ("frame", "records", "count", "threads"))
    frame = code["frame"]
    job = frame + Header.JOB * WORD
    pool = word_of(code, frame, Header.THREAD_POOL)
    words = (
        pool,
        code["records"],
        code["count"],
        code["threads"],
        word_of(code, frame, Header.TIMES),
    )
    for number, word in enumerate(words):
        code.store(word, job, number * WORD)
    shared = code["threads"].is_("sgt", 1)
    with code.when(shared):
        code.do(f"call void @lock_pool(ptr {code.pointer(pool)})")
    code.do(f"call void @graft_run(ptr {code.pointer(job)})")
    with code.when(shared):
        code.do(f"call void @unlock_pool(ptr {code.pointer(pool)})")
    return code.text


def _team() -> str:
    """How many threads run a segment now: all that it is for, or the caller alone."""
    code = Code("graft.team", ("segment", "threads", "now"), "i64")
    segment = code["segment"]
    sharing = word_of(code, segment, Segment.SHARING)
    with code.when(sharing.is_("eq", Sharing.ALONE)):
        with code.when(code["now"].is_("sge", word_of(code, segment, Segment.RETRY))):
            _enter(code, segment, Sharing.MEASURING)
        code.give(1)
    code.give(sharing.is_("eq", Sharing.MEASURING).choose(1, code["threads"]))
    return code.text


def _compare() -> str:
    """Learn from a run: what one thread takes, and whether several take longer.

    A core that another process keeps busy makes the threads of a segment wait for each other at
    each kernel, which can take several times as long as one thread alone. But runs also take longer
    on cold caches, after a pause, or on a slower clock, and so would one thread: what it takes is
    measured anew right before sharing is judged by it."""
    code = Code("graft.compare", ("segment", "begin"))
    segment = code["segment"]
    now = code.call("graft.now")
    took = _at_most(code, now - code["begin"], _COMPARED_SECONDS)
    total = (word_of(code, segment, Segment.TOTAL) >> _WORK_BITS) + 1
    sharing = word_of(code, segment, Segment.SHARING)
    runs = word_of(code, segment, Segment.RUNS) + 1
    put_word(code, runs, segment, Segment.RUNS)
    with code.when(sharing.is_("eq", Sharing.ALONE)):
        code.give()
    with code.when(sharing.is_("eq", Sharing.WARMING)):
        with code.when(runs.is_("sge", _WARM_RUNS)):
            _enter(code, segment, Sharing.MEASURING)
        code.give()
    is_first = runs.is_("eq", 1) & sharing.is_("eq", Sharing.MEASURING)
    alone = is_first.choose(took, word_of(code, segment, Segment.ALONE_SECONDS))
    work = is_first.choose(total, word_of(code, segment, Segment.ALONE_WORK))
    expected = _at_most(code, code.operation("sdiv", alone * total, work), _COMPARED_SECONDS)
    with code.when(sharing.is_("eq", Sharing.MEASURING)):
        put_word(code, _at_most(code, took, expected), segment, Segment.ALONE_SECONDS)
        put_word(code, total, segment, Segment.ALONE_WORK)
        with code.when(runs.is_("sge", _ALONE_RUNS)):
            _enter(code, segment, Sharing.PROBING)
        code.give()
    is_slower = took.is_("sgt", expected)
    with code.when(sharing.is_("eq", Sharing.PROBING)):
        with code.when(runs.is_("sge", _PROBES)):
            _judge(code, segment, is_slower, now, expected)
        code.give()
    with code.when(is_slower & sharing.is_("eq", Sharing.SLOWER)):
        _enter(code, segment, Sharing.MEASURING)
        code.give()
    after = is_slower.choose(Sharing.SLOWER, Sharing.SHARED)
    put_word(code, after, segment, Segment.SHARING)
    return code.text


def _judge(code: Code, segment: Word, is_slower: Flag, now: Word, alone: Word) -> None:
    """Share from now on, or let the caller work alone for a while, longer each time in a row."""
    backoff = word_of(code, segment, Segment.BACKOFF)
    longer = _at_most(code, backoff << 1, alone * _LAST_BACKOFF)
    least = alone * _FIRST_BACKOFF
    longer = longer.is_("slt", least).choose(least, longer)
    put_word(code, is_slower.choose(longer, backoff >> 1), segment, Segment.BACKOFF)
    put_word(code, now + longer, segment, Segment.RETRY)
    sharing = is_slower.choose(Sharing.ALONE, Sharing.SHARED)
    put_word(code, sharing, segment, Segment.SHARING)


def _enter(code: Code, segment: Word, sharing: Sharing) -> None:
    put_word(code, sharing, segment, Segment.SHARING)
    put_word(code, 0, segment, Segment.RUNS)


def _segment() -> str:
    """A segment, from the call on where it was interrupted. Gives a status."""
    code = Code("graft.segment", ("frame", "segment"), "i64")
    frame, segment = code["frame"], code["segment"]
    first = code.variable(word_of(code, segment, Segment.NEXT))
    with code.when(first.now.is_("eq", 0)):
        status = code.call("graft.prepare", frame, segment)
        with code.when(status.is_("ne", Status.DONE)):
            code.give(status)
    threads, count = word_of(code, segment, Segment.THREADS), word_of(code, segment, Segment.CALLS)
    unstarted = word_of(code, frame, Header.STARTED).is_("eq", 0)
    with code.when(threads.is_("sgt", 1) & unstarted):
        code.give(Status.START)
    records, work = word_of(code, segment, Segment.RECORDS), word_of(code, segment, Segment.WORK)
    long = word_of(code, frame, Header.LONG)
    last = code.variable(count)
    total = code.variable(word_of(code, segment, Segment.TOTAL))
    is_known = total.now.is_("slt", UNKNOWN_WORK)
    with code.when(total.now.is_("sge", long) & is_known):
        total.become(0)
        last.become(first.now)
        with code.repeat() as loop:
            code.leave(loop, last.now.is_("sge", count))
            code.leave(loop, total.now.is_("sge", long))
            total.become(total.now + entry_of(code, work, last.now))
            last.become(last.now + 1)
    team, begin = code.variable(threads), code.variable(0)
    is_profiled = word_of(code, frame, Header.TIMES).is_("ne", 0)
    is_compared = threads.is_("sgt", 1) & total.now.is_("slt", _COMPARED_WORK)
    with code.when(is_profiled.choose(0, is_compared.choose(1, 0)).is_("ne", 0)):
        begin.become(code.call("graft.now"))
        team.become(code.call("graft.team", segment, threads, begin.now))
    start = records + first.now * _RECORD_BYTES
    code.call("graft.run", frame, start, last.now - first.now, team.now, result="void")
    with code.when(begin.now.is_("ne", 0)):
        code.call("graft.compare", segment, begin.now, result="void")
    work_done = total.now.is_("slt", UNKNOWN_WORK).choose(total.now, 0)
    budget = word_of(code, frame, Header.BUDGET) - work_done - (last.now - first.now) * _CALL_WORK
    put_word(code, budget, frame, Header.BUDGET)
    with code.when(last.now.is_("slt", count)):
        put_word(code, last.now, segment, Segment.NEXT)
        code.give(Status.PAUSE)
    put_word(code, 0, segment, Segment.NEXT)
    code.give(code.call("graft.guards", frame, segment))
    return code.text


def _guards() -> str:
    """Whether guards have found indices outside of their axes. Gives a status."""
    code = Code("graft.guards", ("frame", "segment"), "i64")
    frame, segment = code["frame"], code["segment"]
    value = word_of(code, segment, Segment.GUARD_INDICES)
    with code.when(value.is_("eq", 0)):
        code.give(Status.DONE)
    indices = word_of(code, value, Value.DATA)
    count = word_of(code, segment, Segment.GUARDS)
    with code.count(count) as index, code.when(entry_of(code, indices, index).is_("ne", INSIDE)):
        put_word(code, word_of(code, segment, Segment.NUMBER), frame, Header.DETAIL)
        code.give(Status.GUARDED)
    code.give(Status.DONE)
    return code.text
