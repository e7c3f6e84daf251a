"""Pointwise nodes whose result is a blocked image: one vector store per vector of channels.

Operands are blocked alike, or broadcast from wherever they are. The threads share the rows of the
result; several pixels are computed side by side to keep loads in flight.
"""

from __future__ import annotations

from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import (
    Layout,
    Pattern,
    Plan,
    kernel_template,
    plan_of,
    same_blocks,
)
from graft.backends.host.kernels.image import (
    ImageSchedule,
    ImageWriter,
    no_image,
    not_pointwise,
    not_readable,
    operands,
)
from graft.loop.ir import Block, Expr, Stmt
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@kernel_template(Pattern.POINTWISE, Layout.BLOCKED, schedule=ImageSchedule, layouts=same_blocks)
def image_pointwise(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Pointwise nodes and nothing else."""
    result = stores[group.output]
    values = operands(group.nodes, ())
    reason = (
        no_image(result)
        or not_pointwise(group.nodes)
        or not_readable(group, stores, values, result.shape, result.block)
    )
    if reason:
        return Refusal(reason)
    schedule = ImageSchedule.of(target, group, result.block)
    return plan_of(group, stores, lambda p: _Writer(p, schedule).body())


class _Writer(ImageWriter):
    """Writes the loop nest of one group."""

    def __init__(self, parameters: Parameters, schedule: ImageSchedule) -> None:
        super().__init__(parameters, schedule.lanes)
        self.pixels = schedule.pixels

    def body(self) -> Stmt:
        return self.rows(self.across(self.pixels, self.tile))

    def tile(self, column: Expr, size: int) -> Stmt:
        """Some pixels, all channels of a block each."""
        coordinates = self.coordinates(column, size)
        return Block(tuple(self.store(coordinate, {}) for coordinate in coordinates))
