"""Makes convolutions over three axes those over two, of the slices of a volume.

A graph enters; `qnn.conv3d` leaves as `qnn.conv2d` on images, one for each slice of the result. The
slices of the data that a kernel reaches are an image's channels, one behind the other, so that sums
are made in one go; in groups, each slice is convolved alone and the sums are added. Both are exact.
So does `nn.conv3d` where the kernels for images, which are faster, save more than slices cost, and
`nn.conv3d_transpose`, whose slices are made phase by phase: those that the same taps reach. Layers
along depth alone are layers of images whose rows are whole slices, which needs no copy.

A volume [batch, channels, depth, rows, columns] is a view of its slices: a reshape and a transpose,
which move down past what is computed element by element, so that a chain of layers works on slices
from end to end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from graft.backends.host.kernels.integer_weights import QUAD
from graft.base.dims import UNKNOWN, Dim
from graft.base.dtypes import Array, DType
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Kind
from graft.ops import OPS
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("fold_depth")
ALONG_DEPTH = RuleSet("layers_along_depth")

_KINDS = (Kind.ELEMENTWISE, Kind.BROADCAST)
_POINTWISE = tuple(name for name in OPS if OPS.get(name).kind in _KINDS and name != "trilu")
# Between [batch, depth, channels, ...] and [batch, channels, depth, ...], either way.
_EXCHANGED = (0, 2, 1, 3, 4)
_RANK = 5
# Multiplications of a number that is copied into slices. On a Zen 5, layers of 32 (2x2x2, stride 2)
# take 0.4 of the time in slices, of 144 (3x3x3) between 0.1 and 0.9, of 18 twice the time.
_LEAST_USES = 32


def fold_depth(graph: Graph) -> Graph:
    """Apply the rules until none fits; views only ever move towards the outputs.

    Layers of single pixels that read slices are layers of these, so slices come first."""
    return apply_rules(apply_rules(graph, RULES), ALONG_DEPTH)


@dataclass(frozen=True, slots=True)
class _Slices:
    """Images [batch * depth, channels, rows, columns]."""

    images: Value
    batch: Dim
    depth: int


@RULES.rule(is_op("qnn.conv3d", "nn.conv3d"))
def convolution_of_slices(site: Site) -> Replacement:
    node = site.node
    weight = site.array(node.args[1])
    if not _is_known(node.args[0]) or weight is None or 0 in (node.output.shape or ()):
        return Refusal("there is no result, or sizes or weights become known only at run time")
    is_moved = _viewed(site, node.args[0]) is None or weight.shape[2] > 1
    if node.op.name == "nn.conv3d" and is_moved and not _saves(node, weight):
        return Refusal("there is too little to save for slices to be copied")
    attrs = node.attrs
    taps = weight.shape[2]
    begin, top, left, end, bottom, right = attrs.padding
    slices = _padded(site, _slices_of(site, node.args[0]), node, (begin, end))
    reach = (taps - 1) * attrs.dilation[0] + 1
    depth = (slices.depth - reach) // attrs.strides[0] + 1
    parts = [
        _every_nth_slice(site, slices, tap * attrs.dilation[0], depth, attrs.strides[0])
        for tap in range(taps)
    ]
    plane = {
        "strides": attrs.strides[1:],
        "dilation": attrs.dilation[1:],
        "padding": (top, left, bottom, right),
        "groups": attrs.groups,
    }
    if attrs.groups == 1:
        together = QUAD if node.op.name == "qnn.conv3d" else 1
        pairs = [_joined(site, parts, weight, together)]
    else:
        pairs = [(part, weight[:, :, tap]) for tap, part in enumerate(parts)]
    zero, layer = node.inputs[2:], node.op.name.replace("3d", "2d")
    sums = [
        site.emit(layer, data, site.constant(np.ascontiguousarray(own)), *zero, **plane)
        for data, own in pairs
    ]
    total = reduce(lambda left, right: site.emit("add", left, right), sums)
    return _volume(site, _Slices(total, slices.batch, depth))


@ALONG_DEPTH.rule(is_op("nn.conv3d"))
def convolution_along_depth(site: Site) -> Replacement:
    """A layer without neighbours in a plane is one of images whose rows are slices, in a view."""
    node, attrs = site.node, site.node.attrs
    weight, shape = site.array(node.args[1]), node.output.tensor.shape or ()
    if not _is_known(node.args[0]) or weight is None or 0 in shape:
        return Refusal("there is no result, or sizes or weights become known only at run time")
    begin, top, left, end, bottom, right = attrs.padding
    if {*weight.shape[3:], *attrs.strides[1:]} != {1} or any((top, left, bottom, right)):
        return Refusal("there are neighbours in a plane, or steps")
    if node.output.dtype is not DType.FLOAT32:
        return Refusal(f"there are no kernels for images of {node.output.dtype}")
    batch, channels, depth, rows, columns = node.args[0].tensor.shape or ()
    lines = site.emit("reshape", node.args[0], shape=(batch, channels, depth, rows * columns))
    sums = site.emit(
        "nn.conv2d",
        lines,
        site.constant(weight[..., 0]),
        strides=(attrs.strides[0], 1),
        dilation=(attrs.dilation[0], 1),
        padding=(begin, 0, end, 0),
        groups=attrs.groups,
    )
    return site.emit("reshape", sums, shape=shape)


@RULES.rule(is_op("nn.conv3d_transpose"))
def transposed_convolution_of_slices(site: Site) -> Replacement:
    """Slices of the result that are a stride apart are a phase: the same taps reach all of them."""
    node, attrs = site.node, site.node.attrs
    weight, shape = site.array(node.args[1]), node.output.tensor.shape or ()
    if not _is_known(node.args[0]) or weight is None or 0 in shape:
        return Refusal("there is no result, or sizes or weights become known only at run time")
    if attrs.groups > 1 or attrs.dilation[0] > 1 or node.output.dtype is not DType.FLOAT32:
        return Refusal("it is in groups, dilated along depth, or not of float32")
    stride, depth = attrs.strides[0], shape[2]
    assert isinstance(depth, int)
    count = -(-depth // stride)  # slices of a phase
    phases = [_taps_of(weight.shape[2], phase, attrs) for phase in range(stride)]
    if not all(phases):
        return Refusal("no tap reaches some slices")
    slices = _slices_of(site, node.args[0])
    (_, top, left, _, bottom, right), (_, *added) = attrs.padding, attrs.output_padding
    plane = {
        "strides": attrs.strides[1:],
        "dilation": attrs.dilation[1:],
        "padding": (top, left, bottom, right),
        "output_padding": tuple(added),
    }
    images = [_phase_of(site, slices, weight, taps, count, plane) for taps in phases]
    return _interleaved(site, images, slices.batch, count, depth)


def _taps_of(taps: int, phase: int, attrs: Any) -> list[tuple[int, int]]:
    """The taps that reach a phase's slices, and how far behind a slice's number they read."""
    distances = ((tap, phase + attrs.padding[0] - tap) for tap in range(taps))
    stride = attrs.strides[0]
    return [(tap, distance // stride) for tap, distance in distances if distance % stride == 0]


def _phase_of(
    site: Site,
    slices: _Slices,
    weight: Array,
    taps: list[tuple[int, int]],
    count: int,
    plane: dict[str, Any],
) -> Value:
    """Images [batch * count, outputs, rows, columns]: the sums over some shifted slices."""
    shifts = [shift for _, shift in taps]
    before, behind = max(0, -min(shifts)), max(0, max(shifts) + count - slices.depth)
    padded = _padded(site, slices, site.node, (before, behind))
    parts = [_every_nth_slice(site, padded, before + shift, count, 1) for shift in shifts]
    joined = parts[0] if len(parts) == 1 else site.emit("concatenate", *parts, axis=1)
    flat = site.constant(np.concatenate([weight[:, :, tap] for tap, _ in taps]))
    return site.emit("nn.conv2d_transpose", joined, flat, **plane)


def _interleaved(site: Site, images: list[Value], batch: Dim, count: int, depth: int) -> Value:
    """A volume that interleaves the slices of all phases."""
    if len(images) == 1:
        return _volume(site, _Slices(images[0], batch, count))
    _, *extents = images[0].tensor.shape or ()
    apart = [site.emit("reshape", one, shape=(batch * count, 1, *extents)) for one in images]
    together = site.emit("concatenate", *apart, axis=1)
    whole = site.emit("reshape", together, shape=(batch * count * len(images), *extents))
    slices = _Slices(whole, batch, count * len(images))
    return _volume(site, _Slices(_every_nth_slice(site, slices, 0, depth, 1), batch, depth))


def _is_known(value: Value) -> bool:
    """Whether all extents are numbers but for that of the batch, which may be a symbol."""
    shape = value.tensor.shape or (UNKNOWN,)
    return shape[0] is not UNKNOWN and all(isinstance(dim, int) for dim in shape[1:])


def _saves(node: Node, weight: Array) -> bool:
    """Whether a layer of floats has enough multiplications for each number that is copied into
    slices. Layers without neighbours in a plane need no slices."""
    attrs, (outputs, _, _, *kernel) = node.attrs, weight.shape
    uses = outputs // attrs.groups * math.prod(kernel) // math.prod(attrs.strides[1:])
    is_float = node.output.dtype is DType.FLOAT32
    return is_float and math.prod(kernel) > 1 and uses >= _LEAST_USES


def _joined(site: Site, parts: list[Value], weight: Array, together: int) -> tuple[Value, Array]:
    """The slices under a kernel as channels, whole groups of so many, and its weights."""
    joined = parts[0] if len(parts) == 1 else site.emit("concatenate", *parts, axis=1)
    outputs, channels, taps, *kernel = weight.shape
    flat = weight.swapaxes(1, 2).reshape(outputs, taps * channels, *kernel)
    missing = -flat.shape[1] % together
    if missing:
        joined = site.emit("nn.pad", joined, pad_width=(0, 0, 0, 0, 0, missing, 0, 0))
        flat = np.pad(flat, ((0, 0), (0, missing), (0, 0), (0, 0)))
    return joined, flat


def _padded(site: Site, slices: _Slices, node: Node, widths: tuple[int, int]) -> _Slices:
    """With slices of the zero point before and behind the volume."""
    begin, end = widths
    if not begin and not end:
        return slices
    zero = site.array(node.inputs[2]) if len(node.inputs) > 2 else None
    dtype = slices.images.dtype.numpy
    fill = site.constant(np.zeros((), dtype) if zero is None else zero.reshape(()))
    volume, axis = _by_slice(site, slices)
    rank = volume.tensor.rank or 0
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = begin, end
    padded = site.emit("nn.pad", volume, fill, pad_width=tuple(pads))
    return _images(site, padded, slices.batch, slices.depth + begin + end)


def _every_nth_slice(site: Site, slices: _Slices, first: int, count: int, stride: int) -> Value:
    """Every so many slices from one on, as images."""
    if (first, count, stride) == (0, slices.depth, 1):
        return slices.images
    volume, axis = _by_slice(site, slices)
    stop = first + (count - 1) * stride + 1
    cut = site.emit(
        "strided_slice", volume, begin=(first,), end=(stop,), strides=(stride,), axes=(axis,)
    )
    return _images(site, cut, slices.batch, count).images


def _by_slice(site: Site, slices: _Slices) -> tuple[Value, int]:
    """Slices with an axis of their own, and that axis; those of one volume have it already."""
    if slices.batch == 1:
        return slices.images, 0
    shape = slices.images.tensor.shape or ()
    split = (slices.batch, slices.depth, *shape[1:])
    return site.emit("reshape", slices.images, shape=split), 1


def _images(site: Site, volume: Value, batch: Dim, depth: int) -> _Slices:
    shape = volume.tensor.shape or ()
    if len(shape) == _RANK:
        volume = site.emit("reshape", volume, shape=(batch * depth, *shape[2:]))
    return _Slices(volume, batch, depth)


def _volume(site: Site, slices: _Slices) -> Value:
    """Slices as a volume."""
    shape = slices.images.tensor.shape or ()
    split = (slices.batch, slices.depth, *shape[1:])
    return site.emit("transpose", site.emit("reshape", slices.images, shape=split), axes=_EXCHANGED)


def _viewed(site: Site, value: Value) -> _Slices | None:
    """The slices that a value is a view of, where it is one."""
    outer = site.producer(value)
    if outer is None or outer.op.name != "transpose" or outer.attrs.axes != _EXCHANGED:
        return None
    inner = site.producer(outer.args[0])
    if inner is None or inner.op.name != "reshape" or inner.args[0].tensor.rank != _RANK - 1:
        return None
    shape = inner.output.tensor.shape or ()
    images = inner.args[0].tensor.shape or ()
    batch, depth = shape[:2]
    if batch is UNKNOWN or not isinstance(depth, int):
        return None
    same = (*images[1:],) == (*shape[2:],) and images[0] == batch * depth
    return _Slices(inner.args[0], batch, depth) if same else None


def _slices_of(site: Site, value: Value) -> _Slices:
    """A volume's slices: those that it is a view of, or as they are moved in memory."""
    viewed = _viewed(site, value)
    if viewed is not None:
        return viewed
    batch, _, depth, *_ = value.tensor.shape or ()
    assert batch is not UNKNOWN
    assert isinstance(depth, int)
    return _images(site, site.emit("transpose", value, axes=_EXCHANGED), batch, depth)


