"""Whatever has tensor expressions: a group's nodes as tensors, scheduled by default and lowered.

The last template: it takes what no other does, on row-major tensors of any dtype that machine code
holds. Hand-written kernels are faster where they exist; this one is there for everything else, and
for all shapes that are known only at run time: symbolic extents become scalar parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from graft.backends.host.cost import element_cost, group_flops, streamed_cost
from graft.backends.host.extents import Extents
from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Packing, Stores
from graft.backends.host.kernel_template import HELD, Layout, Pattern, Plan, kernel_template
from graft.backends.host.kernels.conv_plan import CONVOLUTIONS
from graft.backends.host.kernels.expression.boxes import (
    Box,
    cut_into_boxes,
    in_one_memory,
    join,
)
from graft.backends.host.kernels.expression.loops import ExpressionSchedule
from graft.backends.host.kernels.expression.schedule import CannotScheduleError, default_variants
from graft.backends.host.kernels.expression.views import view_of
from graft.backends.host.kernels.images.channel_norm import CHANNEL_NORM
from graft.backends.host.kernels.images.resize import NEAREST
from graft.backends.host.storage import Storage, shape_of
from graft.base.dims import UNKNOWN, product
from graft.base.dtypes import Array, DType
from graft.base.errors import InternalError
from graft.ir.graph import Node, Value
from graft.ir.types import TensorType
from graft.llvm.types import NARROW_FLOATS, NARROW_INTEGERS
from graft.loop.errors import ScheduleError
from graft.loop.index import index_of
from graft.loop.ir import Block, Buffer, Const, Expr, Function
from graft.loop.lower import lower_variants
from graft.loop.schedule import Mask, Schedule, Unroll, Vectorize
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.ops import get_op
from graft.ops.expression import Table, Unexpressed, by_index, express, express_op, read
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Anchors whose elements are computed one by one here.
_BY_ELEMENT = ("nn.max_pool2d", "nn.avg_pool2d", CHANNEL_NORM)
# What can be read and written: numbers of a byte and less besides what is computed with.
STORED = HELD | {*NARROW_FLOATS, *NARROW_INTEGERS}


def _cost(group: Group, block: int, target: Target) -> float:
    """One pass over memory, but for windows on row-major images, which have no vectors."""
    anchor = group.anchor
    name = "" if anchor is None else anchor.op.name
    if name in CONVOLUTIONS:
        machine = target.machine
        return machine.meeting_cycles + group_flops(group) / (2 * machine.vector_fmas)
    resizes = name in ("resize", "qnn.resize")
    interpolates = resizes and anchor is not None and anchor.attrs.method != NEAREST
    by_element = name in _BY_ELEMENT or interpolates
    return (element_cost if by_element else streamed_cost)(group, block, target)


@kernel_template(
    Pattern.ANY,
    Layout.ROW_MAJOR,
    tensors=STORED,
    empty=True,
    schedule=ExpressionSchedule,
    cost=_cost,
)
def expression(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Any group whose nodes all have expressions."""
    values = (value for node in group.nodes for value in (*node.args, *node.outputs))
    unsized = next((v for v in values if v.shape is None or UNKNOWN in v.shape), None)
    if unsized is not None:
        return Refusal(f"the shape of %{unsized.name} is known only from data")
    tensors = _Tensors(group, stores, target)
    if group.node.op.name == "concatenate":
        return partial(_join, group, tensors, target)
    for number, node in enumerate(group.nodes):
        refusal = tensors.add(node, f"t{number}")
        if refusal is not None:
            return refusal
    results = [tensors.result(value) for value in group.node.outputs]
    computed = [tensor for tensor in results if Const(0) not in tensor.shape]
    if len(computed) > 1:
        try:
            default_variants(computed, target)
        except CannotScheduleError as error:
            return Refusal(f"no schedule: {error}")
    return partial(_kernel, group, tensors, computed, target)


