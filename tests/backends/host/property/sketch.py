"""A fusion group that is being drawn, with its data, its storages and how exact its results are.

For each value the sketch keeps the largest magnitude that its elements can have and how far they
may be off, in units of the dtype's epsilon: zero is exact. Operators that jump are drawn only on
exact values, so whatever is exact has to come out so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from graft.backends.host.group import Algorithm
from graft.backends.host.storage import NO_HALO, Halo, Storage, static_shape
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.printer import to_text
from graft.ir.types import TensorType
from graft.passes.group_fusion import group_fusion

T = TypeVar("T")
Shape = tuple[int, ...]

LARGEST = 2.0  # magnitude of data
SPECIAL = (np.nan, np.inf, -np.inf, -0.0)


@dataclass(frozen=True)
class Info:
    """What is known of a value."""

    bound: float = LARGEST
    error: float = 0.0  # in units of epsilon


@dataclass(frozen=True)
class Sample:
    """One group: its graph, data for the inputs, where everything lies, how exact results are."""

    graph: Graph
    plain: Graph  # the same before its nodes became one group
    data: tuple[Array, ...]
    stores: dict[Value, Storage]
    errors: tuple[float, ...]  # per output
    small: bool  # small enough for the interpreter
    algorithm: Algorithm | None = None

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What hypothesis shows of an example that fails."""
        places = "\n".join(f"{value.name}: {storage}" for value, storage in self.stores.items())
        printer.text(f"\n{to_text(self.graph)}{places}\non {self.data!r}")


@dataclass
class Sketch:
    """Draws, and collects what is drawn."""

    draw: st.DrawFn
    small: bool
    dtype: str = "float32"
    special: bool = False  # whether data may be NaN or infinite
    algorithm: Algorithm | None = None  # of the anchor
    builder: Builder = field(default_factory=Builder)
    data: list[Array] = field(default_factory=list)
    stores: dict[Value, Storage] = field(default_factory=dict)
    info: dict[Value, Info] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.number(0, 1 << 16))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        """True about so often; not at all in the simplest example."""
        return self.number(0, 99) >= 100 - percent

    def extent(self, small: int, large: int) -> int:
        """An extent: up to `small` in small samples; at times 1, and at times large ones."""
        return self.number(1, small if self.small else large)

    def array(self, shape: Shape, dtype: str = "") -> Array:
        """Data of a dtype, whose magnitudes are bounded."""
        kind = np.dtype(dtype or self.dtype)
        if kind.kind == "b":
            return self.random.random(shape) < 0.5
        if kind.kind in "iu":
            return self.random.integers(0 if kind.kind == "u" else -2, 3, shape).astype(kind)
        made = np.asarray(self.random.uniform(-LARGEST, LARGEST, shape).astype(kind))
        if self.special and made.size:
            for place in self.random.integers(0, made.size, 1 + made.size // 7):
                made.reshape(-1)[place] = SPECIAL[int(self.random.integers(len(SPECIAL)))]
        return made

    def given(self, array: Array, storage: Storage | None = None) -> Value:
        """An input with these data, in users' memory if nothing else is said."""
        self.data.append(array)
        dtype = dtype_of(array.dtype)
        value = self.builder.input(f"x{len(self.data)}", TensorType(dtype, array.shape))
        alignment = array.dtype.itemsize if self.chance(70) else 64
        self.stores[value] = storage or Storage(dtype, array.shape, alignment=alignment)
        self.info[value] = Info()
        return value

    def input(self, shape: Shape, dtype: str = "") -> Value:
        return self.given(self.array(shape, dtype))

    def image(self, shape: Shape, block: int, halo: Halo = NO_HALO) -> Value:
        """A blocked image."""
        storage = Storage(DType(self.dtype), shape, block, halo)
        return self.given(self.array(shape), storage)

    def constant(self, array: Array) -> Value:
        value = self.builder.constant(array)
        self.info[value] = Info()
        return value

    def operand(self, shape: Shape, dtype: str = "") -> Value:
        """An input or a constant."""
        if self.chance(50):
            return self.input(shape, dtype)
        return self.constant(self.array(shape, dtype))

    def __call__(
        self, op: str, *operands: Value | None, bound: float, error: float, **attrs: Any
    ) -> Value:
        value = self.builder(op, *operands, **attrs)
        self.info[value] = Info(bound, error)
        return value

    def halo(self, least: Sequence[int] = NO_HALO) -> Halo:
        """A halo at least that wide."""
        top, left, bottom, right = (n + self.pick((0, 0, 1, 2)) for n in least)
        return top, left, bottom, right

    def finished(self, *outputs: Value, block: int = 0, halo: Halo = NO_HALO) -> Sample:
        """The sample with these results, in blocks or in rows."""
        plain = self.builder.build(*outputs)
        for value in outputs:
            shape = static_shape(value)
            alignment = 64 if block or self.chance(30) else value.dtype.numpy.itemsize
            self.stores[value] = Storage(value.dtype, shape, block, halo, alignment)
        errors = tuple(self.info[value].error for value in outputs)
        graph = group_fusion(plain)
        data = tuple(self.data)
        return Sample(graph, plain, data, self.stores, errors, self.small, self.algorithm)


Draw = Callable[[Sketch], Sample]


def samples(write: Draw) -> st.SearchStrategy[Sample]:
    """Samples that a function draws; two of three are small enough for the interpreter."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Sample:
        return write(Sketch(draw, small=draw(st.integers(0, 2)) < 2))

    return drawn()


def is_one_group(graph: Graph) -> bool:
    """Whether fusion has left the sample whole: it cuts formulas that would grow too long."""
    return sum(node.op.name != "constant" for node in graph.nodes) == 1
