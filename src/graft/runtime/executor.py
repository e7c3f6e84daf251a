"""Runs programs: values in order in, outputs in order out.

Instructions run one after the other, with the numbers that symbols turn out to have. Loops whose
body is one segment run natively, all iterations of them (`native_loops`). Every run has values and
symbols of its own, so runs from several threads do not disturb each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from graft.base.dims import substitute
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, GraftError, Place, UserError
from graft.program.instructions import (
    Alias,
    Assert,
    BindSymbol,
    Block,
    Evaluate,
    If,
    Instruction,
    ListOp,
    Loop,
    RegionCall,
    Scan,
    Segment,
    SizeFunction,
    Slice,
    Switch,
    Transfer,
    blocks,
    reads,
    writes,
)
from graft.program.program import Program, Value
from graft.runtime.actions import (
    alias,
    bind_symbol,
    check_condition,
    evaluate,
    list_op,
    run_loop,
    run_scan,
    run_segment,
    slice_rows,
)
from graft.runtime.checks import Check, Data, Symbols
from graft.runtime.context import RuntimeContext
from graft.runtime.devices import Devices
from graft.runtime.guard import AbandonedError
from graft.runtime.memory import aligned_empty
from graft.runtime.native_loops import NativeLoop, is_native
from graft.runtime.profile import Profile, Recorder
from graft.runtime.regions import deliver
from graft.runtime.run import Run
from graft.runtime.segment import SegmentRunner
from graft.runtime.spaces import Device, LostDeviceError
from graft.runtime.supplied import Supplied
from graft.runtime.turns import no_pieces, sole_item

_BYTE = np.dtype(np.uint8)


_Action = Callable[[Run], Sequence[Data]]


class _Environment:
    """What all blocks of a program share. Nothing of it refers to them, so that threads and memory
    go with the last reference to whoever runs the program."""

    def __init__(
        self, program: Program, context: RuntimeContext | None, supplied: Supplied
    ) -> None:
        self.program, self.context, self.supplied = program, context, supplied
        self.checks = [Check(value) for value in program.values]
        self.devices = Devices(program, supplied.functions)


class Executor:
    """A program, linked and ready to run. Safe to call from several threads."""

    def __init__(
        self,
        program: Program,
        context: RuntimeContext | None,  # None: nothing of it is native
        supplied: Supplied,
    ) -> None:
        environment = _Environment(program, context, supplied)
        self.program, self.checks = program, environment.checks
        self._devices = environment.devices
        self._initial: list[Data] = [None] * len(program.values)
        for number, array in program.constants:
            self._initial[number] = array
        self._slots = [
            (number, value) for number, value in enumerate(program.values) if value.slot is not None
        ]
        self._arenas: list[_Arena] = []  # that no run works in
        self.body = BlockRunner(program.body, environment)

    def __call__(
        self,
        inputs: Sequence[Data],
        given: Mapping[int, Array] | None = None,
        recorder: Recorder | None = None,
    ) -> list[Data]:
        """Run on the inputs in order; `given` are arrays that outputs may be written into, by
        their numbers."""
        return self._devices.run(partial(self._attempt, inputs, given or {}, recorder))

    def profile(self, inputs: Sequence[Data]) -> Profile:
        """Run once and measure every instruction."""
        recorder = Recorder()
        begin = time.perf_counter()
        outputs = self(inputs, recorder=recorder)
        return Profile(outputs, time.perf_counter() - begin, recorder.moments)

    def start(self, inputs: Sequence[Data]) -> tuple[list[Data], Symbols]:
        """All values before the first instruction, and what is known of symbols then."""
        run = Run(self._initial.copy(), {})
        self.body.enter(inputs, run)
        return run.values, run.symbols

    @property
    def variants(self) -> list[BlockRunner]:
        """The blocks of which the inputs' sizes choose one: most programs have but one."""
        switch = self._switch
        return [self.body] if switch is None else [switch.default, *switch.cases.values()]

    def variant(self, symbols: Symbols) -> BlockRunner:
        """The one that runs at these sizes."""
        return self.body if self._switch is None else self._switch.block(symbols)

    @property
    def _switch(self) -> _SwitchRunner | None:
        steps = self.body.steps
        action = steps[0].action if len(steps) == 1 else None
        return action if isinstance(action, _SwitchRunner) else None

    def _attempt(
        self,
        inputs: Sequence[Data],
        given: Mapping[int, Array],
        recorder: Recorder | None,
        devices: Mapping[str, Device],
    ) -> list[Data]:
        values = self._initial.copy()
        arena = self._take_arena() if self.program.shelf else None
        run = Run(values, {}, given, None, devices, recorder)
        if arena is not None:
            run.shelf = arena.memory
            for number, view in arena.views:
                values[number] = view
        is_abandoned = False
        try:
            return self.body(inputs, run)
        except (LostDeviceError, AbandonedError) as error:
            # Foreign code may yet write into what this run works in.
            is_abandoned = isinstance(error, AbandonedError) or error.is_late
            error.__traceback__ = None  # holds on to tensors of devices
            raise
        finally:
            values.clear()
            if arena is not None and not is_abandoned:
                self._arenas.append(arena)

    def _take_arena(self) -> _Arena:
        try:
            return self._arenas.pop()
        except IndexError:
            return _Arena(self.program, self._slots)


