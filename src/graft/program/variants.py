"""Variants of a model in one program: a program for any size and others for some sizes in, one that
switches between them out.

The extents of the inputs tell the symbols' numbers, and these which block runs. Values and names of
functions are kept apart; constants that are equal become one array, since most weights are the same
at every size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.program.instructions import Block, Instruction, KernelCall, Switch
from graft.program.program import Program, ProgramError, Value

Key = tuple[int, ...]

# Fields that hold numbers of values, and names of functions, in whatever instruction.
_VALUES = frozenset(
    (
        *("inputs", "outputs", "source", "target", "value", "counts", "output", "guard_indices"),
        *("condition", "limit", "carried", "scanned"),
    )
)
_FUNCTIONS = frozenset(("function", "region"))
_BLOCKS = frozenset(("otherwise", "then", "default", "body"))

# Smaller constants are not worth comparing.
_SHARED_BYTES = 4096


def with_variants(
    general: Program, symbols: tuple[str, ...], variants: Mapping[Key, Program]
) -> Program:
    """`variants` are by the numbers that `symbols` have; the general program is for other sizes."""
    merger = _Merger(general)
    default = Block((), general.body.instructions, general.body.outputs)
    cases = []
    for key, variant in variants.items():
        names = [value.name for value in variant.inputs]
        if names != [value.name for value in general.inputs]:
            raise ProgramError(f"the variant {list(key)} has other inputs")
        if variant.output_names != general.output_names:
            raise ProgramError(f"the variant {list(key)} has other outputs")
        cases.append((key, merger.block(variant, variant_name(symbols, key))))
    outputs = merger.add([replace(value, slot=None) for value in general.outputs])
    switch = Switch(symbols, tuple(cases), default, outputs)
    return replace(
        general,
        values=tuple(merger.values),
        constants=tuple(merger.constants),
        body=Block(general.body.inputs, (switch,), outputs),
        objects=tuple(merger.objects),
        pool=tuple(merger.pool),
    )


def variant_name(symbols: Sequence[str], key: Key) -> str:
    """What people call the variant for these sizes."""
    return ", ".join(f"{name}={size}" for name, size in zip(symbols, key, strict=True))


def switch_of(program: Program) -> Switch | None:
    """What chooses among a program's variants; None where it has none."""
    steps = program.body.instructions
    return steps[0] if len(steps) == 1 and isinstance(steps[0], Switch) else None


def variant_blocks(program: Program) -> dict[str, Block]:
    """The general program, by an empty name, and the variants by theirs."""
    switch = switch_of(program)
    if switch is None:
        return {"": program.body}
    named = {variant_name(switch.symbols, key): block for key, block in switch.cases}
    return {"": switch.default, **named}


def general_block(program: Program) -> Block:
    """What runs at any size."""
    switch = switch_of(program)
    return program.body if switch is None else switch.default


class _Merger:
    """Values, constants and code of several programs."""

    def __init__(self, general: Program) -> None:
        self.inputs = general.body.inputs
        self.values: list[Value] = list(general.values)
        self.constants: list[tuple[int, Array]] = []
        self.objects = dict.fromkeys(general.objects)
        self.pool = dict.fromkeys(general.pool)
        self._shared: dict[object, Array] = {}
        self._share(general.constants, range(len(self.values)))

    def add(self, values: Sequence[Value]) -> tuple[int, ...]:
        """New values."""
        first = len(self.values)
        self.values += values
        return tuple(range(first, len(self.values)))

    def block(self, program: Program, name: str) -> Block:
        """A variant as a block, which reads the inputs of the general program."""
        own = dict(zip(program.body.inputs, self.inputs, strict=True))
        rest = [number for number in range(len(program.values)) if number not in own]
        own |= zip(rest, self.add([program.values[number] for number in rest]), strict=True)
        numbers = _Numbers([own[number] for number in range(len(own))], name)
        self._share(program.constants, numbers.values)
        self.objects |= dict.fromkeys(program.objects)
        self.pool |= dict.fromkeys(program.pool)
        block = numbers.block(program.body)
        return replace(block, inputs=())

    def _share(self, constants: Sequence[tuple[int, Array]], numbers: Sequence[int]) -> None:
        for number, array in constants:
            self.constants.append((numbers[number], self._constant(array)))

    def _constant(self, array: Array) -> Array:
        if array.nbytes < _SHARED_BYTES or not array.flags.c_contiguous or array.dtype.hasobject:
            return array
        digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest()
        return self._shared.setdefault((array.dtype, array.shape, digest), array)


@dataclass(frozen=True)
class _Numbers:
    """Instructions with other numbers of values, and the variant's name before functions'."""

    values: Sequence[int]
    name: str

    def block(self, block: Block) -> Block:
        steps = tuple(map(self._instruction, block.instructions))
        return Block(self._numbers(block.inputs), steps, self._numbers(block.outputs))

    def _instruction(self, instruction: Instruction) -> Instruction:
        names = [one.name for one in fields(instruction)]
        changed = {name: self._field(name, getattr(instruction, name)) for name in names}
        return replace(instruction, **changed)

    def _field(self, name: str, value: Any) -> Any:
        if name in _VALUES:
            return self._numbers(value)
        if name in _FUNCTIONS:
            return f"{self.name} {value}"
        if name in _BLOCKS:
            return self.block(value)
        if name == "cases":
            return tuple((key, self.block(block)) for key, block in value)
        if name == "calls":
            return tuple(map(self._call, value))
        if name == "numbers":
            return tuple(replace(one, value=self.values[one.value]) for one in value)
        return value

    def _call(self, call: KernelCall) -> KernelCall:
        buffers = (self.values[one] if isinstance(one, int) else one for one in call.buffers)
        return replace(call, buffers=tuple(buffers))

    def _numbers(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(None if number is None else self.values[number] for number in value)
        return None if value is None else self.values[value]
