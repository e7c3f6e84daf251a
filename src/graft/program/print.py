"""Programs as text, for people and for goldens: a program in, one line per instruction out.

Values are `%` and their number; blocks are indented. Nothing parses it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from graft.base.dims import AnyDim
from graft.base.names import printable
from graft.program.instructions import (
    BindSymbol,
    Block,
    Buffer,
    Evaluate,
    If,
    Instruction,
    KernelCall,
    ListOp,
    Loop,
    RegionCall,
    Scan,
    Scratch,
    Segment,
    SizeFunction,
    Slot,
    Switch,
    Transfer,
    reads,
    writes,
)
from graft.program.program import Program

_INDENT = "  "
# What an instruction is called where its class says something else.
_WORDS: dict[type[Instruction], str] = {
    BindSymbol: "bind_symbol",
    RegionCall: "call_region",
    SizeFunction: "size_function",
    ListOp: "list_op",
}
# Shown after the operands, where they are not what they are by default.
_DETAILS = (
    *("function", "operation", "symbol", "expected", "message"),
    *("axis", "axes", "backwards", "result_axes", "result_backwards"),
)


def to_text(program: Program) -> str:
    """All of a program but constants' elements and code."""
    lines = [*_header(program), *_block(program.body)]
    return "".join(f"{printable(line)}\n" for line in lines)


def _header(program: Program) -> Iterator[str]:
    named = zip(program.output_names, program.body.outputs, strict=True)
    outputs = ", ".join(f"{name} = %{number}" for name, number in named)
    inputs = ", ".join(f"%{number}" for number in program.body.inputs)
    yield f"program ({inputs}) -> ({outputs})"
    if program.pool:
        yield f"{_INDENT}pool 0: {_largest(program.pool)} bytes"
    constants = dict(program.constants)
    for number, value in enumerate(program.values):
        kind = "constant " if number in constants else ""
        slot = "" if value.slot is None else f" at {_buffer(value.slot)}"
        space = f" in '{value.space}'" if value.space else ""
        yield f"{_INDENT}%{number} '{value.name}': {kind}{value}{space}{slot}"


def _block(block: Block) -> Iterator[str]:
    for instruction in block.instructions:
        yield from (_INDENT + line for line in _instruction(instruction))
    yield f"{_INDENT}yield {_values(block.outputs)}".rstrip()


def _instruction(instruction: Instruction) -> Iterator[str]:
    results = _values(writes(instruction))
    word = _WORDS.get(type(instruction), type(instruction).__name__.lower())
    head = f"{results} = " if results else ""
    yield f"{head}{word} {_values(reads(instruction))}{_details(instruction)}".rstrip()
    match instruction:
        case Segment():
            yield from _segment(instruction)
        case SizeFunction():
            for number in instruction.numbers:
                read = f"{number.positive} - {number.negative} = %{number.value}[{number.index}]"
                yield f"{_INDENT}{read}"
            yield from (f"{_INDENT}{name} = {dim}" for name, dim in instruction.lets)
        case If():
            yield from _nested("then", instruction.then)
            yield from _nested("else", instruction.otherwise)
        case Switch():
            for key, block in instruction.cases:
                pairs = zip(instruction.symbols, key, strict=True)
                sizes = ", ".join(f"{name}={size}" for name, size in pairs)
                yield from _nested(f"case {sizes}", block)
            yield from _nested("default", instruction.default)
        case Loop() | Scan():
            yield from _nested("body", instruction.body)
        case _:
            pass


def _nested(title: str, block: Block) -> Iterator[str]:
    yield f"{_INDENT}{title} ({_values(block.inputs)})"
    yield from (_INDENT + line for line in _block(block))


def _details(instruction: Instruction) -> str:
    if isinstance(instruction, Transfer):
        return f" {'to' if instruction.upload else 'from'} the device of '{instruction.region}'"
    if isinstance(instruction, Evaluate):
        return f" {', '.join(instruction.graph.operators)}"
    details = []
    for one in fields(instruction):
        value = getattr(instruction, one.name)
        if one.name in _DETAILS and value != one.default and value != ():
            details.append(f"{one.name}={value!r}" if one.name != "operation" else str(value))
    return f" {', '.join(details)}" if details else ""


def _segment(segment: Segment) -> Iterator[str]:
    for number, pool in enumerate(segment.pools, start=1):
        yield f"{_INDENT}pool {number}: {_largest(pool)} bytes"
    if segment.scratch:
        yield f"{_INDENT}scratch: {_largest(segment.scratch)} bytes per thread"
    for check in segment.checks:
        yield f"{_INDENT}check {check.test.left} = {check.test.right}"
    for call in segment.calls:
        yield _INDENT + _call(call)
    for guard in segment.guards:
        yield f"{_INDENT}guard: indices into axis {guard.axis} of extent {guard.extent}"


def _call(call: KernelCall) -> str:
    operands = ", ".join(map(_buffer, call.buffers))
    scalars = f"; {', '.join(map(str, call.scalars))}" if call.scalars else ""
    serial = " serial" if call.serial else ""
    return f"{call.symbol}({operands}{scalars}){serial}  # {call.label}"


def _buffer(buffer: Buffer) -> str:
    match buffer:
        case Slot(pool, offset, nbytes):
            return f"[{pool}: {offset}, {nbytes}]"
        case Scratch():
            return "scratch"
    return f"%{buffer}"


def _largest(sizes: Sequence[AnyDim]) -> str:
    texts = [str(size) for size in sizes]
    return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def _values(numbers: Sequence[int]) -> str:
    return ", ".join(f"%{number}" for number in numbers)