@RULES.rule(lambda x: op.transpose(op.transpose(x, axes=_EXCHANGED), axes=_EXCHANGED))
def exchanged_twice(_site: Site, x: Value) -> Value:
    """A layer may have asked for the slices of its data before these were a view."""
    return x


@RULES.rule(lambda x: op.reshape(op.reshape(x)))
def reshaped_back(site: Site, x: Value) -> Replacement:
    is_same = _is_known(x) and x.type == site.node.output.type
    return x if is_same else Refusal("the shape is another one")


@RULES.rule(is_op(*_POINTWISE))
def pointwise_on_slices(site: Site) -> Replacement:
    node = site.node
    views = [_viewed(site, value) for value in node.args]
    view = next((one for one in views if one is not None), None)
    if view is None or None in node.inputs or len(node.outputs) != 1:
        return Refusal("no operand is a volume of slices")
    if node.output.tensor.shape != _shape_of_volume(view):
        return Refusal("the result has another shape")
    is_bias = node.op.name == "nn.bias_add"
    if hasattr(node.attrs, "axis") and not (is_bias and node.attrs.axis in (1, 1 - _RANK)):
        return Refusal("it works along an axis")
    operands: list[Value] = []
    for position, (value, own) in enumerate(zip(node.args, views, strict=True)):
        flat = value if is_bias and position else _on_slices(site, value, own)
        if flat is None:
            return Refusal("an operand is no volume of slices, and no number per channel")
        operands.append(flat)
    attrs = {"axis": 1} if is_bias else {}
    return _volume(site, _Slices(site.again(node, *operands, **attrs), view.batch, view.depth))


def _shape_of_volume(view: _Slices) -> tuple[object, ...]:
    _, channels, rows, columns = view.images.tensor.shape or ()
    return (view.batch, channels, view.depth, rows, columns)


def _on_slices(site: Site, value: Value, view: _Slices | None) -> Value | None:
    """An operand as it broadcasts to images; None where it does not."""
    if view is not None:
        return view.images
    shape = value.tensor.shape
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    extents = [dim for dim in shape if isinstance(dim, int)]
    if math.prod(extents) == 1 and len(extents) < _RANK:
        return value
    array = site.array(value)
    if array is None or len(extents) < 3:
        return None
    whole = array.reshape((1,) * (_RANK - array.ndim) + array.shape)
    if (whole.shape[0], *whole.shape[2:]) != (1, 1, 1, 1):
        return None
    return site.constant(whole.reshape(-1, 1, 1))
