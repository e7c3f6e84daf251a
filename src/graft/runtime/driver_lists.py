"""Lists of tensors, as a part of the native driver.

A list's table lies in a counted buffer that says how many elements it has and how wide they are, so
that whoever releases the last list with that table releases the elements, too. All checks come
before anything is changed: the error is told by Python, which runs the operation once more.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.program.layout import (
    ALLOCATE,
    BUFFER_BYTES,
    VALUE_WORDS,
    Buffer,
    Opcode,
    Status,
    Value,
)
from graft.runtime.assembler import WORD, Code, Word
from graft.runtime.driver_memory import (
    Operands,
    entry_of,
    extents_of,
    put_word,
    share,
    word_of,
)


def lists_text() -> str:
    """The functions as LLVM text."""
    return "\n".join([_resize(), _own()])


def _is_exclusive(code: Code, buffer: Word, may_change: Word) -> Word:
    """1 if a list's table has no other user and its last reader is here, else 0."""
    result = code.variable(0)
    with code.when(buffer.is_("ne", 0) & may_change.is_("ne", 0)):
        result.become(word_of(code, buffer, Buffer.REFERENCES).is_("eq", 1).choose(1, 0))
    return result.now


def _resize() -> str:
    """Let `target` be the list `source` without `skip` elements from `first` on and with `gap`
    elements there that are not yet filled in. Gives the table's address; 0 without memory."""
    names = ("frame", "target", "source", "first", "skip", "gap", "width", "in_place")
    code = Code("graft.resize", names, "i64")
    frame, target, source, first, skip, gap, width, _ = (code[name] for name in names)
    buffer, old = word_of(code, source, Value.OWNER), word_of(code, source, Value.DATA)
    count = code.load(extents_of(source))
    after = count + gap - skip
    exclusive = _is_exclusive(code, buffer, code["in_place"])
    owner, table = code.variable(buffer), code.variable(old)
    fits = code.variable(0)
    with code.when(exclusive.is_("ne", 0)):
        with code.when(skip.is_("ne", 0)):
            gone = word_of(code, old + first * width, Value.OWNER)
            code.call("graft.release", frame, gone, result="void")
        room = word_of(code, buffer, Buffer.CAPACITY).is_("sge", after * width)
        at_end = (first + skip).is_("eq", count)
        fits.become((room & at_end).choose(1, 0))
    with code.when(fits.now.is_("eq", 0)):
        data = code.call(ALLOCATE, frame, (after * 2 + 8) * width)
        with code.when(data.is_("eq", 0)):
            code.give(0)
        behind = old + (first + skip) * width
        code.copy(data, old, first * width)
        code.copy(data + (first + gap) * width, behind, (count - first - skip) * width)
        with code.when(gap.is_("ne", 0)):
            put_word(code, 0, data + first * width, Value.OWNER)
        with code.when(exclusive.is_("eq", 0)), code.count(after) as index:
            element = data + index * width
            code.call("graft.retain", word_of(code, element, Value.OWNER), result="void")
        with code.when(exclusive.is_("ne", 0)):
            put_word(code, 0, buffer, Buffer.ELEMENTS)  # they have moved
            code.call("graft.release", frame, buffer, result="void")
        table.become(data)
        owner.become(data - BUFFER_BYTES)
    with code.when(exclusive.is_("ne", 0)):
        put_word(code, 0, source, Value.OWNER)
        put_word(code, 0, source, Value.DATA)
    _become(code, frame, target, table.now, after, width)
    code.give(table.now)
    return code.text


def _become(code: Code, frame: Word, target: Word, table: Word, count: Word, width: Word) -> None:
    """Let a value be the list with a table, which takes over the reference to it."""
    code.call("graft.release", frame, word_of(code, target, Value.OWNER), result="void")
    owner = table - BUFFER_BYTES
    put_word(code, count, owner, Buffer.ELEMENTS)
    put_word(code, width, owner, Buffer.WIDTH)
    put_word(code, table, target, Value.DATA)
    put_word(code, owner, target, Value.OWNER)
    code.store(count, extents_of(target))


def _own() -> str:
    """Let an element be a tensor, or a copy of one without an owner. Gives a status."""
    code = Code("graft.own", ("frame", "element", "value", "rank", "bytes"), "i64")
    frame, element, value = code["frame"], code["element"], code["value"]
    data = code.variable(word_of(code, value, Value.DATA))
    owner = code.variable(word_of(code, value, Value.OWNER))
    with code.when(owner.now.is_("eq", 0)):
        size = code.call("graft.size", extents_of(value), code["rank"], code["bytes"])
        memory = code.call(ALLOCATE, frame, size)
        with code.when(memory.is_("eq", 0)):
            code.give(Status.MEMORY)
        code.copy(memory, data.now, size)
        data.become(memory)
        owner.become(memory - BUFFER_BYTES)
    with code.when(word_of(code, value, Value.OWNER).is_("ne", 0)):
        code.call("graft.retain", owner.now, result="void")
    put_word(code, data.now, element, Value.DATA)
    put_word(code, owner.now, element, Value.OWNER)
    code.copy(extents_of(element), extents_of(value), code["rank"] * WORD)
    code.give(Status.DONE)
    return code.text


