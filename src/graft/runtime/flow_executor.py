"""Runs a flow: steps in order, with the numbers that symbols turn out to have.

Native stretches are bound to sizes when they first run at them; the last few sizes are remembered.
Every run has values and symbols of its own, so runs from several threads do not disturb each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

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
    Kind,
    Offload,
    Reading,
    Repetition,
    Stretch,
    Sweep,
    Trimming,
)
from graft.runtime.memory import ALIGNMENT, aligned_copy, aligned_empty, is_usable
from graft.runtime.program import Program, TensorSpec
from graft.runtime.regions import deliver
from graft.runtime.shaped import ShapedProgram
from graft.runtime.spaces import Runner

Data = Any
Symbols = dict[str, int]
# Runs on operands, and on the symbols that are known by then.
Evaluator = Callable[[Sequence[Data], Mapping[str, int]], Sequence[Data]]

# Sizes that a stretch stays bound to.
REMEMBERED = 8


@dataclass(frozen=True, eq=False)
class Supplied:
    """The Python functions that a flow names: of regions and of steps within programs, and of nodes
    on the evaluator."""

    functions: Mapping[str, Runner]
    evaluators: Mapping[str, Evaluator] = field(default_factory=dict)


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
    ) -> Callable[[list[Data], Symbols], Sequence[Data]]:
        match step:
            case Stretch():
                assert engine is not None
                bound = _Bound(step, engine, self._supplied)
                return lambda values, symbols: bound([values[n] for n in step.inputs], symbols)
            case Evaluation():
                return _evaluation(step, self._supplied.evaluators[step.function])
            case Offload():
                kinds = [self._flow.kinds[number] for number in step.outputs]
                return partial(_offload, step, kinds, _supplied(step, self._supplied.functions))
            case Reading():
                return partial(_read, step)
            case Trimming():
                return lambda values, _: [values[step.value][: int(values[step.counts][-1])]]
            case Choice():
                branches = [inner(branch) for branch in step.branches]
                return lambda values, symbols: branches[_flag(values[step.condition])](
                    [values[n] for n in step.captures], symbols
                )
            case Repetition():
                return _Repeated(step, inner(step.body))
            case Sweep():
                return _Swept(step, inner(step.body))

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
        """What stacking an output's pieces gives when there are none."""
        kind = self._flow.kinds[self._flow.outputs[output]]
        _, symbols = self.accept(inputs, around)
        if kind.dtype is None or kind.shape is None:
            raise EvaluationError(f"no turn tells what '{kind.name}' is")
        shape = [evaluate_dim(dim, symbols) for dim in kind.shape]
        shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 0)
        return np.empty(shape, kind.dtype.numpy)

    def __call__(self, inputs: Sequence[Data], around: Symbols) -> list[Data]:
        """Run on the inputs in order; `around` is what a flow around this one knows of symbols."""
        flow = self._flow
        values, symbols = self.accept(inputs, around)
        for step, action, finished in zip(flow.steps, self._actions, self._finished, strict=True):
            try:
                results = action(values, symbols)
                for number, data in zip(step.outputs, results, strict=True):
                    values[number] = _checked(flow.kinds[number], data, symbols, EvaluationError)
            except GraftError as error:
                raise error.at(getattr(step, "place", None)) from error.__cause__
            for number in finished:
                values[number] = None
        return [values[number] for number in flow.outputs]


def _evaluation(
    step: Evaluation, function: Evaluator
) -> Callable[[list[Data], Symbols], Sequence[Data]]:
    def run(values: list[Data], symbols: Symbols) -> Sequence[Data]:
        operands = [None if number is None else values[number] for number in step.inputs]
        return function(operands, symbols)

    return run


def _supplied(step: Offload, functions: Mapping[str, Runner]) -> Runner:
    if step.function not in functions:
        raise UserError(f"the region '{step.function}' is not given", step.place)
    return functions[step.function]


def _offload(
    step: Offload, kinds: Sequence[Kind], function: Runner, values: list[Data], symbols: Symbols
) -> Sequence[Data]:
    homes = []
    for kind in kinds:
        assert kind.dtype is not None
        shape = tuple(evaluate_dim(dim, symbols) for dim in kind.shape or ())
        homes.append(aligned_empty(shape, kind.dtype.numpy))
    deliver(
        function([np.ascontiguousarray(values[n]) for n in step.inputs], homes),
        homes,
        step.function,
    )
    return homes


def _read(step: Reading, values: list[Data], symbols: Symbols) -> Sequence[Data]:
    number = int(values[step.value].item())
    if symbols.setdefault(step.symbol, number) != number:
        raise EvaluationError(f"{number} is found where {symbols[step.symbol]} are wanted")
    return ()


