"""Indices of data movement: where along an axis a result element comes from.

An `Index` is what one index of a load is made of while it is traced from a result back to memory:
its expression, how far lanes lie apart, which numbers it can be, and whether it still is a
coordinate of the result, shifted. Knowing the range decides at compile time which operand of a
concatenation, or which side of a padding's edge, an element belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from graft.backends.host.kernel import Parameters
from graft.backends.host.point import plus, times
from graft.backends.host.storage import static_shape
from graft.base.dtypes import Array
from graft.ir.graph import Node, Value
from graft.loop.build import Term
from graft.loop.ir import INDEX, Binary, BinaryKind, Broadcast, Const, Expr, Load, Ramp
from graft.ops.layout import rearrangement
from graft.ops.movement import transpose_order
from graft.ops.padding import pad_widths
from graft.ops.pointwise import element_of
from graft.ops.slicing import slice_steps


class NotInVectorsError(Exception):
    """Lanes would not be evenly spaced; element by element it can be done."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index along some axis; numbers from `low` to `high`."""

    base: Expr
    low: int
    high: int
    stride: int = 0  # between lanes; 0: all lanes are at the same index
    axis: int | None = None  # the result's coordinate that this is, but for `shift`
    shift: int = 0

    def expr(self, lanes: int) -> Expr:
        """The index as loads have it."""
        return Ramp(self.base, self.stride, lanes) if self.stride else self.base

    def moved(self, distance: int) -> Index:
        """Further on by a constant."""
        return replace(
            self,
            base=plus(self.base, distance),
            low=self.low + distance,
            high=self.high + distance,
            shift=self.shift + distance,
        )

    def scaled(self, factor: int) -> Index:
        """Times a constant."""
        if factor == 1:
            return self
        ends = sorted((self.low * factor, self.high * factor))
        return Index(times(self.base, factor), ends[0], ends[1], self.stride * factor)

    def added(self, other: Index) -> Index:
        """A sum, of which at most one side has lanes."""
        if other == ZERO or self == ZERO:
            return self if other == ZERO else other
        if self.stride and other.stride:
            raise NotInVectorsError
        base = plus(self.base, other.base)
        return Index(base, self.low + other.low, self.high + other.high, self.stride + other.stride)

    def over(self, divisor: int, lanes: int) -> Index:
        """The quotient, rounded down."""
        low, high = self.low // divisor, self.high // divisor
        if low == high:
            return constant(low)
        self._check_blocks(divisor, lanes)
        return Index(Binary(BinaryKind.FLOOR_DIVIDE, self.base, Const(divisor)), low, high)

    def modulo(self, divisor: int, lanes: int) -> Index:
        """The remainder."""
        block = self.low // divisor
        if block == self.high // divisor:
            return self.moved(-block * divisor)
        self._check_blocks(divisor, lanes)
        base = Binary(BinaryKind.FLOOR_MODULO, self.base, Const(divisor))
        return Index(base, 0, divisor - 1, self.stride)

    def _check_blocks(self, divisor: int, lanes: int) -> None:
        """Lanes have to stay within one block of `divisor` elements."""
        whole = self.stride == 1 and divisor % lanes == 0 and _divides(lanes, self.base)
        if self.stride and not whole:
            raise NotInVectorsError


def constant(value: int) -> Index:
    """An index that is always the same."""
    return Index(Const(value), value, value)


ZERO = constant(0)


def _divides(divisor: int, expr: Expr) -> bool:
    """Whether an index is a multiple of a number, as far as can be seen."""
    match expr:
        case Const():
            return int(expr.value) % divisor == 0
        case Binary(kind=BinaryKind.MULTIPLY):
            return _divides(divisor, expr.left) or _divides(divisor, expr.right)
        case Binary(kind=BinaryKind.ADD):
            return _divides(divisor, expr.left) and _divides(divisor, expr.right)
    return False


def reshaped(
    at: Sequence[Index], shape: tuple[int, ...], source: tuple[int, ...], lanes: int
) -> tuple[Index, ...]:
    """Where the element at `at` of a tensor of `shape` lies in the same data of shape `source`."""
    found: list[Index] = []
    for axes, sources in _factors(shape, source):
        flat = ZERO
        for axis in axes:
            inner = math.prod(shape[later] for later in axes if later > axis)
            flat = flat.added(at[axis].scaled(inner))
        for position, axis in enumerate(sources):
            inner = math.prod(source[later] for later in sources[position + 1 :])
            index = flat.over(inner, lanes) if inner > 1 else flat
            found.append(index.modulo(source[axis], lanes) if position else index)
    return tuple(found)


