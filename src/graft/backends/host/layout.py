"""Chooses how each tensor of a fused graph lies in memory.

Vectors of channels are what convolutions and pooling are fast on, so they work on images in blocks
of channels; most else works on row-major tensors, and so does the user. Every group has its layout
candidates: the layouts of its result and operands for which a kernel is declared, with the declared
cost of that kernel. `layout_search` finds the cheapest combination, copies between layouts
included. An image in blocks gets the halo that the widest padding among its readers needs, filled
with what stands for zero there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress

from graft.backends.host.aliases import ChannelsLast, Joins, channels_last, cuts, located
from graft.backends.host.cost import copy_cycles, typical_bytes
from graft.backends.host.group import Group, group_of
from graft.backends.host.kernels.conv_plan import (
    CONVOLUTIONS,
    INTEGER,
    read_halo,
    unfit_extents,
    weight_shape,
)
from graft.backends.host.kernels.deformable import SAMPLED_HALO, WINDOWS
from graft.backends.host.kernels.integer_weights import zero_point_of
from graft.backends.host.layout_search import (
    LayoutCandidate,
    OperandRequirement,
    Plan,
    Step,
    cheapest,
)
from graft.backends.host.storage import (
    BLOCKS,
    NO_HALO,
    Halo,
    Storage,
    blocks_for,
    channel_count,
    is_image,
    shape_of,
    static_shape,
)
from graft.backends.host.templates import (
    chain_templates,
    choose_algorithm,
    layouts_for,
    refusal,
    row_major_cost,
)
from graft.byoc.executable import Accuracy
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.passes.simplify_movement import is_view
from graft.target.target import Target


@dataclass(frozen=True, eq=False)
class Layout:
    """The storage of every value that a kernel makes, and how each group reads its operands."""

    groups: Mapping[Node, Group]  # with the algorithms that the storages are for
    storages: Mapping[Value, Storage]
    candidates: Mapping[Node, LayoutCandidate]  # the one that was chosen for each group
    halos: Mapping[Value, _Border]
    plan: Plan
    renamed: Mapping[Node, ChannelsLast]  # groups that only change how memory is described

    def stored(self, value: Value, block: int) -> Storage:
        """The storage of a value in blocks of some size."""
        return _stored(value, block, self.halos)


def choose_layout(
    graph: Graph,
    constants: Mapping[Value, Literal],
    target: Target,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Layout:
    """The cheapest layout of everything; `accuracy` says which algorithms may be chosen."""
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    groups = [choose_algorithm(group_of(node, constants), target, accuracy) for node in nodes]
    halos = _halos(groups)
    renamed = {
        node: moved for node in nodes if (moved := channels_last(node)) and is_image(moved.image)
    }
    context = _Context(target, Joins(graph), _block_sizes(nodes), halos, renamed)
    steps = [
        Step(tuple(filter(is_image, node.outputs)), tuple(_candidates(group, context)))
        for node, group in zip(nodes, groups, strict=True)
    ]
    inputs = [value for value in graph.inputs if is_image(value)]
    outputs = (value for value in graph.outputs if _is_computed(value, graph))
    delivery = LayoutCandidate(0, 0.0, tuple(context.requirement(v, (0,)) for v in outputs))
    plan = cheapest(inputs, [*steps, Step((), (delivery,))])
    choices = dict(zip(nodes, plan.choices, strict=False))
    aliases = {n: one for n, one in renamed.items() if choices[n] == _renaming(one, context)}
    layout = Layout(dict(zip(nodes, groups, strict=True)), {}, choices, halos, plan, aliases)
    storages = {
        value: layout.stored(value, candidate.block if is_image(value) else 0)
        for node, candidate in choices.items()
        for value in node.outputs
    }
    return replace(layout, storages=storages)


@dataclass(frozen=True, slots=True)
class _Border:
    """The halo of an image, and what it is filled with."""

    halo: Halo = NO_HALO
    fill: int = 0


def _stored(value: Value, block: int, halos: Mapping[Value, _Border]) -> Storage:
    border = halos.get(value, _Border()) if block else _Border()
    return Storage(value.dtype, shape_of(value), block, border.halo, fill=border.fill)


def _block_sizes(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The block sizes to consider: only the best, where it divides the channels of every image."""
    images = [value for node in nodes for value in node.outputs if is_image(value)]
    exact = all(channel_count(value) % BLOCKS[0] == 0 for value in images if blocks_for(value))
    return BLOCKS[:1] if exact else BLOCKS


