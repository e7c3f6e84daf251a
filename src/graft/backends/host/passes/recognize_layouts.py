"""Recognises movement between images and rows of their channels: `layout_transform`.

Transformers on images turn `[batch, pixels, channels]` into `[batch, channels, height, width]` by a
transpose and a reshape, and back; models of other frameworks transpose images. As a
`layout_transform` between NCHW and NHWC, beside a reshape that moves nothing, it is seen by the
choice of layouts, which gets it for nothing. Only what convolutions and their like read or make is
worth that: between other kernels movement is best joined with what is computed.
"""

from __future__ import annotations

from graft.backends.host.aliases import NCHW, NHWC
from graft.backends.host.storage import shape_of
from graft.base.dims import Unknown
from graft.ir.graph import Graph, Value
from graft.ir.op import Kind
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("recognize_layouts")
_TO_NHWC, _TO_NCHW, _SWAP = (0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1)

# What works on images in blocks of channels.
_OF_IMAGES = (
    *("nn.conv2d", "nn.conv2d_transpose", "qnn.conv2d", "mixed.conv2d"),
    *("nn.max_pool2d", "nn.avg_pool2d"),
)
_POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)
# Pointwise nodes between an image and what makes or reads it that are looked through.
_FAR = 6


def recognize_layouts(graph: Graph) -> Graph:
    """Apply the rules until none fits; each application makes one `layout_transform`."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("transpose"))
def transposed_image(site: Site) -> Replacement:
    axes, data = site.node.attrs.axes, site.node.args[0]
    if axes == _TO_NCHW and _is_read(site, site.node.output):
        return site.emit("layout_transform", data, src_layout=NHWC, dst_layout=NCHW)
    if axes == _TO_NHWC and _is_made(site, data):
        return site.emit("layout_transform", data, src_layout=NCHW, dst_layout=NHWC)
    return Refusal("it does not move the channels of an image")


@RULES.rule(lambda rows: op.reshape(op.transpose(rows, axes=_SWAP)))
def rows_as_image(site: Site, rows: Value) -> Replacement:
    image = site.node.output
    if not _are_one(image, rows) or not _is_read(site, image):
        return Refusal("what leaves is no image of these rows")
    batch, channels, height, width = shape_of(image)
    pixels = site.emit("reshape", rows, shape=(batch, height, width, channels))
    return site.emit("layout_transform", pixels, src_layout=NHWC, dst_layout=NCHW)


@RULES.rule(lambda image: op.transpose(op.reshape(image), axes=_SWAP))
def image_as_rows(site: Site, image: Value) -> Replacement:
    rows = site.node.output
    if not _are_one(image, rows) or not _is_made(site, image):
        return Refusal("what enters is no image of these rows")
    pixels = site.emit("layout_transform", image, src_layout=NCHW, dst_layout=NHWC)
    return site.emit("reshape", pixels, shape=rows.shape)


def _are_one(image: Value, rows: Value) -> bool:
    """Whether tensors have one batch and one number of channels; then they have the pixels, too."""
    shapes = image.shape, rows.shape
    if any(shape is None or any(isinstance(n, Unknown) for n in shape) for shape in shapes):
        return False
    pixels, lines = map(shape_of, (image, rows))
    return len(pixels) == 4 and len(lines) == 3 and (*pixels[:2],) == (lines[0], lines[2])


def _is_made(site: Site, value: Value, far: int = _FAR) -> bool:
    """Whether an image comes from what works on images."""
    node = site.producer(value)
    if node is None or far == 0:
        return False
    if node.op.name in _OF_IMAGES:
        return True
    return node.op.kind in _POINTWISE and any(_is_made(site, v, far - 1) for v in node.args)


def _is_read(site: Site, value: Value, far: int = _FAR) -> bool:
    """Whether an image goes to what works on images."""
    if far == 0:
        return False
    return any(
        user.op.name in _OF_IMAGES
        or (user.op.kind in _POINTWISE and _is_read(site, user.output, far - 1))
        for user in site.readers(value)
    )
