"""Merges chains of data movement: views of views, transposes of transposes, concats, pads."""

from __future__ import annotations

from collections.abc import Sequence

from graft.base.dims import AnyDim, IndexExpr
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.passes.eliminate_noops import same_shape
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("simplify_movement")

# Operators that keep all elements in their order and change the shape only.
VIEWS = ("reshape", "squeeze", "expand_dims")


def is_view(node: Node) -> bool:
    """Whether the node's result is its operand's memory under another shape."""
    return node.op.name in VIEWS


def simplify_movement(graph: Graph) -> Graph:
    """Apply the rules until none fits."""
    return apply_rules(graph, RULES)


def _reshaped(site: Site, data: Value, shape: Sequence[AnyDim]) -> Value:
    return site.emit("reshape", data, shape=shape, allowzero=0 in shape)


@RULES.rule(is_op(*VIEWS))
def view_of_view(site: Site) -> Replacement:
    inner = site.producer(site.node.args[0])
    if inner is None or inner.op.name not in VIEWS:
        return Refusal("the operand is not a view")
    data = inner.args[0]
    if same_shape(data, site.root):
        return data
    if not site.root.tensor.is_static:
        return Refusal("the shape is not known")
    return _reshaped(site, data, site.root.shape or ())


@RULES.rule(is_op("transpose"))
def transpose_of_transpose(site: Site) -> Replacement:
    inner = site.producer(site.node.args[0])
    if inner is None or inner.op.name != "transpose":
        return Refusal("the operand is not a transpose")
    outer_axes = site.node.attrs.axes
    inner_axes = inner.attrs.axes
    if outer_axes is None or inner_axes is None:
        return Refusal("the axes are not written out")
    axes = [inner_axes[axis] % len(inner_axes) for axis in outer_axes]
    if axes == sorted(axes):
        return inner.args[0]
    return site.emit("transpose", inner.args[0], axes=axes)


@RULES.rule(is_op("transpose"))
def transpose_of_unit_axes(site: Site) -> Replacement:
    """Moving axes of extent 1 around changes no order: a reshape, which is free."""
    data = site.node.args[0]
    axes = site.node.attrs.axes
    if axes is None or not data.tensor.is_static or not data.shape:
        return Refusal("the shape is not known")
    moved = [axis % len(axes) for axis in axes if data.shape[axis] != 1]
    if moved != sorted(moved):
        return Refusal("axes with elements change places")
    # The declared result may know less of the shape than the operand does.
    return _reshaped(site, data, [data.shape[axis] for axis in axes])


@RULES.rule(is_op("concatenate"))
def concat_of_concat(site: Site) -> Replacement:
    """Flatten nested concatenations in one step, from the outermost one.

    Only those with a single use are merged, so that no operand is duplicated."""
    axis = _axis(site.node.attrs.axis, site.root.tensor)
    if any(_merges(reader, axis, site.root, site) for reader in site.readers(site.root)):
        return Refusal("it is merged into the one that reads it")
    operands: list[Value] = []
    waiting = list(reversed(site.node.args))
    reader = dict.fromkeys(waiting, site.node)
    while waiting:
        value = waiting.pop()
        inner = site.producer(value)
        if inner is not None and _merges(reader[value], axis, value, site):
            waiting += reversed(inner.args)
            reader.update((one, inner) for one in inner.args)
        else:
            operands.append(value)
    if len(operands) == len(site.node.args):
        return Refusal("no operand is a concatenation that only this one reads")
    return site.emit("concatenate", *operands, axis=axis)


def _merges(reader: Node, axis: int | None, value: Value, site: Site) -> bool:
    """Whether a value is a concatenation along the axis that one operand of the reader is."""
    inner = site.producer(value)
    return (
        reader.op.name == "concatenate"
        and inner is not None
        and inner.op.name == "concatenate"
        and _axis(reader.attrs.axis, reader.output.tensor) == axis
        and _axis(inner.attrs.axis, value.tensor) == axis
        and site.only_use(value)
        and reader.inputs.count(value) == 1
    )


def _axis(axis: int, type_: TensorType) -> int | None:
    if axis >= 0:
        return axis
    return None if type_.rank is None else axis + type_.rank


_CONVS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")


@RULES.rule(is_op(*_CONVS))
def pad_before_convolution(site: Site) -> Replacement:
    """Zero padding in front of a convolution becomes part of the convolution's own."""
    data, weight = site.node.args
    pad = site.producer(data)
    if pad is None or pad.op.name != "nn.pad" or len(pad.args) > 1:
        return Refusal("the data are not padded by known widths")
    attrs = pad.attrs
    widths, mode = attrs.pad_width, attrs.mode
    value, axes = attrs.value, attrs.axes
    rank = data.tensor.rank
    if mode != "constant" or value not in (None, 0) or widths is None or axes or rank is None:
        return Refusal("the padding is not plain zeros")
    if any(isinstance(width, IndexExpr) or width < 0 for width in widths):
        return Refusal("the padding crops or is symbolic")
    begins, ends = widths[:rank], widths[rank:]
    if any((*begins[:2], *ends[:2])):
        return Refusal("batch or channels are padded")
    own = site.node.attrs.padding
    padding = [a + b for a, b in zip((*begins[2:], *ends[2:]), own, strict=True)]
    return site.again(site.node, pad.args[0], weight, padding=padding)
