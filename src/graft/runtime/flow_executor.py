"""Runs a flow: steps in order, with the numbers that symbols turn out to have.

Loops whose body is one native stretch run natively, all turns of them (`native_turns`). Every run
has values and symbols of its own, so runs from several threads do not disturb each other.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from graft.base.dims import evaluate_dim, substitute
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, GraftError, UserError
from graft.runtime.bound import Bound, Run
from graft.runtime.dispatch import Call, Dispatcher
from graft.runtime.engine import Engine
from graft.runtime.evaluated import Evaluator
from graft.runtime.flow import (
    Choice,
    Demand,
    Evaluation,
    Flow,
    FlowStep,
    Handing,
    Kind,
    Measuring,
    Offload,
    Reading,
    Repetition,
    Stretch,
    Sweep,
    Trimming,
)
from graft.runtime.flow_call import expected_inputs, prepare_call
from graft.runtime.flow_checks import Check, Data, Symbols
from graft.runtime.flow_profile import FlowProfile, Recorder
from graft.runtime.guard import AbandonedError
from graft.runtime.lists import hand_on
from graft.runtime.loop_bodies import can_turn, layout_of
from graft.runtime.memory import aligned_empty
from graft.runtime.native_turns import NativeTurns
from graft.runtime.regions import Region, deliver
from graft.runtime.spaces import Runner
from graft.runtime.turns import (
    Pieces,
    ahead,
    begins,
    no_pieces,
    repeated,
    require_condition,
    single,
    sole_item,
    swept,
    unscanned,
)


@dataclass(frozen=True, eq=False)
class Supplied:
    """The Python functions that a flow names: of regions and of steps within programs, of nodes on
    the evaluator, and of type rules that tell sizes."""

    functions: Mapping[str, Runner]
    evaluators: Mapping[str, Evaluator] = field(default_factory=dict)
    rules: Mapping[str, Evaluator] = field(default_factory=dict)

    def rule(self, step: Measuring) -> Evaluator:
        """What tells sizes; a flow out of a file brings texts instead of functions."""
        known = self.rules.get(step.function)
        return stored_rule(step.function) if known is None else known


_Action = Callable[[list[Data], Run], Sequence[Data]]
_OUTERMOST = Run({})  # around flows that no other one is around


class FlowExecutor:
    """A flow, ready to run."""

    def __init__(
        self,
        flow: Flow,
        engine: Engine | None,  # of all native stretches, if there are any
        supplied: Supplied,
    ) -> None:
        self._flow = flow
        self._finished = flow.finished
        self._checks = [Check(kind) for kind in flow.kinds]
        # Inputs whose extents follow from symbols, which others may give a number.
        derived = (self._checks[number].is_derived for number in flow.inputs)
        self._derived = [position for position, is_derived in enumerate(derived) if is_derived]
        self._supplied = supplied

        def inner(one: Flow) -> FlowExecutor:
            return FlowExecutor(one, engine, supplied)

        self._actions = [self._action(step, engine, inner) for step in flow.steps]

    def _action(
        self, step: FlowStep, engine: Engine | None, inner: Callable[[Flow], FlowExecutor]
    ) -> _Action:
        match step:
            case Stretch():
                assert engine is not None
                return Bound(step, engine, self._supplied.functions)
            case Evaluation():
                return partial(_evaluate, step, self._supplied.evaluators[step.function])
            case Measuring():
                return partial(_evaluate, step, self._supplied.rule(step))
            case Handing():
                return lambda values, run: [hand_on(step, _operands(step, values), run.symbols)]
            case Offload():
                kinds = [self._flow.kinds[number] for number in step.outputs]
                return partial(_offload, step, kinds, _supplied(step, self._supplied.functions))
            case Reading():
                return partial(_read, step)
            case Trimming():
                return lambda values, _: [values[step.value][: int(values[step.counts][-1])]]
            case Demand():
                return partial(_demand, step)
            case Choice():
                return partial(_choose, step, [inner(branch) for branch in step.branches])
            case Repetition():
                return partial(_repeat, step, *_body(step, inner))
            case Sweep():
                return partial(_sweep, step, *_body(step, inner))

    @property
    def sole_stretch(self) -> Bound:
        """The only step, where it is native."""
        (stretch,) = self._actions
        assert isinstance(stretch, Bound)
        return stretch

    def dispatcher(self, output_names: Sequence[str]) -> Dispatcher | None:
        """The short way, where a run decides nothing: sizes follow from the inputs'."""
        expected = expected_inputs(self._flow, self._stretches)
        return None if expected is None else Dispatcher(expected, output_names, self._call)

    def _call(self, inputs: Sequence[Array]) -> Call | None:
        """A run on inputs of these sizes."""
        values = self.accept(inputs, {})
        return prepare_call(self._flow, self._stretches, self._checks, *values)

    @property
    def _stretches(self) -> dict[int, Bound]:
        """The native steps, by position."""
        return {n: action for n, action in enumerate(self._actions) if isinstance(action, Bound)}

    def accept(self, inputs: Sequence[Data], around: Symbols) -> tuple[list[Data], Symbols]:
        """All values before the first step, and what is known of symbols."""
        flow = self._flow
        values: list[Data] = [None] * len(flow.kinds)
        symbols: Symbols = {name: around[name] for name in flow.inherited}
        for number, array in flow.constants:
            values[number] = array
        positions = range(len(flow.inputs))
        for position in (*positions, *self._derived):
            number = flow.inputs[position]
            values[number] = self._checks[number](inputs[position], symbols, UserError)
        return values, symbols

    def taken(self, inputs: Sequence[Data], around: Symbols) -> tuple[list[Data], Symbols]:
        """The inputs, if they are what the flow wants, and what is known of symbols then."""
        values, symbols = self.accept(inputs, around)
        return [values[number] for number in self._flow.inputs], symbols

    def no_pieces(self, inputs: Sequence[Data], around: Symbols, output: int, axis: int) -> Array:
        """What stacking an output's pieces gives when there are none.

        An extent that only a turn would have told is zero, as the evaluator has it."""
        kind = self._flow.kinds[self._flow.outputs[output]]
        _, symbols = self.accept(inputs, around)
        if kind.dtype is None or kind.shape is None:
            raise EvaluationError(f"no turn tells what '{kind.name}' is")
        known = (substitute(dim, symbols) for dim in kind.shape)
        extents = [extent if isinstance(extent, int) else 0 for extent in known]
        return no_pieces(extents, kind.dtype.numpy, axis)

    def __call__(self, inputs: Sequence[Data], around: Run | None = None) -> list[Data]:
        """Run on the inputs in order; `around` is the run of a flow around this one."""
        flow = self._flow
        outer = around or _OUTERMOST
        values, symbols = self.accept(inputs, outer.symbols)
        run = Run(symbols, outer.recorder, outer.path)
        is_measured = outer.recorder is not None
        for number, step in enumerate(flow.steps):
            try:
                if is_measured:
                    results = self._measured(number, step, values, run)
                else:
                    results = self._actions[number](values, run)
                sure = type(step) is Stretch  # which makes what the symbols say, and nothing else
                for position, data in zip(step.outputs, results, strict=True):
                    check = self._checks[position]
                    values[position] = data if sure else check(data, symbols, EvaluationError)
            except GraftError as error:
                raise error.at(getattr(step, "place", None)) from error.__cause__
            for position in self._finished[number]:
                values[position] = None
        return [values[number] for number in flow.outputs]

    def _measured(
        self, number: int, step: FlowStep, values: list[Data], run: Run
    ) -> Sequence[Data]:
        assert run.recorder is not None
        path = (*run.path, number)
        with run.recorder.measure(path, step):
            return self._actions[number](values, replace(run, path=path))

    def profile(self, inputs: Sequence[Data]) -> FlowProfile:
        """Run once and measure every step."""
        recorder = Recorder()
        begin = time.perf_counter()
        outputs = self(inputs, Run({}, recorder))
        return FlowProfile(outputs, time.perf_counter() - begin, recorder.moments)


