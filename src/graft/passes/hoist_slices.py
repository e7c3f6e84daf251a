"""Moves slices up past operators that compute rows independently: what is dropped is not computed.

A classifier reads one token of a transformer, a decoder the last one. Their last layers then work
on that token alone: a `take` or `strided_slice` of a layer's result becomes the layer of a slice,
up to where rows are mixed or something else reads the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graft.base.dim_questions import provably_below, provably_equal
from graft.base.dims import AnyDim
from graft.ir.graph import Graph, Node, Value
from graft.passes.simplify_movement import VIEWS
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("hoist_slices")

# How many operators above a slice are searched for one that it pays to shrink.
_REACH = 16

# Per operand, the axes that are sliced; none of an operand that stays as it is.
_OperandAxes = Sequence[Sequence[int]]


def hoist_slices(graph: Graph) -> Graph:
    """Apply the rule until it fits nowhere; each application moves a slice towards the inputs."""
    return apply_rules(graph, RULES)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A node that keeps a part of some axes of its operand, counted from the front."""

    node: Node
    axes: tuple[int, ...]

    def ranked(self, site: Site) -> _Slice:
        """The slice with a list of indices, which keeps the rank, in place of one index."""
        if self.node.op.name != "take" or self.node.args[1].tensor.rank == 1:
            return self
        index = site.emit("reshape", self.node.args[1], shape=(1,))
        return replace(self, node=replace(self.node, inputs=(self.node.inputs[0], index)))

    def of(self, site: Site, data: Value, axes: Sequence[int]) -> Value:
        """The same part of other axes of another value, which keeps its rank."""
        if not axes:
            return data
        if self.node.op.name == "take":
            return site.again(self.node, data, self.node.args[1], axis=axes[0])
        attrs = self.node.attrs
        every = _slice_axes(self.node)
        own_axes = [(every.index(self.axes[position]), axis) for position, axis in enumerate(axes)]
        bounds = {
            name: None if numbers is None else tuple(numbers[at] for at, _ in own_axes)
            for name in ("begin", "end", "strides")
            for numbers in (getattr(attrs, name),)
        }
        return site.again(self.node, data, axes=tuple(axes), **bounds)


@RULES.rule(is_op("take", "strided_slice"))
def slice_of_rows(site: Site) -> Replacement:
    cut = _slice(site.node)
    if isinstance(cut, Refusal):
        return cut
    data = site.node.args[0]
    twin = _twin(site, data)
    if twin is not None:
        return twin
    producer = site.producer(data)
    if producer is None or not site.only_use(data):
        return Refusal("something else reads the whole")
    if not _reaches_layer(site, producer):
        return Refusal("no layer above it would have less to do")
    operand_axes = _operand_axes(producer, cut.axes)
    if isinstance(operand_axes, Refusal):
        return operand_axes
    cut = cut.ranked(site)
    pairs = zip(producer.args, operand_axes, strict=True)
    operands = [cut.of(site, value, axes) for value, axes in pairs]
    if producer.op.name in VIEWS:
        result = site.emit("reshape", *operands, shape=_cut_shape(site.node, cut, data))
    else:
        result = site.again(producer, *operands)
    if len(site.root.shape or ()) < len(data.shape or ()):
        return site.emit("squeeze", result, axes=cut.axes)
    return result


def _slice(node: Node) -> _Slice | Refusal:
    """The slice that a node is, if it keeps at most half of every axis that it cuts."""
    data = node.args[0]
    if data.shape is None or node.output.shape is None:
        return Refusal("the rank is not known")
    if node.op.name == "take":
        index = node.args[1].tensor
        if index.rank not in (0, 1):
            return Refusal("the indices are no list")
        cut = _Slice(node, (node.attrs.axis % len(data.shape),))
        extents = [index.size]
    else:
        if len(node.args) > 1 or node.attrs.begin is None:
            return Refusal("the bounds are data")
        axes = _slice_axes(node)
        changed = [a for a in axes if not provably_equal(data.shape[a], node.output.shape[a])]
        cut, extents = _Slice(node, tuple(changed)), [node.output.shape[axis] for axis in changed]
    for axis, count in zip(cut.axes, extents, strict=True):
        if not provably_below(count * 2, data.shape[axis] + 1):
            return Refusal("it keeps more than half, which would be copied")
    return cut if cut.axes else Refusal("it keeps everything")


def _slice_axes(node: Node) -> list[int]:
    attrs, rank = node.attrs, len(node.args[0].shape or ())
    axes = range(len(attrs.begin)) if attrs.axes is None else attrs.axes
    return [axis % rank for axis in axes]


def _twin(site: Site, data: Value) -> Value | None:
    """The result of an equal slice of the same value, left by a residual connection."""
    for reader in site.readers(data):
        same = reader.op is site.node.op and reader.inputs == site.node.inputs
        if same and reader is not site.node and reader.attrs == site.node.attrs:
            return reader.output
    return None


