"""Under which shapes a group's tensors are seen: as they are, or as fewer or more axes.

A group enters; a view leaves, which knows the shape of each of its values in terms of the kernel's
scalars. Pointwise nodes see runs of axes that no operand is broadcast along as one axis. A dense
layer with constant weights on an unknown number of rows is seen as [rows, blocks of units, units],
with all its rows in one axis and the weights packed to [blocks, inputs, units], so that a tile's
vectors are contiguous at each step. A convolution of single pixels is seen with all pixels of an
image in one axis, which is longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from graft.backends.host.extents import Extents
from graft.backends.host.group import Group
from graft.backends.host.kernels.dense import pack_units
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
Operator = tuple[str, Attrs]


@dataclass(frozen=True)
class View:
    """How a kernel sees the tensors of its group: the shape of each value, the operator that a node
    becomes under these shapes (None: its own), and constants as the kernel reads them."""

    shape: Callable[[Value], Shape]
    operator: Callable[[Node], Operator | None] = lambda _node: None
    packed: Callable[[Value, Array], Array] = lambda _value, array: array


def view_of(group: Group, extents: Extents, target: Target) -> View:
    """The view with the fewest and longest axes that the group's operators allow."""
    if group.is_pointwise and all(node.op.scalar is not None for node in group.nodes):
        return _merged(group, extents) or _plain(extents)
    if group.node.op.name in ("nn.layer_norm", "nn.rms_norm"):
        return _normalized_rows(group, extents) or _plain(extents)
    if group.node.op.name in ("nn.softmax", "nn.log_softmax"):
        return _along_axis(extents, group.node.attrs.axis % len(shape_of(group.output)))
    if group.node.op.name == "concatenate":
        return _joined(group, extents)
    anchor = group.anchor
    if anchor is not None and anchor.op.name in REDUCTIONS:
        return _reduced(group, extents, anchor) or _plain(extents)
    if anchor is not None and anchor.op.name == "nn.conv2d" and _is_in_pixels(group, anchor):
        return _pixels(extents, anchor)
    if anchor is not None and anchor.op.name == "nn.dense" and _is_in_rows(group, anchor):
        return _rows(extents, anchor, target)
    return _plain(extents)


def _plain(extents: Extents) -> View:
    """Every tensor as it is."""
    return View(lambda value: tuple(extents.size(dim) for dim in shape_of(value)))


def _in_runs(
    extents: Extents, axes: Axes, shapes: Mapping[Value, tuple[Dim, ...]]
) -> Callable[[Value], Shape]:
    """Shapes, given with all axes, that have runs of axes as one."""

    def shape(value: Value) -> Shape:
        return tuple(extents.total(shapes[value][first:stop]) for first, stop in axes.runs)

    return shape


def _bias_as_sum(node: Node) -> Operator | None:
    """A bias, which is seen with the axes of what it is added to."""
    return ("add", Attrs()) if node.op.name == "nn.bias_add" else None


def _merged(group: Group, extents: Extents) -> View | None:
    """Pointwise nodes with as few axes as broadcasting allows; None where it is not known what is
    broadcast."""
    shape = shape_of(group.output)
    values = (value for node in group.nodes for value in (*node.args, *node.outputs))
    shapes = operand_shapes(group.nodes, len(shape))
    if isinstance(shapes, Refusal) or any(len(shape_of(v)) > len(shape) for v in values):
        return None
    shapes |= {node.output: padded(shape_of(node.output), len(shape)) for node in group.nodes}
    if unclear(shape, shapes.values()) is not None:
        return None
    return View(_in_runs(extents, merged(shape, shapes.values()), shapes), _bias_as_sum)


def _on_second_axis(node: Node) -> Operator:
    return node.op.name, replace(node.attrs, axis=1)


