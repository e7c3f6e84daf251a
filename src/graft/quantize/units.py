"""Quantisable units of a float graph, and the values that each reads as bytes.

A unit is a convolution or dense layer with constant weights and the pointwise nodes that run in its
epilogue: bias, activation, residual sum. It is the grain of every decision on precision, and the
one that `byoc/units.py` never tears apart once it is quantised.
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
from graft.quantize.weights import QuantizedWeight, quantize_weight

ANCHORS = ("nn.conv2d", "nn.dense")
# Each element of a result is an element of an operand: codes move as the numbers they stand for.
MOVING = (
    *("nn.max_pool2d", "reshape", "transpose", "squeeze", "expand_dims", "concatenate"),
    "strided_slice",
)
_MANY_BYTES, _FEW_ROWS = 1 << 20, 4  # of a dense layer that is bound by memory
_MOST_TERMS = 1 << 16  # products of a byte and an int8 that an int32 is certain to hold the sum of


@dataclass(frozen=True, eq=False)
class Unit:
    """A layer and its epilogue; `residuals` are the non-constant operands of the epilogue."""

    anchor: Node
    epilogue: tuple[Node, ...]
    weight: Array  # [outputs, ...]
    bias: Array | None  # one number per output, added by the first node of the epilogue
    residuals: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The name of the value that the unit makes."""
        return self.output.name

    @property
    def data(self) -> Value:
        """What is multiplied by the weights."""
        return self.anchor.args[0]

    @property
    def output(self) -> Value:
        return self.nodes[-1].output

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return (self.anchor, *self.epilogue)

    @cached_property
    def quantized(self) -> QuantizedWeight:
        """The weights in 8 bits."""
        return quantize_weight(self.weight)


def find_units(graph: Graph) -> tuple[Unit, ...]:
    """All units, first to last. Where two layers meet in a sum, it belongs to the later one, as
    fusion has it."""
    constants = constants_of(graph)
    claimed: set[Node] = set()
    units: list[Unit] = []
    for node in reversed(graph.nodes):
        weight = constants.get(node.args[1]) if node.op.name in ANCHORS else None
        if weight is None or not _is_quantizable(node, weight):
            continue
        epilogue = _epilogue(graph, node, claimed)
        claimed.update(epilogue)
        inside = {node.output, *(one.output for one in epilogue)}
        others = (v for one in epilogue for v in one.args if v not in inside | constants.keys())
        bias = _bias(node, epilogue, constants)
        units.append(Unit(node, epilogue, weight, bias, tuple(dict.fromkeys(others))))
    return tuple(reversed(units))


def units_in(units: Iterable[Unit], precision: str) -> tuple[Unit, ...]:
    """The units that a precision may be worth it for."""
    return tuple(unit for unit in units if not no_reason_for(unit, precision))


def no_reason_for(unit: Unit, precision: str) -> str:
    """Why a precision cannot make a unit faster on a processor; empty where it may."""
    inputs = unit.weight.shape[1]
    if precision == BRAIN and inputs % 2 and getattr(unit.anchor.attrs, "groups", 1) != 1:
        return f"{inputs} inputs per group cannot be multiplied in pairs"
    if precision == BRAIN and inputs % 2 and unit.anchor.op.name == "nn.dense":
        return f"{inputs} inputs cannot be multiplied in pairs"
    if precision == HALF and not _streams_weights(unit):
        return "processors compute in float32, and its weights do not stream from memory"
    return ""


def _streams_weights(unit: Unit) -> bool:
    """Whether a layer reads many weights for few results."""
    shape = unit.anchor.args[0].tensor.shape or ()
    rows = [dim if isinstance(dim, int) else math.inf for dim in shape[:-1]]
    is_dense = unit.anchor.op.name == "nn.dense" and unit.weight.nbytes >= _MANY_BYTES
    return is_dense and math.prod(rows) <= _FEW_ROWS


def constants_of(graph: Graph) -> dict[Value, Array]:
    """The constants of a graph."""
    return {n.output: n.attrs.value.array for n in graph.nodes if n.op.name == "constant"}


def _is_quantizable(anchor: Node, weight: Array) -> bool:
    is_plain = weight.dtype == np.float32 and weight.size > 0 and bool(np.isfinite(weight).all())
    return is_plain and int(np.prod(weight.shape[1:])) <= _MOST_TERMS


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
    bias = constants.get(node.args[1])
    channels = rank - 1 if anchor.op.name == "nn.dense" else 1
    axis = node.attrs.axis % rank if node.op.name == "nn.bias_add" else rank - 1
    outputs = anchor.args[1].tensor.shape
    fits = bias is not None and outputs is not None and bias.shape == outputs[:1]
    return bias if fits and axis == channels else None


def quantized_values(graph: Graph, units: Iterable[Unit]) -> frozenset[Value]:
    """The float values that are stored as bytes where these units are integer.

    These are the units' data, residuals that nobody else reads, and whatever they are moved from:
    pooling and concatenation then move bytes."""
    chosen = list(units)
    made = {unit.output for unit in chosen}
    waiting = [unit.data for unit in chosen]
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
    """A representative per value; values with the same one share scale and zero point, since one is
    moved from the other."""
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
