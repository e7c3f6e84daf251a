"""The buffers of a region's kernels while these are planned: a graph in, names and offsets out.

Code generators that make kernels of tensor expressions derive their planners from `Buffers`. Values
lie in named buffers in some storage (`storage.py`); where a kernel requires another storage, a
kernel copies. In the end buffers that are never live at the same time share memory of one arena.
`Tensors` are those of one kernel; `strided` tells whether movement is only a change of strides.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graft.base.bounds import Range
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import extents
from graft.byoc.formats.storage import Storage
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Kind
from graft.loop.default_schedule import inline_stages
from graft.loop.index import polynomial
from graft.loop.ir import Binary, BinaryKind, Cast, Const, Expr, Load, Var
from graft.loop.ranges import Context
from graft.loop.simplify import simplify
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.ops.expression import Table, Unexpressed, by_index, express, number
from graft.program.plan_memory import Lifetime, plan_arena


class Buffers(ABC):
    """The buffers of values while a region is planned, and the kernels of tensor expressions."""

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
        """The best storage of a value that a kernel makes."""

    def constant(self, array: Array) -> str:
        """The buffer of a constant array; equal ones share it."""
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
        """The buffer of a value in a storage, filled by a copy if need be."""
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
        """Whether nodes leave all elements in place; the last one's value is then a view of their
        buffer. With `only_rows` its elements have to be in row-major order there."""
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
        """Plan a kernel for each result of the last node that is read, or for some `values`; values
        of the other nodes are inlined."""
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
    """Row-major storage of a value."""
    return Storage.row_major(value.dtype, extents(value))


def plan_offsets(
    sizes: Mapping[str, int], uses: Iterable[Sequence[str]]
) -> tuple[dict[str, int], int]:
    """Offsets of buffers in one arena and its size, by the buffers that each kernel uses, in order;
    buffers without a size are not in it."""
    first, last = dict[str, int](), dict[str, int]()
    for step, names in enumerate(uses):
        for name in names:
            first.setdefault(name, step)
            last[name] = step
    names = [name for name in sizes if name in first]
    arena = plan_arena([Lifetime(sizes[name], first[name], last[name]) for name in names])
    offsets = {name: offset for name, (_, offset) in zip(names, arena.offsets, strict=True)}
    return offsets, max((offsets[name] + sizes[name] for name in names), default=0)


class Tensors:
    """The tensors of one kernel: values as expressions, and the buffers that they stand on."""

    def __init__(self, planner: Buffers) -> None:
        self._planner = planner
        self._tensors: dict[Value, Tensor] = {}
        self.buffers: dict[str, str] = {}  # of inputs, by the tensor's name
        self.inputs: list[Tensor] = []

    def set(self, value: Value, tensor: Tensor) -> None:
        self._tensors[value] = tensor

    def get(self, value: Value) -> Tensor:
        if value in self._tensors:
            return self._tensors[value]
        name, array = f"a{len(self._tensors)}", self._planner.literals.get(value)
        if array is not None and array.size == 1 and array.dtype.kind in "fiub":
            only, dtype = array.reshape(-1)[0].item(), value.dtype
            tensor = by_index(name, array.shape, lambda *_: number(only, dtype))
        else:
            buffer, storage = self._planner.located(value)
            memory = self._input(storage.input(name), buffer)
            tensor = storage.view(f"{name}_value", memory, value.dtype)
        self._tensors[value] = tensor
        return tensor

    def _input(self, tensor: Tensor, buffer: str) -> Tensor:
        self.inputs.append(tensor)
        self.buffers[tensor.name] = buffer
        return tensor

    def add(self, node: Node, prefix: str) -> None:
        """Add the tensors of a node's results."""
        inputs = [None if value is None else self.get(value) for value in node.inputs]
        results = express(node, inputs, prefix)
        if isinstance(results, Unexpressed):
            raise UnsupportedError(results.reason)
        for value, tensor in zip(node.outputs, results, strict=True):
            self._tensors[value] = tensor

    def complete(self, result: Tensor) -> list[Tensor]:
        """All inputs of a result, tables included."""
        read = [one for one in in_order([result]) if one.body is None]
        for one in read:
            if isinstance(one, Table):
                self.buffers[one.name] = self._planner.constant(one.array)
        return read


@dataclass(frozen=True, slots=True)
class Strided:
    """A value as a strided view of a buffer."""

    buffer: str
    dtype: DType
    offset: int
    strides: tuple[int, ...]

    def has_rows_of(self, dtype: DType, chunk: int) -> bool:
        """Whether its rows are contiguous elements of a dtype that begin at whole chunks."""
        steps = (self.offset, *self.strides[:-1])
        return self.dtype is dtype and self.strides[-1] == 1 and not any(n % chunk for n in steps)

    def order(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """The axes from the outermost to the innermost, if the view is dense and has no offset."""
        order = sorted(range(len(shape)), key=lambda axis: -self.strides[axis])
        expected = 1
        for axis in reversed(order):
            if shape[axis] > 1 and self.strides[axis] != expected:
                return None
            expected *= shape[axis]
        return None if self.offset else tuple(order)


def strided(planner: Buffers, nodes: Sequence[Node], value: Value) -> Strided | None:
    """The view that movement makes of a buffer, if it only changes strides and an offset; else
    None."""
    tensors = Tensors(planner)
    for position, node in enumerate(nodes):
        tensors.add(node, f"t{position}")
    result = tensors.get(value)
    inputs = tensors.complete(result)
    if len(inputs) != 1 or any(isinstance(one.body, Reduce) for one in in_order([result])):
        return None
    body = inline_stages(inputs, result)[1][result.name].body
    while isinstance(body, Cast):
        body = body.value
    if not isinstance(body, Load):
        return None
    extents = [int(one.value) for one in result.shape if isinstance(one, Const)]
    ranges = {axis.name: Range(0, n - 1) for axis, n in zip(result.axes, extents, strict=True)}
    return _linear(body, [axis.name for axis in result.axes], Context(ranges), tensors)


def _linear(load: Load, axes: Sequence[str], context: Context, tensors: Tensors) -> Strided | None:
    address: Expr = Const(0)
    for index, extent in zip(load.indices, load.buffer.extents, strict=True):
        address = Binary(BinaryKind.ADD, Binary(BinaryKind.MULTIPLY, address, extent), index)
    total: dict[str, int] = dict.fromkeys(("", *axes), 0)
    for monomial, coefficient in polynomial(simplify(address, context)).items():
        name = monomial[0].name if len(monomial) == 1 else "" if not monomial else "?"
        if name not in total:
            return None
        total[name] = coefficient
    strides = tuple(total[axis] for axis in axes)
    return Strided(tensors.buffers[load.buffer.name], load.buffer.dtype, total[""], strides)