class _Arena:
    """Memory for the program's shelf of the arena, and the values that lie there."""

    def __init__(self, program: Program, slots: Sequence[tuple[int, Value]]) -> None:
        sizes = [size for size in program.shelf if isinstance(size, int)]
        self.memory = aligned_empty((max(sizes, default=0),), _BYTE)
        self.views = [(number, _view(self.memory, value)) for number, value in slots]


def _view(memory: Array, value: Value) -> Array:
    assert value.slot is not None
    assert value.dtype is not None
    offset, nbytes = value.slot.offset, value.slot.nbytes
    assert isinstance(offset, int)
    assert isinstance(nbytes, int)
    extents = tuple(dim for dim in value.shape or () if isinstance(dim, int))
    return np.ndarray(extents, value.dtype.numpy, memory, offset)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """An instruction, ready to run; `outputs` are what it gives: number, check (none where it is
    sure to be what the program says), and whether it goes into the arena. Of what nobody needs
    after it, `released` is given back to devices."""

    instruction: Instruction
    action: _Action
    outputs: tuple[tuple[int, Check | None, bool], ...]
    finished: tuple[int, ...]
    released: tuple[int, ...]


class BlockRunner:
    """A block, ready to run."""

    def __init__(self, block: Block, environment: _Environment) -> None:
        self.block, self._environment = block, environment
        checks, values = environment.checks, environment.program.values
        self._inputs = [(number, checks[number]) for number in block.inputs]
        # Inputs whose extents follow from symbols, which others may give a number.
        self._derived = [
            (position, number)
            for position, number in enumerate(block.inputs)
            if checks[number].is_derived
        ]
        finished = _finished(block)
        self.steps = [
            self._step(one, gone) for one, gone in zip(block.instructions, finished, strict=True)
        ]
        made = {number for one in block.instructions for number in writes(one)}
        own = made | {*block.inputs}
        self._left = [n for n in {*block.outputs} & own if values[n].slot is None]

    def _step(self, instruction: Instruction, finished: Sequence[int]) -> _Step:
        environment = self._environment
        values = environment.program.values
        sure = isinstance(instruction, Segment)  # which makes what the symbols say, nothing else
        numbers = writes(instruction)
        if isinstance(instruction, Segment | Alias):  # what has a slot is there already
            numbers = tuple(n for n in numbers if values[n].slot is None)
        if isinstance(instruction, Segment):
            numbers = tuple(n for n in numbers if n != instruction.found)
        outputs = [
            (
                number,
                None if sure or values[number].space else environment.checks[number],
                values[number].slot is not None,
            )
            for number in numbers
        ]
        return _Step(
            instruction,
            _action(instruction, environment),
            tuple(outputs),
            tuple(n for n in finished if values[n].slot is None),
            tuple(n for n in finished if values[n].space),
        )

    def enter(self, inputs: Sequence[Data], run: Run) -> None:
        """Take the inputs, if they are what the block wants; they give numbers to symbols."""
        values, symbols = run.values, run.symbols
        for (number, check), data in zip(self._inputs, inputs, strict=True):
            values[number] = check(data, symbols, UserError)
        for position, number in self._derived:
            self._environment.checks[number](inputs[position], symbols, UserError)

    def __call__(self, inputs: Sequence[Data], run: Run) -> list[Data]:
        """Run on the inputs in order."""
        self.enter(inputs, run)
        values, symbols = run.values, run.symbols
        for position, step in enumerate(self.steps):
            try:
                if run.recorder is None:
                    results = step.action(run)
                else:
                    results = self._measured(position, step, run)
                for (number, check, is_slot), data in zip(step.outputs, results, strict=True):
                    if check is not None:
                        data = check(data, symbols, EvaluationError)
                    if is_slot:
                        deliver((data,), (values[number],), "a step")
                    else:
                        values[number] = data
            except GraftError as error:
                raise error.at(_location(step.instruction)) from error.__cause__
            except AbandonedError as error:
                where = _location(step.instruction)
                raise AbandonedError(error.error and error.error.at(where)) from None
            for number in step.released:
                value = self._environment.program.values[number]
                self._environment.devices.give_back(value, values[number], run)
            for number in step.finished:
                values[number] = None
        outputs = [values[number] for number in self.block.outputs]
        for number in self._left:
            values[number] = None
        return outputs

    def value(self, position: int) -> Value:
        """An input as the program describes it."""
        return self._environment.program.values[self.block.inputs[position]]

    def inputs(self, values: Sequence[Data]) -> list[Data]:
        """The inputs, once they have been taken."""
        return [values[number] for number in self.block.inputs]

    def _measured(self, position: int, step: _Step, run: Run) -> Sequence[Data]:
        assert run.recorder is not None
        path = run.path
        run.path = (*path, position)
        with run.recorder.measure(run.path, step.instruction):
            results = step.action(run)
        run.path = path
        return results

    def no_slices(self, inputs: Sequence[Data], run: Run, output: int, axis: int) -> Array:
        """What stacking an output's slices gives when there are none.

        An extent that only an iteration would have told is zero, as the evaluator has it."""
        value = self._environment.program.values[self.block.outputs[output]]
        inner = run.inside()
        self.enter(inputs, inner)
        if value.dtype is None or value.shape is None:
            raise EvaluationError(f"no iteration tells what '{value.name}' is")
        known = (substitute(dim, inner.symbols) for dim in value.shape)
        extents = [extent if isinstance(extent, int) else 0 for extent in known]
        return no_pieces(extents, value.dtype.numpy, axis)


