"""Instructions, as a part of the native driver: what each does to a frame.

`graft_execute` runs a frame from its program counter on until it ends, fails or needs Python, and
says which. docs/bytecode.md explains the instructions to people.
"""

from __future__ import annotations

from collections.abc import Callable

from graft.program.layout import (
    ALLOCATE,
    BUFFER_BYTES,
    EXECUTE,
    STACK_WORDS,
    Header,
    Opcode,
    Segment,
    Stack,
    Status,
    Value,
)
from graft.runtime.assembler import WORD, Code, Flag, Variable, Word
from graft.runtime.driver_lists import LIST_OPERATIONS, lists_text
from graft.runtime.driver_memory import (
    Operands,
    clear,
    entry_of,
    extents_of,
    put_word,
    share,
    word_of,
)

_DECLARATIONS = """
declare {i64, i1} @llvm.sadd.with.overflow.i64(i64, i64)
declare {i64, i1} @llvm.smul.with.overflow.i64(i64, i64)
"""
_LEAST = -(1 << 63)  # which has no opposite
# Rows are set aside ahead of time up to so many bytes.
_BYTES_AHEAD = 1 << 26
# What an iteration counts at least towards an interruption.
_ITERATION_WORK = 50_000


def instructions_text() -> str:
    """The functions as LLVM text."""
    return "\n".join([_DECLARATIONS, lists_text(), *map(_operation, _OPERATIONS), _execute()])


def _python(code: Code, operands: Operands) -> None:
    operands.fail(Status.PYTHON, operands[0])


def _move(code: Code, operands: Operands) -> None:
    target, source, rank = operands[0], operands[1], operands[2]
    share(code, operands.frame, target, source)
    code.copy(extents_of(target), extents_of(source), rank * WORD)


def _free(code: Code, operands: Operands) -> None:
    clear(code, operands.frame, operands[0])


def _fail(code: Code, operands: Operands) -> None:
    operands.fail(Status.FAILED, operands[0])


def _copy(code: Code, operands: Operands) -> None:
    code.store(code.load(operands[1]), operands[0])


def _plus(code: Code, operands: Operands) -> None:
    _checked(code, operands, "sadd")


def _times(code: Code, operands: Operands) -> None:
    _checked(code, operands, "smul")


def _checked(code: Code, operands: Operands, name: str) -> None:
    """Arithmetic whose result has to fit into a word."""
    left, right = code.load(operands[1]), code.load(operands[2])
    words = f"i64 {left.text}, i64 {right.text}"
    pair = code.make("", f"call {{i64, i1}} @llvm.{name}.with.overflow.i64({words})")
    result = code.make("i64", f"extractvalue {{i64, i1}} {pair.text}, 0")
    overflow = code.make("i1", f"extractvalue {{i64, i1}} {pair.text}, 1")
    with code.when(Flag(code, overflow.text)):
        operands.fail(Status.NUMBER, 0)
    code.store(result, operands[0])


def _divide(code: Code, operands: Operands) -> None:
    code.store(_divided(code, operands)[0], operands[0])


def _modulo(code: Code, operands: Operands) -> None:
    code.store(_divided(code, operands)[1], operands[0])


def _divided(code: Code, operands: Operands) -> tuple[Word, Word]:
    """The quotient, rounded down, and what is left, with the sign of the divisor."""
    left, right = code.load(operands[1]), code.load(operands[2])
    overflows = right.is_("eq", -1) & left.is_("eq", _LEAST)
    with code.when(right.is_("eq", 0) | overflows):
        operands.fail(Status.NUMBER, 0)
    quotient = code.operation("sdiv", left, right)
    rest = left - quotient * right
    opposed = code.operation("xor", rest, right).is_("slt", 0)
    inexact = rest.is_("ne", 0) & opposed
    return inexact.choose(quotient - 1, quotient), inexact.choose(rest + right, rest)


def _least(code: Code, operands: Operands) -> None:
    left, right = code.load(operands[1]), code.load(operands[2])
    code.store(left.is_("slt", right).choose(left, right), operands[0])


