"""Quantisable units of a float graph, and the values that each reads as integers.

A unit is a convolution or dense layer with constant weights, a product of two data matrices, or an
attention, and the pointwise nodes of its epilogue: bias, activation, residual sum. Precisions are
chosen per unit, and a quantised unit is never split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.quantize.report import BRAIN, HALF

LAYERS = ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.dense")
PRODUCT, ATTENTION = "nn.batch_matmul", "nn.attention"
# Each element of a result is an element of an operand: codes move as the numbers they stand for.
MOVING = (
    *("nn.max_pool2d", "reshape", "transpose", "squeeze", "expand_dims", "concatenate"),
    "strided_slice",
)
_MANY_BYTES, _FEW_ROWS = 1 << 20, 4  # of a dense layer that is bound by memory
_MOST_TERMS = 1 << 16  # products of a byte and an int8 that an int32 is certain to hold the sum of


@dataclass(frozen=True, eq=False)
class Unit:
    """A layer or product and its epilogue; `residuals` are the non-constant operands of the
    epilogue."""

    anchor: Node
    epilogue: tuple[Node, ...]
    weight: Array | None  # [outputs, ...] of a layer
    bias: Array | None  # one number per output, added by the first node of the epilogue
    residuals: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The name of the value that the unit makes."""
        return self.output.name

    @property
    def operands(self) -> tuple[Value, ...]:
        """The data that are multiplied, by weights or by each other."""
        return tuple(self.anchor.args[: 1 if self.weight is not None else None])

    @property
    def channels(self) -> int:
        """The axis of a layer's data and result that its inputs and outputs lie along."""
        return channel_axis(self.anchor)

    @property
    def output(self) -> Value:
        return self.nodes[-1].output

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return (self.anchor, *self.epilogue)


def find_units(graph: Graph) -> tuple[Unit, ...]:
    """All units, first to last. A sum of two layers belongs to the later one, as in fusion."""
    constants = constants_of(graph)
    claimed: set[Node] = set()
    units: list[Unit] = []
    for node in reversed(graph.nodes):
        weight = constants.get(node.args[1]) if node.op.name in LAYERS else None
        if not (_is_product(node, constants) if weight is None else _is_quantizable(weight)):
            continue
        epilogue = _epilogue(graph, node, claimed)
        claimed.update(epilogue)
        inside = {node.output, *(one.output for one in epilogue)}
        others = (v for one in epilogue for v in one.args if v not in inside | constants.keys())
        bias = _bias(node, epilogue, constants)
        units.append(Unit(node, epilogue, weight, bias, tuple(dict.fromkeys(others))))
    return tuple(reversed(units))


def units_in(units: Iterable[Unit], precision: str) -> tuple[Unit, ...]:
    """The units that may be faster in a precision."""
    return tuple(unit for unit in units if not no_reason_for(unit, precision))


def no_reason_for(unit: Unit, precision: str) -> str:
    """Why a precision cannot make a unit faster on a processor; empty where it may."""
    if unit.weight is None:
        is_integer = precision not in (BRAIN, HALF)
        return "" if is_integer else "processors multiply two operands that are data in float32"
    inputs = unit.weight.shape[1]
    if precision == BRAIN and inputs % 2 and getattr(unit.anchor.attrs, "groups", 1) != 1:
        return f"{inputs} inputs per group cannot be multiplied in pairs"
    if precision == BRAIN and inputs % 2 and unit.anchor.op.name == "nn.dense":
        return f"{inputs} inputs cannot be multiplied in pairs"
    if precision == HALF and not _streams_weights(unit):
        return "processors compute in float32, and its weights do not stream from memory"
    return ""


def _streams_weights(unit: Unit) -> bool:
    """Whether a layer's time is that of reading its weights."""
    shape = unit.anchor.args[0].tensor.shape or ()
    rows = [dim if isinstance(dim, int) else math.inf for dim in shape[:-1]]
    is_dense = unit.anchor.op.name == "nn.dense" and unit.weight is not None
    is_large = unit.weight is not None and unit.weight.nbytes >= _MANY_BYTES
    return is_dense and is_large and math.prod(rows) <= _FEW_ROWS


def constants_of(graph: Graph) -> dict[Value, Array]:
    """The constant arrays of a graph."""
    return {value: literal.array for value, literal in graph.constants.items()}


def channel_axis(anchor: Node) -> int:
    """The axis of a layer's data and result that its inputs and outputs lie along."""
    rank = anchor.output.tensor.rank or 0
    return rank - 1 if anchor.op.name == "nn.dense" else 1