def _index(
    code: Code, operands: Operands, position: int, count: Word, end: Word, check: int
) -> Word:
    """A position counted from the front, below `end`; fails with the check if it is not."""
    number = code.load(operands[position])
    index = number.is_("slt", 0).choose(number + count, number)
    with code.when(index.is_("slt", 0) | index.is_("sge", end)):
        operands.fail(Status.FAILED, operands[check])
    return index


def _width(rank: Word) -> Word:
    """The bytes of a list's element."""
    return (rank + VALUE_WORDS) * WORD


def _insert(code: Code, operands: Operands) -> None:
    target, source, value, rank = operands[0], operands[1], operands[2], operands[4]
    count, width = code.load(extents_of(source)), _width(rank)
    index = _index(code, operands, 3, count, count + 1, 7)
    resized = (target, source, index, 0, 1, width, operands[6])
    table = code.call("graft.resize", operands.frame, *resized)
    with code.when(table.is_("eq", 0)):
        operands.fail(Status.MEMORY, width * count)
    status = code.call("graft.own", operands.frame, table + index * width, value, rank, operands[5])
    with code.when(status.is_("ne", Status.DONE)):
        operands.fail(Status.MEMORY, code.call("graft.size", extents_of(value), rank, operands[5]))


def _erase(code: Code, operands: Operands) -> None:
    target, source = operands[0], operands[1]
    count, width = code.load(extents_of(source)), _width(operands[3])
    index = _index(code, operands, 2, count, count, 5)
    table = code.call(
        "graft.resize", operands.frame, target, source, index, 1, 0, width, operands[4]
    )
    with code.when(table.is_("eq", 0)):
        operands.fail(Status.MEMORY, width * count)


def _at(code: Code, operands: Operands) -> None:
    target, source, rank = operands[0], operands[1], operands[3]
    count = code.load(extents_of(source))
    index = _index(code, operands, 2, count, count, 4)
    element = word_of(code, source, Value.DATA) + index * _width(rank)
    code.copy(extents_of(target), extents_of(element), rank * WORD)
    share(code, operands.frame, target, element)


def _split(code: Code, operands: Operands) -> None:
    target, source, rank, bytes_, axis, keeps, step, sizes = (operands[n] for n in range(8))
    extents = extents_of(source)
    extent = entry_of(code, extents, axis)
    outer = code.call("graft.size", extents, axis, 1)
    inner = code.call("graft.size", extents + (axis + 1) * WORD, rank - axis - 1, bytes_)
    count = code.variable(0)
    with code.when(step.is_("ne", 0)):
        each = code.load(step)
        with code.when(each.is_("sle", 0)):
            operands.fail(Status.FAILED, operands[9])
        whole = code.operation("sdiv", extent, each)
        count.become((whole * each).is_("slt", extent).choose(whole + 1, whole))
    with code.when(step.is_("eq", 0)):
        count.become(code.load(extents_of(sizes)))
    _check_parts(code, operands, count.now, extent)
    width = _width(rank - keeps.is_("eq", 0).choose(1, 0))
    buffer = _part_memory(code, operands, outer, extent * inner)
    base = code.variable(word_of(code, source, Value.DATA))
    is_copy = buffer.is_("ne", word_of(code, source, Value.OWNER))
    with code.when(is_copy):
        base.become(buffer + BUFFER_BYTES)
    table = code.call(ALLOCATE, operands.frame, count.now * width)
    with code.when(table.is_("eq", 0)):
        operands.fail(Status.MEMORY, count.now * width)
    start = code.variable(0)
    with code.count(count.now) as index:
        size = _part_size(code, operands, index, extent - start.now)
        element = table + index * width
        data = base.now + start.now * outer * inner
        with code.when(is_copy), code.count(outer) as block:
            old = word_of(code, source, Value.DATA) + (block * extent + start.now) * inner
            code.copy(data + block * size * inner, old, size * inner)
        code.call("graft.retain", buffer, result="void")
        put_word(code, data, element, Value.DATA)
        put_word(code, buffer, element, Value.OWNER)
        new = extents_of(element)
        code.copy(new, extents, axis * WORD)
        with code.when(keeps.is_("ne", 0)):
            code.store(size, new + axis * WORD)
        rest = new + (axis + keeps) * WORD
        code.copy(rest, extents + (axis + 1) * WORD, (rank - axis - 1) * WORD)
        start.become(start.now + size)
    with code.when(is_copy):
        code.call("graft.release", operands.frame, buffer, result="void")
    _become(code, operands.frame, target, table, count.now, width)