def _most(code: Code, operands: Operands) -> None:
    left, right = code.load(operands[1]), code.load(operands[2])
    code.store(left.is_("sgt", right).choose(left, right), operands[0])


def _broadcast(code: Code, operands: Operands) -> None:
    left, right = code.load(operands[1]), code.load(operands[2])
    one = left.is_("eq", 1) | right.is_("eq", 1)
    fits = one | left.is_("eq", right)
    with code.when(code.compare("eq", fits.choose(1, 0), 0)):
        operands.fail(Status.NUMBER, 0)
    code.store(left.is_("eq", 1).choose(right, left), operands[0])


def _extent(code: Code, operands: Operands) -> None:
    code.store(entry_of(code, extents_of(operands[1]), operands[2]), operands[0])


def _read(code: Code, operands: Operands) -> None:
    data, bytes_ = word_of(code, operands[1], Value.DATA), operands[2]
    place = data + operands[3] * bytes_
    for width in (1, 2, 4, 8):
        with code.when(bytes_.is_("eq", width)):
            code.store(code.load(place, 0, f"i{8 * width}", signed=True), operands[0])


def _scalar(code: Code, operands: Operands) -> None:
    data, bytes_ = word_of(code, operands[0], Value.DATA), operands[2]
    for width in (1, 2, 4, 8):
        with code.when(bytes_.is_("eq", width)):
            code.store(code.load(operands[1]), data, 0, f"i{8 * width}")


def _check(code: Code, operands: Operands) -> None:
    extent = entry_of(code, extents_of(operands[0]), operands[1])
    with code.when(extent.is_("ne", code.load(operands[2]))):
        operands.fail(Status.FAILED, operands[3])


def _slice(code: Code, operands: Operands) -> None:
    target, source, counts, rank = operands[0], operands[1], operands[2], operands[3]
    last = code.load(extents_of(counts)) - 1
    with code.when(last.is_("slt", 0)):
        operands.fail(Status.NUMBER, 0)
    count = entry_of(code, word_of(code, counts, Value.DATA), last)
    with code.when(count.is_("ugt", code.load(extents_of(source)))):  # or less than nothing
        operands.fail(Status.NUMBER, 0)
    share(code, operands.frame, target, source)
    code.copy(extents_of(target), extents_of(source), rank * WORD)
    code.store(count, extents_of(target))


def _push(code: Code, operands: Operands) -> None:
    stack, value, rank = operands[0], operands[1], operands[2]
    row = code.call("graft.size", extents_of(value), rank, operands[3])
    rows = word_of(code, stack, Stack.ROWS)
    extents = stack + STACK_WORDS * WORD
    with code.when(rows.is_("eq", 0)):
        code.copy(extents, extents_of(value), rank * WORD)
    with code.count(rank) as axis:
        differs = entry_of(code, extents, axis).is_("ne", entry_of(code, extents_of(value), axis))
        with code.when(differs):
            operands.fail(Status.FAILED, operands[5])
    with code.when(rows.is_("sge", word_of(code, stack, Stack.CAPACITY))):
        expected = code.load(operands[4])
        more = rows.is_("eq", 0).choose(16, rows * 2)
        # So many at once only where they are known to come and are not much memory.
        few = code.operation("sdiv", _BYTES_AHEAD, row + 1)
        modest = expected.is_("sgt", more) & expected.is_("slt", few)
        capacity = modest.choose(expected, more)
        data = code.call(ALLOCATE, operands.frame, capacity * row)
        with code.when(data.is_("eq", 0)):
            operands.fail(Status.MEMORY, capacity * row)
        old = word_of(code, stack, Stack.DATA)
        with code.when(rows.is_("ne", 0)):
            code.copy(data, old, rows * row)
        code.call("graft.release", operands.frame, word_of(code, stack, Stack.OWNER), result="void")
        put_word(code, data, stack, Stack.DATA)
        put_word(code, data - BUFFER_BYTES, stack, Stack.OWNER)
        put_word(code, capacity, stack, Stack.CAPACITY)
    place = word_of(code, stack, Stack.DATA) + rows * row
    code.copy(place, word_of(code, value, Value.DATA), row)
    put_word(code, rows + 1, stack, Stack.ROWS)