def _is_computed(value: Value, graph: Graph) -> bool:
    node = graph.producers.get(value)
    return is_image(value) and (node is None or node.op.name != "constant")


@dataclass(frozen=True, eq=False)
class _Context:
    """What the candidates of a group depend on besides the group."""

    target: Target
    joins: Joins
    sizes: tuple[int, ...]
    halos: Mapping[Value, _Border]
    renamed: Mapping[Node, ChannelsLast]

    def stored(self, value: Value, block: int) -> Storage:
        return _stored(value, block, self.halos)

    def requirement(self, value: Value, blocks: tuple[int, ...]) -> OperandRequirement:
        copy = copy_cycles(2 * typical_bytes(value), self.target.machine)
        return OperandRequirement(value, blocks, copy)


def _candidates(group: Group, context: _Context) -> Iterator[LayoutCandidate]:
    """All layouts of a group: without a kernel, with one for blocks, with one for rows."""
    yield from _alias_candidates(group, context)
    yield from _with_kernels(group, _kernel_candidates(group, context), context)


def _blocks(group: Group, context: _Context) -> list[int]:
    """The blocks that all results of a group can be made in."""
    outputs = group.node.outputs
    if is_view(group.node) or not all(map(is_image, outputs)):
        return []
    return sorted(set(context.sizes).intersection(*map(blocks_for, outputs)), reverse=True)


def _alias_candidates(group: Group, context: _Context) -> Iterator[LayoutCandidate]:
    """Layouts in which nothing is computed: the results are memory of other tensors."""
    if group.node in context.renamed:
        yield _renaming(context.renamed[group.node], context)
    joins = group.node.op.name == "concatenate" and context.joins.joins(group.node)
    for block in (*_blocks(group, context), *((0,) if joins else ())):
        if (joins and group.node.attrs.axis % 4 == 1) or not block:
            yield from _in_place(group, block, context)
        elif _is_cut(group, block, context):
            whole = {group.node.args[0]: (block,)}
            yield LayoutCandidate(block, 0.0, tuple(_requirements(group, block, whole, context)))


def _kernel_candidates(group: Group, context: _Context) -> Iterator[LayoutCandidate]:
    """Layouts for which there may be a kernel, by the declarations of the templates."""
    target = context.target
    for block in _blocks(group, context):
        if not _is_cut(group, block, context):
            for operands, cost in layouts_for(group, block, target):
                requirements = tuple(_requirements(group, block, operands, context))
                yield LayoutCandidate(block, cost, requirements)
    if chain_templates(group):  # which are for images in blocks
        return
    cost = 0.0 if is_view(group.node) else row_major_cost(group, target)
    for operands, price in (*layouts_for(group, 0, target), ({}, cost)):
        required = (
            context.requirement(group.outer(value), operands.get(value, (0,)))
            for value in group.images()
        )
        yield LayoutCandidate(0, price, tuple(required))


def _renaming(moved: ChannelsLast, context: _Context) -> LayoutCandidate:
    """An image for some readers and rows of channels for others, in one memory."""
    blocks = (0,) if moved.makes_image else (moved.channels,)
    is_read = is_image(moved.operand)
    requirements = (context.requirement(moved.operand, blocks),) if is_read else ()
    return LayoutCandidate(moved.channels if moved.makes_image else 0, 0.0, requirements)


def _with_kernels(
    group: Group, candidates: Iterable[LayoutCandidate], context: _Context
) -> Iterator[LayoutCandidate]:
    """The candidates for which a kernel is declared, with only the blocks that the kernel reads.

    Operands are checked one by one: the blocks of one do not depend on those of the others."""
    operands = [group.outer(value) for value in group.reads() if value not in group.constants]

    @cache
    def has_kernel(result: int, layouts: frozenset[tuple[Value, int]]) -> bool:
        blocks = dict(layouts)
        stores = {value: context.stored(value, blocks.get(value, 0)) for value in operands}
        stores |= {value: context.stored(value, result) for value in group.node.outputs}
        return refusal(group, stores, context.target) is None

    for candidate in candidates:
        best = {requirement.value: requirement.blocks[0] for requirement in candidate.requirements}
        in_rows = not candidate.block and not any(best.values())
        if not in_rows and not has_kernel(candidate.block, frozenset(best.items())):
            continue
        requirements: list[OperandRequirement] = []
        for requirement in candidate.requirements:
            first, *others = requirement.blocks
            changed = ({**best, requirement.value: block} for block in others)
            fits = [has_kernel(candidate.block, frozenset(each.items())) for each in changed]
            requirements.append(replace(requirement, blocks=(first, *compress(others, fits))))
        yield replace(candidate, requirements=tuple(requirements))


