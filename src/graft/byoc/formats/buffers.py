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
from graft.byoc.formats.tensors import Tensors, strided
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Kind
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

    @abstractmethod
    def storage_for(self, value: Value) -> Storage:
        """How a value that a kernel makes is best stored."""

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
            storage = row_major(value)
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

    def view(self, nodes: Sequence[Node], only_rows: bool = False) -> bool:
        """Whether nodes leave all elements where they are; the last one's value is then there as
        well. With `only_rows` these have to follow one another as in the value."""
        value, is_single = nodes[-1].outputs[0], len(nodes[-1].outputs) == 1
        is_movement = all(node.op.kind is Kind.INJECTIVE for node in nodes)
        source = strided(self, nodes, value) if is_single and is_movement else None
        order = source.order(extents(value)) if source else None
        if source is None or order is None or nodes[0].args[0].dtype is not value.dtype:
            return False
        storage = Storage(source.dtype, extents(value), order)
        if storage.is_row_major:
            storage = Storage.row_major(source.dtype, extents(value))
        elif only_rows:
            return False
        self.places[value] = source.buffer, storage
        return True

    def express(self, nodes: Sequence[Node], values: Sequence[Value] = ()) -> None:
        """Plan a kernel for each result of the last node that is read, or for some `values`; it
        computes what it reads on its way."""
        tensors, label = Tensors(self), "+".join(node.op.name for node in nodes)
        for position, node in enumerate(nodes):
            tensors.add(node, f"t{position}")
        for value in values or nodes[-1].outputs:
            if value in self.graph.users or value in self.graph.outputs:
                self.write(tensors, tensors.get(value), value, label)

    def write(self, tensors: Tensors, result: Tensor, value: Value, label: str) -> None:
        """Plan the kernel that makes a value, by its tensor expression."""
        storage = self.storage_for(value)
        self.compute(tensors, result, storage, self.make(value, storage), label)

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


def row_major(value: Value) -> Storage:
    """A value as it is."""
    return Storage.row_major(value.dtype, extents(value))


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
