"""Tensors that need no copy, because they are other tensors' memory.

A range of a tensor along an axis is contiguous where all axes outside of it have an extent of 1; of
a blocked image, ranges of whole blocks of channels are. Producers then write straight into their
part of a concatenation, and readers read straight from their part of what is split. Ranges begin at
multiples of the arena's alignment.

A tensor of which a kernel changes a part, as a scatter does, is changed where it lies if nothing
else reads it.

Rows of channels per pixel, as transformers and models of other frameworks have them, lie in memory
as an image in one block of all its channels does. A `layout_transform` between the two only changes
how the memory is described.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from graft.backends.host.storage import Storage, shape_of, static_shape
from graft.ir.graph import Graph, Node, Value
from graft.ops.slicing import slice_steps
from graft.passes.simplify_movement import is_view
from graft.program.program import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Range:
    """Indices of one tensor that are another tensor."""

    value: Value
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Joint:
    """Where a tensor lies within a concatenation."""

    whole: Value
    storage: Storage
    offset: int


def located(whole: Storage, axis: int, first: int, count: int) -> tuple[Storage, int] | None:
    """The storage of a range along an axis and the byte at which it begins; None if scattered."""
    if not all(isinstance(extent, int) for extent in whole.shape):
        return None
    shape = list(whole.sizes)
    if any(extent != 1 for extent in shape[:axis]) or not count or 0 in shape:
        return None
    if whole.block and axis == 1:
        if first % whole.block or (count % whole.block and first + count < whole.channels):
            return None
        inner = math.prod(whole.static_extents[2:])
        offset = first // whole.block * inner
    elif whole.block and axis != 0:
        return None
    else:
        offset = first * math.prod(whole.static_extents[axis + 1 :])
    offset *= whole.dtype.numpy.itemsize
    shape[axis] = count
    return None if offset % ALIGNMENT else (replace(whole, shape=tuple(shape)), offset)


def ranges_of(values: Iterator[Value] | tuple[Value, ...], axis: int) -> Iterator[Range]:
    """Tensors one behind the other along an axis."""
    first = 0
    for value in values:
        count = static_shape(value)[axis]
        yield Range(value, first, count)
        first += count


class Joins:
    """The concatenations of a graph whose operands are computed for nothing else, and its other
    tensors that a single node reads."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fixed = {*graph.inputs, *graph.outputs}
        self.views = {node.output: node.args[0] for node in graph.nodes if is_view(node)}

    def joins(self, node: Node) -> bool:
        """Whether the operands may be computed in their place."""
        if node.op.name != "concatenate" or node.output in self.fixed:
            return False
        if not all(value.tensor.is_static for value in (*node.args, node.output)):
            return False
        roots = [self.root(value) for value in node.args]
        return len(set(roots)) == len(roots) and all(self.is_free(value) for value in roots)

    def root(self, value: Value) -> Value:
        """The tensor whose memory the value is, as far as each view has a single reader."""
        while value in self.views and value not in self.fixed and self.read_once(value):
            value = self.views[value]
        return value

    def read_once(self, value: Value) -> bool:
        return len(self.graph.users.get(value, ())) == 1

    def is_free(self, value: Value) -> bool:
        """Whether a kernel makes the value, and makes it for one reader."""
        node = self.graph.producers.get(value)
        if node is None or value in self.fixed or not self.read_once(value):
            return False
        return not is_view(node) and node.op.name not in ("constant", "concatenate", *CUTS)

    def dies(self, value: Value, reader: Node) -> bool:
        """Whether the memory of a value that one kernel computes is read by this node only, and as
        one operand."""
        return reader.args.count(value) == 1 and self.is_free(self.root(value))

    def joints(self, storages: Mapping[Value, Storage]) -> dict[Value, Joint]:
        """Where operands of concatenations go, under the storage chosen for each tensor."""
        joints: dict[Value, Joint] = {}
        for node in self.graph.nodes:
            if self.joins(node):
                joints.update(self._of(node, storages) or {})
        return joints

    def _of(self, node: Node, storages: Mapping[Value, Storage]) -> dict[Value, Joint] | None:
        whole = storages[node.output]
        axis = node.attrs.axis % len(whole.shape)
        joints: dict[Value, Joint] = {}
        for part in ranges_of(node.args, axis):
            root = self.root(part.value)
            location = located(whole, axis, part.first, part.count)
            if location is None or storages[root].block != whole.block:
                return None
            storage = replace(location[0], shape=static_shape(root))
            joints[root] = Joint(node.output, storage, location[1])
        return joints


CUTS = ("split", "strided_slice")


def cuts(node: Node) -> tuple[int, list[Range]] | None:
    """The axis and the ranges that a split or slice takes of its operand, if it is that simple."""
    static = all(value.tensor.is_static for value in (*node.args, *node.outputs))
    if node.op.name not in CUTS or not static:
        return None
    shape = static_shape(node.args[0])
    if node.op.name == "split":
        axis = node.attrs.axis % len(shape)
        return axis, list(ranges_of(node.outputs, axis))
    if len(node.args) > 1 or node.attrs.begin is None:
        return None
    steps, result = slice_steps(node.attrs, shape), static_shape(node.output)
    cut = [axis for axis in steps if shape[axis] != result[axis]]
    if len(cut) != 1 or any(stride != 1 for _, stride in steps.values()):
        return None
    first = steps[cut[0]][0]
    if not isinstance(first, int):
        return None
    return cut[0], [Range(node.output, first, result[cut[0]])]


NCHW, NHWC = "NCHW", "NHWC"
# Of a pixel, in which an image is copied to or from such memory: more would make a long kernel.
MOST_CHANNELS = 4096


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """Operand and result of a node, of which one is an image, and the other its rows."""

    operand: Value
    result: Value
    makes_image: bool

    @property
    def image(self) -> Value:
        return self.result if self.makes_image else self.operand

    @property
    def channels(self) -> int:
        channels = shape_of(self.image)[1]
        assert isinstance(channels, int)
        return channels

    def stored(self, rows: Storage) -> Storage:
        """The image in the memory that the rows have."""
        image = self.image
        return Storage(image.dtype, shape_of(image), self.channels, alignment=rows.alignment)


def channels_last(node: Node) -> ChannelsLast | None:
    """What a node moves between an image of known channels and its rows, if that is what it does.

    An image of one channel or one pixel is in rows either way."""
    if node.op.name != "layout_transform":
        return None
    layouts = node.attrs.src_layout, node.attrs.dst_layout
    if layouts not in ((NHWC, NCHW), (NCHW, NHWC)):
        return None
    moved = ChannelsLast(node.args[0], node.output, layouts == (NHWC, NCHW))
    _, channels, height, width = shape_of(moved.image)
    if not isinstance(channels, int) or not 1 < channels <= MOST_CHANNELS:
        return None
    return None if height == width == 1 else moved
