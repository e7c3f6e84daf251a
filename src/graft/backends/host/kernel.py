"""What a kernel template makes: a loop function and what its parameters stand for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from graft.backends.host.extents import Extents
from graft.backends.host.group import Group
from graft.backends.host.kernels.words import per_word, word_type
from graft.backends.host.storage import Storage
from graft.base.dims import Dim
from graft.base.dtypes import Array, dtype_of
from graft.ir.graph import Value
from graft.ir.op import Work
from graft.loop.ir import Buffer, Expr, Function, Stmt, Var

Stores = Mapping[Value, Storage]


Pack = Callable[..., Array]
Shape = tuple[int, ...]
# Writes a tensor in another order, from the buffer that it is in to that of the copy.
WriteCopy = Callable[[Buffer, Buffer], Stmt]


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """How an argument is made of constants of the group; `pack` knows types alone."""

    sources: tuple[Value, ...]
    pack: Pack


@dataclass(frozen=True, slots=True, eq=False)
class Repacked:
    """A tensor in an order of the kernel's own, into which a function of two buffers (the tensor,
    the copy) brings it before the kernel is called."""

    value: Value
    storage: Storage  # of the copy
    function: Function


Argument = Value | Array | Repacked


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function, and per buffer the graph's value or the constant that it is called with.

    A kernel that changes only a part of a tensor has an operand `initial`, which is no argument:
    the result holds its elements when the function is called, in its memory or in a copy.
    `scalars` are the dims that are passed for its scalar parameters, in order. `packings` say, by
    position, which arguments are made of constants of the group; other arrays are tables that the
    function brings along.
    """

    function: Function
    arguments: tuple[Argument, ...]
    work: Work
    scalars: tuple[Dim, ...] = ()
    packings: Mapping[int, Packing] = field(default_factory=dict)
    initial: Value | None = None


