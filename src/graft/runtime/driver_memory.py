"""Memory of frames, as a part of the native driver: buffers that values share, and their words.

Buffers are counted by reference: an unused one serves the next allocation. Words of
frames are laid out as `program/layout.py` says.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.program.layout import (
    ALLOCATE,
    BUFFER_BYTES,
    DISCARD,
    VALUE_WORDS,
    Buffer,
    Header,
    Status,
    Value,
)
from graft.program.program import ALIGNMENT
from graft.runtime.assembler import WORD, Code, Word

# From where on the system is asked for huge pages, and the number of that advice.
_HUGE_BYTES, _HUGE_PAGES = 1 << 22, 14

# Whether released buffers are filled with 0xFF bytes (NaN, or -1), so that whoever reads one that
# is no longer its own shows it. For tests.
POISON = False

_DECLARATIONS = """
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @madvise(ptr, i64, i32)
"""


def memory_text() -> str:
    """The functions as LLVM text."""
    return "\n".join([_DECLARATIONS, _allocate(), _release(), _retain(), _size(), _discard()])


def word_of(code: Code, base: Word, word: int) -> Word:
    """A word of something that begins at an address."""
    return code.load(base, word * WORD)


def put_word(code: Code, value: Word | int, base: Word, word: int) -> None:
    """Change such a word."""
    code.store(value, base, word * WORD)


def entry_of(code: Code, base: Word, index: Word | int, width: int = 1, word: int = 0) -> Word:
    """A word of an entry of a list."""
    if isinstance(index, int):
        return code.load(base, (index * width + word) * WORD)
    return code.load(base + index * (width * WORD), word * WORD)


def extents_of(value: Word) -> Word:
    """Where the extents of a value are."""
    return value + VALUE_WORDS * WORD


def _allocate() -> str:
    """Memory of so many bytes from unused buffers, or from the system; 0: none."""
    code = Code(ALLOCATE, ("frame", "bytes"), "i64", public=True)
    frame, size = code["frame"], code["bytes"]
    with code.when(size.is_("ugt", word_of(code, frame, Header.LIMIT))):  # or less than nothing
        code.give(0)
    link = code.variable(frame + Header.FREE * WORD)  # the word that leads to the buffer
    with code.repeat() as loop:
        buffer = code.load(link.now)
        code.leave(loop, buffer.is_("eq", 0))
        capacity = word_of(code, buffer, Buffer.CAPACITY)
        fits = capacity.is_("sge", size)
        is_close = capacity.is_("sle", size * 2 + 4096)
        with code.when(fits & is_close):
            code.store(word_of(code, buffer, Buffer.NEXT), link.now)
            put_word(code, 1, buffer, Buffer.REFERENCES)
            put_word(code, 0, buffer, Buffer.WIDTH)
            code.give(buffer + BUFFER_BYTES)
        link.become(buffer + Buffer.NEXT * WORD)
    capacity = (size + (size >> 3) + (ALIGNMENT - 1)) & -ALIGNMENT
    total = capacity + BUFFER_BYTES
    memory = code.make("ptr", f"call ptr @aligned_alloc(i64 {ALIGNMENT}, i64 {total.text})")
    buffer = code.make("i64", f"ptrtoint ptr {memory.text} to i64")
    with code.when(buffer.is_("eq", 0)):
        code.give(0)
    with code.when(capacity.is_("sge", _HUGE_BYTES)):
        page = (buffer + 4095) & -4096
        left = total - (page - buffer)
        advised = f"call i32 @madvise(ptr {code.pointer(page)}, i64 {left.text}, i32 {_HUGE_PAGES})"
        code.make("i32", advised)
    put_word(code, 1, buffer, Buffer.REFERENCES)
    put_word(code, 0, buffer, Buffer.WIDTH)
    put_word(code, capacity, buffer, Buffer.CAPACITY)
    put_word(code, word_of(code, frame, Header.BUFFERS), buffer, Buffer.BEFORE)
    put_word(code, buffer, frame, Header.BUFFERS)
    code.give(buffer + BUFFER_BYTES)
    return code.text


def _release() -> str:
    """One user less of a buffer, if it is one; the last one leaves it to others, and what the
    elements of a list use."""
    code = Code("graft.release", ("frame", "buffer"))
    frame, buffer = code["frame"], code["buffer"]
    with code.when(buffer.is_("ne", 0)):
        left = word_of(code, buffer, Buffer.REFERENCES) - 1
        put_word(code, left, buffer, Buffer.REFERENCES)
        with code.when(left.is_("eq", 0)):
            width = word_of(code, buffer, Buffer.WIDTH)
            with code.when(width.is_("ne", 0)):
                table = buffer + BUFFER_BYTES
                with code.count(word_of(code, buffer, Buffer.ELEMENTS)) as index:
                    owner = word_of(code, table + index * width, Value.OWNER)
                    code.call("graft.release", frame, owner, result="void")
            if POISON:
                memory = code.pointer(buffer + BUFFER_BYTES)
                size = word_of(code, buffer, Buffer.CAPACITY).text
                code.do(f"call void @llvm.memset.p0.i64(ptr {memory}, i8 -1, i64 {size}, i1 false)")
            put_word(code, word_of(code, frame, Header.FREE), buffer, Buffer.NEXT)
            put_word(code, buffer, frame, Header.FREE)
    return code.text


def _retain() -> str:
    """One user more of a buffer, if it is one."""
    code = Code("graft.retain", ("buffer",))
    buffer = code["buffer"]
    with code.when(buffer.is_("ne", 0)):
        put_word(code, word_of(code, buffer, Buffer.REFERENCES) + 1, buffer, Buffer.REFERENCES)
    return code.text


def _size() -> str:
    """The product of so many extents and of the bytes of an element."""
    code = Code("graft.size", ("extents", "rank", "bytes"), "i64")
    total = code.variable(code["bytes"])
    with code.count(code["rank"]) as axis:
        total.become(total.now * entry_of(code, code["extents"], axis))
    code.give(total.now)
    return code.text


def _discard() -> str:
    """Return all memory of a frame to the system; it will not run again."""
    code = Code(DISCARD, ("frame",), public=True)
    frame = code["frame"]
    with code.repeat() as loop:
        buffer = word_of(code, frame, Header.BUFFERS)
        code.leave(loop, buffer.is_("eq", 0))
        put_word(code, word_of(code, buffer, Buffer.BEFORE), frame, Header.BUFFERS)
        code.do(f"call void @free(ptr {code.pointer(buffer)})")
    return code.text


class Operands:
    """The words behind an opcode."""

    def __init__(self, code: Code) -> None:
        self.code, self.frame = code, code["frame"]

    def __getitem__(self, number: int) -> Word:
        return self.code.load(self.code["pc"], (1 + number) * WORD)

    def fail(self, status: Status, detail: Word | int) -> None:
        """Come back with a status."""
        put_word(self.code, detail, self.frame, Header.DETAIL)
        self.code.give(status)

    def provide(self, value: Word, bytes_: Word) -> None:
        """Memory for a value."""
        provide(self.code, self.frame, value, bytes_, lambda: self.code.give(Status.MEMORY))


def share(code: Code, frame: Word, target: Word, source: Word) -> None:
    """Let a value be where another one is."""
    owner = word_of(code, source, Value.OWNER)
    code.call("graft.retain", owner, result="void")
    data = word_of(code, source, Value.DATA)
    code.call("graft.release", frame, word_of(code, target, Value.OWNER), result="void")
    put_word(code, owner, target, Value.OWNER)
    put_word(code, data, target, Value.DATA)


def clear(code: Code, frame: Word, value: Word) -> None:
    """Let a value be nothing."""
    code.call("graft.release", frame, word_of(code, value, Value.OWNER), result="void")
    put_word(code, 0, value, Value.OWNER)
    put_word(code, 0, value, Value.DATA)


def provide(
    code: Code, frame: Word, value: Word, bytes_: Word, failure: Callable[[], None]
) -> None:
    """Memory for a value: the caller's, or a buffer."""
    with code.when(word_of(code, value, Value.OWNER).is_("ne", 0)):
        clear(code, frame, value)
    with code.when(word_of(code, value, Value.DATA).is_("eq", 0)):
        data = code.call(ALLOCATE, frame, bytes_)
        with code.when(data.is_("eq", 0)):
            put_word(code, bytes_, frame, Header.DETAIL)
            failure()
        put_word(code, data, value, Value.DATA)
        put_word(code, data - BUFFER_BYTES, value, Value.OWNER)
