"""Runs a flow: steps in order, with the numbers that symbols turn out to have.

Native stretches are bound to sizes when they first run at them; the last few sizes are remembered.
Every run has values and symbols of its own, so runs from several threads do not disturb each other.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from graft.base.capacity import check_bytes
from graft.base.dims import Dim, bare_symbol, evaluate_dim, substitute
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, GraftError, UserError
from graft.runtime.engine import Engine
from graft.runtime.executor import Executor
from graft.runtime.flow import (
    Choice,
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
from graft.runtime.flow_profile import FlowProfile, Path, Recorder
from graft.runtime.lists import hand_on
from graft.runtime.memory import ALIGNMENT, aligned_copy, aligned_empty, is_usable
from graft.runtime.program import Program, TensorSpec
from graft.runtime.regions import deliver
from graft.runtime.shaped import ShapedProgram
from graft.runtime.spaces import Runner
from graft.runtime.turns import ahead, no_pieces, repeated, single, sole_item, swept, unscanned

Data = Any
Symbols = dict[str, int]
# Runs on operands, and on the symbols that are known by then.
Evaluator = Callable[[Sequence[Data], Mapping[str, int]], Sequence[Data]]

# Sizes that a stretch stays bound to.
REMEMBERED = 8


@dataclass(frozen=True, eq=False)
class Supplied:
    """The Python functions that a flow names: of regions and of steps within programs, of nodes on
    the evaluator, and of type rules that tell sizes."""

    functions: Mapping[str, Runner]
    evaluators: Mapping[str, Evaluator] = field(default_factory=dict)
    rules: Mapping[str, Evaluator] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run in progress: what symbols stand for, and who measures it, where somebody does."""

    symbols: Symbols
    recorder: Recorder | None = None
    path: Path = ()  # of the step that runs


_Action = Callable[[list[Data], Run], Sequence[Data]]


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
                return _Bound(step, engine, self._supplied)
            case Evaluation():
                return partial(_evaluate, step, self._supplied.evaluators[step.function])
            case Measuring():
                return partial(_evaluate, step, self._supplied.rules[step.function])
            case Handing():
                return lambda values, run: [hand_on(step, _operands(step, values), run.symbols)]
            case Offload():
                kinds = [self._flow.kinds[number] for number in step.outputs]
                return partial(_offload, step, kinds, _supplied(step, self._supplied.functions))
            case Reading():
                return partial(_read, step)
            case Trimming():
                return lambda values, _: [values[step.value][: int(values[step.counts][-1])]]
            case Choice():
                return partial(_choose, step, [inner(branch) for branch in step.branches])
            case Repetition():
                return partial(_repeat, step, inner(step.body))
            case Sweep():
                return partial(_sweep, step, inner(step.body))

    def accept(self, inputs: Sequence[Data], around: Symbols) -> tuple[list[Data], Symbols]:
        """All values before the first step, and what is known of symbols."""
        flow = self._flow
        values: list[Data] = [None] * len(flow.kinds)
        symbols: Symbols = {name: around[name] for name in flow.inherited}
        for number, array in flow.constants:
            values[number] = array
        for number, data in zip(flow.inputs, inputs, strict=True):
            values[number] = _checked(flow.kinds[number], data, symbols, UserError)
        return values, symbols

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
        outer = around or Run({})
        values, symbols = self.accept(inputs, outer.symbols)
        run = Run(symbols, outer.recorder, outer.path)
        for number, step in enumerate(flow.steps):
            try:
                results = self._results(number, step, values, run)
                for position, data in zip(step.outputs, results, strict=True):
                    kind = flow.kinds[position]
                    values[position] = _checked(kind, data, symbols, EvaluationError)
            except GraftError as error:
                raise error.at(getattr(step, "place", None)) from error.__cause__
            for position in self._finished[number]:
                values[position] = None
        return [values[number] for number in flow.outputs]

    def _results(self, number: int, step: FlowStep, values: list[Data], run: Run) -> Sequence[Data]:
        action = self._actions[number]
        if run.recorder is None:
            return action(values, run)
        path = (*run.path, number)
        with run.recorder.measure(path, step):
            return action(values, replace(run, path=path))

    def profile(self, inputs: Sequence[Data]) -> FlowProfile:
        """Run once and measure every step."""
        recorder = Recorder()
        begin = time.perf_counter()
        outputs = self(inputs, Run({}, recorder))
        return FlowProfile(outputs, time.perf_counter() - begin, recorder.moments)


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
    homes = []
    for kind in kinds:
        assert kind.dtype is not None
        shape = tuple(evaluate_dim(dim, run.symbols) for dim in kind.shape or ())
        homes.append(aligned_empty(shape, kind.dtype.numpy))
    deliver(
        function([np.ascontiguousarray(values[n]) for n in step.inputs], homes),
        homes,
        step.function,
    )
    return homes


