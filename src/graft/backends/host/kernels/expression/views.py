"""Under which shapes a group's tensors are seen: as they are, or as fewer or more axes.

A group enters; a view leaves, which knows the shape of each of its values in terms of the kernel's
scalars. Pointwise nodes see runs of axes that no operand is broadcast along as one axis. A dense
layer with constant weights on an unknown number of rows is seen as [rows, blocks of units, units],
with all its rows in one axis and the weights packed to [blocks, inputs, units], so that a tile's
vectors are contiguous at each step. A convolution of single pixels is seen with all pixels of an
image in one axis, which is longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from graft.backends.host.extents import Extents
from graft.backends.host.group import Group
from graft.backends.host.kernels.tile import REDUCTIONS
from graft.backends.host.kernels.views import Axes, merged, operand_shapes, padded, unclear
from graft.backends.host.storage import shape_of
from graft.base.dims import AnyDim, Dim, product
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.graph import Node, Value
from graft.ops.expression import is_narrow
from graft.ops.linear import EinsumAttrs
from graft.ops.reduce import ReduceAttrs
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Vectors of a packed block, at most: what a tile of the default schedule has.
VECTORS = 2

Shape = tuple[AnyDim, ...]


@dataclass(frozen=True)
class View:
    """Every tensor as it is."""

    group: Group
    extents: Extents

    def shape(self, value: Value) -> Shape:
        """The shape under which a value is seen."""
        return tuple(self.extents.size(dim) for dim in shape_of(value))

    def packed(self, _value: Value, array: Array) -> Array:
        """A constant as the kernel reads it."""
        return array

    def operator(self, _node: Node) -> tuple[str, Attrs] | None:
        """The operator that a node is under this view, if it is another one."""
        return None


@dataclass(frozen=True)
class MergedView(View):
    """Pointwise nodes with as few axes as broadcasting allows."""

    axes: Axes
    shapes: Mapping[Value, tuple[Dim, ...]]  # with all axes of the result

    def shape(self, value: Value) -> Shape:
        shape = self.shapes[value]
        return tuple(self.extents.total(shape[first:stop]) for first, stop in self.axes.runs)

    def operator(self, node: Node) -> tuple[str, Attrs] | None:
        return ("add", Attrs()) if node.op.name == "nn.bias_add" else None


@dataclass(frozen=True)
class NormalizedRows(View):
    """A normalisation over the last axes: all of them as one, and all before them as another."""

    first: int  # of the axes that are normalised

    def shape(self, value: Value) -> Shape:
        shape = shape_of(value)
        if value not in (self.group.node.args[0], self.group.output):
            return (self.extents.total(shape),)
        return self.extents.total(shape[: self.first]), self.extents.total(shape[self.first :])

    def operator(self, node: Node) -> tuple[str, Attrs] | None:
        return node.op.name, replace(node.attrs, axis=1)


@dataclass(frozen=True)
class AlongAxis(View):
    """What is computed along one axis: all axes before it as one, and all behind it."""

    axis: int

    def shape(self, value: Value) -> Shape:
        shape = shape_of(value)
        behind = (self.extents.total(shape[self.axis + 1 :]),) if shape[self.axis + 1 :] else ()
        row = self.extents.size(shape[self.axis])
        return self.extents.total(shape[: self.axis]), row, *behind

    def operator(self, node: Node) -> tuple[str, Attrs] | None:
        return node.op.name, replace(node.attrs, axis=1)


@dataclass(frozen=True)
class ReducedView(View):
    """A reduction and the pointwise nodes around it: runs of axes that are all reduced, or all kept
    and not broadcast along, are one axis. Axes that are reduced stay, with one element."""

    anchor: Node
    axes: Axes
    reduced: tuple[int, ...]  # of the runs
    shapes: Mapping[Value, tuple[Dim, ...]]  # with all axes of what is reduced

    def shape(self, value: Value) -> Shape:
        shape = self.shapes[value]
        return tuple(self.extents.total(shape[first:stop]) for first, stop in self.axes.runs)

    def operator(self, node: Node) -> tuple[str, Attrs] | None:
        if node is self.anchor:
            return node.op.name, ReduceAttrs(self.reduced, keepdims=True)
        return ("add", Attrs()) if node.op.name == "nn.bias_add" else None


@dataclass(frozen=True)
class JoinedView(View):
    """A concatenation: the axes before the joined one as one, and it with all behind it as one."""

    axis: int

    def shape(self, value: Value) -> Shape:
        before = self.extents.total(shape_of(self.group.output)[: self.axis])
        return before, self.extents.total(shape_of(value)[self.axis :])


@dataclass(frozen=True)
class Rows(View):
    """A dense layer and what follows it, all rows in one axis and units in blocks of a width."""

    anchor: Node
    width: int

    def shape(self, value: Value) -> Shape:
        data, weight = self.anchor.args
        dims = shape_of(value)
        if value is weight:
            return self._packed_shape()
        if value is not data and product(dims) == 1:
            return ()
        # The rows are as long as the weights say, be that known of the data or not.
        columns = shape_of(weight)[1:] if value is data else self._blocks(dims[-1])
        return (
            columns if product(dims[:-1]) == 1 and value is not data else (self._rows(), *columns)
        )

    def _rows(self) -> AnyDim:
        return self.extents.total(shape_of(self.anchor.output)[:-1])

    def _blocks(self, columns: Dim) -> Shape:
        return columns // self.width, self.width

    def _packed_shape(self) -> Shape:
        units, inputs = shape_of(self.anchor.args[1])
        return units // self.width, inputs, self.width

    def packed(self, value: Value, array: Array) -> Array:
        if value is not self.anchor.args[1]:
            return array
        units, inputs = array.shape
        blocks = array.reshape(units // self.width, self.width, inputs)
        return np.ascontiguousarray(blocks.transpose(0, 2, 1))

    def operator(self, node: Node) -> tuple[str, Attrs] | None:
        return ("einsum", EinsumAttrs("ik,jkl->ijl")) if node is self.anchor else None


@dataclass(frozen=True)
class Pixels(View):
    """A convolution of single pixels and what follows it, all pixels in one axis."""

    anchor: Node

    def shape(self, value: Value) -> Shape:
        dims, whole = shape_of(value), shape_of(self.anchor.output)
        if value is self.anchor.args[1]:
            return dims[:2]
        if len(dims) < len(whole):
            return () if product(dims) == 1 else dims  # a bias is a list
        pixels = self.extents.total(whole[2:]) if dims[2:] == whole[2:] else 1
        return (*(self.extents.size(dim) for dim in dims[:2]), pixels)

    def packed(self, value: Value, array: Array) -> Array:
        return array.reshape(array.shape[:2]) if value is self.anchor.args[1] else array

    def operator(self, node: Node) -> tuple[str, Attrs] | None:
        return ("einsum", EinsumAttrs("ncp,kc->nkp")) if node is self.anchor else None


def view_of(group: Group, extents: Extents, target: Target) -> View:
    """How the group's tensors are best seen."""
    if group.is_pointwise and all(node.op.scalar is not None for node in group.nodes):
        return _merged(group, extents) or View(group, extents)
    if group.node.op.name in ("nn.layer_norm", "nn.rms_norm"):
        return _normalized(group, extents)
    if group.node.op.name in ("nn.softmax", "nn.log_softmax"):
        return AlongAxis(group, extents, group.node.attrs.axis % len(shape_of(group.output)))
    if group.node.op.name == "concatenate":
        axis = group.node.attrs.axis % len(shape_of(group.output))
        return JoinedView(group, extents, axis)
    anchor = group.anchor
    if anchor is not None and anchor.op.name in REDUCTIONS:
        return _reduced(group, extents, anchor) or View(group, extents)
    if anchor is not None and anchor.op.name == "nn.conv2d" and _is_in_pixels(group, anchor):
        return Pixels(group, extents, anchor)
    if anchor is not None and anchor.op.name == "nn.dense" and _is_in_rows(group, anchor):
        units = shape_of(anchor.output)[-1]
        width = _width(units, anchor.output.dtype, target)
        return Rows(group, extents, anchor, width)
    return View(group, extents)