def _location(instruction: Instruction) -> Place | None:
    return getattr(instruction, "location", None)


def _finished(block: Block) -> list[tuple[int, ...]]:
    """Per instruction, the values of the block that nobody needs after it."""
    own = {*block.inputs, *(number for one in block.instructions for number in writes(one))}
    kept = {*block.outputs}
    found: list[tuple[int, ...]] = []
    for instruction in reversed(block.instructions):
        used = dict.fromkeys((*_all_reads(instruction), *writes(instruction)))
        gone = tuple(number for number in used if number in own and number not in kept)
        kept |= {*gone}
        found.append(gone)
    return found[::-1]


def _all_reads(instruction: Instruction) -> list[int]:
    """What an instruction and those in its blocks read."""
    found = list(reads(instruction))
    for block in blocks(instruction):
        for inner in block.instructions:
            found += _all_reads(inner)
        found += block.outputs
    return found


def _action(instruction: Instruction, environment: _Environment) -> _Action:
    """What runs an instruction."""
    supplied, values = environment.supplied, environment.program.values

    def block(one: Block) -> BlockRunner:
        return BlockRunner(one, environment)

    match instruction:
        case Segment():
            assert environment.context is not None
            runner = SegmentRunner(instruction, environment.program, environment.context)
            return partial(run_segment, runner)
        case RegionCall(inputs=inputs, outputs=outputs):
            operands = [values[n] for n in inputs], [values[n] for n in outputs]
            return partial(environment.devices.call, instruction, *operands)
        case Transfer(source=source, target=target):
            ends = values[source], values[target]
            return lambda run: (environment.devices.transfer(instruction, *ends, run),)
        case Evaluate(function=function):
            return partial(evaluate, instruction, supplied.evaluators[function])
        case SizeFunction(rule=rule):
            return partial(evaluate, instruction, supplied.rule(rule))
        case BindSymbol():
            return partial(bind_symbol, instruction)
        case Slice():
            return partial(slice_rows, instruction)
        case Alias():
            return partial(alias, instruction, values[instruction.output])
        case Assert():
            return partial(check_condition, instruction)
        case ListOp():
            return partial(list_op, instruction)
        case If():
            return partial(
                _run_branch, instruction, [block(instruction.otherwise), block(instruction.then)]
            )
        case Switch():
            return _SwitchRunner(instruction, environment)
        case Loop():
            return partial(run_loop, instruction, *_body(instruction, environment))
        case Scan():
            return partial(run_scan, instruction, *_body(instruction, environment))


def _body(step: Loop | Scan, environment: _Environment) -> tuple[BlockRunner, NativeLoop | None]:
    """A loop's body, and the same as one that runs natively, where it can."""
    body = BlockRunner(step.body, environment)
    if not is_native(step, environment.program):
        return body, None
    runner = segment_runner(body.steps[0])
    assert runner is not None
    return body, NativeLoop(step, runner, environment.program)


def segment_runner(step: _Step) -> SegmentRunner | None:
    """What runs a step that is native; None for others."""
    if not isinstance(step.instruction, Segment):
        return None
    assert isinstance(step.action, partial)
    (runner,) = step.action.args
    assert isinstance(runner, SegmentRunner)
    return runner


def _run_branch(step: If, branches: Sequence[BlockRunner], run: Run) -> Sequence[Data]:
    return branches[bool(sole_item(run.values[step.condition]))]((), run.inside())


class _SwitchRunner:
    """Runs one of several blocks, by the numbers of symbols."""

    def __init__(self, step: Switch, environment: _Environment) -> None:
        self._step = step
        self.cases = {key: BlockRunner(one, environment) for key, one in step.cases}
        self.default = BlockRunner(step.default, environment)

    def block(self, symbols: Symbols) -> BlockRunner:
        """The block for these numbers."""
        key = tuple([symbols[name] for name in self._step.symbols])
        return self.cases.get(key, self.default)

    def __call__(self, run: Run) -> Sequence[Data]:
        block, inner = self.block(run.symbols), run.inside()
        if run.given:
            pairs = zip(self._step.outputs, block.block.outputs, strict=True)
            inner.given = {own: run.given[n] for n, own in pairs if n in run.given}
        return block((), inner)
