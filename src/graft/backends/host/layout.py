"""Chooses how each tensor of a fused graph lies in memory.

Vectors of channels are what convolutions and pooling are fast on, so they work on images in blocks
of channels; most else works on row-major tensors, and so does the user. Every group has its ways:
the storage of its result and of its operands for which there is a kernel, and an estimate of what
that kernel costs. `layout_cost` finds the cheapest combination, copies between storages included.
An image in blocks gets the halo that the widest padding among its readers needs, full of what
stands for zero there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress

from graft.backends.host.aliases import ChannelsLast, Joins, channels_last, cuts, located
from graft.backends.host.choose_algorithm import choose_algorithm
from graft.backends.host.group import Group, group_of
from graft.backends.host.kernels.conv_plan import (
    CONVOLUTIONS,
    INTEGER,
    read_halo,
    unfit_extents,
)
from graft.backends.host.kernels.image import BYTES as BYTE_TYPES
from graft.backends.host.kernels.images.channel_norm import CHANNEL_NORM
from graft.backends.host.kernels.images.movement import moves_image
from graft.backends.host.kernels.images.reduce import CHANNELS, PIXELS, reduces_image
from graft.backends.host.kernels.images.resize import NEAREST
from graft.backends.host.kernels.integer_weights import QUAD, zero_point_of
from graft.backends.host.layout_search import Plan, Step, Want, Way, cheapest
from graft.backends.host.storage import BLOCKS, NO_HALO, Halo, Storage, shape_of, static_shape
from graft.backends.host.templates import refusal
from graft.backends.host.typical import typical_bytes, typical_macs
from graft.base.dims import Unknown
from graft.base.dtypes import DType
from graft.byoc.executable import Accuracy
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.passes.simplify_movement import is_view
from graft.target.machine import Machine
from graft.target.target import Target

# An image of fewer channels, as networks are given, can be one single block.
FEW_CHANNELS = 8

_POOLS = ("nn.max_pool2d", "nn.avg_pool2d")
# Anchors that make images in the blocks that they take; their row-major kernels are slow.
_IN_BLOCKS = (*_POOLS, CHANNEL_NORM)
_IMAGES = BYTE_TYPES | {DType.FLOAT32}

EFFICIENCY = 0.9  # of convolutions, as a share of the machine's peak
# Shares of the rate at which a core reads memory: a kernel also writes, and lines that are written
# are read before; copies from blocks to rows or back go in short runs.
STREAMED, COPIED = 1 / 2, 1 / 4
_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class _Cycles:
    """What kernels that touch so many bytes cost, in cycles of one core: rough, since only the
    order of sums of these matters."""

    machine: Machine

    def streamed(self, size: float) -> float:
        """One element after the other."""
        return self.machine.meeting_cycles + size / (STREAMED * self.machine.memory_bytes_per_cycle)

    def copied(self, size: float) -> float:
        """From one storage to another."""
        return self.machine.meeting_cycles + size / (COPIED * self.machine.memory_bytes_per_cycle)

    def by_element(self, size: float) -> float:
        """Each element by itself: it is read, and then waited for."""
        return self.machine.meeting_cycles + size / _FLOAT * 2 * self.machine.fma_latency

    def summed_by_element(self, flops: float) -> float:
        """A convolution of row-major images, which has no kernel of its own."""
        return self.machine.meeting_cycles + flops / (2 * self.machine.vector_fmas)


@dataclass(frozen=True, eq=False)
class Layout:
    """The storage of every value that a kernel makes, and how each group takes its operands."""

    groups: Mapping[Node, Group]  # with the algorithms that the storages are for
    storages: Mapping[Value, Storage]
    ways: Mapping[Node, Way]
    halos: Mapping[Value, _Border]
    plan: Plan
    renamed: Mapping[Node, ChannelsLast]  # groups that give memory another name

    def stored(self, value: Value, block: int) -> Storage:
        """A value in blocks of some size."""
        return _stored(value, block, self.halos)


def choose_layout(
    graph: Graph,
    constants: Mapping[Value, Literal],
    target: Target,
    pinned: Mapping[Value, int] | None = None,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Layout:
    """The cheapest storage of everything; `pinned` values have to be in given blocks.

    `accuracy` says which algorithms may be chosen for the groups."""
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    groups = [choose_algorithm(group_of(node, constants), target, accuracy) for node in nodes]
    halos = _halos(groups)
    renamed = {
        node: moved for node in nodes if (moved := channels_last(node)) and is_image(moved.image)
    }
    known = _Known(target, Joins(graph), _sizes(nodes), halos, renamed)
    steps = [
        Step(tuple(filter(is_image, node.outputs)), tuple(_ways(group, known)))
        for node, group in zip(nodes, groups, strict=True)
    ]
    given = [value for value in graph.inputs if is_image(value)]
    made = (value for value in graph.outputs if _is_made(value, graph))
    delivered = Way(0, 0.0, tuple(_want(value, (0,), known.cycles) for value in made))
    plan = cheapest(given, [*steps, Step((), (delivered,))], pinned)
    ways = dict(zip(nodes, plan.ways, strict=False))
    chosen = {node: one for node, one in renamed.items() if ways[node] == _renaming(one, known)}
    found = Layout(dict(zip(nodes, groups, strict=True)), {}, ways, halos, plan, chosen)
    storages = {
        value: found.stored(value, way.block if is_image(value) else 0)
        for node, way in ways.items()
        for value in node.outputs
    }
    return replace(found, storages=storages)


@dataclass(frozen=True, slots=True)
class _Border:
    """The halo of an image, and what it is full of."""

    halo: Halo = NO_HALO
    fill: int = 0


def _stored(value: Value, block: int, halos: Mapping[Value, _Border]) -> Storage:
    border = halos.get(value, _Border()) if block else _Border()
    return Storage(value.dtype, shape_of(value), block, border.halo, fill=border.fill)


def is_image(value: Value) -> bool:
    """Whether blocks of channels are possible at all."""
    shape = value.shape
    if value.dtype not in _IMAGES or shape is None or any(isinstance(d, Unknown) for d in shape):
        return False
    return len(shape) == 4 and 0 not in shape and isinstance(shape[1], int)


def _channels(image: Value) -> int:
    channels = shape_of(image)[1]
    assert isinstance(channels, int)
    return channels


def blocks_for(value: Value) -> tuple[int, ...]:
    """The block sizes that kernels may make an image in, best first.

    The last block of an image of floats need not be full."""
    whole = tuple(block for block in BLOCKS if _channels(value) % block == 0)
    return whole if value.dtype in BYTE_TYPES else BLOCKS


def _sizes(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The block sizes worth a thought: where the best fits every image, nobody needs another."""
    images = [value for node in nodes for value in node.outputs if is_image(value)]
    exact = all(_channels(value) % BLOCKS[0] == 0 for value in images if blocks_for(value))
    return BLOCKS[:1] if exact else BLOCKS


