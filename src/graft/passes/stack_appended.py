"""Replaces carried values that a loop only appends to by stacked scan outputs.

A tensor to which every iteration concatenates a slice, or a sequence into which it inserts an
element, is copied in each iteration although nobody reads it before the loop ends. The body returns
the slice instead, and the stacked slices are brought into shape behind the loop. Native code runs
loops whose carried values keep their sizes, which these then do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, bare_symbol
from graft.ir.attrs import symbols_in_attrs
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.ir.nested import change_nested
from graft.ir.types import TensorType, Type, symbols_in
from graft.ops.bodies import seen_outside
from graft.ops.control import nested_bindings
from graft.ops.slicing import FAR
from graft.passes.fold_constants import fold_constants

T = TypeVar("T")

# The message of concatenating an empty sequence.
NOTHING_TO_JOIN = "an empty sequence has no elements to join"


def stack_appended(graph: Graph) -> Graph:
    """Apply to every loop, innermost first, and infer types behind them again."""
    stacked = _stacked(graph)
    return graph if stacked is graph else fold_constants(stacked)


def _stacked(graph: Graph) -> Graph:
    graph = change_nested(graph, _stacked)
    if any(_candidates(graph, node) for node in graph.nodes if node.op.name == "loop"):
        return _Rebuilt(graph).run()
    return graph


@dataclass(frozen=True, eq=False)
class _Appended:
    """A carried value: its index, the slice appended in each iteration, and the node that does."""

    index: int
    slice_: Value
    maker: Node

    @property
    def is_sequence(self) -> bool:
        return self.maker.op.name == "sequence.insert"

    @property
    def in_front(self) -> bool:
        """Whether a slice goes before those of earlier iterations."""
        return self.maker.inputs[0] is self.slice_


@dataclass(frozen=True, eq=False)
class _Loop:
    """A loop that stacks slices of a type instead of carrying a value."""

    node: Node
    slice_: TensorType


def _candidates(graph: Graph, node: Node) -> list[_Appended]:
    """Carried values whose only reader is the body's own append."""
    body: Graph = node.attrs.body
    candidates = []
    for index in range(node.attrs.carried):
        before, after = body.inputs[2 + index], body.outputs[1 + index]
        maker = body.producers.get(after)
        read = [*body.users.get(before, ()), *body.users.get(after, ())]
        returned = body.outputs.count(before) + body.outputs.count(after)
        if maker is None or read != [maker] or returned != 1 or len(maker.args) != 2:
            continue
        slice_ = next((value for value in maker.args if value is not before), None)
        if slice_ is None or not isinstance(slice_.type, TensorType):
            continue
        appended = _Appended(index, slice_, maker)
        if maker.op.name == "concatenate" or _is_joined_list(graph, node, appended):
            candidates.append(appended)
    return candidates


def _is_joined_list(graph: Graph, node: Node, appended: _Appended) -> bool:
    """Whether a sequence starts empty and is only concatenated after the loop."""
    first, result = node.inputs[2 + appended.index], node.outputs[appended.index]
    maker = None if first is None else graph.producers.get(first)
    readers = graph.users.get(result, [])
    return (
        appended.is_sequence
        and maker is not None
        and maker.op.name == "sequence.empty"
        and result not in graph.outputs
        and bool(readers)
        and all(reader.op.name == "sequence.concatenate" for reader in readers)
    )


def _without(node: Node, appended: _Appended) -> _Loop | None:
    """The loop that stacks the slices; None if their size may change between iterations."""
    body: Graph = node.attrs.body
    index, slice_ = appended.index, appended.slice_
    smaller = replace(
        body,
        inputs=_drop(body.inputs, 2 + index),
        nodes=tuple(one for one in body.nodes if one is not appended.maker),
        outputs=(*_drop(body.outputs, 1 + index), slice_),
        output_names=(*_drop(body.output_names, 1 + index), body.output_names[1 + index]),
    )
    named = (symbols_in_attrs(one.attrs) for one in smaller.nodes)
    if not symbols_in(slice_.type).union(*named) <= smaller.input_symbols:
        return None
    inputs = _drop(node.inputs, 2 + index)
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    attrs = replace(node.attrs, body=smaller, carried=node.attrs.carried - 1)
    smaller_loop = replace(node, inputs=inputs, attrs=attrs, outputs=_drop(node.outputs, index))
    each = seen_outside(slice_.type, nested_bindings(smaller_loop, smaller))
    if not isinstance(each, TensorType) or each.shape is None or UNKNOWN in each.shape:
        return None
    return _Loop(smaller_loop, each)


def _drop(items: tuple[T, ...], index: int) -> tuple[T, ...]:
    return (*items[:index], *items[index + 1 :])


def _begins_alike(node: Node, appended: _Appended, loop: _Loop) -> bool:
    """Whether the initial tensor certainly has the extents of the slices except along the axis,
    and nothing else depends on the extent along it."""
    first, before = node.inputs[2 + appended.index], node.attrs.body.inputs[2 + appended.index]
    if first is None or not isinstance(first.type, TensorType):
        return False
    shape, grown, slice_ = first.shape, before.shape, loop.slice_.shape or ()
    axis = _axis(appended.maker.attrs.axis, len(slice_))
    if axis is None or shape is None or len(shape) != len(slice_):
        return False
    if _drop(shape, axis) != _drop(slice_, axis):
        return False
    if grown is None:
        return True
    body: Graph = loop.node.attrs.body
    others = frozenset().union(*(symbols_in(value.type) for value in body.inputs))
    extent = bare_symbol(grown[axis])
    rest = TensorType(before.dtype, _drop(grown, axis))
    types = seen_outside(rest, nested_bindings(loop.node, body))
    alike = zip(_dims(types), _drop(shape, axis), strict=True)
    return extent not in (None, *others) and all(dim in (UNKNOWN, own) for dim, own in alike)


