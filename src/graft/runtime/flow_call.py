"""A flow without decisions, ready to be called: inputs in, results out, at sizes that are known.

Such a flow is native programs, and before or behind them strings that are looked up in tables or
rows that are packed into maps. Its inputs tell all sizes, so that every program is a `NativeCall`,
and what leads from one to the next is written out, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.errors import EvaluationError, GraftError
from graft.runtime.bound import Bound
from graft.runtime.flow import Flow, FlowStep, Handing, Stretch, reads
from graft.runtime.flow_checks import Check, Data, Symbols
from graft.runtime.lists import FAILURES, LOOKUPS
from graft.runtime.native_call import NativeCall
from graft.runtime.straight_line import define

_STRINGS = np.dtype(object)


class FlowCall:
    """A flow at one size; `functions` are what its steps call. Safe to call from several threads.

    `run(*inputs)` runs on arrays that the caller has checked, and gives the outputs; None where
    a step fails, of which the ordinary way tells the reason."""

    def __init__(self, flow: Flow, functions: Sequence[Callable[..., Any]]) -> None:
        names: dict[str, object] = {"failures": (GraftError, *FAILURES)}
        lines = ["try:"]
        for number, (step, function) in enumerate(zip(flow.steps, functions, strict=True)):
            names[f"run{number}"] = function
            results = ", ".join(_variables(step.outputs))
            several = "," if isinstance(step, Stretch) else ""
            operands = ", ".join(_variables(_operands(flow, step)))
            lines += [f"    {results}{several} = run{number}({operands})"]
        outputs = ", ".join(_variables(flow.outputs))
        lines += [f"    return [{outputs}]", "except failures:", "    return None"]
        self.run: Callable[..., list[Data] | None] = define(_variables(flow.inputs), lines, names)


def expected_inputs(
    flow: Flow, stretches: Mapping[int, Bound]
) -> list[tuple[str, np.dtype[Any], int]] | None:
    """Name, dtype and alignment of what a call of the flow takes; None where it has no calls.

    `stretches` are the flow's native steps, by position."""
    looked_up = set()
    for number, step in enumerate(flow.steps):
        if isinstance(step, Handing) and step.operation in LOOKUPS:
            # Strings and maps are made by the ordinary way.
            result = flow.kinds[step.outputs[0]]
            if result.dtype is not None and result.shape is not None:
                looked_up |= {*step.inputs}
        elif number not in stretches or not stretches[number].is_native:
            return None
    made = {number for step in flow.steps for number in step.outputs}
    if not made.issuperset(flow.outputs) or len({*flow.outputs}) != len(flow.outputs):
        return None
    expected = []
    for number in flow.inputs:
        kind = flow.kinds[number]
        if kind.dtype is None and number not in looked_up:
            return None
        dtype = _STRINGS if kind.dtype is None else kind.dtype.numpy
        alignment = max([one.alignment(number) for one in stretches.values()], default=1)
        expected.append((kind.name, dtype, alignment))
    return expected


def prepare_call(
    flow: Flow,
    stretches: Mapping[int, Bound],
    checks: Sequence[Check],
    values: Sequence[Data],
    symbols: Symbols,
) -> NativeCall | FlowCall | None:
    """The call for the inputs among `values`, from which `symbols` have their numbers."""
    if len(flow.steps) == 1 and stretches:
        (step,) = flow.steps
        order = [step.outputs.index(number) for number in flow.outputs]
        return _native_call(stretches[0], flow.inputs, values, symbols, order)
    shapes = {number: values[number].shape for number in flow.inputs}
    functions: list[Callable[..., Any]] = []
    for number, step in enumerate(flow.steps):
        if isinstance(step, Stretch):
            operands, order = _operands(flow, step), [*range(len(step.outputs))]
            call = _native_call(stretches[number], operands, values, symbols, order)
            if call is None:
                return None
            results = zip(step.outputs, call.results, strict=True)
            shapes |= {one: shape for one, (shape, *_) in results}
            functions.append(call.run)
        else:
            functions.append(_look_up(flow, step, checks, shapes, symbols))
    return FlowCall(flow, functions)


def _native_call(
    stretch: Bound,
    operands: Sequence[int],
    values: Sequence[Data],
    symbols: Symbols,
    order: Sequence[int],
) -> NativeCall | None:
    """A native step on these operands and on constants among `values`."""
    sources = [*values]
    for position, number in enumerate(operands):
        sources[number] = position
    return stretch.native_call(len(operands), sources, symbols, order)


def _look_up(
    flow: Flow,
    step: FlowStep,
    checks: Sequence[Check],
    shapes: dict[int, tuple[int, ...]],
    symbols: Symbols,
) -> Callable[[Data], Data]:
    """A step that looks up, whose result has the shape of its operand (where it has one)."""
    assert isinstance(step, Handing)
    assert step.table is not None
    (operand,), (result,) = _operands(flow, step), step.outputs
    shapes[result] = shapes[operand]
    kind = flow.kinds[result]
    if kind.dtype is not None:
        like = np.broadcast_to(np.empty((), kind.dtype.numpy), shapes[result])
        checks[result](like, symbols, EvaluationError)
    return LOOKUPS[step.operation](step.table)


def _operands(flow: Flow, step: FlowStep) -> list[int]:
    """What a step reads besides constants."""
    constants = {number for number, _ in flow.constants}
    return [number for number in dict.fromkeys(reads(step)) if number not in constants]


def _variables(numbers: Sequence[int]) -> list[str]:
    return [f"v{number}" for number in numbers]