def stored_rule(text: str) -> Evaluator:
    """A rule for sizes by its text: the only thing for which a file asks the compiler's rooms, of
    which those that know the operators need neither LLVM nor `onnx`."""
    try:
        rules = importlib.import_module("graft.ops.size_rules")
    except ImportError as error:
        raise UserError(
            "this model asks the operators' rules for sizes, which are not installed here",
            hint="install all of graft-compiler",
        ) from error
    rule: Evaluator = rules.rule_from(text)
    return rule


def _operands(step: Evaluation | Measuring | Handing, values: list[Data]) -> list[Data]:
    return [None if number is None else values[number] for number in step.inputs]


def _evaluate(
    step: Evaluation | Measuring, function: Evaluator, values: list[Data], run: Run
) -> Sequence[Data]:
    return function(_operands(step, values), run.symbols)


def _supplied(step: Offload, functions: Mapping[str, Runner]) -> Runner:
    if step.function not in functions:
        raise UserError(f"the region '{step.function}' is not given", step.place)
    return functions[step.function]


def _offload(
    step: Offload, kinds: Sequence[Kind], function: Runner, values: list[Data], run: Run
) -> Sequence[Data]:
    inputs = [np.ascontiguousarray(values[n]) for n in step.inputs]
    while True:
        homes = []
        for kind in kinds:
            assert kind.dtype is not None
            shape = tuple(evaluate_dim(dim, run.symbols) for dim in kind.shape or ())
            homes.append(aligned_empty(shape, kind.dtype.numpy))
        if not isinstance(function, Region):
            deliver(function(inputs, homes), homes, step.function)
            return homes
        try:
            function.run(inputs, homes)
        except AbandonedError as error:
            if error.error is not None:
                raise error.error from error.error.__cause__
            continue  # in other arrays, without the accelerator
        return homes