def _read(step: Reading, values: list[Data], run: Run) -> Sequence[Data]:
    symbols = run.symbols
    number = int(values[step.value].item())
    if symbols.setdefault(step.symbol, number) != number:
        raise EvaluationError(f"{number} is found where {symbols[step.symbol]} are wanted")
    return ()


class _Bound:
    """A program, bound to whatever sizes come."""

    def __init__(self, step: Stretch, engine: Engine, supplied: Supplied) -> None:
        self._program, self._engine, self._functions = step.program, engine, supplied.functions
        self._inputs = step.inputs
        self._executors: OrderedDict[tuple[int, ...], tuple[Program, Executor]] = OrderedDict()

    def __call__(self, values: list[Data], run: Run) -> list[Array]:
        program, executor = self._executor(run.symbols)
        pairs = zip(self._inputs, program.inputs, strict=True)
        ready = [_ready(values[number], spec) for number, spec in pairs]
        outputs = [_fresh(spec) for spec in program.results]
        if run.recorder is None:
            executor.run(ready, outputs)
        else:
            run.recorder.add(run.path, program, executor.profile(ready, outputs))
        return outputs

    def _executor(self, symbols: Symbols) -> tuple[Program, Executor]:
        program, remembered = self._program, self._executors
        names = program.symbols if isinstance(program, ShapedProgram) else ()
        key = tuple([symbols[name] for name in names])
        found = remembered.get(key)
        if found is None:
            plain = program.bind(symbols) if isinstance(program, ShapedProgram) else program
            _refuse_absurd_sizes(plain)
            found = plain, Executor(plain, self._engine, self._functions)
            remembered[key] = found
            if len(remembered) > REMEMBERED:
                remembered.popitem(last=False)
        return found


def _refuse_absurd_sizes(program: Program) -> None:
    """Loops may make more of their data with every turn."""
    for spec in program.outputs:
        check_bytes(spec.nbytes, f"'{spec.name}' would be {spec}")
    check_bytes(program.arena_bytes, "a stretch would work in an arena")


def _choose(
    step: Choice, branches: Sequence[FlowExecutor], values: list[Data], run: Run
) -> Sequence[Data]:
    taken = branches[bool(sole_item(values[step.condition]))]
    return taken([values[number] for number in step.captures], run)


def _repeat(step: Repetition, body: FlowExecutor, values: list[Data], run: Run) -> list[Data]:
    captures = [values[number] for number in step.captures]
    kinds = [step.body.kinds[number] for number in step.body.inputs[:2]]
    limit, condition = (None if n is None else values[n] for n in (step.limit, step.condition))
    state = [values[number] for number in step.carried]
    results = len(step.outputs) - len(state)

    def given(turn: int, proceed: bool, carried: Sequence[Data]) -> list[Data]:
        flags = (_single(turn, kinds[0]), _single(proceed, kinds[1]))
        return [*flags, *carried, *captures]

    state, pieces = repeated(
        lambda *turn: body(given(*turn), run), limit, condition, state, results
    )
    if pieces.turns:
        return [*state, *pieces.in_order()]
    first = 1 + len(state)
    untaken = given(0, False, state)
    empty = (body.no_pieces(untaken, run.symbols, first + n, 0) for n in range(results))
    return [*state, *empty]


def _sweep(step: Sweep, body: FlowExecutor, values: list[Data], run: Run) -> list[Data]:
    captures = [values[number] for number in step.captures]
    scanned = ahead([values[number] for number in step.scanned], step.axes, step.backwards)
    start = [values[number] for number in step.carried]
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


def _checked(kind: Kind, data: Data, symbols: Symbols, error: type[GraftError]) -> Data:
    """The data, if it is what the flow says; gives numbers to the symbols in its shape."""
    if kind.dtype is None:
        return data
    array = data if type(data) is np.ndarray else np.asarray(data)
    if array.dtype != kind.dtype.numpy:
        raise error(f"'{kind.name}' is {array.dtype} where {kind.dtype} is wanted")
    if kind.shape is None:
        return array
    if len(kind.shape) != array.ndim or not all(
        _agrees(dim, extent, symbols) for dim, extent in zip(kind.shape, array.shape, strict=True)
    ):
        wanted = ", ".join(map(str, kind.shape))
        raise error(f"'{kind.name}' has the shape {list(array.shape)} where [{wanted}] is wanted")
    return array


def _agrees(dim: Dim, extent: int, symbols: Symbols) -> bool:
    if isinstance(dim, int):
        return dim == extent
    name = bare_symbol(dim)
    if name is not None:
        return symbols.setdefault(name, extent) == extent
    wanted = substitute(dim, symbols)
    return wanted == extent if isinstance(wanted, int) else True


def _ready(data: Array, spec: TensorSpec) -> Array:
    """The array where it lies, or a copy that kernels can read."""
    return data if is_usable(data, spec.alignment) else aligned_copy(data, ALIGNMENT)


def _fresh(spec: TensorSpec) -> Array:
    return aligned_empty(spec.shape, spec.dtype.numpy, max(spec.alignment, ALIGNMENT))
