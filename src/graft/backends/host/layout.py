"""Chooses how each tensor of a fused graph lies in memory.

Images that convolutions make or read are kept in blocks of channels from the first convolution to
the last, so that nothing is repacked between layers; what only moves or combines such images
follows them. An image gets the halo that the widest padding among its readers needs. Everything
else is row-major, and so are the graph's inputs and outputs, which are the user's memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from graft.backends.host.group import Group, group_of
from graft.backends.host.kernels import winograd
from graft.backends.host.storage import NO_HALO, Halo, Storage, blocks_of, static_shape
from graft.base.dtypes import DType
from graft.ir.graph import Graph, Value
from graft.ir.literal import Literal
from graft.ir.op import Kind

# Channels of a block, best first. An image with fewer or odd channels is one block.
BLOCKS = (16, 8)
WIDEST_SINGLE_BLOCK = 4

_POOLS = ("nn.max_pool2d", "nn.avg_pool2d")
_POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)


def is_image(value: Value) -> bool:
    """Whether blocks of channels are possible at all."""
    return value.dtype is DType.FLOAT32 and len(static_shape(value)) == 4


def block_of(value: Value) -> int:
    """The block size of an image; 0 where it has none that vectors could use."""
    return blocks_of(static_shape(value)[1], BLOCKS) if is_image(value) else 0


def is_convolution(group: Group) -> bool:
    """Whether the group is a convolution that runs on blocked images."""
    anchor = group.anchor
    if anchor is None or anchor.op.name != "nn.conv2d" or anchor.args[1] not in group.constants:
        return False
    return block_of(group.output) > 0


def choose_storage(graph: Graph, constants: Mapping[Value, Literal]) -> dict[Value, Storage]:
    """The storage of every value that a kernel makes."""
    halos = _halos(graph, constants)
    chosen: dict[Value, Storage] = {}
    for node in graph.nodes:
        if node.op.name == "constant":
            continue
        blocked = _stays_blocked(group_of(node, constants), chosen)
        for value in node.outputs:
            block = block_of(value) if blocked else 0
            halo = halos.get(value, NO_HALO) if block else NO_HALO
            chosen[value] = Storage(value.dtype, static_shape(value), block, halo)
    return chosen


def _stays_blocked(group: Group, chosen: Mapping[Value, Storage]) -> bool:
    """Whether a group makes blocked images: convolutions do, and what follows such images."""
    if is_convolution(group):
        return True
    if not all(is_image(value) and block_of(value) for value in group.node.outputs):
        return False
    if not _may_follow(group):
        return False
    images = [group.outer(value) for value in group.reads() if _is_full(group, value)]
    return bool(images) and all(v in chosen and chosen[v].block for v in images)


def _is_full(group: Group, value: Value) -> bool:
    """Whether an operand is an image, not a parameter that is broadcast."""
    if value in group.constants or not is_image(value):
        return False
    shape = static_shape(value)
    return shape[2] * shape[3] > 1 or shape == static_shape(group.output)


def _may_follow(group: Group) -> bool:
    anchor = group.anchor
    if anchor is None:
        return all(node.op.kind in _POINTWISE for node in group.nodes)
    if anchor.op.name == "concatenate":
        return bool(anchor.attrs.axis == 1)
    return anchor.op.name in _POOLS


def _halos(graph: Graph, constants: Mapping[Value, Literal]) -> dict[Value, Halo]:
    """Per image, the widest padding on each side among the convolutions that read it."""
    found: dict[Value, Halo] = {}
    for node in graph.nodes:
        if node.op.name == "constant":
            continue
        group = group_of(node, constants)
        if is_convolution(group):
            assert group.anchor is not None
            value = group.outer(group.anchor.args[0])
            found[value] = _wider(found.get(value, NO_HALO), needed_halo(group))
    return found


def needed_halo(group: Group) -> Halo:
    """The halo that a convolution's kernel needs around the image it reads."""
    conv = group.anchor
    assert conv is not None
    top, left, bottom, right = (int(width) for width in conv.attrs.padding)
    if winograd.eligible(conv, group.constants[conv.args[1]].array):
        return winograd.halo(conv)
    return top, left, bottom, right


def _wider(one: Halo, other: Halo) -> Halo:
    top, left, bottom, right = (max(a, b) for a, b in zip(one, other, strict=True))
    return top, left, bottom, right


def input_storage(value: Value, padding: Halo) -> Storage:
    """How a convolution wants an image that is not blocked yet."""
    channels = static_shape(value)[1]
    block = block_of(value) or channels
    return Storage(value.dtype, static_shape(value), block, padding)