def _is_quantizable(weight: Array) -> bool:
    is_plain = weight.dtype == np.float32 and weight.size > 0 and bool(np.isfinite(weight).all())
    return is_plain and math.prod(weight.shape[1:]) <= _MOST_TERMS


def _is_product(node: Node, constants: Mapping[Value, Array]) -> bool:
    """Whether a node is a product of data that integers can compute. The softmax between the
    products of an attention stays in float."""
    if node.op.name not in (PRODUCT, ATTENTION) or len(node.outputs) != 1:
        return False
    if any(v is None or v in constants or not _is_static(v) for v in node.inputs):
        return False
    *_, depth = static_extents(node.args[0])
    if node.op.name == PRODUCT:
        is_plain = not (node.attrs.transpose_a or node.attrs.transpose_b)
        return is_plain and 0 < depth <= _MOST_TERMS // 2
    attrs = node.attrs
    is_dense = not (attrs.causal or attrs.softcap or attrs.softmax_dtype) and attrs.scores == "none"
    is_whole = attrs.left_window == attrs.right_window == -1
    heads = {(value.shape or ())[:-2] for value in node.args}
    *_, keys, _size = static_extents(node.args[-1])
    is_narrow = 0 < depth <= _MOST_TERMS // 2 and 0 < keys <= _MOST_TERMS // 2
    return is_dense and is_whole and len(node.inputs) == 3 and len(heads) == 1 and is_narrow


def static_extents(value: Value) -> tuple[int, ...]:
    """The extents of a value that are numbers."""
    return tuple(dim for dim in value.shape or () if isinstance(dim, int))


def _is_static(value: Value) -> bool:
    return _is_float(value) and value.tensor.is_static and len(value.shape or ()) > 1


def _epilogue(graph: Graph, anchor: Node, claimed: set[Node]) -> tuple[Node, ...]:
    """The pointwise nodes behind an anchor, each the only reader of the one before."""
    found: list[Node] = []
    returned, value = set(graph.outputs), anchor.output
    while value not in returned and len(graph.users.get(value, ())) == 1:
        node = graph.users[value][0]
        if node in claimed or not node.op.kind.is_pointwise or len(node.outputs) != 1:
            break
        if node.output.type != anchor.output.type:
            break
        found.append(node)
        value = node.output
    return tuple(found)


def _bias(anchor: Node, epilogue: Sequence[Node], constants: Mapping[Value, Array]) -> Array | None:
    """The constant vector that the first node behind an anchor adds to its channels."""
    node = epilogue[0] if epilogue else None
    rank = anchor.output.tensor.rank
    if node is None or rank is None or node.op.name not in ("nn.bias_add", "add"):
        return None
    if anchor.op.name not in LAYERS:
        return None
    bias = constants.get(node.args[1])
    channels = channel_axis(anchor)
    axis = node.attrs.axis % rank if node.op.name == "nn.bias_add" else rank - 1
    outputs = anchor.args[1].tensor.shape
    fits = bias is not None and outputs is not None and bias.shape == outputs[:1]
    return bias if fits and axis == channels else None


def quantized_values(graph: Graph, units: Iterable[Unit]) -> frozenset[Value]:
    """The float values that are stored as integers if these units are integer.

    These are the units' operands, residuals without other readers, and the values that they are
    moved from: pooling and concatenation then move codes."""
    chosen = list(units)
    made = {unit.output for unit in chosen}
    waiting = [value for unit in chosen for value in unit.operands]
    for unit in chosen:
        waiting += (v for v in unit.residuals if v in made and len(graph.users[v]) == 1)
    found: set[Value] = set()
    while waiting:
        value = waiting.pop()
        if value in found:
            continue
        found.add(value)
        node = graph.producers.get(value)
        if node is not None and node.op.name in MOVING:
            waiting += (v for v in node.args if _is_float(v) and v in graph.users)
    return frozenset(found)


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.dtype is DType.FLOAT32


def scale_classes(graph: Graph, values: Iterable[Value]) -> dict[Value, Value]:
    """A representative per value; values moved from each other have the same one, and share scale
    and zero point."""
    members = set(values)
    parent = {value: value for value in members}

    def root(value: Value) -> Value:
        while parent[value] is not value:
            parent[value] = value = parent[parent[value]]
        return value

    for node in graph.nodes:
        if node.op.name in MOVING:
            own = [v for v in (*node.outputs, *node.args) if v in members]
            for value in own[1:]:
                parent[root(value)] = root(own[0])
    return {value: root(value) for value in members}