def _is_made(value: Value, graph: Graph) -> bool:
    node = graph.producers.get(value)
    return is_image(value) and (node is None or node.op.name != "constant")


@dataclass(frozen=True, eq=False)
class _Known:
    """What the ways of a group depend on beside the group."""

    target: Target
    joins: Joins
    sizes: tuple[int, ...]
    halos: Mapping[Value, _Border]
    renamed: Mapping[Node, ChannelsLast]

    @property
    def cycles(self) -> _Cycles:
        return _Cycles(self.target.machine)

    def stored(self, value: Value, block: int) -> Storage:
        return _stored(value, block, self.halos)


def _ways(group: Group, known: _Known) -> Iterator[Way]:
    """All the ways to do a group: without a kernel, with one for blocks, with one for rows."""
    yield from _free_ways(group, known)
    yield from _with_kernels(group, _kernel_ways(group, known), known)


def _blocks(group: Group, known: _Known) -> list[int]:
    """The blocks that all results of a group can be made in."""
    outputs = group.node.outputs
    if is_view(group.node) or not all(map(is_image, outputs)):
        return []
    return sorted(set(known.sizes).intersection(*map(blocks_for, outputs)), reverse=True)


def _free_ways(group: Group, known: _Known) -> Iterator[Way]:
    """Ways in which nothing is computed: memory gets another name, or is where it belongs."""
    if group.node in known.renamed:
        yield _renaming(known.renamed[group.node], known)
    joins = group.node.op.name == "concatenate" and known.joins.joins(group.node)
    for block in (*_blocks(group, known), *((0,) if joins else ())):
        if (joins and group.node.attrs.axis % 4 == 1) or not block:
            yield from _in_place(group, block, known)
        elif _is_cut(group, block, known):
            whole = {group.node.args[0]: (block,)}
            yield Way(block, 0.0, tuple(_wants(group, block, whole, known.cycles)))


def _kernel_ways(group: Group, known: _Known) -> Iterator[Way]:
    """Ways for which there may be a kernel."""
    for block in _blocks(group, known):
        if not _is_cut(group, block, known):
            yield from _blocked_ways(group, block, known)
    yield Way(0, _cost_in_rows(group, known.cycles), tuple(_wants_in_rows(group, known.cycles)))


