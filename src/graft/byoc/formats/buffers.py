"""The buffers of a region's kernels while these are planned: a graph in, names and offsets out.

Code generators that make kernels of tensor expressions derive their planners from `Buffers`. Values
lie in named buffers in some storage (`storage.py`); where a kernel asks for another one, a kernel
copies. In the end buffers that are never in use at the same time share memory of one arena.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from graft.base.dtypes import Array
from graft.byoc.formats.integer_units import extents
from graft.byoc.formats.storage import Storage
from graft.byoc.formats.tensors import Tensors
from graft.ir.graph import Graph, Value
from graft.loop.ir import Const, Var
from graft.loop.tensor import Tensor
from graft.program.plan_memory import Lifetime, plan_arena


class Buffers(ABC):
    """Where values are while a region is planned, and the kernels of tensor expressions."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.literals: Mapping[Value, Array] = {v: one.array for v, one in graph.constants.items()}
        self.places: dict[Value, tuple[str, Storage]] = {}
        self.constants: dict[str, Array] = {}
        self.sizes: dict[str, int] = {}  # bytes of buffers of the region's own
        self._names: dict[str, str] = {}  # of constants, by content
        self._copies: dict[tuple[Value, Storage], str] = {}

    @abstractmethod
    def run_kernel(
        self, inputs: Sequence[Tensor], result: Tensor, buffers: tuple[str, ...], label: str
    ) -> None:
        """Plan the kernel that computes a result; `buffers` are the inputs' and the result's."""

    def constant(self, array: Array) -> str:
        """The buffer of an array that is known; equal ones share it."""
        packed = np.ascontiguousarray(array)
        content = hashlib.sha256(packed.tobytes() + str((packed.shape, packed.dtype)).encode())
        name = self._names.setdefault(content.hexdigest(), f"constant{len(self._names)}")
        self.constants[name] = packed
        return name

    def own(self, nbytes: int) -> str:
        """A buffer of so many bytes."""
        name = f"own{len(self.sizes)}"
        self.sizes[name] = nbytes
        return name

    def located(self, value: Value) -> tuple[str, Storage]:
        """The buffer and the storage of a value."""
        if value not in self.places:
            storage = Storage.row_major(value.dtype, extents(value))
            self.places[value] = self.constant(storage.pack(self.literals[value])), storage
        return self.places[value]

    def make(self, value: Value, storage: Storage) -> str:
        """A buffer for a value that a kernel writes."""
        self.places[value] = self.own(storage.nbytes), storage
        return self.places[value][0]

    def require(self, value: Value, storage: Storage) -> str:
        """The buffer of a value in some storage, copied there where it is not yet."""
        name, now = self.located(value)
        if now.serves(storage):
            return name
        if value in self.literals:
            return self.constant(storage.pack(self.literals[value]))
        if (value, storage) not in self._copies:
            copy, tensors = self.own(storage.nbytes), Tensors(self)
            self.compute(tensors, tensors.get(value), storage, copy)
            self._copies[value, storage] = copy
        return self._copies[value, storage]

    def compute(
        self, tensors: Tensors, value: Tensor, storage: Storage, target: str, label: str = "copy"
    ) -> None:
        """Plan the kernel that writes a value in some storage to a buffer, unless it is empty."""
        if 0 in storage.extents:
            return
        result = storage.result("result", value)
        if not result.shape:  # loops need an axis: a scalar is a list of one
            scalar = replace(result.buffer, extents=(Const(1),))
            result = replace(result, buffer=scalar, axes=(Var("result@i0"),))
        inputs = tensors.complete(result)
        buffers = (*(tensors.buffers[one.name] for one in inputs), target)
        self.run_kernel(inputs, result, buffers, label)


def plan_offsets(
    sizes: Mapping[str, int], uses: Iterable[Sequence[str]]
) -> tuple[dict[str, int], int]:
    """Where buffers lie in one arena, and its size, by the buffers of each kernel in order.
    Those without a size lie elsewhere."""
    first, last = dict[str, int](), dict[str, int]()
    for step, names in enumerate(uses):
        for name in names:
            first.setdefault(name, step)
            last[name] = step
    names = [name for name in sizes if name in first]
    arena = plan_arena([Lifetime(sizes[name], first[name], last[name]) for name in names])
    offsets = {name: offset for name, (_, offset) in zip(names, arena.offsets, strict=True)}
    return offsets, max((offsets[name] + sizes[name] for name in names), default=0)
