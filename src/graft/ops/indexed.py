"""Indices that are data: what they point into, and which of them lie outside.

A node enters; out come the operands of it that are indices, with the axes that they have to lie in.
`out_of_range` finds one that does not, so that compilers whose code cannot raise errors can put it
beside such a node and look at its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import Dim, Unknown
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Dims
from graft.ir.graph import Node, Value
from graft.ir.types import TensorType
from graft.loop.build import Term, cast, equal, maximum, select, term
from graft.loop.tensor import Reduce, max_
from graft.ops import expression as te
from graft.ops.index import largest_outside, require_integers
from graft.ops.ml_features import unknown_of
from graft.ops.reduce import reading_work
from graft.ops.rules import operator, require
from graft.program.guards import INSIDE, Guard


@dataclass(frozen=True, slots=True)
class OutOfRangeAttrs(Attrs):
    """The extents of the axes that indices point into: one, or one per entry of their last axis."""

    extents: Dims
    count: Dim = 1  # elements from an index on have to lie inside
    wraps: bool = True  # whether negative indices count from the end


def _out_of_range_type(attrs: OutOfRangeAttrs, indices: TensorType) -> TensorType:
    require_integers(indices)
    entries = len(attrs.extents)
    require(entries > 0, "there is no axis to point into")
    fits = entries == 1 or indices.shape is None or indices.shape[-1:] == (entries,)
    require(fits, f"{indices} does not name {entries} axes")
    return TensorType(DType.INT64, (entries,))


@operator("out_of_range", "indices", _out_of_range_type, work=reading_work)
def _out_of_range(attrs: OutOfRangeAttrs, indices: Array) -> Array:
    """Per axis the largest index outside of it, or the smallest number where there is none."""
    parts = [indices] if len(attrs.extents) == 1 else np.moveaxis(indices, -1, 0)
    guards = [Guard(0, extent, attrs.count, attrs.wraps) for extent in attrs.extents]
    return np.array([largest_outside(*pair) for pair in zip(parts, guards, strict=True)], np.int64)


@dataclass(frozen=True, slots=True)
class Pointing:
    """Indices and the axes that they, or the entries of their last axis, have to lie in."""

    indices: Value
    axes: tuple[int, ...]
    extents: Dims
    count: Dim = 1
    wraps: bool = True
    message: str = ""

    @property
    def attrs(self) -> OutOfRangeAttrs:
        return OutOfRangeAttrs(self.extents, self.count, self.wraps)

    def guards(self, node: Node) -> Iterator[Guard]:
        """What is said of the node if an index lies outside."""
        for axis, extent in zip(self.axes, self.extents, strict=True):
            yield Guard(axis, extent, self.count, self.wraps, node.place, self.message)


def pointing(node: Node) -> Pointing | None:
    """What the indices among a node's operands point into, where it has any, of known rank."""
    rule = _RULES.get(node.op.name)
    types = [value.type for value in node.args]
    if rule is None or not all(isinstance(t, TensorType) and t.shape is not None for t in types):
        return None
    return rule(node)


def _into(node: Node, indices: Value, axes: Sequence[int], **more: Any) -> Pointing | None:
    extents = [(node.args[0].shape or ())[axis] for axis in axes]
    known = tuple(extent for extent in extents if not isinstance(extent, Unknown))
    whole = bool(known) and len(known) == len(extents)
    return Pointing(indices, tuple(axes), known, **more) if whole else None


def _along_axis(node: Node) -> Pointing | None:
    return _into(node, node.args[1], [node.attrs.axis % len(node.args[0].shape or (0,))])


def _by_tuples(node: Node) -> Pointing | None:
    length = (node.args[1].shape or (0,))[-1]
    first = getattr(node.attrs, "batch_dims", 0)
    entries = range(first, first + length) if isinstance(length, int) else ()
    return _into(node, node.args[1], entries)


def _of_images(node: Node) -> Pointing | None:
    return _into(node, node.args[2], [0], wraps=False)


def _from_starts(node: Node) -> Pointing | None:
    if node.attrs.mode != "linear" or len(node.args) < 3:
        return None
    axis = node.attrs.axis % len(node.args[0].shape or (0,))
    count = (node.args[1].shape or (0,))[axis]
    if isinstance(count, Unknown) or count == 0:
        return None
    return _into(node, node.args[2], [axis], count=count, wraps=False)


def _up_to_steps(node: Node) -> Pointing | None:
    """Lengths of sequences: from zero to the number of steps."""
    data, lengths = node.args
    extent = (data.shape or ())[node.attrs.seq_axis]
    if isinstance(extent, Unknown):
        return None
    message = "a length is not between 0 and the number of steps"
    return Pointing(lengths, (0,), (extent + 1,), wraps=False, message=message)


def _among_keys(node: Node) -> Pointing | None:
    """The result of a lookup without a default, where unknown elements get the place behind all."""
    attrs = node.attrs
    if attrs.default is not None or unknown_of(attrs) is None:
        return None
    count = attrs.keys.array.size
    message = f"an element is not one of the {count} categories"
    return Pointing(node.output, (0,), (count,), wraps=False, message=message)


_RULES: dict[str, Callable[[Node], Pointing | None]] = {
    "take": _along_axis,
    "gather": _along_axis,
    "gather_nd": _by_tuples,
    "ml.label_map": _among_keys,
    "reverse_sequence": _up_to_steps,
    "scatter_elements": _along_axis,
    "scatter_nd": _by_tuples,
    "tensor_scatter": _from_starts,
    "vision.roi_align": _of_images,
}


# Tensor expressions.


@te.expresses("out_of_range")
def _express_out_of_range(attrs: Any, inputs: te.Inputs, types: te.Types, name: str) -> te.Results:
    """Per axis the largest of the indices that lie outside."""
    indices, extents = te.present(inputs[0]), attrs.extents
    shape = indices.shape if len(extents) == 1 else indices.shape[:-1]
    none, count = te.number(INSIDE, DType.INT64), term(attrs.count)

    def outside(found: Term, extent: Term) -> Term:
        low = 0 - extent if attrs.wraps else term(0)
        wrong = (found < low) | (found > extent - count)
        wrong = wrong if attrs.count == 1 else wrong & (count > 0)
        return select(wrong, maximum(found, te.number(INSIDE + 1, DType.INT64)), none)

    def element(entry: Term) -> Reduce | Term:
        reduced = te.reduce_axes(shape)
        at = [*reduced, *([entry] if len(extents) > 1 else [])]
        extent = term(extents[0])
        for position, other in enumerate(extents[1:], start=1):
            extent = select(equal(entry, position), term(other), extent)
        value = outside(cast(DType.INT64, te.read(indices, at)), extent)
        return max_(value, reduced) if reduced else value

    return te.one_result(name, types, element)