def _reaches_layer(site: Site, producer: Node) -> bool:
    """Whether a layer that rows pass independently is close above, before what would stop it."""
    waiting = [producer]
    for _ in range(_REACH):
        if not waiting:
            return False
        node = waiting.pop()
        if node.op.name in _LAYERS:
            return True
        if node.op.name in VIEWS or node.op.name in _RULES or node.op.kind.is_pointwise:
            above = (site.producer(value) for value in node.args if site.only_use(value))
            waiting += (one for one in above if one is not None)
    return False


def _cut_shape(node: Node, cut: _Slice, data: Value) -> tuple[AnyDim, ...]:
    """The shape of the data with the extents that the slice leaves."""
    shape = list(data.shape or ())
    for axis in cut.axes:
        is_take = node.op.name == "take"
        shape[axis] = node.args[1].tensor.size if is_take else (node.output.shape or ())[axis]
    return tuple(shape)


def _operand_axes(producer: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    """Along which axes the operands are sliced so that the result is sliced along `axes`."""
    if len(producer.outputs) != 1 or None in producer.inputs:
        return Refusal("it has several results or lacks operands")
    if any(value.shape is None for value in (*producer.args, producer.output)):
        return Refusal("a rank is not known")
    rule = _RULES.get(producer.op.name)
    if rule is None and producer.op.kind.is_pointwise and not hasattr(producer.attrs, "axis"):
        rule = _pointwise
    if rule is None:
        return Refusal(f"{producer.op.name} is not known to compute rows independently")
    return rule(producer, axes)


def _aligned(value: Value, result: Value, axes: Sequence[int]) -> list[int]:
    """The axes of an operand that stand for axes of the result, -1 where that is not certain;
    without those along which it broadcasts."""
    shape, target = value.shape or (), result.shape or ()
    lag = len(target) - len(shape)
    own = [axis for axis in axes if axis >= lag and shape[axis - lag] != 1]
    return [a - lag if provably_equal(shape[a - lag], target[a]) else -1 for a in own]


def _pointwise(node: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    aligned = [_aligned(value, node.output, axes) for value in node.args]
    if any(len(own) not in (0, len(axes)) or -1 in own for own in aligned):
        return Refusal("an operand broadcasts along some of the axes only")
    return aligned


def _bias_add(node: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    if node.attrs.axis % len(node.output.shape or ()) in axes:
        return Refusal("the bias runs along the axis")
    return [axes, ()]


def _normalized(node: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    """Normalisations over the axes from `axis` on, with parameters of these."""
    if max(axes) >= node.attrs.axis % len(node.output.shape or ()):
        return Refusal("it normalises over the axis")
    return [axes, *[()] * (len(node.args) - 1)]


def _softmax(node: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    if node.attrs.axis % len(node.output.shape or ()) in axes:
        return Refusal("it normalises over the axis")
    return [axes]


def _dense(node: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    units = len(node.output.shape or ()) - 1
    if axes == (units,):
        return [(), (0,)]
    return Refusal("rows and units are sliced") if units in axes else [axes, ()]


def _attention(node: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    """Queries see all keys, wherever they stand."""
    attrs, query = node.attrs, len(node.output.shape or ()) - 2
    windowed = attrs.causal or attrs.left_window >= 0 or attrs.right_window >= 0
    if windowed or len(node.args) > 3 or tuple(axes) != (query,):
        return Refusal("what a query sees depends on where it stands")
    return [(len(node.args[0].shape or ()) - 2,), (), ()]


def _transpose(node: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    order = node.attrs.axes
    if order is None:
        return Refusal("the axes are not written out")
    return [[order[axis] % len(order) for axis in axes]]


def _view(node: Node, axes: Sequence[int]) -> _OperandAxes | Refusal:
    """Axes that a reshape leaves as they are, with as many elements before them."""
    before, after = node.args[0].tensor, node.output.tensor
    if not (before.is_static and after.is_static):
        return Refusal("the shape is not known")
    positions = {span: axis for axis, span in enumerate(_spans(before.shape or ()))}
    spans = _spans(after.shape or ())
    own = [positions[spans[axis]] for axis in axes if spans[axis] in positions]
    return [own] if len(own) == len(axes) else Refusal("the reshape joins or splits the axis")


def _spans(shape: Sequence[Any]) -> list[tuple[int, int]]:
    """Per axis, how many steps are taken along the axes before it, and its extent."""
    return [(math.prod(shape[:axis]), extent) for axis, extent in enumerate(shape)]


_RULES: dict[str, Callable[[Node, Sequence[int]], _OperandAxes | Refusal]] = {
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(("nn.layer_norm", "nn.rms_norm"), _normalized),
    **dict.fromkeys(("nn.softmax", "nn.log_softmax"), _softmax),
    "nn.attention": _attention,
    "nn.bias_add": _bias_add,
    "nn.dense": _dense,
    "transpose": _transpose,
}
# Operators that cost enough for a slice to be moved above them.
_LAYERS = frozenset(
    ("nn.attention", "nn.dense", "nn.layer_norm", "nn.log_softmax", "nn.rms_norm", "nn.softmax")
)