def _normalized_rows(group: Group, extents: Extents) -> View | None:
    """A normalisation over the last axes: all of them as one, and all before them as another; None
    unless scale and shift are one row each."""
    data, *parameters = group.node.args
    whole = shape_of(data)
    first = group.node.attrs.axis % len(whole)
    row = whole[first:]
    is_row = (
        shape_of(parameter)[-len(row) :] == row and product(shape_of(parameter)) == product(row)
        for parameter in parameters
    )
    if data in parameters or not all(is_row):
        return None

    def shape(value: Value) -> Shape:
        dims = shape_of(value)
        if value not in (data, group.output):
            return (extents.total(dims),)
        return extents.total(dims[:first]), extents.total(dims[first:])

    return View(shape, _on_second_axis)


def _along_axis(extents: Extents, axis: int) -> View:
    """What is computed along one axis: all axes before it as one, and all behind it."""

    def shape(value: Value) -> Shape:
        dims = shape_of(value)
        behind = (extents.total(dims[axis + 1 :]),) if dims[axis + 1 :] else ()
        row = extents.size(dims[axis])
        return extents.total(dims[:axis]), row, *behind

    return View(shape, _on_second_axis)


def _joined(group: Group, extents: Extents) -> View:
    """A concatenation: the axes before the joined one as one, and it with all behind it as one."""
    whole = shape_of(group.output)
    axis = group.node.attrs.axis % len(whole)

    def shape(value: Value) -> Shape:
        return extents.total(whole[:axis]), extents.total(shape_of(value)[axis:])

    return View(shape)


def _rows(extents: Extents, anchor: Node, target: Target) -> View:
    """A dense layer and what follows it, all rows in one axis and units in blocks of a width."""
    data, weight = anchor.args
    whole = shape_of(anchor.output)
    width = _width(whole[-1], anchor.output.dtype, target)

    def shape(value: Value) -> Shape:
        dims = shape_of(value)
        if value is weight:
            return dims[0] // width, dims[1], width
        if value is not data and product(dims) == 1:
            return ()
        # The rows are as long as the weights say, be that known of the data or not.
        columns = shape_of(weight)[1:] if value is data else (dims[-1] // width, width)
        if product(dims[:-1]) == 1 and value is not data:
            return columns
        return extents.total(whole[:-1]), *columns

    def packed(value: Value, array: Array) -> Array:
        return np.ascontiguousarray(pack_units(array, width)) if value is weight else array

    product_of_rows = ("einsum", EinsumAttrs("ik,jkl->ijl"))
    return View(shape, lambda node: product_of_rows if node is anchor else None, packed)


def _pixels(extents: Extents, anchor: Node) -> View:
    """A convolution of single pixels and what follows it, all pixels in one axis."""
    weight, whole = anchor.args[1], shape_of(anchor.output)

    def shape(value: Value) -> Shape:
        dims = shape_of(value)
        if value is weight:
            return dims[:2]
        if len(dims) < len(whole):
            return () if product(dims) == 1 else dims  # a bias is a list
        pixels = extents.total(whole[2:]) if dims[2:] == whole[2:] else 1
        return (*(extents.size(dim) for dim in dims[:2]), pixels)

    def packed(value: Value, array: Array) -> Array:
        return array.reshape(array.shape[:2]) if value is weight else array

    product_of_pixels = ("einsum", EinsumAttrs("ncp,kc->nkp"))
    return View(shape, lambda node: product_of_pixels if node is anchor else None, packed)


def _reduced(group: Group, extents: Extents, anchor: Node) -> View | None:
    """A reduction and the pointwise nodes around it: runs of axes that are all reduced, or all kept
    and not broadcast along, are one axis. Axes that are reduced stay, with one element. None where
    that is not possible or not known."""
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
    reduction = (anchor.op.name, ReduceAttrs(reduced, keepdims=True))
    shapes = _in_runs(extents, runs, {**earlier, **spread})
    return View(shapes, lambda node: reduction if node is anchor else _bias_as_sum(node))


def _spread(operand: tuple[Dim, ...], rest: tuple[Dim, ...], axes: set[int]) -> tuple[Dim, ...]:
    """An operand of the result's rank under the rank of what is reduced."""
    if len(operand) == len(rest):
        return operand
    left = iter(operand)
    return tuple(1 if axis in axes else next(left) for axis in range(len(rest)))


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