def _renaming(found: ChannelsLast, known: _Known) -> Way:
    """What is an image for some and rows of channels for others, in one memory."""
    blocks = (0,) if found.makes_image else (found.channels,)
    wants = (_want(found.operand, blocks, known.cycles),) if is_image(found.operand) else ()
    return Way(found.channels if found.makes_image else 0, 0.0, wants)


def _blocked_ways(group: Group, block: int, known: _Known) -> Iterator[Way]:
    """The ways to make images in blocks."""
    anchor, cycles = group.anchor, known.cycles
    streamed = cycles.streamed(_bytes(group))
    name = "" if anchor is None else anchor.op.name
    if name in CONVOLUTIONS and anchor is not None:
        data = _data_blocks(group, anchor)
        cost = _conv_cost(group, block, known.target, name == INTEGER)
        cost += cycles.machine.meeting_cycles
        for size in data:
            takes = {anchor.args[0]: (size, *data)}
            yield Way(block, cost, tuple(_wants(group, block, takes, cycles)))
    elif name == "concatenate" and anchor is not None and anchor.attrs.axis % 4 == 1:
        takes = dict.fromkeys(anchor.args, (block, *BLOCKS, 0))
        yield Way(block, streamed, tuple(_wants(group, block, takes, cycles)))
    elif name == "resize":
        yield Way(block, streamed, tuple(_wants(group, block, {}, cycles)))
    elif (source := moves_image(group)) is not None and is_image(group.outer(source)):
        takes = {source: (block, *(one for one in BLOCKS if one != block))}
        yield Way(block, cycles.copied(_bytes(group)), tuple(_wants(group, block, takes, cycles)))
    elif anchor is None or name in _IN_BLOCKS:
        yield Way(block, streamed, tuple(_wants(group, block, {}, cycles)))


def _data_blocks(group: Group, conv: Node) -> tuple[int, ...]:
    """The blocks in which a convolution's data may be."""
    data = conv.args[0]
    if not is_image(group.outer(data)):
        return ()
    few = _channels(data) < FEW_CHANNELS or not blocks_for(data)
    return (*((_channels(data),) if few else ()), *blocks_for(data))


def _with_kernels(group: Group, ways: Iterable[Way], known: _Known) -> Iterator[Way]:
    """The ways for which a kernel is declared, each with the blocks that the kernel takes.

    Operands are looked at one by one: what one of them may be in does not depend on the others."""
    read = [group.outer(value) for value in group.reads() if value not in group.constants]

    @cache
    def has_kernel(result: int, operands: frozenset[tuple[Value, int]]) -> bool:
        blocks = dict(operands)
        stores = {value: known.stored(value, blocks.get(value, 0)) for value in read}
        stores |= {value: known.stored(value, result) for value in group.node.outputs}
        return refusal(group, stores, known.target) is None

    for way in ways:
        best = {want.value: want.blocks[0] for want in way.wants}
        in_rows = not way.block and not any(best.values())
        if not in_rows and not has_kernel(way.block, frozenset(best.items())):
            continue
        wants: list[Want] = []
        for want in way.wants:
            first, *others = want.blocks
            changed = ({**best, want.value: block} for block in others)
            fits = [has_kernel(way.block, frozenset(one.items())) for one in changed]
            wants.append(replace(want, blocks=(first, *compress(others, fits))))
        yield replace(way, wants=tuple(wants))


def _in_place(group: Group, block: int, known: _Known) -> Iterator[Way]:
    """A concatenation whose operands are made where they belong."""
    node = group.node
    whole = known.stored(node.output, block)
    axis = node.attrs.axis % len(whole.shape)
    extents = [static_shape(value)[axis] for value in node.args]
    firsts = (sum(extents[:number]) for number in range(len(extents)))
    if all(located(whole, axis, *pair) for pair in zip(firsts, extents, strict=True)):
        # a copy would not be where the operand belongs
        images = (value for value in node.args if is_image(value))
        yield Way(block, 0.0, tuple(Want(value, (block,), math.inf) for value in images))


def _is_cut(group: Group, block: int, known: _Known) -> bool:
    """Whether the results are ranges of an operand in blocks."""
    found = cuts(group.node)
    if found is None or not is_image(group.node.args[0]):
        return False
    axis, ranges = found
    value = group.node.args[0]
    whole = known.stored(value, block)
    return block in blocks_for(value) and all(
        located(whole, axis, part.first, part.count) for part in ranges
    )