def _part_memory(code: Code, operands: Operands, outer: Word, row: Word) -> Word:
    """The buffer that parts of a tensor lie in: the tensor's own, where they lie there in one piece
    and somebody owns it, or another one."""
    owner = word_of(code, operands[1], Value.OWNER)
    buffer = code.variable(owner)
    with code.when(owner.is_("eq", 0) | outer.is_("ne", 1)):
        memory = code.call(ALLOCATE, operands.frame, outer * row)
        with code.when(memory.is_("eq", 0)):
            operands.fail(Status.MEMORY, outer * row)
        buffer.become(memory - BUFFER_BYTES)
    return buffer.now


def _part_size(code: Code, operands: Operands, index: Word, rest: Word) -> Word:
    """The extent of a part: what a list of sizes says, or a step, or what is left."""
    step, sizes = operands[6], operands[7]
    size = code.variable(0)
    with code.when(step.is_("ne", 0)):
        each = code.load(step)
        size.become(each.is_("sgt", rest).choose(rest, each))
    with code.when(step.is_("eq", 0)):
        data = word_of(code, sizes, Value.DATA)
        with code.when(operands[8].is_("eq", 4)):
            size.become(code.load(data + index * 4, 0, "i32", signed=True))
        with code.when(operands[8].is_("eq", 8)):
            size.become(code.load(data + index * 8))
    return size.now


def _check_parts(code: Code, operands: Operands, count: Word, extent: Word) -> None:
    """Parts have to make up the extent, and be of size 1 where the axis goes."""
    total = code.variable(0)
    with code.count(count) as index:
        size = _part_size(code, operands, index, extent - total.now)
        squeezed = operands[5].is_("eq", 0) & size.is_("ne", 1)
        with code.when(size.is_("slt", 0) | size.is_("sgt", extent) | squeezed):
            operands.fail(Status.FAILED, operands[9])
        total.become(total.now + size)
    with code.when(total.now.is_("ne", extent)):
        operands.fail(Status.FAILED, operands[9])


def _join(code: Code, operands: Operands) -> None:
    target, source, rank, bytes_, axis, stacks = (operands[number] for number in range(6))
    count, width = code.load(extents_of(source)), _width(rank)
    table = word_of(code, source, Value.DATA)
    with code.when(count.is_("eq", 0)):
        operands.fail(Status.FAILED, operands[6])
    first = extents_of(table)
    total = code.variable(0)
    with code.count(count) as index:
        extents = extents_of(table + index * width)
        with code.count(rank) as dim:
            differs = entry_of(code, extents, dim).is_("ne", entry_of(code, first, dim))
            with code.when(differs & (dim.is_("ne", axis) | stacks.is_("ne", 0))):
                operands.fail(Status.FAILED, operands[6])
        total.become(total.now + _joined_extent(code, extents, axis, stacks))
    outer = code.call("graft.size", first, axis, 1)
    behind = axis + stacks.is_("eq", 0).choose(1, 0)  # the first axis within a block
    inner = code.call("graft.size", first + behind * WORD, rank - behind, bytes_)
    operands.provide(target, outer * total.now * inner)
    new = extents_of(target)
    code.copy(new, first, axis * WORD)
    code.store(total.now, new + axis * WORD)
    code.copy(new + (axis + 1) * WORD, first + behind * WORD, (rank - behind) * WORD)
    data, start = word_of(code, target, Value.DATA), code.variable(0)
    with code.count(count) as index:
        element = table + index * width
        size = _joined_extent(code, extents_of(element), axis, stacks)
        row, old = size * inner, word_of(code, element, Value.DATA)
        with code.count(outer) as block:
            place = data + (block * total.now + start.now) * inner
            code.copy(place, old + block * row, row)
        start.become(start.now + size)


def _joined_extent(code: Code, extents: Word, axis: Word, stacks: Word) -> Word:
    """How much an element adds to the joined axis."""
    size = code.variable(1)
    with code.when(stacks.is_("eq", 0)):
        size.become(entry_of(code, extents, axis))
    return size.now


LIST_OPERATIONS: dict[Opcode, Callable[[Code, Operands], None]] = {
    Opcode.INSERT: _insert,
    Opcode.ERASE: _erase,
    Opcode.AT: _at,
    Opcode.SPLIT: _split,
    Opcode.JOIN: _join,
}