def _factors(
    shape: tuple[int, ...], source: tuple[int, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """Smallest groups of axes on both sides that have equally many elements."""
    left, right = 0, 0
    while left < len(shape) or right < len(source):
        axes: list[int] = []
        sources: list[int] = []
        here = there = 1
        while not (axes or sources) or here != there:
            if (here <= there and left < len(shape)) or right == len(source):
                axes.append(left)
                here *= shape[left]
                left += 1
            else:
                sources.append(right)
                there *= source[right]
                right += 1
        while here == there and left < len(shape) and shape[left] == 1:
            axes.append(left)
            left += 1
        while here == there and right < len(source) and source[right] == 1:
            sources.append(right)
            right += 1
        yield axes, sources


At = tuple[Index, ...]
# More loads than this for one element, and making the tensors in between is better.
MOST_LOADS = 64


class CutNeededError(Exception):
    """What an element is made of changes at some coordinates of a result's axis."""

    def __init__(self, axis: int, places: Sequence[int]) -> None:
        super().__init__(f"axis {axis} at {list(places)}")
        self.axis = axis
        self.places = tuple(places)


class CannotPullError(Exception):
    """The group cannot be computed this way; the message says why."""


class Pull:
    """Follows elements of a group's results back to what it reads."""

    def __init__(self, parameters: Parameters, lanes: int) -> None:
        self.parameters = parameters
        self.lanes = lanes
        self.loads: list[tuple[Value, At]] = []
        self._producers = {value: node for node in parameters.group.nodes for value in node.outputs}

    def value(self, value: Value, at: At) -> Expr:
        """The elements of a value at these indices."""
        node = self._producers.get(value)
        if node is None:
            return self._load(value, at)
        if node.op.scalar is not None:
            return self._pointwise(node, at)
        rule = RULES.get(node.op.name)
        if rule is None:
            raise CannotPullError(f"{node.op.name} is no movement known by index")
        return rule(self, node, value, at)

    def _load(self, value: Value, at: At) -> Expr:
        self.loads.append((value, at))
        if len(self.loads) > MOST_LOADS:
            raise CannotPullError("one element is made of too many others")
        _, buffer = self.parameters.value(value)
        found = Load(buffer, tuple(index.expr(self.lanes) for index in at))
        return self._spread(found)

    def _spread(self, value: Expr) -> Expr:
        return value if value.lanes == self.lanes else Broadcast(value, self.lanes)

    def _pointwise(self, node: Node, at: At) -> Expr:
        operands = []
        for position, value in enumerate(node.args):
            shape = static_shape(value)
            aligned = at[len(at) - len(shape) :]
            if node.op.name == "nn.bias_add" and position == 1:
                aligned = (at[node.attrs.axis],)
            operands.append(Term(self.value(value, broadcast(aligned, shape))))
        return self._spread(element_of(node, operands).expr)

    def constant_of(self, value: Value) -> Array:
        """The array of an operand that has to be known."""
        literal = self.parameters.group.constants.get(value)
        if literal is None:
            raise CannotPullError(f"%{value.name} is known at run time only")
        return literal.array


def broadcast(at: At, shape: tuple[int, ...]) -> At:
    """Indices of an operand whose axes of extent 1 are repeated."""
    return tuple(ZERO if n == 1 else index for index, n in zip(at, shape, strict=True))


Rule = Callable[[Pull, Node, Value, At], Expr]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@_rule("reshape", "squeeze", "expand_dims")
def _reshape(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    data = node.args[0]
    found = reshaped(at, static_shape(value), static_shape(data), pull.lanes)
    return pull.value(data, found)


@_rule("transpose")
def _transpose(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    found = [ZERO] * len(at)
    for index, axis in zip(at, transpose_order(node.attrs, len(at)), strict=True):
        found[axis] = index
    return pull.value(node.args[0], tuple(found))


@_rule("layout_transform")
def _layout_transform(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    data, attrs = node.args[0], node.attrs
    way = rearrangement(attrs.src_layout, attrs.dst_layout, static_shape(data))
    split, turned, result = way.extents
    found = reshaped(at, result, turned, pull.lanes)
    apart = tuple(found[way.axes.index(axis)] for axis in range(len(split)))
    return pull.value(data, reshaped(apart, split, static_shape(data), pull.lanes))


@_rule("broadcast_to")
def _broadcast_to(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    shape = static_shape(node.args[0])
    return pull.value(node.args[0], broadcast(at[len(at) - len(shape) :], shape))


@_rule("tile")
def _tile(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    shape = static_shape(node.args[0])
    found = (index.modulo(n, pull.lanes) for index, n in zip(at, shape, strict=True))
    return pull.value(node.args[0], tuple(found))


@_rule("strided_slice")
def _strided_slice(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    attrs, shape = node.attrs, static_shape(node.args[0])
    if len(node.args) > 1 or any(type(x) is not int for x in (*attrs.begin, *attrs.end)):
        raise CannotPullError("the bounds of a slice are not plain numbers")
    found = list(at)
    for axis, (first, stride) in slice_steps(attrs, shape).items():
        assert isinstance(first, int)
        found[axis] = at[axis].scaled(stride).moved(first)
    return pull.value(node.args[0], tuple(found))


@_rule("split")
def _split(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    axis = node.attrs.axis % len(at)
    number = node.outputs.index(value)
    before = sum(static_shape(output)[axis] for output in node.outputs[:number])
    return pull.value(node.args[0], _replaced(at, axis, at[axis].moved(before)))


@_rule("concatenate")
def _concatenate(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    axis = node.attrs.axis % len(at)
    ends = list(accumulate(static_shape(operand)[axis] for operand in node.args))
    number = _side(at[axis], ends)
    start = ends[number] - static_shape(node.args[number])[axis]
    return pull.value(node.args[number], _replaced(at, axis, at[axis].moved(-start)))


@_rule("nn.pad")
def _pad(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    attrs, data = node.attrs, node.args[0]
    if len(node.args) > 1 or attrs.mode != "constant":
        raise CannotPullError("the padding is not one of constants")
    shape = static_shape(data)
    found = list(at)
    outside = False
    for axis, (before, _) in pad_widths(attrs, len(shape)).items():
        moved = at[axis].moved(-int(before))
        outside |= _side(moved, [0, shape[axis]]) != 1
        found[axis] = moved
    if outside:
        fill = np.asarray(attrs.fill).astype(data.dtype.numpy).item()
        return Const(fill, data.dtype, pull.lanes)
    return pull.value(data, tuple(found))


@_rule("take")
def _take(pull: Pull, node: Node, value: Value, at: At) -> Expr:
    data, indices = node.args
    shape = static_shape(data)
    axis = node.attrs.axis % len(shape)
    chosen, extent = pull.constant_of(indices), shape[axis]
    if not -extent <= chosen.min() <= chosen.max() < extent:
        raise CannotPullError("an index is out of range")
    if chosen.ndim:
        index = _looked_up(pull, indices, chosen, at[axis : axis + chosen.ndim])
    else:
        index = constant(int(chosen) % extent)
    return pull.value(data, (*at[:axis], index, *at[axis + chosen.ndim :]))


def _looked_up(pull: Pull, indices: Value, chosen: Array, at: At) -> Index:
    """An index that is read from a table."""
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or indices.dtype is not INDEX:
        raise CannotPullError("a table of indices counts from the end, or is not of int64")
    if any(index.stride for index in at):
        raise NotInVectorsError
    _, table = pull.parameters.value(indices)
    return Index(Load(table, tuple(index.base for index in at)), low, high)


def _replaced(at: At, axis: int, index: Index) -> At:
    return (*at[:axis], index, *at[axis + 1 :])


def _side(index: Index, ends: Sequence[int]) -> int:
    """In which of the ranges that end there all of the index's numbers lie."""
    number = sum(end <= index.low for end in ends)
    if number == len(ends) or index.high < ends[number]:
        return number
    if index.axis is None:
        raise CannotPullError("pieces are joined along an axis that is taken apart again")
    raise CutNeededError(index.axis, [end - index.shift for end in ends])