def _wants(
    group: Group, block: int, takes: Mapping[Value, tuple[int, ...]], cycles: _Cycles
) -> Iterator[Want]:
    """How a group that makes blocks takes its images; `takes` are those that it takes otherwise."""
    channels = _channels(group.node.output)
    for value in _images(group):
        outer = group.outer(value)
        if value in takes:
            yield _want(outer, takes[value], cycles)
        elif _channels(outer) != channels:
            yield _want(outer, (0,), cycles)
        else:
            # the sole pixel of a channel is where it is in either storage
            single = shape_of(outer)[2:] == (1, 1) and channels % block == 0
            yield _want(outer, (block, 0) if single else (block,), cycles)


def _wants_in_rows(group: Group, cycles: _Cycles) -> Iterator[Want]:
    images = _images(group)
    reduced = _reduced(group, images)
    for value in images:
        yield _want(group.outer(value), (0, *BLOCKS) if value is reduced else (0,), cycles)


def _reduced(group: Group, images: Sequence[Value]) -> Value | None:
    """The image whose pixels or channels the group reduces, if it does: blocks will do too."""
    anchor = group.anchor
    if anchor is None or not reduces_image(anchor, PIXELS, CHANNELS):
        return None
    shape = anchor.args[0].shape
    found = [value for value in images if group.outer(value).shape == shape]
    return found[0] if len(found) == 1 else None


def _want(value: Value, blocks: tuple[int, ...], cycles: _Cycles) -> Want:
    return Want(value, blocks, cycles.copied(2 * typical_bytes(value)))


def _images(group: Group) -> list[Value]:
    return [v for v in group.reads() if v not in group.constants and is_image(group.outer(v))]


def _cost_in_rows(group: Group, cycles: _Cycles) -> float:
    """What the row-major form of a group costs."""
    if is_view(group.node):
        return 0.0
    anchor = group.anchor
    name = "" if anchor is None else anchor.op.name
    if name in CONVOLUTIONS:
        return cycles.summed_by_element(_flops(group))
    interpolates = name == "resize" and anchor is not None and anchor.attrs.method != NEAREST
    if name in _IN_BLOCKS or interpolates:
        return cycles.by_element(_bytes(group))
    return cycles.streamed(_bytes(group))


def _conv_cost(group: Group, block: int, target: Target, is_integer: bool) -> float:
    """Cycles of a convolution that makes such blocks, those of the last block's lanes too."""
    machine, lanes = target.machine, min(block, target.lanes(DType.FLOAT32))
    channels = _channels(group.node.output)
    padded = -(-channels // block) * block / channels
    rate = machine.with_vectors(32 * lanes).vector_fmas * lanes * 2 * EFFICIENCY
    return _flops(group) * padded / (rate * (QUAD if is_integer else 1))


def _flops(group: Group) -> float:
    return 2.0 * typical_macs(group.node)


def _bytes(group: Group) -> float:
    """What the group reads and writes."""
    return float(sum(map(typical_bytes, (*group.node.args, *group.node.outputs))))


def _halos(groups: Sequence[Group]) -> dict[Value, _Border]:
    """Per image, the widest padding on each side among the convolutions that read it.

    Where they do not agree on what stands for zero, the first one that needs any decides."""
    found: dict[Value, _Border] = {}
    for group in groups:
        conv = group.anchor
        if conv is None or conv.op.name not in CONVOLUTIONS or conv.args[1] not in group.constants:
            continue
        value = group.outer(conv.args[0])
        weight = group.constants[conv.args[1]].array.shape
        if not is_image(value) or unfit_extents(conv, weight[2:]) is not None:
            continue
        needed = read_halo(conv, weight, group.algorithm)
        fill = (zero_point_of(group, conv) or 0) if conv.op.name == INTEGER else 0
        border = found.get(value, _Border())
        if not any(border.halo):
            border = _Border(fill=fill)
        if fill == border.fill:
            found[value] = _Border(_wider(border.halo, needed), fill)
    for group in reversed(groups):
        if cuts(group.node) is not None:  # ranges of an image lie within its halo
            whole = group.node.args[0]
            for border in [found[value] for value in group.node.outputs if value in found]:
                mine = found.get(whole, _Border(fill=border.fill))
                if mine.fill == border.fill:
                    found[whole] = _Border(_wider(mine.halo, border.halo), border.fill)
    return found


def _wider(one: Halo, other: Halo) -> Halo:
    top, left, bottom, right = (max(a, b) for a, b in zip(one, other, strict=True))
    return top, left, bottom, right
