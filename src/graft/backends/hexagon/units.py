"""Quantised units as HVX kernels: functions of elements, sums and products of two, movement.

Sums are exact, and one multiplication by a number of 31 bits and one rounding (halves upwards) make
the codes of a result. What has no form here is computed in floats, as the graph says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from graft.backends.hexagon.hvx import Codes, Operand8, join_kernel, pointwise_kernel
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.base.registry import Registry
from graft.byoc.formats.integer_units import FREE, Coded, Unit, extents, looked_up
from graft.byoc.formats.storage import CHANNELS_LAST, Storage
from graft.byoc.formats.tensors import Tensors
from graft.ir.graph import Value
from graft.ir.types import TensorType
from graft.loop.build import Term, cast
from graft.ops.expression import Unexpressed, by_index, express_op, read, table

if TYPE_CHECKING:
    from graft.backends.hexagon.plan import Planner

_MOVES = ("reshape", "squeeze", "expand_dims", "transpose", "strided_slice", "concatenate")
_ADDED_BITS = 22  # by which a difference of codes is shifted left before it is scaled
_MOST_BITS = 30  # behind the point of what is rounded

Lower = Callable[["Planner", Unit], None]
LOWER: Registry[Lower] = Registry("lowering to HVX")


def lower_unit(planner: Planner, unit: Unit) -> bool:
    """Plan the steps of a unit in integers; False where it has no such form."""
    name = unit.operator.op.name
    lower = LOWER.get(name) if name in LOWER else _look_up
    try:
        lower(planner, unit)
    except UnsupportedError:
        return False
    return True


def storage_of(value: Value) -> Storage:
    """How a value lies in memory: images with the channels last, others as they are."""
    shape = extents(value)
    order = CHANNELS_LAST if len(shape) == 4 else tuple(range(len(shape)))
    return Storage(value.dtype, shape, order)


def codes_of(unit: Unit, right: int, left: int = 0) -> Codes:
    """How numbers with so many bits behind the point become codes of the result."""
    if left < 0 or not 1 <= right <= _MOST_BITS:
        raise UnsupportedError("its scales lie too far apart")
    return Codes(unit.result.dtype, left, right, int(unit.target.zero.reshape(())), *unit.limits)


def scaled_sums(unit: Unit, factor: Array, largest: int) -> tuple[Codes, Array, Operand8 | None]:
    """How sums become codes of the result, of which one step of a sum is `factor`: with a
    multiplier for each factor, and what is added to the products."""
    left, factors = 31 - largest.bit_length(), []
    right = min(left - 1 - math.frexp(float(factor.max()))[1], _MOST_BITS)
    if unit.added is not None:
        factors = [unit.added.step / unit.target.step]
        right = min(right, _fraction_bits(factors))
    codes = codes_of(unit, right, left)
    multiplier = np.rint(np.ldexp(factor, 32 + right - left)).clip(0, 2**31 - 1)
    added = None if unit.added is None else _operand(unit.added, factors[0], right)
    return codes, multiplier.astype(np.int32), added


def _fraction_bits(factors: list[float]) -> int:
    """Bits behind the point with which differences of codes, times factors, are in range."""
    return min(_ADDED_BITS - 1 - math.frexp(max(factors))[1], _MOST_BITS)


def _operand(data: Coded, factor: float, right: int) -> Operand8:
    """A tensor in steps so fine that what is rounded before a sum hardly shows behind it."""
    multiplier = round(math.ldexp(factor, 32 + right - _ADDED_BITS))
    return Operand8(data.value.dtype, int(data.zero.reshape(())), multiplier, _ADDED_BITS)


@LOWER.entry("add", "subtract", "multiply", "qnn.dequantize")
def _pointwise(planner: Planner, unit: Unit) -> None:
    """Of tensors of one shape; an activation alone is an operator on one."""
    if any(extents(one.value) != extents(unit.result) for one in unit.operands):
        raise UnsupportedError("operands are broadcast")
    _combine(planner, unit, unit.operator.op.name, unit.operands, unit.result)


def _combine(planner: Planner, unit: Unit, name: str, data: list[Coded], result: Value) -> None:
    """A sum or product of tensors, or one of them alone, as codes of the unit's result."""
    factors, multiplier = [one.step / unit.target.step for one in data], 0
    if name in ("add", "subtract"):
        codes = codes_of(unit, _fraction_bits(factors))
        signed = (factors[0], -factors[1] if name == "subtract" else factors[1])
        pairs = zip(data, signed, strict=True)
        operands = [_operand(one, factor, codes.right) for one, factor in pairs]
    else:
        factor = np.array([math.prod(one.step for one in data) / unit.target.step])
        codes, multipliers, _ = scaled_sums(unit, factor, 255 ** len(data))
        operands = [Operand8(one.value.dtype, int(one.zero.reshape(()))) for one in data]
        multiplier = int(multipliers[0])
    storage = storage_of(result)
    kernel = pointwise_kernel(tuple(operands), math.prod(storage.shape), codes, multiplier)
    names = [planner.require(one.value, storage_of(one.value)) for one in data]
    planner.step(kernel, (*names, planner.make(result, storage)))


@LOWER.entry(*_MOVES)
def _move(planner: Planner, unit: Unit) -> None:
    """Movement of codes; those of another meaning than the result's are requantised before."""
    core, dtype, storage = unit.operator, unit.result.dtype, storage_of(unit.result)
    if unit.bounds != FREE or len(core.outputs) > 1:
        raise UnsupportedError("codes are moved and nothing else")
    moved = [_requantized(planner, unit, source) for source in unit.operands]
    if core.op.name == "concatenate" and core.attrs.axis % len(storage.shape) == storage.order[-1]:
        widths = tuple(extents(one)[core.attrs.axis] for one in moved)
        names = [planner.require(one, storage_of(one)) for one in moved]
        kernel = join_kernel(dtype, math.prod(storage.shape) // sum(widths), widths)
        planner.step(kernel, (*names, planner.make(unit.result, storage)))
        return
    tensors, types = Tensors(planner), [TensorType(dtype, storage.shape)]
    results = express_op(core.op, core.attrs, [tensors.get(one) for one in moved], types, "moved")
    if isinstance(results, Unexpressed):
        raise UnsupportedError(results.reason)
    planner.write(tensors, results[0], unit.result)


def _requantized(planner: Planner, unit: Unit, source: Coded) -> Value:
    """Codes of an operand as those of the result."""
    if source.meaning == unit.target.meaning:
        return source.value
    kind = TensorType(unit.result.dtype, extents(source.value))
    result = Value(f"{source.value.name}_moved", kind)
    _combine(planner, unit, "multiply", [source], result)
    return result


def _look_up(planner: Planner, unit: Unit) -> None:
    """Functions of single elements of one tensor, by a table of all that a byte can stand for."""
    source, found = looked_up(unit)
    entries, tensors = table("entries", found), Tensors(planner)
    data, lowest = tensors.get(source.value), int(np.iinfo(source.value.dtype.numpy).min)

    def element(*indices: Term) -> Term:
        return read(entries, [cast(DType.INT64, read(data, indices)) - lowest])

    result = by_index("looked_up", extents(source.value), element)
    planner.write(tensors, result, unit.result)