def _read(step: Reading, values: list[Data], run: Run) -> Sequence[Data]:
    symbols = run.symbols
    number = int(values[step.value].item())
    if symbols.setdefault(step.symbol, number) != number:
        raise EvaluationError(f"{number} is found where {symbols[step.symbol]} are wanted")
    return ()


def _demand(step: Demand, values: list[Data], _run: Run) -> Sequence[Data]:
    require_condition(values[step.condition], step.wanted, step.message)
    return (values[step.value],)


def _choose(
    step: Choice, branches: Sequence[FlowExecutor], values: list[Data], run: Run
) -> Sequence[Data]:
    taken = branches[bool(sole_item(values[step.condition]))]
    return taken([values[number] for number in step.captures], run)


def _body(
    step: Repetition | Sweep, inner: Callable[[Flow], FlowExecutor]
) -> tuple[FlowExecutor, NativeTurns | None]:
    """A loop's body, and the same as one that turns natively, where it can."""
    body, layout = inner(step.body), layout_of(step)
    natively = can_turn(step.body, layout)
    return body, NativeTurns(step.body, body.sole_stretch, layout) if natively else None


def _repeat(
    step: Repetition,
    body: FlowExecutor,
    natively: NativeTurns | None,
    values: list[Data],
    run: Run,
) -> list[Data]:
    captures = [values[number] for number in step.captures]
    kinds = [step.body.kinds[number] for number in step.body.inputs[:2]]
    limit, condition = (None if n is None else values[n] for n in (step.limit, step.condition))
    state = [values[number] for number in step.carried]
    results = len(step.outputs) - len(state)

    def given(turn: int, proceed: bool, carried: Sequence[Data]) -> list[Data]:
        flags = (_single(turn, kinds[0]), _single(proceed, kinds[1]))
        return [*flags, *carried, *captures]

    last, proceed = begins(limit, condition)
    if natively and not run.recorder and proceed and (last is None or last > 0):
        data, symbols = body.taken(given(0, True, state), run.symbols)
        pieces = Pieces(results, "loop")
        carried = natively.run(data, symbols, last, pieces)
        if carried is not None:
            return [*carried, *pieces.in_order()]
    state, pieces = repeated(
        lambda *turn: body(given(*turn), run), limit, condition, state, results
    )
    if pieces.turns:
        return [*state, *pieces.in_order()]
    first = 1 + len(state)
    untaken = given(0, False, state)
    empty = (body.no_pieces(untaken, run.symbols, first + n, 0) for n in range(results))
    return [*state, *empty]


def _sweep(
    step: Sweep, body: FlowExecutor, natively: NativeTurns | None, values: list[Data], run: Run
) -> list[Data]:
    captures = [values[number] for number in step.captures]
    scanned = ahead([values[number] for number in step.scanned], step.axes, step.backwards)
    start = [values[number] for number in step.carried]
    turns = len(scanned[0])
    if natively and not run.recorder and turns:
        slices = [data[0, ...] for data in scanned]
        data, symbols = body.taken([*start, *slices, *captures], run.symbols)
        data[len(start) : len(start) + len(scanned)] = scanned
        pieces = Pieces(len(step.result_axes), "scan")
        carried = natively.run(data, symbols, turns, pieces)
        if carried is not None:
            return [*carried, *pieces.stacked(step.result_axes, step.result_backwards)]
    state, pieces = swept(
        lambda carried, slices: body([*carried, *slices, *captures], run),
        start,
        scanned,
        len(step.result_axes),
    )
    if pieces.turns:
        return [*state, *pieces.stacked(step.result_axes, step.result_backwards)]
    untaken = [*state, *unscanned(scanned), *captures]
    axes = enumerate(step.result_axes, start=len(state))
    return [*state, *(body.no_pieces(untaken, run.symbols, n, axis) for n, axis in axes)]


def _single(data: Any, kind: Kind) -> Array:
    assert kind.dtype is not None
    return single(data, kind.dtype.numpy, len(kind.shape or ()))
