"""The pointwise nodes behind an anchor: evaluated on its results while they are in registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graft.backends.host.coordinates import PlainCoordinate, computed
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernels.vectors import masked_store
from graft.backends.host.kernels.views import (
    Extents,
    merged,
    not_pointwise,
    operand_shapes,
    unclear,
    viewed,
)
from graft.backends.host.storage import shape_of
from graft.ir.graph import Node, Value
from graft.loop.ir import Buffer, Expr, Stmt
from graft.rewrite.rule import Refusal


@dataclass(frozen=True, eq=False)
class Epilogue:
    """How an anchor's results go to memory, under the extents that the kernel loops over."""

    anchor: Node
    nodes: tuple[Node, ...]
    parameters: Parameters
    extents: Extents  # of the result as the kernel sees it

    def value(self, indices: tuple[Expr, ...], result: Expr) -> Expr:
        """What becomes of the anchor's result at these indices."""
        coordinate = PlainCoordinate(indices, result.lanes)
        results = {self.anchor.output: result}
        values = computed(
            self.nodes, results, lambda value, _axis: coordinate.load(*self.parameters.value(value))
        )
        return values[self.parameters.group.output]

    def store(self, indices: tuple[Expr, ...], result: Expr, condition: Expr | None = None) -> Stmt:
        """The result at these indices, through the epilogue to memory."""
        return masked_store(self.target, indices, self.value(indices, result), condition)

    @property
    def leading(self) -> tuple[Expr, ...]:
        """The extents of all axes but the last."""
        return tuple(map(self.parameters.extent, self.extents[:-1]))

    @property
    def target(self) -> Buffer:
        return self.parameters.value(self.parameters.group.output, "result")[1]


def epilogue_of(
    group: Group, stores: Stores, anchor: Node, rows: Mapping[Value, int], apart: int = 1
) -> Epilogue | Refusal:
    """The epilogue of an anchor, its result's leading axes merged as far as operands allow.

    The last `apart` axes stay as they are. `rows` are the anchor's operands that have all leading
    axes, with the extent of their last one.
    """
    shape = shape_of(anchor.output)
    if shape != shape_of(group.output):
        return Refusal("what follows has another shape")
    nodes = group.epilogue
    shapes = not_pointwise(nodes) or operand_shapes(nodes, len(shape))
    if isinstance(shapes, Refusal):
        return shapes
    shapes.pop(anchor.output, None)
    refused = unclear(shape, shapes.values())
    if refused is not None:
        return refused
    axes = merged(shape, shapes.values(), apart)
    views = {value: axes.view(operand) for value, operand in shapes.items()}
    for value, last in rows.items():
        view = (*axes.extents[:-1], last)
        if views.setdefault(value, view) != view:
            return Refusal(f"%{value.name} is read under two shapes")
    views[group.output] = axes.extents
    return Epilogue(anchor, nodes, viewed(group, stores, views), axes.extents)
