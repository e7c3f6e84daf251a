"""A model that is being drawn: the values so far, with their numbers, and ways to add more.

Every node is run by the peer as soon as it is drawn, at each of the model's sizes. So the shapes
of all values are known, dynamic or not, and what the peer has no kernel for, what grows too large
and what is mostly NaN is never drawn.

Beside its numbers a value has disturbed ones: those that come out where every node that rounds is
off by a little. What lies between both is how far a result may differ. A value that some node has
rounded is not exact, and operators that jump (comparisons, casts to integers, positions of
extremes, quantisation) only ever read exact floats: so no result hangs on a tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.fuzzing.peer import Peer, PeerError, model_of, tensor_type
from graft.base.dtypes import Array
from graft.byoc.kit.draw import Draw

LARGEST_SIZE = 4096  # elements
LARGEST_NUMBER = {"float16": 500.0, "float32": 1e6, "float64": 1e6}
NOISE = 2.0  # units of rounding that a node may be off by
ILL_CONDITIONED = 0.02  # how much of the largest number may be due to noise
FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int32", "int64", "int8", "uint8")
_DTYPES = (*("float32",) * 6, "float64", "float16", "int32", "int64", "int64", "int8", "uint8")


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the model; its numbers, plain and disturbed, at each size."""

    name: str
    arrays: tuple[Array, ...]
    noisy: tuple[Array, ...]
    exact: bool = True
    constant: bool = False

    @property
    def dtype(self) -> str:
        return self.arrays[0].dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        """At the first size."""
        return self.arrays[0].shape

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def is_float(self) -> bool:
        return self.arrays[0].dtype.kind == "f"

    @property
    def is_static(self) -> bool:
        return all(array.shape == self.shape for array in self.arrays)

    def moves(self, axis: int) -> bool:
        """Whether an axis has another extent at another size."""
        return any(array.shape[axis] != self.shape[axis] for array in self.arrays)


@dataclass(frozen=True)
class Setting:
    """What a whole model has in common, its nested graphs too."""

    draw: Draw
    opset: int
    symbols: Mapping[str, tuple[int, ...]]  # extents by name, one for each size
    sizes: int
    named: dict[str, int] = field(default_factory=dict)  # how many names there are, by their stem

    def name(self, stem: str = "v") -> str:
        """A name that nothing else in the model has."""
        self.named[stem] = number = self.named.get(stem, 0) + 1
        return f"{stem}{number}"


