"""Quantised units as integer arithmetic: dequantisations, an operator, a quantisation.

A unit's floats are integers times a scale. Its sums are exact, and one multiplication by a number
of 31 bits and one rounding (halves upwards) make the codes of its result. What has no form here
is computed in floats, as the graph says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graft.backends.hexagon.hvx import Codes, Operand8, join_kernel, pointwise_kernel
from graft.base.dtypes import Array, DType
from graft.byoc.formats.storage import CHANNELS_LAST, Storage
from graft.byoc.formats.tensors import Tensors
from graft.ir.evaluate import run_op
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.loop.build import Term, cast
from graft.ops.expression import Unexpressed, by_index, express_op, read, table

if TYPE_CHECKING:
    from graft.backends.hexagon.plan import Planner

BYTES = (DType.INT8, DType.UINT8)
_MOVES = ("reshape", "squeeze", "expand_dims", "transpose", "strided_slice", "concatenate")
_ADDED_BITS = 22  # by which a difference of codes is shifted left before it is scaled


class NoIntegerFormError(Exception):
    """A unit that is left to floats."""


@dataclass(frozen=True, slots=True)
class Coded:
    """Floats by their codes: (codes - zero) × scale, along an axis where there are several."""

    value: Value
    scale: Array
    zero: Array
    axis: int

    @property
    def single(self) -> tuple[float, int]:
        """Scale and zero point of all elements."""
        if self.scale.size > 1 or self.value.dtype not in BYTES:
            raise NoIntegerFormError
        return float(self.scale.reshape(())), int(self.zero.reshape(-1)[0])

    @property
    def parameters(self) -> tuple[object, ...]:
        return (self.value.dtype, *self.single)


@dataclass(frozen=True)
class Unit:
    """Nodes that a quantisation ends, first to last, and what the graph knows around them."""

    nodes: tuple[Node, ...]
    graph: Graph

    @property
    def result(self) -> Value:
        return self.nodes[-1].output

    def coded(self, value: Value) -> Coded:
        """The floats that a dequantisation makes of codes."""
        node = self.graph.producers.get(value)
        if node is None or node.op.name != "qnn.dequantize":
            raise NoIntegerFormError
        return self._parameters(node, node.args[0])

    @property
    def target(self) -> Coded:
        return self._parameters(self.nodes[-1], self.result)

    def _parameters(self, node: Node, codes: Value) -> Coded:
        constants = [self.graph.constants.get(one) for one in node.args[1:]]
        if None in constants or node.attrs.block_size:
            raise NoIntegerFormError
        scale, *zero = (one.array for one in constants if one is not None)
        zeros = zero[0].astype(np.int64) if zero else np.zeros(1, np.int64)
        return Coded(codes, scale.astype(np.float64), zeros, node.attrs.axis)

    def stripped(self) -> tuple[Node, Coded | None, tuple[float, float]]:
        """The operator, the bias behind it, and the bounds of the activation behind that."""
        bias, bounds = None, (-math.inf, math.inf)
        node = self.graph.producers[self.nodes[-1].args[0]]
        if node.op.name in ("nn.relu", "clip") and len(node.args) == 1:
            relu = node.op.name == "nn.relu"
            low, high = (0.0, None) if relu else (node.attrs.a_min, node.attrs.a_max)
            bounds = (-math.inf if low is None else low, math.inf if high is None else high)
            node = self.graph.producers[node.args[0]]
        if node.op.name == "nn.bias_add":
            inner = self.graph.producers[node.args[0]]
            rank = len(shape_of(node.output))
            if node.attrs.axis % rank != (1 if inner.op.name == "nn.conv2d" else rank - 1):
                raise NoIntegerFormError
            bias, node = self.coded(node.args[1]), inner
            if bias.value not in self.graph.constants:
                raise NoIntegerFormError
        return node, bias, bounds

    def codes(self, factor: Array, bound: int, bounds: tuple[float, float]) -> tuple[Codes, Array]:
        """How sums of at most `bound`, times a factor each, become codes of the result."""
        left = 31 - int(bound).bit_length()
        largest = math.frexp(float(factor.max()))[1] - left
        right = min(-1 - largest, 30)
        if left < 0 or right < 1 or not np.all((factor > 0) & (factor < math.inf)):
            raise NoIntegerFormError
        codes = self._codes(left, right, bounds)
        multiplier = np.rint(np.ldexp(factor, 32 + right - left)).clip(0, 2**31 - 1)
        return codes, multiplier.astype(np.int32)

    def _codes(self, left: int, right: int, bounds: tuple[float, float]) -> Codes:
        (scale, zero), dtype = self.target.single, self.result.dtype
        info = np.iinfo(dtype.numpy)
        low, high = (int(np.clip(np.rint(b / scale) + zero, info.min, info.max)) for b in bounds)
        return Codes(dtype, left, right, zero, low, high)

    def scale_to(self, source: Coded) -> float:
        """How many steps of the result one of an operand is."""
        return source.single[0] / self.target.single[0]


def shape_of(value: Value) -> tuple[int, ...]:
    """Static extents."""
    return tuple(int(str(extent)) for extent in value.tensor.shape or ())


def storage_of(value: Value, dtype: DType | None = None) -> Storage:
    """How a value lies in memory: images with the channels last, others as they are."""
    shape = shape_of(value)
    order = CHANNELS_LAST if len(shape) == 4 else tuple(range(len(shape)))
    return Storage(dtype or value.dtype, shape, order)


Lower = Callable[["Planner", Unit], None]
LOWER: dict[str, Lower] = {}


def lowers(*names: str) -> Callable[[Lower], Lower]:
    """Say of a function which operators it lowers."""

    def register(function: Lower) -> Lower:
        LOWER.update(dict.fromkeys(names, function))
        return function

    return register


def lower_unit(planner: Planner, unit: Unit) -> bool:
    """Plan the steps of a unit in integers; False where it has no such form."""
    try:
        core, _, _ = unit.stripped()
        lower = LOWER.get(core.op.name, _look_up)
        lower(planner, unit)
    except NoIntegerFormError:
        return False
    return True


@lowers("add", "subtract", "multiply", "qnn.dequantize")
def _pointwise(planner: Planner, unit: Unit) -> None:
    """Of tensors of one shape; an activation alone is an operator on one."""
    core, _, bounds = unit.stripped()
    is_alone = core.op.name == "qnn.dequantize"
    sources = [unit.coded(one) for one in ((core.output,) if is_alone else core.args)]
    storage = storage_of(unit.result)
    if any(shape_of(one.value) != storage.shape for one in sources):
        raise NoIntegerFormError
    operands, multiplier = tuple(Operand8(o.value.dtype, o.single[1]) for o in sources), 0
    if core.op.name in ("add", "subtract"):
        codes, operands = _scaled_operands(unit, sources, bounds, core.op.name == "subtract")
    else:
        factor = math.prod(one.single[0] for one in sources) / unit.target.single[0]
        codes, found = unit.codes(np.array([factor]), 255 ** len(sources), bounds)
        multiplier = int(found[0])
    kernel = pointwise_kernel(operands, math.prod(storage.shape), codes, multiplier)
    names = [planner.require(one.value, storage_of(one.value)) for one in sources]
    planner.step(kernel, (*names, planner.make(unit.result, storage)))


def _scaled_operands(
    unit: Unit, sources: list[Coded], bounds: tuple[float, float], is_difference: bool
) -> tuple[Codes, tuple[Operand8, ...]]:
    """Operands in steps so fine that what is rounded before the sum hardly shows behind it."""
    factors = [unit.scale_to(one) for one in sources]
    if not all(0 < one < math.inf for one in factors):
        raise NoIntegerFormError
    right = min(_ADDED_BITS - 1 - math.frexp(max(factors))[1], 30)
    if right < 1:
        raise NoIntegerFormError
    signs = (1, -1) if is_difference else (1, 1)
    operands = tuple(
        Operand8(
            one.value.dtype,
            one.single[1],
            sign * round(math.ldexp(factor, 32 + right - _ADDED_BITS)),
            _ADDED_BITS,
        )
        for one, factor, sign in zip(sources, factors, signs, strict=True)
    )
    return unit._codes(0, right, bounds), operands


@lowers(*_MOVES)
def _move(planner: Planner, unit: Unit) -> None:
    """Movement of codes; those of other parameters than the result's are requantised before."""
    core, _, bounds = unit.stripped()
    if bounds != (-math.inf, math.inf) or len(core.outputs) > 1:
        raise NoIntegerFormError
    dtype, moved = unit.result.dtype, list[Value]()
    for source in map(unit.coded, core.args):
        moved.append(source.value)
        if source.parameters != unit.target.parameters:
            storage, (_, zero) = storage_of(source.value, dtype), source.single
            codes, factor = unit.codes(np.array([unit.scale_to(source)]), 255, bounds)
            operands = (Operand8(source.value.dtype, zero),)
            kernel = pointwise_kernel(operands, math.prod(storage.shape), codes, int(factor[0]))
            moved[-1] = Value(f"{source.value.name}_moved", TensorType(dtype, storage.shape))
            name = planner.require(source.value, storage_of(source.value))
            planner.step(kernel, (name, planner.make(moved[-1], storage)))
    storage, rank = storage_of(unit.result), len(shape_of(unit.result))
    if core.op.name == "concatenate" and core.attrs.axis % rank == storage.order[-1]:
        widths = tuple(shape_of(one)[core.attrs.axis] for one in moved)
        names = [planner.require(one, storage_of(one)) for one in moved]
        kernel = join_kernel(dtype, math.prod(storage.shape) // sum(widths), widths)
        planner.step(kernel, (*names, planner.make(unit.result, storage)))
        return
    tensors, types = Tensors(planner), [TensorType(dtype, storage.shape)]
    results = express_op(core.op, core.attrs, [tensors.get(one) for one in moved], types, "moved")
    if isinstance(results, Unexpressed):
        raise NoIntegerFormError
    planner.compute(tensors, results[0], unit.result)


def _look_up(planner: Planner, unit: Unit) -> None:
    """Functions of single elements of one tensor, by a table of all that a byte can stand for."""
    codes = {n.args[0] for n in unit.nodes if n.op.name == "qnn.dequantize"}
    codes -= set(unit.graph.constants)
    numbers = {v: one.array for v, one in unit.graph.constants.items() if one.array.size == 1}
    operators = [node for node in unit.nodes if node.op.name != "constant"]
    source = next(iter(codes), unit.result)
    simple = all(
        node.op.kind.is_pointwise and shape_of(node.output) == shape_of(source)
        for node in operators
        if not set(node.args) <= set(numbers)
    )
    if len(codes) != 1 or not simple or source.dtype not in BYTES:
        raise NoIntegerFormError
    info = np.iinfo(source.dtype.numpy)
    known: dict[Value, Array] = {value: one.reshape(()) for value, one in numbers.items()}
    known[source] = np.arange(info.min, info.max + 1).astype(source.dtype.numpy)
    for node in operators:
        if not set(node.args) <= set(known):
            raise NoIntegerFormError
        with np.errstate(all="ignore"):
            (result,) = run_op(node.op, node.attrs, [known[one] for one in node.args])
        known[node.output] = np.asarray(result)
    entries, tensors = table("entries", known[unit.result]), Tensors(planner)
    data = tensors.get(source)

    def element(*indices: Term) -> Term:
        return read(entries, [cast(DType.INT64, read(data, indices)) - int(info.min)])

    planner.compute(tensors, by_index("looked_up", shape_of(source), element), unit.result)