def _dims(type_: Type) -> tuple[AnyDim, ...]:
    return (type_.shape or ()) if isinstance(type_, TensorType) else ()


def _axis(axis: int, rank: int) -> int | None:
    """An axis counted from the front; None where there is none."""
    return axis % rank if -rank <= axis < rank else None


class _Rebuilt:
    """Rebuilds a graph with changed loops."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.same: dict[Value, Value] = {}
        self.lists: dict[Value, tuple[Node, Value]] = {}  # loop and stack that replace a list
        self.builder = Builder.beside(graph, "s")

    def run(self) -> Graph:
        for node in self.graph.nodes:
            current = node.on(self.same)
            self.builder.location = node.location
            if node.op.name == "loop":
                self.loop(node, current)
            elif node.op.name == "sequence.concatenate" and current.args[0] in self.lists:
                self.same[node.output] = self.joined(node, *self.lists[current.args[0]])
            else:
                self.builder.append(current)
        if not self.same:
            return self.graph
        outputs = [self.same.get(value, value) for value in self.graph.outputs]
        return self.builder.build(*outputs, names=self.graph.output_names)

    def loop(self, node: Node, current: Node) -> None:
        """Add the loop with scan outputs instead of the values that it appends to."""
        ready: list[tuple[_Appended, Value]] = []
        for appended in reversed(_candidates(self.graph, node)):  # those before keep their places
            loop = _without(current, appended)
            if loop is None or not self.fits(node, current, appended, loop):
                continue
            shape = (UNKNOWN, *(loop.slice_.shape or ()))
            type_ = self.builder.named(TensorType(loop.slice_.dtype, shape))
            stack = Value(self.builder.names(appended.slice_.name), type_)
            current = replace(loop.node, outputs=(*loop.node.outputs, stack))
            ready.append((appended, stack))
        self.builder.append(current)
        for appended, stack in ready:
            old = node.outputs[appended.index]
            if appended.is_sequence:
                self.lists[old] = current, stack
            else:
                first = node.inputs[2 + appended.index]
                assert first is not None
                self.same[old] = self.grown(self.same.get(first, first), appended, stack, old.name)

    def fits(self, node: Node, current: Node, appended: _Appended, loop: _Loop) -> bool:
        """Whether the stacked slices can be brought into the shape that readers expect."""
        if not appended.is_sequence:
            return _begins_alike(current, appended, loop)
        rank = len(loop.slice_.shape or ())
        readers = (one.attrs for one in self.graph.users[node.outputs[appended.index]])
        return all(_axis(attrs.axis, rank + attrs.new_axis) is not None for attrs in readers)

    def grown(self, first: Value, appended: _Appended, stack: Value, name: str) -> Value:
        """The initial tensor with all slices behind it, or in reverse order before it."""
        axis = appended.maker.attrs.axis % len(first.shape or ())
        if appended.in_front:
            end = -FAR - 1
            stack = self.builder("strided_slice", stack, begin=[-1], end=[end], strides=[-1])
        slices = self.merged(stack, axis)
        parts = (slices, first) if appended.in_front else (first, slices)
        return self.builder("concatenate", *parts, out=name, axis=axis)

    def joined(self, node: Node, loop: Node, stack: Value) -> Value:
        """The concatenation of all slices, which is an error if there are none."""
        if not self.surely_iterates(loop):
            zero = self.builder.constant(np.array(0))
            iterations = self.builder("take", self.builder("shape_of", stack), zero)
            some = self.builder("greater", iterations, zero)
            stack = self.builder("demand", stack, some, wanted=True, message=NOTHING_TO_JOIN)
        rank = len(stack.shape or ()) - 1
        axis = _axis(node.attrs.axis, rank + node.attrs.new_axis)
        assert axis is not None
        return self.moved(stack, axis) if node.attrs.new_axis else self.merged(stack, axis)

    def surely_iterates(self, loop: Node) -> bool:
        """Whether the loop certainly has an iteration."""
        bounds = [self.builder.knowledge.concrete(value) for value in loop.inputs[:2]]
        pairs = zip(loop.inputs[:2], bounds, strict=True)
        return all(value is None or (one is not None and one.item() > 0) for value, one in pairs)

    def moved(self, stack: Value, axis: int) -> Value:
        """The stack with the axis of its slices moved to `axis`."""
        order = [*range(1, len(stack.shape or ()))]
        order.insert(axis, 0)
        return self.builder("transpose", stack, axes=order) if axis else stack

    def merged(self, stack: Value, axis: int) -> Value:
        """The slices of a stack concatenated along one of their own axes.

        No attribute names an extent, since some are known from data only."""
        _, *shape = stack.shape or ()
        if shape[axis] == 1:
            return self.builder("squeeze", self.moved(stack, axis), axes=[axis + 1])
        rest = shape[1:]
        if axis == 0 and all(isinstance(dim, int) and dim for dim in rest):
            return self.builder("reshape", stack, shape=[-1, *rest])
        rank = len(shape)
        others = [other for other in range(1, rank + 1) if other != axis + 1]
        last = self.builder("transpose", stack, axes=[*others, 0, axis + 1])
        flat = self.builder("reshape", last, shape=[*[0] * len(others), -1])
        order = [*range(axis), rank - 1, *range(axis, rank - 1)]
        return self.builder("transpose", flat, axes=order)
