"""A program without decisions, ready to be called: inputs in, results out, at sizes that are known.

Such a program is segments, and before or behind them strings that are looked up in tables or rows
that are packed into maps; it may be one of several variants. Its inputs tell all sizes, so that
every segment is a `NativeCall`, and what leads from one to the next is written out, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from graft.base.errors import EvaluationError, GraftError
from graft.program.instructions import Instruction, ListOp, Segment, reads, writes
from graft.program.program import Program
from graft.runtime.checks import Data, Symbols
from graft.runtime.dispatch import Call, Dispatcher, Expected
from graft.runtime.executor import BlockRunner, Executor, segment_runner
from graft.runtime.lists import FAILURES, LOOKUPS
from graft.runtime.native_call import NativeCall
from graft.runtime.segment import SegmentRunner
from graft.runtime.straight_line import define

_STRINGS = np.dtype(object)


class StraightCall:
    """Steps at one size; `functions` are what they call, with the values that each reads and makes.
    Safe to call from several threads.

    `run(*inputs)` runs on arrays that the caller has checked, and gives the outputs; None where
    a step fails, of which the ordinary way tells the reason."""

    def __init__(
        self,
        inputs: Sequence[int],
        steps: Sequence[tuple[Callable[..., Any], Sequence[int], Sequence[int], bool]],
        outputs: Sequence[int],
    ) -> None:
        names: dict[str, object] = {"failures": (GraftError, *FAILURES)}
        lines = ["try:"]
        for number, (function, operands, results, is_segment) in enumerate(steps):
            names[f"run{number}"] = function
            made = ", ".join(_variables(results)) + ("," if is_segment else "")
            lines += [f"    {made} = run{number}({', '.join(_variables(operands))})"]
        given = ", ".join(_variables(outputs))
        lines += [f"    return [{given}]", "except failures:", "    return None"]
        self.run: Callable[..., list[Data] | None] = define(_variables(inputs), lines, names)


def dispatcher_of(executor: Executor) -> Dispatcher | None:
    """The short way of a run, where it decides nothing: all sizes follow from the inputs'."""
    program = executor.program
    own = [_expected_inputs(block, program) for block in executor.variants]
    known = [one for one in own if one is not None]
    if not known:
        return None
    inputs = [
        (name, dtype, max(alignment for *_, alignment in alike))
        for alike in zip(*known, strict=True)
        for name, dtype, _ in alike[:1]
    ]
    sizes_change = not all(value.is_static for value in program.inputs)
    return Dispatcher(inputs, program.output_names, partial(_call, executor), sizes_change)


def _call(executor: Executor, inputs: Sequence[Any]) -> Call | None:
    """A run on inputs of these sizes."""
    values, symbols = executor.start(inputs)
    block = executor.variant(symbols)
    if _expected_inputs(block, executor.program) is None:
        return None
    return _Preparation(executor, block, values, symbols).call()


def _expected_inputs(block: BlockRunner, program: Program) -> list[Expected] | None:
    """Name, dtype and alignment of what a call of the block takes; None where it has no calls."""
    looked_up: set[int | None] = set()
    runners: list[SegmentRunner] = []
    for step in block.steps:
        runner, instruction = segment_runner(step), step.instruction
        if runner is not None:
            runners.append(runner)
        elif isinstance(instruction, ListOp) and instruction.operation in LOOKUPS:
            # Strings and maps are made by the ordinary way.
            result = program.values[instruction.outputs[0]]
            if result.dtype is not None and result.shape is not None:
                looked_up |= {*instruction.inputs}
        else:
            return None
    outputs = block.block.outputs
    made = {number for step in block.steps for number in writes(step.instruction)}
    if not made.issuperset(outputs) or len({*outputs}) != len(outputs):
        return None
    expected = []
    for number in program.body.inputs:
        value = program.values[number]
        if value.dtype is None and number not in looked_up:
            return None
        dtype = _STRINGS if value.dtype is None else value.dtype.numpy
        alignment = max([one.alignment(number) for one in runners], default=1)
        expected.append((value.name, dtype, alignment))
    return expected


class _Preparation:
    """Makes the call for the inputs among `values`, from which `symbols` have their numbers."""

    def __init__(
        self, executor: Executor, block: BlockRunner, values: Sequence[Data], symbols: Symbols
    ) -> None:
        self._executor, self._block = executor, block
        self._values, self._symbols = values, symbols
        self._inputs = executor.program.body.inputs
        self._constants = {number for number, _ in executor.program.constants}
        self._shapes = {number: values[number].shape for number in self._inputs}

    def call(self) -> Call | None:
        steps, outputs = self._block.steps, self._block.block.outputs
        if len(steps) == 1 and isinstance(steps[0].instruction, Segment):
            made = steps[0].instruction.outputs
            runner = segment_runner(steps[0])
            return self._native_call(runner, self._inputs, [made.index(one) for one in outputs])
        calls = []
        for step in steps:
            operands, results = self._operands(step.instruction), writes(step.instruction)
            runner = segment_runner(step)
            if runner is None:
                calls.append((self._look_up(step.instruction), operands, results, False))
                continue
            results = runner.segment.outputs
            call = self._native_call(runner, operands, [*range(len(results))])
            if call is None:
                return None
            specs = zip(results, call.results, strict=True)
            self._shapes |= {one: shape for one, (shape, *_) in specs}
            calls.append((call.run, operands, results, True))
        return StraightCall(self._inputs, calls, outputs)

    def _native_call(
        self, runner: SegmentRunner | None, operands: Sequence[int], order: Sequence[int]
    ) -> NativeCall | None:
        """A segment on these operands and on constants."""
        assert runner is not None
        sources = [*self._values]
        for position, number in enumerate(operands):
            sources[number] = position
        return runner.native_call(len(operands), sources, self._symbols, order)

    def _look_up(self, step: Instruction) -> Callable[[Data], Data]:
        """A step that looks up, whose result has the shape of its operand (where it has one)."""
        assert isinstance(step, ListOp)
        assert step.table is not None
        (operand,), (result,) = self._operands(step), step.outputs
        self._shapes[result] = self._shapes[operand]
        value = self._executor.program.values[result]
        if value.dtype is not None:
            like = np.broadcast_to(np.empty((), value.dtype.numpy), self._shapes[result])
            self._executor.checks[result](like, self._symbols, EvaluationError)
        return LOOKUPS[step.operation](step.table)

    def _operands(self, step: Instruction) -> list[int]:
        """What a step reads besides constants."""
        return [number for number in dict.fromkeys(reads(step)) if number not in self._constants]


def _variables(numbers: Sequence[int]) -> list[str]:
    return [f"v{number}" for number in numbers]
