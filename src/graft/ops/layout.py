"""`layout_transform`: an image with its axes in another order, or its channels in blocks.

Layouts are named as usual: `NCHW`, `NHWC`, and `NCHW16c` for [N, C / 16, H, W, 16]. Every change is
a reshape, a transpose and a reshape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_no_multiple
from graft.base.dims import UNKNOWN, product
from graft.base.dtypes import Array
from graft.ir.attrs import Attrs
from graft.ir.op import Kind
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.rules import operator, require, unknown_shape

NCHW = "NCHW"
_PLAIN = (NCHW, "NHWC")
_BLOCKED = re.compile(r"NCHW([1-9][0-9]*)c")


@dataclass(frozen=True, slots=True)
class LayoutTransformAttrs(Attrs):
    src_layout: str
    dst_layout: str


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """A change of layout: the operand's shape with all axes apart, their new order, and the
    result's shape."""

    split: Shape
    axes: tuple[int, ...]
    result: Shape

    @property
    def extents(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Plain shapes before the transpose, after it, and of the result."""
        ordered = [self.split[axis] for axis in self.axes]
        split, permuted, result = (
            tuple(dim for dim in dims if isinstance(dim, int))
            for dims in (self.split, ordered, self.result)
        )
        return split, permuted, result


def block_of(layout: str) -> int:
    """How many channels a layout has in a block; 0 for one without blocks."""
    match = _BLOCKED.fullmatch(layout)
    require(
        match is not None or layout in _PLAIN, f"'{layout}' is no layout: NCHW, NHWC or NCHW16c"
    )
    return int(match[1]) if match else 0


def rearrangement(source: str, target: str, shape: Shape) -> Rearrangement:
    """How to get from one layout to another."""
    source_block, target_block = block_of(source), block_of(target)
    require(
        not source_block or not target_block or source_block == target_block,
        f"from {source} to {target} leads only {NCHW}",
    )
    rank = 5 if source_block else 4
    require(len(shape) == rank, f"{source} has {rank} axes, and the operand {len(shape)}")
    block = source_block or target_block
    extents = dict(zip("NCHWc" if source_block else source, shape, strict=True))
    if source_block:
        require(
            extents["c"] in (source_block, UNKNOWN),
            f"{source} ends in {source_block}, not {extents['c']}",
        )
    elif target_block:
        channels = extents["C"]
        whole = not provably_no_multiple(channels, target_block)
        require(whole, f"{channels} channels are no whole number of blocks of {target_block}")
        extents |= {"C": channels // target_block, "c": target_block}
    before, after = _apart(source, block), _apart(target, block)
    split = tuple(extents[axis] for axis in before)
    ordered = [extents[axis] for axis in after]
    if source_block and not target_block:
        at = after.index("C")
        ordered[at : at + 2] = [product(ordered[at : at + 2])]
    return Rearrangement(split, tuple(before.index(axis) for axis in after), tuple(ordered))


def _apart(layout: str, block: int) -> str:
    """The axes of a layout by letter; `c` stands for the channels within a block."""
    if block_of(layout):
        return "NCHWc"
    return layout.replace("C", "Cc") if block else layout


def _type(attrs: LayoutTransformAttrs, data: TensorType) -> TensorType:
    if data.shape is None:
        return TensorType(data.dtype, unknown_shape(5 if block_of(attrs.dst_layout) else 4))
    change = rearrangement(attrs.src_layout, attrs.dst_layout, data.shape)
    return TensorType(data.dtype, change.result)


@operator("layout_transform", "data", _type, kind=Kind.INJECTIVE)
def _meaning(attrs: LayoutTransformAttrs, data: Array) -> Array:
    """An image with its axes in another order, or its channels in blocks."""
    change = rearrangement(attrs.src_layout, attrs.dst_layout, data.shape)
    split, _, result = change.extents
    return np.ascontiguousarray(data.reshape(split).transpose(change.axes)).reshape(result)


# Tensor expressions.


@te.expresses("layout_transform")
def _express_layout_transform(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Each axis is found by its letter, so extents need not be known."""
    source_block, target_block = block_of(attrs.src_layout), block_of(attrs.dst_layout)
    source, target = (
        "NCHWc" if block_of(layout) else layout for layout in (attrs.src_layout, attrs.dst_layout)
    )

    def element(*indices: Term) -> Term:
        at = dict(zip(target, indices, strict=True))
        if source_block and not target_block:
            at |= {"C": at["C"] // source_block, "c": at["C"] % source_block}
        elif target_block and not source_block:
            at["C"] = at["C"] * target_block + at["c"]
        return te.read(data, [at[letter] for letter in source])

    return out.of(element)
