"""A graph that is being drawn: the values so far, what is known of each, and ways to add more.

For every value the sketch keeps how exactly a pass has to preserve it, and a bound on its elements.
Passes may round differently where they re-associate sums, so values behind matrix products,
reductions and transcendental functions are fuzzy; operators that jump (comparisons, casts to
integers, argmax) are only ever drawn on values that are not, and so every integer, truth value and
shape has to come out the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from tests.property import data

import graft.ops  # noqa: F401  (registers the operators)
from graft.base.dims import AnyDim, bare_symbol, substitute, symbols_of
from graft.base.dtypes import Array, DType
from graft.byoc.kit.draw import Draw
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import Shape, TensorType, Type

T = TypeVar("T")

# How exactly a value is preserved.
FUZZY = 0  # up to rounding
EXACT = 1  # equal, but a zero may change its sign
STRICT = 2  # equal, zeros included

# Tensors that would be larger than this are not drawn.
LARGEST_SIZE = 240
# What a symbolic extent is taken for in estimates.
TYPICAL_EXTENT = 5
# Values behind matrix products must not come near the largest float16.
LARGEST_BOUND = 3000.0


@dataclass(frozen=True, slots=True)
class Info:
    """What is known of a value: how exact it is, and the largest magnitude of its elements."""

    level: int = STRICT
    bound: float = math.inf


@dataclass(frozen=True, slots=True)
class Feed:
    """How to make the data of a graph input."""

    value: Value
    kind: str  # "tame", "wild" or "counts"
    seed: int

    def array(self, extents: dict[str, int]) -> Array:
        type_ = self.value.tensor
        shape = tuple(_extent(dim, extents) for dim in type_.shape or ())
        if self.kind == "counts":
            return data.counts(shape, self.seed)
        return getattr(data, self.kind)(type_.dtype, shape, self.seed)


def _extent(dim: AnyDim, extents: dict[str, int]) -> int:
    found = substitute(dim, extents)
    assert isinstance(found, int)
    return found


def typical_size(shape: Shape | None) -> int:
    """About how many elements a shape has."""
    if shape is None:
        return TYPICAL_EXTENT
    return math.prod(typical_extent(dim) for dim in shape)


def typical_extent(dim: AnyDim) -> int:
    """About how large an extent is."""
    if isinstance(dim, int):
        return dim
    found = substitute(dim, dict.fromkeys(symbols_of(dim), TYPICAL_EXTENT))
    return found if isinstance(found, int) else TYPICAL_EXTENT


class Sketch:
    """The graph so far."""

    def __init__(self, draw: Draw, builder: Builder, depth: int = 0) -> None:
        self.draw = draw
        self.g = builder
        self.depth = depth
        self.info: dict[Value, Info] = {}
        self.read: set[Value] = set()
        self.inputs: list[Value] = []
        self.feeds: list[Feed] = []
        self.symbols: tuple[AnyDim, ...] = ()
        self.calls: list[tuple[str, tuple[Value | None, ...], int, float | None, Any]] = []

    def number(self, low: int, high: int) -> int:
        """An integer between both, which are included."""
        return self.draw.between(low, high)

    def pick(self, options: Sequence[T]) -> T:
        return self.draw.among(options)

    def chance(self, count: int) -> bool:
        """True once in `count` times."""
        return self.draw.between(1, count) == count

    def seed(self) -> int:
        return self.draw.between(0, (1 << 16) - 1)

    def add(
        self,
        op: str,
        *inputs: Value | None,
        level: int = STRICT,
        bound: float | None = None,
        **attrs: Any,
    ) -> Value:
        """A node; gives its first result. Without a bound it is the largest of the operands'."""
        results = self.call(op, *inputs, **attrs)
        given = [self.info[v] for v in inputs if v is not None]
        floats = [self.info[v] for v in inputs if v is not None and is_float(v)]
        found = min([level, *(info.level for info in floats)])
        limit = max((info.bound for info in given), default=math.inf) if bound is None else bound
        for value in results:
            discrete = not is_float(value) and op != "shape_of"
            assert found > FUZZY or not discrete, f"{op} jumps"
            self.know(value, Info(found if is_float(value) else STRICT, limit))
        self.calls.append((op, inputs, level, bound, attrs))
        return results[0]

    def call(self, op: str, *inputs: Value | None, **attrs: Any) -> tuple[Value, ...]:
        """A node of whose results nothing is known yet."""
        self.read.update(value for value in inputs if value is not None)
        return self.g.call(op, *inputs, **attrs)

    def know(self, value: Value, info: Info) -> Value:
        self.info[value] = info
        return value

    def find(self, test: Callable[[Value], bool]) -> Value | None:
        """One of the latest values that pass the test."""
        found = [value for value in reversed(self.info) if test(value)]
        return self.pick(found[:8]) if found else None

    def level(self, value: Value) -> int:
        return self.info[value].level

    def bound(self, *values: Value) -> float:
        """The largest bound of the values."""
        return max(self.info[value].bound for value in values)

    def constant(self, array: Array, bound: float | None = None) -> Value:
        """A constant tensor."""
        value = self.g.constant(array)
        return self.know(value, Info(STRICT, _largest(array) if bound is None else bound))

    def number_like(self, value: Value, number: float, rank: int = 0) -> Value:
        """A constant of one element in the value's dtype."""
        return self.constant(np.full((1,) * rank, number).astype(value.dtype.numpy))

    def tame_constant(self, dtype: DType, shape: Sequence[int]) -> Value:
        return self.constant(data.tame(dtype, tuple(shape), self.seed()))

    def source(self, dtype: DType, shape: Shape, bounded: bool = False) -> Value:
        """A new input, or a constant where the shape allows."""
        static = all(isinstance(dim, int) for dim in shape)
        kind = "tame" if bounded or not self.chance(4) else "wild"
        if self.depth or (static and self.chance(3)):
            extents = tuple(dim if isinstance(dim, int) else 1 for dim in shape)
            return self.constant(getattr(data, kind)(dtype, extents, self.seed()))
        return self.input(dtype, shape, kind)

    def take(self, name: str, type_: Type) -> Value:
        """An input of the graph, of which nothing is known yet."""
        value = self.g.input(name, type_)
        self.inputs.append(value)
        return value

    def input(self, dtype: DType, shape: Shape, kind: str) -> Value:
        name = self.pick(("x", "x", "data", "a.b/c", "ein gang", 'in"put', "输入"))
        value = self.take(name, TensorType(dtype, shape))
        self.feeds.append(Feed(value, kind, self.seed()))
        bounds = {"tame": 4.0, "counts": 3.0, "wild": math.inf}
        return self.know(value, Info(STRICT, bounds[kind]))

    def counts(self, length: int | None) -> Value:
        """Small positive int64 numbers that only the data decide: a list, or one number."""
        shape = () if length is None else (length,)
        if self.depth:
            return self.constant(data.counts(shape, self.seed()))
        same = [f.value for f in self.feeds if f.kind == "counts" and f.value.shape == shape]
        return self.pick(same) if same else self.input(DType.INT64, shape, "counts")

    def can_write(self, shape: Shape) -> bool:
        """Whether attributes may mention the shape: an input's shape binds all its symbols."""
        dims = [dim for value in self.inputs for dim in value.shape or ()]
        names = {name for dim in dims if (name := bare_symbol(dim)) is not None}
        return all(symbols_of(dim) <= names for dim in shape)

    def shape(self, least: int = 0, most: int = 4) -> Shape:
        """A small shape, at times with symbols, ones and zeros."""
        dims: list[AnyDim] = []
        for _ in range(self.number(least, most)):
            options = (3, 2, 1, 4, *self.symbols, 5, 0) if self.chance(4) else (3, 2, 1, 4)
            dims.append(self.pick(options))
        return tuple(dims)


def _largest(array: Array) -> float:
    if array.dtype.kind in "Oc":
        return math.inf
    largest = float(np.max(np.abs(array.astype(np.float64)), initial=0.0))
    return largest if math.isfinite(largest) else math.inf


def is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.dtype.is_float


def is_ranked(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.shape is not None


def is_small(value: Value) -> bool:
    """Whether the value may grow a little."""
    return is_ranked(value) and typical_size(value.shape) <= LARGEST_SIZE // 4