def _stack(code: Code, operands: Operands) -> None:
    target, stack, rank, bytes_, axis, backwards = (operands[number] for number in range(6))
    rows = word_of(code, stack, Stack.ROWS)
    extents = stack + STACK_WORDS * WORD
    with code.when(rows.is_("eq", 0)):
        _gather(code, extents, operands[6], rank)
    row = code.call("graft.size", extents, rank, bytes_)
    inner = code.call("graft.size", extents + axis * WORD, rank - axis, bytes_)
    outer = code.call("graft.size", extents, axis, 1)
    operands.provide(target, rows * row)
    new = extents_of(target)
    code.copy(new, extents, axis * WORD)
    code.store(rows, new + axis * WORD)
    code.copy(new + (axis + 1) * WORD, extents + axis * WORD, (rank - axis) * WORD)
    data, source = word_of(code, target, Value.DATA), word_of(code, stack, Stack.DATA)
    with code.count(rows) as index:
        forward = backwards.is_("eq", 0)
        position = forward.choose(index, rows - 1 - index)
        with code.count(outer) as block:
            place = data + (block * rows + position) * inner
            code.copy(place, source + index * row + block * inner, inner)
    code.call("graft.release", operands.frame, word_of(code, stack, Stack.OWNER), result="void")
    for word in (Stack.DATA, Stack.OWNER, Stack.ROWS, Stack.CAPACITY):
        put_word(code, 0, stack, word)


def _row(code: Code, operands: Operands) -> None:
    target, source, register, rank, bytes_, backwards = (operands[number] for number in range(6))
    share(code, operands.frame, target, source)
    extents = extents_of(source)
    code.copy(extents_of(target), extents + WORD, rank * WORD)
    row = code.call("graft.size", extents + WORD, rank, bytes_)
    index = code.load(register)
    last = code.load(extents) - 1
    position = backwards.is_("eq", 0).choose(index, last - index)
    put_word(code, word_of(code, source, Value.DATA) + position * row, target, Value.DATA)


def _axis(code: Code, operands: Operands) -> None:
    target, source, rank, bytes_, axis = (operands[number] for number in range(5))
    extents, new = extents_of(source), extents_of(target)
    outer = code.call("graft.size", extents, axis, 1)
    inner = code.call("graft.size", extents + (axis + 1) * WORD, rank - axis - 1, bytes_)
    count = entry_of(code, extents, axis)
    operands.provide(target, outer * inner * count)
    code.store(count, new)
    code.copy(new + WORD, extents, axis * WORD)
    behind = (axis + 1) * WORD
    code.copy(new + behind, extents + behind, (rank - axis - 1) * WORD)
    data, old = word_of(code, target, Value.DATA), word_of(code, source, Value.DATA)
    with code.count(count) as index, code.count(outer) as block:
        place = data + (index * outer + block) * inner
        code.copy(place, old + (block * count + index) * inner, inner)


def _allocate_value(code: Code, operands: Operands) -> None:
    operands.provide(operands[0], code.load(operands[1]))


def _write_block(code: Code, operands: Operands) -> None:
    value, pool = operands[0], operands[1]
    put_word(code, word_of(code, pool, Value.DATA) + code.load(operands[2]), value, Value.DATA)
    _gather(code, extents_of(value), operands[4], operands[3])


def _gather(code: Code, target: Word, addresses: Word, count: Word) -> None:
    """Numbers that lie at so many addresses, one behind the other."""
    with code.count(count) as index:
        code.store(code.load(entry_of(code, addresses, index)), target + index * WORD)


_OPERATIONS: dict[Opcode, Callable[[Code, Operands], None]] = {
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
    Opcode.PLACE: _write_block,
    **LIST_OPERATIONS,
}


