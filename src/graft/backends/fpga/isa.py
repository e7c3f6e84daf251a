"""The accelerator as the code generator sees it: sizes, instructions, and what they take in cycles.

Numbers are those of `rtl/isa.sv`. The cycle model walks over a program as the sequencer does, with
the closed form of what each unit takes; it is exact for a memory without contention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np

from graft.backends.fpga.runtime import LANES, MEMORY_LATENCY
from graft.base.dtypes import Array

ACT_WORDS = WGT_WORDS = 8192
PAR_WORDS = ACC_WORDS = 1024  # accumulators: in each of two banks
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


@dataclass(frozen=True, slots=True)
class Instruction:
    op: Op
    needs: Unit  # have to be idle before it is executed
    register: int = 0
    value: int = 0


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
        elif one.op.name in Unit.__members__:
            idle_at[one.needs] = now + _duration(one.op, registers)
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
