"""Quantised units as HVX kernels: functions of elements, sums and products of two, movement.

Sums are exact, and one multiplication by a number of 31 bits and one rounding (halves upwards) make
the codes of a result. What has no form here is computed in floats, as the graph says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graft.backends.hexagon.hvx import Codes, Operand8, join_kernel, pointwise_kernel
from graft.backends.hexagon.plan import LOWER, OTHERS, Planner
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.buffers import Tensors
from graft.byoc.formats.integer_units import FREE, Coded, Unit, extents, looked_up
from graft.ir.graph import Value
from graft.ir.types import TensorType
from graft.loop.build import Term, cast
from graft.loop.ir import Function
from graft.ops.expression import by_index, read, table

_ADDED_BITS = 22  # by which a difference of codes is shifted left before it is scaled
_MOST_BITS = 30  # behind the point of what is rounded


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


def _fraction_bits(factors: Sequence[float]) -> int:
    """Bits behind the point with which differences of codes, times factors, are in range."""
    return min(_ADDED_BITS - 1 - math.frexp(max(factors))[1], _MOST_BITS)


def _operand(data: Coded, factor: float, right: int) -> Operand8:
    """A tensor in steps so fine that what is rounded before a sum hardly shows behind it."""
    multiplier = round(math.ldexp(factor, 32 + right - _ADDED_BITS))
    return Operand8(data.value.dtype, int(data.zero.reshape(())), multiplier, _ADDED_BITS)


@LOWER.entry("add", "subtract")
def _sum(planner: Planner, unit: Unit) -> None:
    """Of two tensors of one shape."""
    left, right = (one.step / unit.target.step for one in unit.operands)
    codes = codes_of(unit, _fraction_bits((left, right)))
    factors = (left, -right if unit.operator.op.name == "subtract" else right)
    pairs = zip(unit.operands, factors, strict=True)
    operands = [_operand(one, factor, codes.right) for one, factor in pairs]
    kernel = pointwise_kernel(operands, math.prod(extents(unit.result)), codes)
    _combine(planner, kernel, unit.operands, unit.result)


@LOWER.entry("multiply", "qnn.dequantize")
def _product(planner: Planner, unit: Unit) -> None:
    """Of tensors of one shape; an activation alone is an operator on one."""
    _multiply(planner, unit, unit.operands, unit.result)


def _multiply(planner: Planner, unit: Unit, data: Sequence[Coded], result: Value) -> None:
    """The product of tensors, or one of them alone, as codes of the unit's result."""
    factor = np.array([math.prod(one.step for one in data) / unit.target.step])
    codes, multipliers, _ = scaled_sums(unit, factor, 255 ** len(data))
    operands = [Operand8(one.value.dtype, int(one.zero.reshape(()))) for one in data]
    count = math.prod(extents(result))
    kernel = pointwise_kernel(operands, count, codes, int(multipliers[0]))
    _combine(planner, kernel, data, result)


def _combine(planner: Planner, kernel: Function, data: Sequence[Coded], result: Value) -> None:
    """The step of a kernel that makes a result of tensors, element by element."""
    if any(extents(one.value) != extents(result) for one in data):
        raise UnsupportedError("operands are broadcast")
    planner.step_on(kernel, [one.value for one in data], result)


@LOWER.entry("reshape", "squeeze", "expand_dims", "transpose", "strided_slice", "concatenate")
def _move(planner: Planner, unit: Unit) -> None:
    """Movement of codes; those of another meaning than the result's are requantised before."""
    node, storage = unit.operator, planner.storage_for(unit.result)
    if unit.bounds != FREE or len(node.outputs) > 1:
        raise UnsupportedError("codes are moved and nothing else")
    moved = [_requantized(planner, unit, source) for source in unit.operands]
    if node.op.name == "concatenate" and node.attrs.axis % len(storage.shape) == storage.order[-1]:
        widths = tuple(extents(one)[node.attrs.axis] for one in moved)
        kernel = join_kernel(storage.dtype, math.prod(storage.shape) // sum(widths), widths)
        planner.step_on(kernel, moved, unit.result)
        return
    tensors = Tensors(planner)
    for value, codes in zip(node.args, moved, strict=True):
        tensors.set(value, tensors.get(codes))
    tensors.add(node, "moved")
    planner.write(tensors, tensors.get(node.output), unit.result, "move")


def _requantized(planner: Planner, unit: Unit, source: Coded) -> Value:
    """Codes of an operand as those of the result."""
    if source.meaning == unit.target.meaning:
        return source.value
    kind = TensorType(unit.result.dtype, extents(source.value))
    result = Value(f"{source.value.name}_moved", kind)
    _multiply(planner, unit, [source], result)
    return result


@LOWER.entry(OTHERS)
def _look_up(planner: Planner, unit: Unit) -> None:
    """Functions of single elements of one tensor, by a table of all that a byte can stand for."""
    source, found = looked_up(unit)
    entries, tensors = table("entries", found), Tensors(planner)
    data, lowest = tensors.get(source.value), int(np.iinfo(source.value.dtype.numpy).min)

    def element(*indices: Term) -> Term:
        return read(entries, [cast(DType.INT64, read(data, indices)) - lowest])

    result = by_index("looked_up", extents(source.value), element)
    planner.write(tensors, result, unit.result, "look up")