def _kernel(group: Group, tensors: _Tensors, computed: Sequence[Tensor], target: Target) -> Kernel:
    arguments = [one for one in in_order(computed) if one.body is None] + [*computed]
    content = tuple(_content(tensor) for tensor in in_order(computed))
    function = _lowered(arguments, content, partial(cut_into_boxes, computed), target)
    return tensors.kernel(function, arguments)


def _join(group: Group, tensors: _Tensors, target: Target) -> Kernel:
    """A concatenation is made of boxes from the outset: one of each operand that has elements."""
    operands, starts = tensors.joined()
    result = tensors.joined_result()
    boxes = [] if Const(0) in result.shape else join(result, operands, starts)
    inputs = {operand.name: operand for operand in operands if Const(0) not in operand.shape}
    arguments = [*inputs.values(), result] if boxes else []
    content = tuple((_content(box.tensor), box.starts) for box in boxes)
    return tensors.kernel(_lowered(arguments, content, lambda: boxes, target), arguments)


def _lowered(
    arguments: Sequence[Tensor],
    content: tuple[Any, ...],
    boxes_of: Callable[[], Sequence[Box]],
    target: Target,
) -> Function:
    """The function; groups of equal expressions share it, as the layers of a network do."""
    if not content:  # nothing to compute
        return Function("kernel", (), Block(()))
    key = (target.key, tuple(argument.name for argument in arguments), content)
    if key not in _LOWERED:
        while len(_LOWERED) >= _MOST_LOWERED:
            _LOWERED.pop(next(iter(_LOWERED)))
        boxes = boxes_of()
        results = {box.result.name for box in boxes}
        inputs = [argument for argument in arguments if argument.name not in results]
        parts = [[box.tensor] for box in boxes]
        if not all(box.is_cut for box in boxes):  # results may depend on each other
            parts = [[box.tensor for box in boxes]]
        functions = [_scheduled(inputs, part, target) for part in parts]
        _LOWERED[key] = in_one_memory(functions, boxes)
    return _LOWERED[key]


def _scheduled(inputs: Sequence[Tensor], results: Sequence[Tensor], target: Target) -> Function:
    """The function of results that are computed by the default schedule."""
    variants = default_variants(results, target)
    buffers = [*inputs, *results]
    try:
        return lower_variants("kernel", buffers, variants)
    except ScheduleError:  # a condition on data decides what is added, lane by lane
        plain = [replace(one, schedule=_without_lanes(one.schedule)) for one in variants]
        return lower_variants("kernel", buffers, plain)


def _without_lanes(schedule: Schedule) -> Schedule:
    """The same loops, with the lanes of vectors one after the other."""
    return Schedule.of(
        {
            name: [Unroll(one.loop) if isinstance(one, Vectorize | Mask) else one for one in parts]
            for name, parts in schedule.stages
        }
    )


# Lowering takes far longer than building expressions does.
_LOWERED: dict[Any, Function] = {}
_MOST_LOWERED = 512


def _content(tensor: Tensor) -> tuple[Any, ...]:
    """All that lowering depends on, comparable."""
    body: Any = tensor.body
    if isinstance(body, Reduce):
        body = (body.kind, body.body, body.axes, body.initial)
    return tensor.buffer, tensor.axes, body