def _merged(group: Group, extents: Extents) -> MergedView | None:
    """Pointwise nodes with axes merged; None where it is not known what is broadcast."""
    shape = shape_of(group.output)
    values = (value for node in group.nodes for value in (*node.args, *node.outputs))
    shapes = operand_shapes(group.nodes, len(shape))
    if isinstance(shapes, Refusal) or any(len(shape_of(v)) > len(shape) for v in values):
        return None
    shapes |= {node.output: padded(shape_of(node.output), len(shape)) for node in group.nodes}
    if unclear(shape, shapes.values()) is not None:
        return None
    return MergedView(group, extents, merged(shape, shapes.values()), shapes)


def _reduced(group: Group, extents: Extents, anchor: Node) -> ReducedView | None:
    """A reduction with axes merged; None where that is not possible or not known."""
    data, reduced_axes = anchor.args[0], anchor.attrs.axes
    shape, result = shape_of(data), shape_of(anchor.output)
    before = group.leading_to(data)
    after = tuple(node for node in group.epilogue if node not in before)
    others = (*before, *after)
    if len(anchor.args) > 1 or any(node.op.scalar is None for node in others) or not shape:
        return None
    if any(shape_of(node.output) != result for node in after[-1:]):
        return None
    if reduced_axes is None or not (reduced_axes or anchor.attrs.noop_with_empty_axes):
        reduced_axes = tuple(range(len(shape)))
    axes = {axis % len(shape) for axis in reduced_axes}
    rest = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    earlier, later = operand_shapes(before, len(shape)), operand_shapes(after, len(result))
    if isinstance(earlier, Refusal) or isinstance(later, Refusal):
        return None
    earlier |= {node.output: padded(shape_of(node.output), len(shape)) for node in before}
    earlier[data] = shape
    later |= {node.output: padded(shape_of(node.output), len(result)) for node in after}
    later[anchor.output] = result
    spread = {value: _spread(operand, rest, axes) for value, operand in later.items()}
    is_clear = unclear(shape, earlier.values()) is None and unclear(rest, spread.values()) is None
    if set(spread) & set(earlier) or not is_clear:
        return None
    runs = merged(shape, (rest, *earlier.values(), *spread.values()))
    reduced = tuple(
        number
        for number, run in enumerate(runs.runs)
        if any(axis in axes and shape[axis] != 1 for axis in range(*run))
    )
    return ReducedView(group, extents, anchor, runs, reduced, {**earlier, **spread})