class _Bound:
    """A program, bound to whatever sizes come."""

    def __init__(self, step: Stretch, engine: Engine, supplied: Supplied) -> None:
        self._program, self._engine, self._functions = step.program, engine, supplied.functions
        self._executors: OrderedDict[tuple[int, ...], tuple[Program, Executor]] = OrderedDict()

    def __call__(self, inputs: Sequence[Array], symbols: Symbols) -> list[Array]:
        program, executor = self._executor(symbols)
        ready = [_ready(data, spec) for data, spec in zip(inputs, program.inputs, strict=True)]
        outputs = [_fresh(spec) for spec in program.outputs]
        executor.run(ready, outputs)
        return outputs

    def _executor(self, symbols: Symbols) -> tuple[Program, Executor]:
        program, remembered = self._program, self._executors
        names = program.symbols if isinstance(program, ShapedProgram) else ()
        key = tuple([symbols[name] for name in names])
        found = remembered.get(key)
        if found is None:
            plain = program.bind(symbols) if isinstance(program, ShapedProgram) else program
            found = plain, Executor(plain, self._engine, self._functions)
            remembered[key] = found
            if len(remembered) > REMEMBERED:
                remembered.popitem(last=False)
        return found


class _Repeated:
    """A loop."""

    def __init__(self, step: Repetition, body: FlowExecutor) -> None:
        self._step, self._body = step, body
        self._kinds = [step.body.kinds[number] for number in step.body.inputs[:2]]

    def __call__(self, values: list[Data], symbols: Symbols) -> list[Data]:
        step = self._step
        limit = None if step.limit is None else int(values[step.limit].item())
        proceed = True if step.condition is None else _flag(values[step.condition])
        state = [values[number] for number in step.carried]
        captures = [values[number] for number in step.captures]
        stacks: list[list[Array]] = [[] for _ in step.outputs[len(state) :]]
        turn = 0
        while proceed and (limit is None or turn < limit):
            flags = [_single(turn, self._kinds[0]), _single(proceed, self._kinds[1])]
            given, *results = self._body([*flags, *state, *captures], symbols)
            proceed = _flag(given)
            state = results[: len(state)]
            for stack, piece in zip(stacks, results[len(state) :], strict=True):
                stack.append(piece)
            turn += 1
        if turn:
            return [*state, *(np.stack(stack) for stack in stacks)]
        flags = [_single(0, kind) for kind in self._kinds]
        given = [*flags, *state, *captures]
        first = 1 + len(state)
        empty = (self._body.no_pieces(given, symbols, first + n, 0) for n in range(len(stacks)))
        return [*state, *empty]


class _Swept:
    """A scan."""

    def __init__(self, step: Sweep, body: FlowExecutor) -> None:
        self._step, self._body = step, body

    def __call__(self, values: list[Data], symbols: Symbols) -> list[Data]:
        step = self._step
        state = [values[number] for number in step.carried]
        captures = [values[number] for number in step.captures]
        order = zip(step.scanned, step.axes, step.backwards, strict=True)
        scanned = [np.moveaxis(values[n], axis, 0)[:: -1 if back else 1] for n, axis, back in order]
        lengths = {len(data) for data in scanned}
        if len(lengths) > 1:
            raise EvaluationError(f"the scanned tensors differ in length: {sorted(lengths)}")
        stacks: list[list[Array]] = [[] for _ in step.outputs[len(state) :]]
        count = lengths.pop()
        for turn in range(count):
            slices = [data[turn] for data in scanned]
            results = self._body([*state, *slices, *captures], symbols)
            state = results[: len(state)]
            for stack, piece in zip(stacks, results[len(state) :], strict=True):
                stack.append(piece)
        if count:
            placed = zip(stacks, step.result_axes, step.result_backwards, strict=True)
            return [*state, *(np.stack(s[:: -1 if back else 1], axis) for s, axis, back in placed)]
        slices = [np.empty(data.shape[1:], data.dtype) for data in scanned]
        given = [*state, *slices, *captures]
        axes = enumerate(step.result_axes, start=len(state))
        return [*state, *(self._body.no_pieces(given, symbols, n, axis) for n, axis in axes)]


def _flag(data: Array) -> bool:
    return bool(np.asarray(data).item())


def _single(number: int, kind: Kind) -> Array:
    """A flag or a counter in the shape in which a body wants it."""
    assert kind.dtype is not None
    return np.full((1,) * len(kind.shape or ()), number, dtype=kind.dtype.numpy)


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
