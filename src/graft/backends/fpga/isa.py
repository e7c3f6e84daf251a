"""The accelerator as the code generator sees it: sizes, instructions, and what they take in cycles.

Numbers are those of `rtl/isa.sv`. The cycle model walks over a program as the sequencer does, with
the closed form of what each unit takes; it is exact for a memory without contention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

import numpy as np

from graft.backends.fpga.runtime import LANES, MEMORY_LATENCY
from graft.base.dtypes import Array

ACT_WORDS = WGT_WORDS = 8192
PAR_WORDS = 1024
ACC_WORDS = 1024  # in each of two banks
PARAMETER_WORDS = 9  # bias, multiplier and shift of 16 channels

_ARRAY_LATENCY = 2 * LANES - 1
_STAGES = 5  # of STORE


class Op(IntEnum):
    SET, LOAD, CONV, STORE, WAIT, STOP = range(6)


class Unit(IntFlag):
    LOAD, CONV, STORE = 1, 2, 4


class Reg(IntEnum):
    LOAD_FROM, LOAD_TO, LOAD_RUN, LOAD_RUNS, LOAD_STRIDE, LOAD_FLIP = range(6)
    ACT, WGT, ACC, IN_SIZE, OUT_SIZE, PIXELS, KERNEL, BLOCKS = range(6, 14)
    ORIGIN, STRIDES, DILATION, STRIDE_STEP, TAP_STEP, PLANE, SCALE, MODE = range(14, 22)
    STORE_FROM, STORE_TO, STORE_COUNT, STORE_PAR, STORE_FORM = range(22, 27)


_STARTS = {Op.LOAD: Unit.LOAD, Op.CONV: Unit.CONV, Op.STORE: Unit.STORE}


@dataclass(frozen=True, slots=True)
class Instruction:
    op: Op
    register: int = 0
    value: int = 0

    @property
    def needs(self) -> Unit:
        """The units that have to be idle before it is executed."""
        if self.op is Op.SET:
            is_load, is_conv = self.register < Reg.ACT, self.register < Reg.STORE_FROM
            return Unit.LOAD if is_load else Unit.CONV if is_conv else Unit.STORE
        if self.op is Op.WAIT:
            return Unit(self.value)
        return _STARTS.get(self.op, Unit.LOAD | Unit.CONV | Unit.STORE)

    def __str__(self) -> str:
        if self.op is Op.SET:
            return f"SET {Reg(self.register).name} {self.value:#x}"
        return f"WAIT {'+'.join(str(u.name) for u in self.needs)}" if self.value else self.op.name


@dataclass
class Program:
    """Instructions, written in order. Registers that hold a value already are not set again."""

    instructions: list[Instruction] = field(default_factory=list)
    _registers: dict[Reg, int] = field(default_factory=dict)

    def set(self, **registers: int | tuple[int, int]) -> None:
        """Set registers of a unit; pairs are {vertical, horizontal}."""
        for name, value in registers.items():
            register = Reg[name]
            if isinstance(value, tuple):
                value = (value[0] & 0xFFFF) << 16 | (value[1] & 0xFFFF)
            value &= 0xFFFFFFFF
            if self._registers.get(register) != value:
                self._registers[register] = value
                self.instructions.append(Instruction(Op.SET, register, value))

    def start(self, op: Op, **registers: int | tuple[int, int]) -> None:
        """Start a unit, with these registers set before."""
        self.set(**registers)
        self.instructions.append(Instruction(op))

    def wait(self, units: Unit) -> None:
        self.instructions.append(Instruction(Op.WAIT, 0, units))

    def stop(self) -> None:
        self.instructions.append(Instruction(Op.STOP))


def encode(instructions: Sequence[Instruction]) -> Array:
    """What goes into the accelerator's queue."""
    words = [one.op << 56 | one.register << 48 | one.value for one in instructions]
    return np.array(words, np.uint64)


def cycles(instructions: Sequence[Instruction]) -> int:
    """From the first instruction in the queue to `done`."""
    registers = [0] * len(Reg)
    idle_at = dict.fromkeys(Unit, 0)
    now = 1  # the queue
    for one in instructions:
        now = max([now, *(idle_at[unit] for unit in one.needs)]) + 1
        if one.op is Op.SET:
            registers[one.register] = one.value
        elif one.op in _STARTS:
            idle_at[_STARTS[one.op]] = now + _duration(one.op, registers)
    return now


def _duration(op: Op, registers: Sequence[int]) -> int:
    """Cycles from the start of a unit until it is idle again."""
    if op is Op.LOAD:  # the last address, its answer, and the end noticed
        return registers[Reg.LOAD_RUN] * registers[Reg.LOAD_RUNS] + MEMORY_LATENCY + 1
    if op is Op.STORE:
        return PARAMETER_WORDS + 1 + registers[Reg.STORE_COUNT] + _STAGES + 1
    kernel = registers[Reg.KERNEL]
    tiles = registers[Reg.BLOCKS] * (kernel >> 16) * (kernel & 0xFFFF)
    return LANES + tiles * max(registers[Reg.PIXELS], LANES) + _ARRAY_LATENCY + 3