def _spread(operand: tuple[Dim, ...], rest: tuple[Dim, ...], axes: set[int]) -> tuple[Dim, ...]:
    """An operand of the result's rank under the rank of what is reduced."""
    if len(operand) == len(rest):
        return operand
    left = iter(operand)
    return tuple(1 if axis in axes else next(left) for axis in range(len(rest)))


def _normalized(group: Group, extents: Extents) -> View:
    """A normalisation in rows, if scale and shift are one row each."""
    data, *parameters = group.node.args
    shape = shape_of(data)
    first = group.node.attrs.axis % len(shape)
    row = shape[first:]
    is_row = (
        shape_of(parameter)[-len(row) :] == row and product(shape_of(parameter)) == product(row)
        for parameter in parameters
    )
    if data in parameters or not all(is_row):
        return View(group, extents)
    return NormalizedRows(group, extents, first)


def _is_simple(node: Node) -> bool:
    """Whether elements are computed from those of operands that broadcast."""
    return node.op.scalar is not None and node.op.name != "nn.bias_add"


def _is_in_rows(group: Group, anchor: Node) -> bool:
    """Whether a dense layer's rows are not known, its weights are, and all else goes by rows."""
    data, weight = anchor.args
    whole = shape_of(anchor.output)
    if isinstance(product(whole), int) or weight not in group.constants or len(whole) < 2:
        return False
    later = [node for node in group.nodes if node is not anchor]
    others = {value for node in later for value in (*node.args, *node.outputs)}
    if not all(map(_is_simple, later)) or {data, weight} & others:
        return False
    return all(_goes_by_rows(shape_of(value), whole) for value in others)


def _is_in_pixels(group: Group, anchor: Node) -> bool:
    """Whether a convolution of unknown extents takes each pixel by itself, and so all else."""
    data, weight = anchor.args
    whole, attrs = shape_of(anchor.output), anchor.attrs
    if isinstance(product(whole), int) or weight not in group.constants or attrs.groups != 1:
        return False
    if shape_of(weight)[2:] != (1, 1) or shape_of(data)[2:] != whole[2:]:
        return False
    later = [node for node in group.nodes if node is not anchor]
    others = {value for node in later for value in (*node.args, *node.outputs)}
    lists = {node.args[1] for node in later if node.op.name == "nn.bias_add"}
    if any(node.op.scalar is None for node in later) or {data, weight} & others:
        return False
    return all(_goes_by_pixels(shape_of(value), whole) for value in others - lists)


def _goes_by_pixels(shape: tuple[Dim, ...], whole: tuple[Dim, ...]) -> bool:
    same = len(shape) == len(whole) and shape[2:] in (whole[2:], (1, 1))
    return same or product(shape) == 1


def _goes_by_rows(shape: tuple[Dim, ...], whole: tuple[Dim, ...]) -> bool:
    if shape == whole or product(shape) == 1:
        return True
    return product(shape[:-1]) == 1 and shape[-1] == whole[-1]


def _width(units: Dim, dtype: DType, target: Target) -> int:
    """How many units a block has: some whole vectors of them, or all where they are none."""
    lanes = target.lanes(DType.FLOAT32 if is_narrow(dtype) else dtype)
    assert isinstance(units, int)
    fitting = (lanes * count for count in range(VECTORS, 0, -1) if units % (lanes * count) == 0)
    return next(fitting, units)