def _in_place(group: Group, block: int, context: _Context) -> Iterator[LayoutCandidate]:
    """A concatenation whose operands are computed in its memory."""
    node = group.node
    whole = context.stored(node.output, block)
    axis = node.attrs.axis % len(whole.shape)
    extents = [static_shape(value)[axis] for value in node.args]
    firsts = (sum(extents[:number]) for number in range(len(extents)))
    if all(located(whole, axis, *pair) for pair in zip(firsts, extents, strict=True)):
        # a copy would not be where the operand belongs
        images = (value for value in node.args if is_image(value))
        required = tuple(OperandRequirement(value, (block,), math.inf) for value in images)
        yield LayoutCandidate(block, 0.0, required)


def _is_cut(group: Group, block: int, context: _Context) -> bool:
    """Whether the results are ranges of an operand in blocks."""
    ranges = cuts(group.node)
    value = group.node.args[0] if group.node.args else None
    if ranges is None or value is None or not is_image(value) or block not in blocks_for(value):
        return False
    axis, parts = ranges
    whole = context.stored(value, block)
    return all(located(whole, axis, part.first, part.count) for part in parts)


def _requirements(
    group: Group, block: int, operands: Mapping[Value, tuple[int, ...]], context: _Context
) -> Iterator[OperandRequirement]:
    """How a group that makes blocks reads its images; `operands` are those with blocks of their
    own."""
    channels = channel_count(group.node.output)
    for value in group.images():
        outer = group.outer(value)
        if value in operands:
            yield context.requirement(outer, operands[value])
        elif channel_count(outer) != channels:
            yield context.requirement(outer, (0,))
        else:
            # the sole pixel of a channel has the same address in either layout
            single = shape_of(outer)[2:] == (1, 1) and channels % block == 0
            yield context.requirement(outer, (block, 0) if single else (block,))


def blocked_stores(group: Group, block: int) -> dict[Value, Storage]:
    """The storages that a chain is offered first: its images in blocks, with their halos."""
    halos, outputs = _halos((group,)), group.node.outputs
    channels = {channel_count(value) for value in outputs if is_image(value)}
    data = group.outer(group.anchors[0].args[0])
    reads = [group.outer(value) for value in group.reads() if value not in group.constants]

    def is_blocked(value: Value) -> bool:
        return is_image(value) and (value is data or channel_count(value) in channels)

    values = (*reads, *outputs)
    return {value: _stored(value, block if is_blocked(value) else 0, halos) for value in values}


def _halos(groups: Sequence[Group]) -> dict[Value, _Border]:
    """Per image, the widest padding on each side among the convolutions that read it, and what
    interpolation reads beside it.

    Where they do not agree on what stands for zero, the first one that needs any decides."""
    borders: dict[Value, _Border] = {}
    for group in groups:
        if group.node.op.name == WINDOWS:
            data = group.outer(group.node.args[0])
            borders[data] = _Border(_wider(borders.get(data, _Border()).halo, SAMPLED_HALO))
        conv = group.first_anchor
        if conv is None or conv.op.name not in CONVOLUTIONS:
            continue
        value = group.outer(conv.args[0])
        weight = weight_shape(group, conv) if is_image(value) else None
        if weight is None or unfit_extents(conv, weight[2:]) is not None:
            continue
        width = read_halo(conv, weight, group.algorithm)
        fill = (zero_point_of(group, conv) or 0) if conv.op.name == INTEGER else 0
        border = borders.get(value, _Border())
        if not any(border.halo):
            border = _Border(fill=fill)
        if fill == border.fill:
            borders[value] = _Border(_wider(border.halo, width), fill)
    for group in reversed(groups):
        if cuts(group.node) is not None:  # ranges of an image lie within its halo
            whole = group.node.args[0]
            for border in [borders[value] for value in group.node.outputs if value in borders]:
                mine = borders.get(whole, _Border(fill=border.fill))
                if mine.fill == border.fill:
                    borders[whole] = _Border(_wider(mine.halo, border.halo), border.fill)
    return borders


def _wider(one: Halo, other: Halo) -> Halo:
    top, left, bottom, right = (max(a, b) for a, b in zip(one, other, strict=True))
    return top, left, bottom, right