@dataclass
class Parameters:
    """Collects a kernel's parameters while its body is written."""

    group: Group
    stores: Stores
    extents: Extents = field(default_factory=Extents)
    buffers: list[Buffer] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    packings: dict[int, Packing] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _known: dict[Value, tuple[Storage, Buffer]] = field(default_factory=dict)
    _padded: dict[tuple[Value, int], tuple[Storage, Buffer]] = field(default_factory=dict)

    def of_part(self, part: Group, inner: Mapping[Value, tuple[Storage, Buffer]]) -> Parameters:
        """The same parameters as the writer of a part of the group sees them.

        `inner` are the values that stay within the kernel, in scratch memory."""
        self._known.update(inner)
        stores = {**self.stores, **{value: storage for value, (storage, _) in inner.items()}}
        return replace(self, group=part, stores=stores)

    def fresh(self, hint: str) -> str:
        """A name that nothing else in the kernel has."""
        return f"{hint}_{next(self._numbers)}"

    def extent(self, dim: Dim) -> Expr:
        """An extent of a tensor; what is symbolic of it is a scalar of the kernel."""
        return self.extents.expr(dim)

    def value(self, value: Value, name: str = "") -> tuple[Storage, Buffer]:
        """The storage and buffer of something that the group reads or writes."""
        if value not in self._known:
            self._known[value] = self._added(value, name or f"a{len(self.buffers)}")
        return self._known[value]

    def _added(self, value: Value, name: str) -> tuple[Storage, Buffer]:
        literal = self.group.constants.get(value)
        if literal is None:
            outer = self.group.outer(value)
            storage = self.stores[outer]
            return storage, self._append(storage, name, outer)
        return self._constant((value,), lambda array: array, name)

    def table(self, array: Array, name: str) -> Buffer:
        """Numbers that the kernel itself brings along; a buffer has at least one element."""
        numbers = array if array.size else np.zeros(1, array.dtype)
        storage = Storage(dtype_of(numbers.dtype), numbers.shape)
        return self._append(storage, name, storage.pack(numbers))

    def packed(self, value: Value, pack: Pack, name: str, *more: Value) -> Buffer:
        """A constant, or several, packed for this kernel by a function of types alone."""
        return self._constant((value, *more), pack, name)[1]

    def _constant(self, values: tuple[Value, ...], pack: Pack, name: str) -> tuple[Storage, Buffer]:
        arrays = [self.group.constants[value].array for value in values]
        shapes = [array.shape for array in arrays]  # which may not be those the graph knows
        packed = pack(*arrays)
        storage = Storage(dtype_of(packed.dtype), packed.shape)

        def again(*others: Array) -> Array:
            pairs = zip(others, shapes, strict=True)
            return storage.pack(pack(*(other.reshape(shape) for other, shape in pairs)))

        self.packings[len(self.arguments)] = Packing(values, again)
        return storage, self._append(storage, name, storage.pack(packed))

    def repacked(self, value: Value, shape: Shape, write: WriteCopy, name: str) -> Buffer:
        """A tensor that is data, copied into an order of the kernel's own by what `write` makes of
        the tensor's buffer and the copy's."""
        outer = self.group.outer(value)
        storage = Storage(outer.dtype, shape)
        buffers = self.stores[outer].buffer("source"), storage.buffer("packed")
        extents = ", ".join(map(str, outer.shape or ()))
        note = f"{outer.dtype}[{extents}] in rows to {name} as {self.group.label} reads them"
        function = Function("pack", buffers, write(*buffers), (note,))
        return self._append(storage, name, Repacked(outer, storage, function))

    def whole_blocks(self, value: Value, axis: int, block: int) -> tuple[Storage, Buffer]:
        """A row-major constant with zeros up to a whole block of channels along an axis."""
        array = self.group.constants[value].array
        lacking = -array.shape[axis] % block
        if not lacking:
            return self.value(value)
        if (value, block) not in self._padded:
            widths = [(0, lacking if number == axis else 0) for number in range(array.ndim)]
            self._padded[value, block] = self._constant(
                (value,), lambda one: np.pad(one, widths), f"a{len(self.buffers)}"
            )
        return self._padded[value, block]

    def words(self, value: Value, name: str) -> tuple[Storage, Buffer]:
        """A tensor of narrow numbers as one of words, along the last axis of its memory."""
        outer = self.group.outer(value)
        storage = self.stores[outer]
        *leading, last = storage.extents
        assert isinstance(last, int)
        words = Storage(word_type(outer.dtype), (*leading, last // per_word(outer.dtype)))
        buffer = words.buffer(name, self.extents)
        self.buffers.append(buffer)
        self.arguments.append(outer)
        return storage, buffer

    def flat(self, value: Value, name: str) -> Buffer:
        """The memory of a tensor with all axes but the first as one."""
        outer = self.group.outer(value)
        batch, *rest = self.stores[outer].extents
        elements = math.prod(extent for extent in rest if isinstance(extent, int))
        return self.viewed(value, name, Storage(outer.dtype, (batch, elements)))

    def viewed(self, value: Value, name: str, storage: Storage) -> Buffer:
        """The memory of a tensor under another shape."""
        return self._append(storage, name, self.group.outer(value))

    def _append(self, storage: Storage, name: str, argument: Argument) -> Buffer:
        buffer = storage.buffer(name, self.extents)
        self.buffers.append(buffer)
        self.arguments.append(argument)
        return buffer

    def kernel(self, body: Stmt) -> Kernel:
        """The finished kernel; of the scalars it has those that it mentions."""
        scalars = self.extents.mentioned(body, self.buffers)
        parameters: tuple[Buffer | Var, ...] = (*self.buffers, *scalars)
        function = Function("kernel", parameters, body, (self.group.note,))
        arguments, passed = tuple(self.arguments), self.extents.passed(function)
        return Kernel(function, arguments, self.group.work, passed, self.packings)