def _operation(opcode: Opcode) -> str:
    """A function that does what an instruction says. Gives a status."""
    code = Code(f"graft.{opcode.name.lower()}.do", ("frame", "pc"), "i64")
    _OPERATIONS[opcode](code, Operands(code))
    code.give(Status.DONE)
    return code.text


def _execute() -> str:
    """Instruction after instruction."""
    code = Code(EXECUTE, ("frame",), "i64", public=True)
    frame = code["frame"]
    place = code.variable(word_of(code, frame, Header.PC))
    with code.repeat():
        pc = place.now
        opcode = code.load(pc)
        with code.when(opcode.is_("eq", Opcode.SEGMENT)):
            _execute_segment(code, frame, place)
        for kind in _OPERATIONS:
            with code.when(opcode.is_("eq", kind)):
                after = pc + (1 + kind.operands) * WORD
                status = code.call(f"graft.{kind.name.lower()}.do", frame, pc)
                with code.when(status.is_("ne", Status.DONE)):
                    put_word(code, after, frame, Header.PC)
                    code.give(status)
                place.become(after)
        _jumps(code, frame, opcode, pc, place)
        with code.when(opcode.is_("eq", Opcode.END)):
            put_word(code, word_of(code, frame, Header.ENTRY), frame, Header.PC)
            put_word(code, word_of(code, frame, Header.LONG), frame, Header.BUDGET)
            code.give(Status.DONE)
    code.give(Status.DONE)
    return code.text


def _execute_segment(code: Code, frame: Word, pc_variable: Variable) -> None:
    pc = pc_variable.now
    segment = code.load(pc, WORD)
    status = code.call("graft.segment", frame, segment)
    again = status.is_("eq", Status.PAUSE) | status.is_("eq", Status.START)
    after = pc + 2 * WORD
    with code.when(status.is_("ne", Status.DONE)):
        put_word(code, again.choose(pc, after), frame, Header.PC)
        code.give(status)
    pc_variable.become(after)
    with code.when(word_of(code, frame, Header.TIMES).is_("ne", 0)):
        put_word(code, after, frame, Header.PC)
        put_word(code, word_of(code, segment, Segment.NUMBER), frame, Header.DETAIL)
        code.give(Status.PROFILED)
    with code.when(word_of(code, frame, Header.BUDGET).is_("sle", 0)):
        put_word(code, after, frame, Header.PC)
        code.give(Status.PAUSE)


def _spend(code: Code, frame: Word, pc: Word) -> None:
    """An iteration begins; loops that compute next to nothing can be interrupted, too."""
    budget = word_of(code, frame, Header.BUDGET) - _ITERATION_WORK
    put_word(code, budget, frame, Header.BUDGET)
    with code.when(budget.is_("sle", 0)):
        put_word(code, pc, frame, Header.PC)
        code.give(Status.PAUSE)


def _jumps(code: Code, frame: Word, opcode: Word, pc: Word, pc_variable: Variable) -> None:
    def operand(number: int) -> Word:
        return code.load(pc, (1 + number) * WORD)

    def after(kind: Opcode) -> Word:
        return pc + (1 + kind.operands) * WORD

    with code.when(opcode.is_("eq", Opcode.JUMP)):
        pc_variable.become(operand(0))
    with code.when(opcode.is_("eq", Opcode.DIFFER)):
        differ = code.load(operand(0)).is_("ne", code.load(operand(1)))
        pc_variable.become(differ.choose(operand(2), after(Opcode.DIFFER)))
    with code.when(opcode.is_("eq", Opcode.CHANGED)):
        is_known = code.call("graft.known", operand(0))
        pc_variable.become(is_known.is_("ne", 0).choose(operand(1), after(Opcode.CHANGED)))
    with code.when(opcode.is_("eq", Opcode.UPTO)):
        _spend(code, frame, pc)
        reached = code.load(operand(0)).is_("sge", code.load(operand(1)))
        pc_variable.become(reached.choose(operand(2), after(Opcode.UPTO)))
