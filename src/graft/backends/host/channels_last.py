"""Tensors whose last axis is the channels of images: such memory is an image in one block.

Rows of channels per pixel, as transformers and models of other frameworks have them, are what an
image in blocks of all its channels looks like in memory. A `layout_transform` between the two has
nothing to do then: it gives memory another name. Such nodes enter and leave with the image that
they are about.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.backends.host.storage import Storage, shape_of
from graft.ir.graph import Node, Value

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
    found = ChannelsLast(node.args[0], node.output, layouts == (NHWC, NCHW))
    _, channels, height, width = shape_of(found.image)
    if not isinstance(channels, int) or not 1 < channels <= MOST_CHANNELS:
        return None
    return None if height == width == 1 else found
