"""What schedules of whole expressions begin with: all but reductions is computed where it is read.

A result in, directives and the stages that are left out; then its axes as one loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graft.loop.errors import ScheduleError
from graft.loop.ir import Const, Function
from graft.loop.lower import lower
from graft.loop.nest import short
from graft.loop.schedule import ComputeAt, Directive, Fuse, Inline, Schedule, StoreIn
from graft.loop.stages import rewrite_stages
from graft.loop.tensor import Reduce, Tensor, in_order

Directives = dict[str, list[Directive]]


def inline_stages(
    inputs: Sequence[Tensor], result: Tensor
) -> tuple[Directives, Mapping[str, Tensor]]:
    """Directives that inline all stages but reductions, and what is left then, by name."""
    stages = [one for one in in_order([result]) if one.body is not None and one is not result]
    inlined: Directives = {
        stage.name: [Inline()] for stage in stages if not isinstance(stage.body, Reduce)
    }
    names = {one.name for one in (*inputs, result)}
    return inlined, rewrite_stages(in_order([result]), names, Schedule.of(inlined))


def axis_names(tensor: Tensor) -> list[str]:
    """The axes of a tensor as directives call them."""
    return [short(axis.name) for axis in tensor.axes]


def element_count(tensor: Tensor) -> int:
    """How many elements a tensor of static shape has."""
    return math.prod(int(one.value) for one in tensor.shape if isinstance(one, Const))


def fuse_axes(axes: Sequence[str], directives: list[Directive]) -> str:
    """One loop of several neighbours; adds the directives and gives its name."""
    fused = axes[0]
    for number, axis in enumerate(axes[1:]):
        directives.append(Fuse(fused, axis, f"fused{number}"))
        fused = f"fused{number}"
    return fused


def element_loop(name: str, inputs: Sequence[Tensor], result: Tensor) -> Function:
    """One loop over the elements of a result, with the reductions behind each in registers.

    Reductions of which several elements read one (as in softmax) come before, in memory."""
    schedule, stages = inline_stages(inputs, result)
    schedule[result.name] = []
    fused = fuse_axes(axis_names(stages[result.name]), schedule[result.name])
    in_registers: Directives = {
        stage.name: [ComputeAt(result.name, fused), StoreIn("register")]
        for stage in stages.values()
        if isinstance(stage.body, Reduce) and stage is not stages[result.name]
        if element_count(stage) >= element_count(result)
    }
    try:
        return lower(name, (*inputs, result), Schedule.of(schedule | in_registers))
    except ScheduleError:  # an element reads several of one reduction
        return lower(name, (*inputs, result), Schedule.of(schedule))
