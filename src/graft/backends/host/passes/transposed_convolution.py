"""The transposed convolutions that passes of the host rewrite: of known sizes and weights.

A site of `nn.conv2d_transpose` enters; its sizes and weights leave, or the reason why passes cannot
rewrite it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dims import AnyDim
from graft.base.dtypes import Array
from graft.rewrite.driver import Site
from graft.rewrite.rule import Refusal


@dataclass(frozen=True, slots=True)
class KnownConvolution:
    """Its weights [channels, outputs of a group, rows, columns] and the extents of its images."""

    weight: Array
    batch: AnyDim
    channels: int
    outputs: int
    pixels: tuple[int, int]  # rows and columns of the data
    result_pixels: tuple[int, int]


def known_convolution(site: Site) -> KnownConvolution | Refusal:
    """A transposed convolution of float32 that adds no zeros around its result."""
    node = site.node
    weight = site.array(node.args[1])
    before, after = node.args[0].tensor.shape or (), node.output.tensor.shape or ()
    extents = [dim for dim in (*before[1:], *after[1:]) if isinstance(dim, int)]
    if weight is None or len(extents) < 6 or 0 in (*before, *after):
        return Refusal("sizes or weights become known only at run time, or there is no result")
    if weight.dtype != np.float32 or min(node.attrs.padding) < 0:
        return Refusal("it is not of float32, or zeros are added around the result")
    channels, *pixels, outputs, rows, columns = extents
    return KnownConvolution(
        weight, before[0], channels, outputs, (pixels[0], pixels[1]), (rows, columns)
    )
