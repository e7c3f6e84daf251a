"""The tensors of one kernel: values as expressions over memory, and movement as strides of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from graft.base.bounds import Range
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.storage import Storage
from graft.ir.graph import Node, Value
from graft.loop.default_schedule import inline_stages
from graft.loop.index import polynomial
from graft.loop.ir import Binary, BinaryKind, Cast, Const, Expr, Load
from graft.loop.ranges import Context
from graft.loop.simplify import simplify
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.ops.expression import Table, Unexpressed, by_index, express, number


class Located(Protocol):
    """An object that locates values: constants by value, buffers and storage."""

    literals: Mapping[Value, Array]

    def located(self, value: Value) -> tuple[str, Storage]: ...

    def constant(self, array: Array) -> str: ...


class Tensors:
    """The tensors of one kernel: values as expressions, and the buffers that they stand on."""

    def __init__(self, planner: Located) -> None:
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
        """Make a node's results known."""
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
    """A value whose elements lie in a buffer at an offset, and strides of it along each axis."""

    buffer: str
    dtype: DType
    offset: int
    strides: tuple[int, ...]

    def has_rows_of(self, dtype: DType, chunk: int) -> bool:
        """Whether its rows are elements of a dtype side by side, and begin at whole chunks."""
        steps = (self.offset, *self.strides[:-1])
        return self.dtype is dtype and self.strides[-1] == 1 and not any(n % chunk for n in steps)

    def order(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """The axes from the outermost one to the innermost, if nothing is in front or between."""
        order = sorted(range(len(shape)), key=lambda axis: -self.strides[axis])
        expected = 1
        for axis in reversed(order):
            if shape[axis] > 1 and self.strides[axis] != expected:
                return None
            expected *= shape[axis]
        return None if self.offset else tuple(order)


def strided(planner: Located, nodes: Sequence[Node], value: Value) -> Strided | None:
    """What movement makes of a buffer, if that is no more than other strides."""
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
