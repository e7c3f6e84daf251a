"""What instructions do, one function each: a run in progress in, the results out.

Those with blocks are told how to run them; segments, regions and transfers have files of their own
(`segment`, `devices`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.program.instructions import (
    Alias,
    Assert,
    BindSymbol,
    Evaluate,
    ListOp,
    Loop,
    Scan,
    SizeFunction,
    Slice,
)
from graft.program.program import Value
from graft.runtime.checks import Data
from graft.runtime.evaluated import Evaluator
from graft.runtime.lists import run_list_op
from graft.runtime.native_loops import NativeLoop
from graft.runtime.run import Run
from graft.runtime.segment import CallTimes, SegmentRunner
from graft.runtime.turns import (
    Pieces,
    ahead,
    begins,
    repeated,
    require_condition,
    single,
    swept,
    unscanned,
)


class Body(Protocol):
    """The body of a loop, ready to run."""

    def __call__(self, inputs: Sequence[Data], run: Run) -> list[Data]:
        """Run on the inputs in order."""
        ...

    def enter(self, inputs: Sequence[Data], run: Run) -> None:
        """Take the inputs, which give numbers to symbols."""
        ...

    def inputs(self, values: Sequence[Data]) -> list[Data]:
        """The inputs, once they have been taken."""
        ...

    def value(self, position: int) -> Value:
        """An input as the program describes it."""
        ...

    def no_slices(self, inputs: Sequence[Data], run: Run, output: int, axis: int) -> Array:
        """What stacking an output's slices gives when there are none."""
        ...


def run_segment(runner: SegmentRunner, run: Run) -> Sequence[Data]:
    sized, operands = runner.sized(run.symbols), runner.operands(run.values)
    if run.recorder is None and not run.given and not runner.layout.uses_shelf:
        return sized.run(operands)
    outputs = sized.allocate(run.given)
    if run.recorder is None:
        sized.run_into(operands, outputs, run.shelf)
        return outputs
    times = CallTimes.zeros(runner.layout.threads, len(runner.segment.calls))
    sized.run_into(operands, outputs, run.shelf, times)
    run.recorder.add(run.path, sized.prepared, times)
    return outputs


def _operands(step: Evaluate | SizeFunction | ListOp, values: list[Data]) -> list[Data]:
    return [None if number is None else values[number] for number in step.inputs]


def evaluate(step: Evaluate | SizeFunction, function: Evaluator, run: Run) -> Sequence[Data]:
    return function(_operands(step, run.values), run.symbols)


def list_op(step: ListOp, run: Run) -> Sequence[Data]:
    return (run_list_op(step, _operands(step, run.values), run.symbols),)


def bind_symbol(step: BindSymbol, run: Run) -> Sequence[Data]:
    symbols = run.symbols
    number = int(run.values[step.value].item())
    if symbols.setdefault(step.symbol, number) != number:
        raise EvaluationError(f"{number} is found where {symbols[step.symbol]} are wanted")
    return ()


def slice_rows(step: Slice, run: Run) -> Sequence[Data]:
    return (run.values[step.value][: int(run.values[step.counts][-1])],)


def alias(step: Alias, output: Value, run: Run) -> Sequence[Data]:
    if output.slot is not None:  # it lies there already
        return ()
    data = run.values[step.value]
    if output.is_static and isinstance(data, np.ndarray) and data.shape != output.shape:
        shape: Any = output.shape
        if np.prod(shape, dtype=np.int64) == data.size:  # else it is refused as it is
            return (data.reshape(shape),)
    return (data,)


def check_condition(step: Assert, run: Run) -> Sequence[Data]:
    require_condition(run.values[step.condition], step.expected, step.message)
    return (run.values[step.value],)


def run_loop(step: Loop, body: Body, natively: NativeLoop | None, run: Run) -> list[Data]:
    values = run.values
    limit, condition = (None if n is None else values[n] for n in (step.limit, step.condition))
    state = [values[number] for number in step.carried]
    results = len(step.outputs) - len(state)
    flags = [body.value(position) for position in range(2)]

    def given(iteration: int, proceed: bool, carried: Sequence[Data]) -> list[Data]:
        return [_single(iteration, flags[0]), _single(proceed, flags[1]), *carried]

    last, proceed = begins(limit, condition)
    if natively and not run.recorder and proceed and (last is None or last > 0):
        inner, pieces = run.inside(), Pieces(results, "loop")
        first = given(0, True, state)
        body.enter(first, inner)
        carried = natively.run(body.inputs(values), values, inner.symbols, last, pieces)
        if carried is not None:
            return [*carried, *pieces.in_order()]
    state, pieces = repeated(
        lambda *iteration: body(given(*iteration), run.inside()), limit, condition, state, results
    )
    if pieces.turns:
        return [*state, *pieces.in_order()]
    untaken, begin = given(0, False, state), 1 + len(state)
    return [*state, *(body.no_slices(untaken, run, begin + n, 0) for n in range(results))]


def run_scan(step: Scan, body: Body, natively: NativeLoop | None, run: Run) -> list[Data]:
    values = run.values
    scanned = ahead([values[number] for number in step.scanned], step.axes, step.backwards)
    start = [values[number] for number in step.carried]
    count = len(scanned[0])
    if natively and not run.recorder and count:
        inner, pieces = run.inside(), Pieces(len(step.result_axes), "scan")
        body.enter([*start, *(data[0, ...] for data in scanned)], inner)
        given = body.inputs(values)
        given[len(start) :] = scanned
        carried = natively.run(given, values, inner.symbols, count, pieces)
        if carried is not None:
            return [*carried, *pieces.stacked(step.result_axes, step.result_backwards)]
    state, pieces = swept(
        lambda carried, slices: body([*carried, *slices], run.inside()),
        start,
        scanned,
        len(step.result_axes),
    )
    if pieces.turns:
        return [*state, *pieces.stacked(step.result_axes, step.result_backwards)]
    untaken = [*state, *unscanned(scanned)]
    axes = enumerate(step.result_axes, start=len(state))
    return [*state, *(body.no_slices(untaken, run, n, axis) for n, axis in axes)]


def _single(data: Any, value: Value) -> Array:
    assert value.dtype is not None
    return single(data, value.dtype.numpy, len(value.shape or ()))