class _Tensors:
    """The tensors of a group's values, and what stands for them when the kernel is called."""

    def __init__(self, group: Group, stores: Stores, target: Target) -> None:
        self._group, self._stores = group, stores
        self.extents = Extents()
        self._view = view_of(group, self.extents, target)
        self._tensors: dict[Value, Tensor] = {}
        self._arguments: dict[str, Value | Array] = {}
        self._packings: dict[str, Packing] = {}
        for number, value in enumerate(group.reads()):
            self._tensors[value] = self._input(value, f"a{number}")

    def _input(self, value: Value, name: str, dtype: DType | None = None) -> Tensor:
        literal = self._group.constants.get(value)
        if literal is None:
            outer = self._group.outer(value)
            storage, self._arguments[name] = self._stores[outer], outer
        else:
            view = self._view
            storage = Storage(literal.type.dtype, view.packed(value, literal.array).shape)
            packing = Packing((value,), lambda one: storage.pack(view.packed(value, one)))
            self._arguments[name] = packing.pack(literal.array)
            self._packings[name] = packing
        extents = tuple(index_of(dim) for dim in self._view.shape(value))
        return Tensor(Buffer(name, dtype or storage.dtype, extents, alignment=storage.alignment))

    def add(self, node: Node, name: str) -> Refusal | None:
        """Make a node's results known."""
        if node.op.name == "bitcast":
            return self._add_bitcast(node, name)
        inputs = [None if value is None else self._tensors[value] for value in node.inputs]
        types = [TensorType(value.dtype, self._view.shape(value)) for value in node.outputs]
        operator = self._view.operator(node)
        if operator is not None:
            name_, attrs = operator
            results = express_op(get_op(name_), attrs, inputs, types, name)
        else:
            results = express(node, inputs, name, types, self.extents.attributes(node.attrs))
        if isinstance(results, Unexpressed):
            return Refusal(results.reason, node)
        for value, tensor in zip(node.outputs, results, strict=True):
            if tensor.dtype is not value.dtype:
                raise InternalError(f"{node.op.name} is expressed as {tensor.dtype}", node.location)
            self._tensors[value] = tensor
        return None

    def _add_bitcast(self, node: Node, name: str) -> Refusal | None:
        """What is read from memory can be read as another dtype."""
        value = node.args[0]
        if value not in self._group.reads():
            return Refusal("the bits are of something that is not in memory", node)
        bits = self._input(value, f"{name}_bits", node.output.dtype)
        self._tensors[node.output] = by_index(name, bits.shape, lambda *at: read(bits, at))
        return None

    def result(self, value: Value) -> Tensor:
        """A result's tensor, in the memory that it has."""
        tensor, storage = self._tensors[value], self._stores[value]
        self._arguments[tensor.name] = value
        buffer: Buffer = replace(tensor.buffer, alignment=storage.alignment)
        return replace(tensor, buffer=buffer)

    def joined(self) -> tuple[list[Tensor], list[Expr]]:
        """The operands of a concatenation, and where they begin along what their view joins."""
        operands = self._group.node.args
        axis = self._group.node.attrs.axis % len(shape_of(self._group.output))
        runs = [product(shape_of(value)[axis:]) for value in operands]
        starts = [self.extents.expr(start) for start in (0, *accumulate(runs[:-1]))]
        return [self._tensors[value] for value in operands], starts

    def joined_result(self) -> Tensor:
        """The memory of a concatenation's result."""
        value = self._group.output
        storage, extents = self._stores[value], map(index_of, self._view.shape(value))
        buffer = Buffer("t0", storage.dtype, tuple(extents), alignment=storage.alignment)
        self._arguments[buffer.name] = value
        return Tensor(buffer)

    def kernel(self, function: Function, arguments: Sequence[Tensor]) -> Kernel:
        """The function with what stands for its parameters."""
        group, passed = self._group, tuple(map(self.argument, arguments))
        scalars, packings = self.extents.passed(function), self.packings(arguments)
        named = replace(function, notes=(group.note,))
        return Kernel(named, passed, group.work, scalars, packings)

    def argument(self, tensor: Tensor) -> Value | Array:
        """What to pass for a tensor."""
        if isinstance(tensor, Table):
            return Storage(tensor.dtype, tensor.array.shape).pack(tensor.array)
        return self._arguments[tensor.name]

    def packings(self, tensors: Sequence[Tensor]) -> dict[int, Packing]:
        """How what is passed for tensors is made of constants, by position."""
        names = enumerate(tensor.name for tensor in tensors)
        return {n: self._packings[name] for n, name in names if name in self._packings}