class Sketch:
    """The graph so far."""

    def __init__(self, setting: Setting, parent: Sketch | None = None) -> None:
        self.setting = setting
        self.draw = setting.draw
        self.opset = setting.opset
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.values: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[tuple[Value, tuple[int | str, ...]]] = []
        self.constants: list[Value] = []
        self.own: set[str] = set()
        self.captured: dict[str, Value] = {}
        self.read: set[str] = set()

    def number_array(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """Contents for a tensor: small numbers, all of them exact in every dtype."""
        generator = np.random.default_rng(self.draw.between(0, 2**31))
        if dtype == "bool":
            return np.asarray(generator.random(shape) < 0.5)
        if dtype in FLOATS:
            grid = generator.integers(-24, 25, shape) / 8 + generator.integers(0, 2, shape) / 64
            return np.asarray(grid).astype(dtype)
        low = 0 if dtype == "uint8" else -7
        return np.asarray(generator.integers(low, 8, shape)).astype(dtype)

    def shape(self, rank: int | None = None) -> tuple[int | str, ...]:
        """A shape for an input: extents, and at the outermost level symbols."""
        drawn = self.draw.shape(rank)
        if self.depth or not self.setting.symbols:
            return drawn
        names = list(self.setting.symbols)
        named = tuple(self.draw.among(names) if self.draw.chance(0.3) else n for n in drawn)
        sizes = [math.prod(self.extents(named, size)) for size in range(self.setting.sizes)]
        return named if max(sizes) <= LARGEST_SIZE else drawn

    def extents(self, shape: Sequence[int | str], size: int) -> tuple[int, ...]:
        """A shape's extents at one of the sizes."""
        known = self.setting.symbols
        return tuple(known[dim][size] if isinstance(dim, str) else dim for dim in shape)

    def input(self, dtype: str, shape: tuple[int | str, ...]) -> Value:
        """An input of the model; inside a nested graph there are none, so a constant instead."""
        sizes = range(self.setting.sizes)
        arrays = tuple(self.number_array(dtype, self.extents(shape, size)) for size in sizes)
        return self.input_of(arrays, shape)

    def input_of(self, arrays: tuple[Array, ...], shape: tuple[int | str, ...]) -> Value:
        """An input with certain numbers."""
        if self.depth or any(isinstance(dim, int) and dim > LARGEST_SIZE for dim in shape):
            return self.constant(arrays[0])
        value = Value(self.setting.name("x"), arrays, arrays)
        self.inputs.append((value, shape))
        self.values.append(value)
        self.own.add(value.name)
        return value

    def constant(self, array: Any) -> Value:
        """A constant: an initializer, or a node at times and in nested graphs."""
        array = np.asarray(array)
        same = (array,) * self.setting.sizes
        value = Value(self.setting.name("c"), same, same, constant=True)
        self.own.add(value.name)
        if self.depth or self.draw.chance(0.2):
            tensor = numpy_helper.from_array(array, value.name)
            self.nodes.append(helper.make_node("Constant", [], [value.name], value=tensor))
        else:
            self.constants.append(value)
        return value

    def fresh(self, dtype: str, shape: tuple[int | str, ...]) -> Value:
        """A new operand: an input, or a constant where all extents are known."""
        static = tuple(dim for dim in shape if isinstance(dim, int))
        if len(static) == len(shape) and (self.depth or self.draw.chance(0.4)):
            value = self.constant(self.number_array(dtype, static))
            self.values.append(value)
            return value
        return self.input(dtype, shape)

    def visible(self) -> list[Value]:
        """All values that a node may read, those of enclosing graphs first."""
        return [*(self.parent.visible() if self.parent else ()), *self.values]

    def find(self, test: Callable[[Value], bool]) -> Value | None:
        """One of the latest values that pass the test; now and then an older one."""
        found = [value for value in self.visible() if test(value)]
        if not found:
            return None
        return self.draw.among(found if self.draw.chance(0.25) else found[-3:])

    def operand(
        self,
        dtypes: Sequence[str] = FLOATS,
        test: Callable[[Value], bool] = lambda value: True,
        rank: int | None = None,
        shape: tuple[int | str, ...] | None = None,
    ) -> Value:
        """A value of one of the dtypes that passes the test, of the rank; or a new one."""
        found = self.find(
            lambda value: value.dtype in dtypes and rank in (None, value.rank) and test(value)
        )
        if found is not None and self.draw.chance(0.85):
            return found
        dtype = self.draw.among([one for one in _DTYPES if one in dtypes] or list(dtypes))
        return self.fresh(dtype, self.shape(rank) if shape is None else shape)

    def add(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int = 1,
        jumps: bool = False,
        rounds: bool = True,
        bodies: Sequence[Sketch] = (),
        **attributes: Any,
    ) -> list[Value]:
        """A node, if the peer runs it and its numbers are of use; gives its results, else none.

        `rounds`: the floats it gives depend on how it is computed. `jumps`: a small change of a
        float that it reads may make a large one of what it gives.
        """
        given = [value for value in inputs if value is not None]
        if jumps and not all(value.exact for value in given if value.is_float):
            return []
        names = ["" if value is None else value.name for value in inputs]
        results = [self.setting.name() for _ in range(outputs)]
        attributes = {key: value for key, value in attributes.items() if value not in (None, [])}
        node = helper.make_node(op, names, results, **attributes)
        captured = [value for body in bodies for value in body.captured.values()]
        reads = {value.name: value for value in [*given, *captured]}
        made = self._computed(node, reads, rounds)
        if made:
            self.nodes.append(node)
            self.values += made
            self.own.update(results)
            self.read.update(reads)
            self.captured |= {n: value for n, value in reads.items() if n not in self.own}
        return made

    def _computed(
        self, node: onnx.NodeProto, reads: Mapping[str, Value], rounds: bool
    ) -> list[Value]:
        """What a node gives, or nothing if it is of no use."""
        try:
            peer = Peer(_single(node, reads, self.opset), optimized=False)
            plain = [
                peer.run({n: v.arrays[i] for n, v in reads.items() if not v.constant})
                for i in range(self.setting.sizes)
            ]
            exact = not rounds and all(v.exact for v in reads.values())
            noisy = plain
            if not all(v.exact for v in reads.values()):
                noisy = [
                    peer.run({n: v.noisy[i] for n, v in reads.items() if not v.constant})
                    for i in range(self.setting.sizes)
                ]
        except PeerError:
            return []
        made = []
        for position, name in enumerate(node.output):
            arrays = tuple(results[position] for results in plain)
            disturbed = tuple(results[position] for results in noisy)
            if rounds:
                disturbed = tuple(self._disturbed(array) for array in disturbed)
            value = Value(name, arrays, disturbed, exact or arrays[0].dtype.kind != "f")
            if not self._is_useful(value):
                return []
            made.append(value)
        return made

    def _disturbed(self, array: Array) -> Array:
        if array.dtype.kind != "f" or not array.size:
            return array
        generator = np.random.default_rng(self.draw.between(0, 2**31))
        with np.errstate(all="ignore"):
            step = NOISE * float(np.finfo(array.dtype).eps) * largest(array)
            moved = array + step * generator.choice((-1.0, 1.0), array.shape)
            return np.asarray(moved).astype(array.dtype)

    def _is_useful(self, value: Value) -> bool:
        for array, noisy in zip(value.arrays, value.noisy, strict=True):
            if array.dtype.name not in (*FLOATS, *INTEGERS, "bool"):
                return False
            if array.size > LARGEST_SIZE or array.shape != noisy.shape:
                return False
            if array.dtype.kind != "f":
                if not np.array_equal(array, noisy):
                    return False
                continue
            if not np.isfinite(array).all() and not self.draw.chance(0.1):
                return False
            size = largest(array)
            if size > LARGEST_NUMBER[array.dtype.name]:
                return False
            if spread(array, noisy) > ILL_CONDITIONED * size:
                return False
        return True


def largest(array: Array) -> float:
    """The largest magnitude of an array's finite numbers."""
    wide = np.abs(array.astype(np.float64))
    return float(np.max(wide[np.isfinite(wide)], initial=0.0))


def spread(array: Array, noisy: Array) -> float:
    """How far apart two arrays are; infinitely, where just one of them has a number."""
    one, other = array.astype(np.float64), noisy.astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    with np.errstate(all="ignore"):
        away = np.abs(one - other)
    return float(np.max(away[np.isfinite(away)], initial=0.0))


def _single(node: onnx.NodeProto, reads: Mapping[str, Value], opset: int) -> onnx.ModelProto:
    """A model of one node; constants stay constants, since some kernels ask for them."""
    info = helper.make_tensor_value_info
    inputs = [
        info(name, tensor_type(value.arrays[0]), None)
        for name, value in reads.items()
        if not value.constant
    ]
    constants = [
        numpy_helper.from_array(value.arrays[0], name)
        for name, value in reads.items()
        if value.constant
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    return model_of([node], inputs, outputs, constants, opset)
