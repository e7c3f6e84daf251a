"""Backends that are wrong, each in its own way, and one that is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.byoc.contract import Backend, PatternTable, Runner
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node
from graft.rewrite.pattern import is_op, wildcard

Results = Sequence[Array] | None
Behaviour = Callable[[Graph, Sequence[Array], Sequence[Array]], Results]


def results(region: Graph, inputs: Sequence[Array]) -> list[Array]:
    return [np.asarray(item) for item in evaluate(region, inputs)]


class Wrong(Backend):
    """Runs regions as `behave` says; by default rightly."""

    name = "wrong"
    version = "1"

    def __init__(self, *operators: str, behave: Behaviour | None = None) -> None:
        self._operators = operators
        self._behave: Behaviour = behave or (lambda region, inputs, _: results(region, inputs))
        self._regions: list[Graph] = []
        self._loaded: list[Graph] = []

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in self._operators]

    def compile(self, region: Graph) -> bytes:
        self._regions.append(region)
        return str(len(self._regions) - 1).encode()

    def load(self, blob: bytes) -> Runner:
        region = replace(self._regions[int(blob)])
        self._loaded.append(region)  # so that no other gets its identity
        return lambda inputs, outputs: self._behave(region, inputs, outputs)


class Fused(Wrong):
    """Has one pattern of several operators, and ignores the bias."""

    def patterns(self) -> PatternTable:
        conv = is_op("nn.conv2d")(wildcard(), wildcard())
        return [("fused", is_op("nn.relu")(is_op("nn.bias_add")(conv, wildcard())))]


def without(name: str, value: Any) -> Behaviour:
    """Ignores an attribute: takes `value` for it wherever that makes sense."""

    def plain(node: Node) -> Node:
        if not hasattr(node.attrs, name):
            return node
        attrs = replace(node.attrs, **{name: value})
        return replace(node, attrs=attrs)

    def behave(region: Graph, inputs: Sequence[Array], outputs: Sequence[Array]) -> Results:
        nodes = tuple(plain(node) for node in region.nodes)
        (node,) = (node for node in nodes if node.op.name != "constant")
        operands = [_operand(region, value, inputs) for value in node.inputs]
        full = np.asarray(node.op.evaluate(node.attrs, *operands))
        cut = tuple(slice(0, extent) for extent in outputs[0].shape)
        return [np.ascontiguousarray(full[cut])]

    return behave


class Diamond(Wrong):
    """Has a dominator pattern: what leads from an exponential to a sum, on all ways."""

    def patterns(self) -> PatternTable:
        way = is_op("negative", "tanh", "nn.relu")
        return [("diamond", is_op("add").dominates(is_op("exp"), way))]


def one_branch(region: Graph, inputs: Sequence[Array], outputs: Sequence[Array]) -> Results:
    """Follows one way up from the sum, and takes what it finds there for both operands."""
    last = region.nodes[-1]
    first = last.args[0]
    single = replace(region, nodes=(*region.nodes[:-1], replace(last, inputs=(first, first))))
    return [np.broadcast_to(item, outputs[0].shape) for item in results(single, inputs)]


def interleaved_groups(
    region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]
) -> Results:
    """Deals channels out to groups one by one, instead of cutting them into groups."""
    (node,) = (node for node in region.nodes if node.op.name != "constant")
    data, weight = (_operand(region, value, inputs) for value in node.inputs)
    batch, channels, *pixels = data.shape
    groups = node.attrs.groups
    dealt = data.reshape(batch, channels // groups, groups, *pixels).swapaxes(1, 2)
    return [np.asarray(node.op.evaluate(node.attrs, dealt.reshape(data.shape), weight))]


def shifted_padding(region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]) -> Results:
    """Begins one pixel late where it pads."""
    (node,) = (node for node in region.nodes if node.op.name != "constant")
    rank = len(node.attrs.padding) // 2
    late = [min(1, width) for width in node.attrs.padding[:rank]]
    shifts = (*(-one for one in late), *late)
    padding = tuple(p + shift for p, shift in zip(node.attrs.padding, shifts, strict=True))
    operands = [_operand(region, value, inputs) for value in node.inputs]
    return [np.asarray(node.op.evaluate(replace(node.attrs, padding=padding), *operands))]


def _operand(region: Graph, value: Any, inputs: Sequence[Array]) -> Any:
    if value is None:
        return None
    if value in region.inputs:
        return inputs[region.inputs.index(value)]
    return region.producers[value].attrs.value.array


def writes_inputs(region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]) -> Results:
    found = results(region, inputs)
    for array in inputs:
        array[...] = array + array
    return found


def keeps_first() -> Behaviour:
    """Looks at the inputs of the first call for ever after."""
    kept: dict[int, list[Array]] = {}

    def behave(region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]) -> Results:
        return results(region, kept.setdefault(id(region), list(inputs)))

    return behave


def writes_late() -> Behaviour:
    """Writes into the memory of the call before, too."""
    kept: dict[int, Sequence[Array]] = {}

    def behave(region: Graph, inputs: Sequence[Array], outputs: Sequence[Array]) -> Results:
        found = results(region, inputs)
        for array in kept.get(id(region), ()):
            array[...] = 7
        kept[id(region)] = outputs
        return found

    return behave


def shares_memory() -> Behaviour:
    """One workspace for all calls, and time enough to get in each other's way."""
    workspace: dict[int, list[Array]] = {}

    def behave(region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]) -> Results:
        workspace[id(region)] = [np.array(array) for array in inputs]
        time.sleep(0.005)
        return results(region, workspace[id(region)])

    return behave


def dislikes_empty(region: Graph, inputs: Sequence[Array], outputs: Sequence[Array]) -> Results:
    if any(array.size == 0 for array in outputs):
        raise ZeroDivisionError("no elements")
    return results(region, inputs)


def wider(region: Graph, inputs: Sequence[Array], _outputs: Sequence[Array]) -> Results:
    return [array.astype(np.float64) for array in results(region, inputs)]


def without_broadcasting(
    region: Graph, inputs: Sequence[Array], outputs: Sequence[Array]
) -> Results:
    """Walks both operands as if they were as long as the result."""
    (node,) = (node for node in region.nodes if node.op.name != "constant")
    left, right = (_operand(region, value, inputs) for value in node.inputs)
    size = outputs[0].shape
    return [np.resize(left, size) + np.resize(right, size)]
