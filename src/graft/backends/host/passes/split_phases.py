"""Makes transposed convolutions of many phases ordinary ones, whose outputs are the phases.

A graph enters; `nn.conv2d_transpose` leaves as `nn.conv2d` and movement from depth to space, where
there is no kernel in blocks for it: channel by channel (as upsampling by interpolation is written),
or with so large a stride that code for each phase would be too long; and where all phases of all
outputs together do not fill more than a vector. A phase reads some neighbours of a position, and
the window is that of all phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.backends.host.kernels.conv_plan import MOST_PHASES, NARROWEST_SLAB
from graft.backends.host.passes.transposed_convolution import known_convolution
from graft.base.dtypes import Array
from graft.ir.graph import Graph
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("split_phases")


def split_phases(graph: Graph) -> Graph:
    """Apply the rule to every transposed convolution."""
    return apply_rules(graph, RULES)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A spatial axis: per phase and tap of the common window, the kernel's element (-1: none)."""

    elements: Array
    first: int  # how far from a position the window begins, at most 0
    count: int  # positions of a phase

    @staticmethod
    def of(stride: int, padding: int, size: int, count: int) -> _Axis:
        """Result `stride` * m + phase reads data m + (phase + padding - element) / stride."""
        reads = {
            (phase, element): (phase + padding - element) // stride
            for phase in range(stride)
            for element in range(size)
            if (phase + padding - element) % stride == 0
        }
        first, last = min(0, *reads.values()), max(0, *reads.values())
        elements = np.full((stride, last - first + 1), -1)
        for (phase, element), place in reads.items():
            elements[phase, place - first] = element
        return _Axis(elements, first, -(-count // stride))

    def padding(self, extent: int) -> tuple[int, int]:
        """What the window needs before and behind the data."""
        last = self.elements.shape[1] - 1 + self.first
        return -self.first, max(0, self.count + last - extent)


@RULES.rule(is_op("nn.conv2d_transpose"))
def convolution_of_phases(site: Site) -> Replacement:
    node, attrs = site.node, site.node.attrs
    conv = known_convolution(site)
    if isinstance(conv, Refusal):
        return conv
    weight, batch, outputs, counts = conv.weight, conv.batch, conv.outputs, conv.result_pixels
    by_channel = attrs.groups == conv.channels and attrs.groups > 1
    phases = attrs.strides[0] * attrs.strides[1]
    is_narrow = phases * outputs <= NARROWEST_SLAB and phases > 1 and attrs.groups == 1
    if not by_channel and not is_narrow and phases <= MOST_PHASES:
        return Refusal("there are kernels in blocks for it, whose vectors it fills")
    if set(attrs.dilation) != {1}:
        return Refusal("the kernel is dilated")
    rows, columns = (
        _Axis.of(attrs.strides[n], attrs.padding[n], weight.shape[2 + n], counts[n]) for n in (0, 1)
    )
    height, width = conv.pixels
    (top, bottom), (left, right) = rows.padding(height), columns.padding(width)
    matrix = site.constant(_weights(weight, attrs.groups, rows, columns))
    padding = top, left, bottom, right
    sums = site.emit("nn.conv2d", node.args[0], matrix, padding=padding, groups=attrs.groups)
    _, _, high, wide = sums.tensor.shape or ()
    split = site.emit("reshape", sums, shape=(batch, outputs, *attrs.strides, high, wide))
    moved = site.emit("transpose", split, axes=(0, 1, 4, 2, 5, 3))
    whole = (batch, outputs, high * attrs.strides[0], wide * attrs.strides[1])
    image = site.emit("reshape", moved, shape=whole)
    if whole[2:] == counts:
        return image
    return site.emit("strided_slice", image, begin=(0, 0), end=counts, axes=(2, 3))


def _weights(weight: Array, groups: int, rows: _Axis, columns: _Axis) -> Array:
    """[outputs * phases, channels of a group, window's rows, window's columns]."""
    channels, outputs = weight.shape[0] // groups, weight.shape[1]
    padded = np.pad(weight, ((0, 0), (0, 0), (0, 1), (0, 1)))  # element -1 is zero
    picked = padded[:, :, rows.elements[:, :, None, None], columns.elements]
    split = picked.reshape(groups, channels, outputs, *picked.shape[2:])
    order = split.transpose(0, 2, 3, 5, 1, 4, 6)  # group, output, phases, channel, window
    window = order.shape[5:]
    return np.ascontiguousarray(order.reshape(-1, channels, *window))
