"""Moves factors that are computed at run time from the weights of convolutions to their data.

A graph enters in which weights are constants times factors along the channels, as generators that
are steered by a style have them: `w[o, i] * style[b, i] * norm[b, o]`, one group of the convolution
for each item `b` of the batch. Factors along input channels leave on the data and those along
output channels on the result, so that the weights are constant, can be packed when the model is
compiled, and are the same for all items. Results are the same, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graft.base.dtypes import Array
from graft.ir.graph import Graph, Value
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("move_modulation")

# Of weights with an axis for the items of a batch: [items, outputs, inputs, rows, columns].
_RANK = 5
_ITEMS, _OUTPUTS, _INPUTS = range(3)

Shape = tuple[int, ...]


def move_modulation(graph: Graph) -> Graph:
    """Apply the rule to every such convolution."""
    return apply_rules(graph, RULES)


@dataclass(frozen=True, slots=True)
class _Factors:
    """Weights taken apart: a constant, and factors along input and along output channels."""

    constant: Array
    inputs: list[Value]
    outputs: list[Value]


@RULES.rule(is_op("nn.conv2d"))
def modulated_convolution(site: Site) -> Replacement:
    node = site.node
    data, weight = node.args
    if site.array(weight) is not None or not (weight.tensor.is_static and data.tensor.is_static):
        return Refusal("the weights are constant, or sizes are not known")
    apart = _apart(site, weight)
    if isinstance(apart, Refusal):
        return apart
    items, batch = node.attrs.groups, _shape(data)[0]
    if items > 1 and (batch != 1 or _shape(weight)[0] != items * apart.constant.shape[0]):
        return Refusal("the groups are not the items of a batch")
    inputs, image = apart.constant.shape[1], data
    if items > 1:
        image = site.emit("reshape", data, shape=(items, inputs, *_shape(data)[2:]))
    for factor in apart.inputs:
        image = site.emit("multiply", image, _per_channel(site, factor, _INPUTS))
    result = site.again(node, image, site.constant(apart.constant), groups=1)
    for factor in apart.outputs:
        result = site.emit("multiply", result, _per_channel(site, factor, _OUTPUTS))
    return site.emit("reshape", result, shape=_shape(node.output)) if items > 1 else result


@RULES.rule(lambda x: op.reshape(op.reshape(x)))
def view_there_and_back(site: Site, x: Value) -> Replacement:
    """The view of items as groups that a model has around such a convolution."""
    is_same = x.tensor.is_static and x.type == site.node.output.type
    return x if is_same else Refusal("the shape is another one")


def _apart(site: Site, weight: Value) -> _Factors | Refusal:
    producer = site.producer(weight)
    if producer is not None and producer.op.name == "reshape":
        weight = producer.args[0]
    leaves = list(_leaves(site, weight))
    whole = (1, *_padded(weight)[1:])
    constants = [leaf for leaf in leaves if site.array(leaf) is not None]
    mains = [leaf for leaf in constants if _padded(leaf) == whole]
    if len(leaves) < 2 or len(mains) != 1 or weight.tensor.rank not in (_RANK, _RANK - 1):
        return Refusal("the weights are no constant times factors")
    factors: dict[int, list[Value]] = {_INPUTS: [], _OUTPUTS: []}
    for leaf in leaves:
        if leaf is mains[0]:
            continue
        shape = _padded(leaf)
        side = _INPUTS if shape[_OUTPUTS] == 1 else _OUTPUTS
        if shape[3:] != (1, 1) or 1 not in (shape[_INPUTS], shape[_OUTPUTS]):
            return Refusal("a factor is not one of channels alone")
        factors[side].append(leaf)
    main = site.array(mains[0])
    assert main is not None
    return _Factors(main.reshape(whole[1:]), factors[_INPUTS], factors[_OUTPUTS])


def _leaves(site: Site, value: Value) -> Iterator[Value]:
    """The factors of a product."""
    producer = site.producer(value)
    if producer is None or producer.op.name != "multiply":
        yield value
        return
    for operand in producer.args:
        yield from _leaves(site, operand)


def _per_channel(site: Site, factor: Value, axis: int) -> Value:
    """A factor as images are multiplied by it: [items, channels, 1, 1]."""
    shape = _padded(factor)
    return site.emit("reshape", factor, shape=(shape[_ITEMS], shape[axis], 1, 1))


def _shape(value: Value) -> Shape:
    return tuple(dim for dim in value.shape or () if isinstance(dim, int))


def _padded(value: Value) -> Shape:
    shape = _shape(value)
    return (1,) * (_RANK - len(shape)) + shape
