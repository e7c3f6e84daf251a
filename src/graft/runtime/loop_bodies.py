"""The bodies of loops and scans: what they take and give, and which of them can turn natively."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import DType
from graft.runtime.flow import Flow, FlowStep, Repetition, Stretch, Sweep, nested
from graft.runtime.program import Program


@dataclass(frozen=True, slots=True)
class Layout:
    """What a body takes, in this order: flags (the number of the turn and the condition), carried
    values, slices; then captures. It gives the condition if it takes it, carried values, pieces."""

    flags: int
    carried: int
    scanned: int = 0

    @property
    def results(self) -> int:
        """Where the carried values begin among what the body gives."""
        return 1 if self.flags else 0


def layout_of(step: Repetition | Sweep) -> Layout:
    """How a loop or scan deals with its body."""
    if isinstance(step, Repetition):
        return Layout(2, len(step.carried))
    return Layout(0, len(step.carried), len(step.scanned))


def can_turn(body: Flow, layout: Layout) -> bool:
    """Whether a body can turn natively, as far as can be told without sizes."""
    if len(body.steps) != 1 or not isinstance(body.steps[0], Stretch):
        return False
    stretch = body.steps[0]
    if isinstance(stretch.program, Program) and stretch.program.python_steps:
        return False
    made, constants = {*stretch.outputs}, dict(body.constants)
    if layout.flags:
        number, condition = body.inputs[:2]
        kinds = [body.kinds[one].dtype for one in (number, condition, body.outputs[0])]
        if kinds != [DType.INT64, DType.BOOL, DType.BOOL]:
            return False
        always = body.outputs[0] == condition or bool(np.all(constants.get(body.outputs[0], False)))
        if body.outputs[0] not in made and not always:
            return False
    inputs = body.inputs[layout.flags :]
    results = body.outputs[layout.results :]
    kept = (results[j] == inputs[j] for j in range(layout.carried))
    carried = all(same or number in made for same, number in zip(kept, results, strict=False))
    return carried and made.issuperset(results[layout.carried :])


def steps_of(flow: Flow) -> int:
    """The steps of one run that Python has a hand in: of branches the longer; of loops one turn, or
    none where they turn natively."""
    return sum(1 + _steps_inside(step) for step in flow.steps)


def _steps_inside(step: FlowStep) -> int:
    if isinstance(step, Repetition | Sweep) and can_turn(step.body, layout_of(step)):
        return 0
    return max((steps_of(one) for one in nested(step)), default=0)
