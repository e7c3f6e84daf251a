"""A TOSA graph while it is written, by Arm's own serialiser.

TOSA (https://www.mlplatform.org/tosa) is the integer language that Vela compiles for Ethos-U and
that Arm's reference model runs: one file says what the chip has to compute, to the bit. The graph
computes in signed bytes; an uint8 is shifted by 128 where it enters or leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tosa_serializer

from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import SIGN, fixed_point
from graft.byoc.formats.storage import CHANNELS_LAST

LOWEST, HIGHEST = -128, 127
IGNORED = tosa_serializer.NanPropagationMode.PROPAGATE  # of integers, which have no NaN
_NCHW = (0, 3, 1, 2)  # the axes of NHWC
_FEWEST_BITS = 2  # that a RESCALE shifts by


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "INT8"


class Tosa:
    """The graph; each method adds to it and gives the result."""

    def __init__(self) -> None:
        self._graph = tosa_serializer.TosaSerializer()
        self._made: dict[str, Any] = {}  # by operators, and not given out yet

    def serialized(self) -> bytes:
        """The graph as a flatbuffer."""
        return bytes(self._graph.serialize())

    def input(self, shape: Sequence[int], signed: bool) -> Tensor:
        data = Tensor(self._graph.addPlaceholder(list(shape), _dtype("INT8")).name, tuple(shape))
        if signed:
            return data
        return self.rescale(data, np.ones(()), 255, zero=SIGN, unsigned=(True, False))

    def output(self, data: Tensor, signed: bool) -> None:
        if not signed:
            data = self.rescale(data, np.ones(()), 255, to_zero=SIGN, unsigned=(False, True))
        elif data.name not in self._made:  # an input, or an output already
            data = self.call("IDENTITY", (data,), data.shape)
        self._graph.addOutputTensor(self._made.pop(data.name))

    def constant(self, array: Array, dtype: str = "INT8") -> Tensor:
        values = array if dtype == "SHAPE" else array.astype(dtype.lower())
        made = self._graph.addConst(list(array.shape), _dtype(dtype), values)
        return Tensor(made.name, tuple(array.shape), dtype)

    def numbers(self, *values: int, dtype: str = "INT8") -> Tensor:
        """A constant vector; those of the type `SHAPE` are extents and offsets of operators."""
        return self.constant(np.asarray(values, np.int64), dtype)

    def call(
        self,
        name: str,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        *attributes: Any,
        dtype: str = "INT8",
    ) -> Tensor:
        """The result of an operator, with attributes in the order of TOSA's schema."""
        made = self._graph.addIntermediate(list(shape), _dtype(dtype))
        kind = "".join(word.capitalize() for word in name.split("_"))
        held = tosa_serializer.TosaSerializerAttribute()
        getattr(held, f"{kind}Attribute")(*attributes)
        operator = getattr(tosa_serializer.Op, name)
        self._graph.addOperator(operator, [one.name for one in inputs], [made.name], held)
        self._made[made.name] = made
        return Tensor(made.name, tuple(shape), dtype)

    def reshape(self, data: Tensor, shape: Sequence[int]) -> Tensor:
        if data.shape == tuple(shape):
            return data
        operands = (data, self.numbers(*shape, dtype="SHAPE"))
        return self.call("RESHAPE", operands, shape, dtype=data.dtype)

    def transpose(self, data: Tensor, axes: Sequence[int]) -> Tensor:
        shape = [data.shape[axis] for axis in axes]
        moved = [axis for axis in axes if data.shape[axis] > 1]
        if moved == sorted(moved):  # every element stays where it is
            return self.reshape(data, shape)
        return self.call("TRANSPOSE", (data,), shape, list(axes), dtype=data.dtype)

    def row_major(self, data: Tensor) -> Tensor:
        """A tensor with its axes in the order of the graph IR, which has images as NCHW."""
        return self.transpose(data, _NCHW) if len(data.shape) == 4 else data

    def channels_last(self, data: Tensor) -> Tensor:
        """The inverse of `row_major`."""
        return self.transpose(data, CHANNELS_LAST) if len(data.shape) == 4 else data

    def slice(self, data: Tensor, starts: Sequence[int], shape: Sequence[int]) -> Tensor:
        if data.shape == tuple(shape):
            return data
        operands = (data, *(self.numbers(*one, dtype="SHAPE") for one in (starts, shape)))
        return self.call("SLICE", operands, shape, dtype=data.dtype)

    def clamp(self, data: Tensor, low: int, high: int) -> Tensor:
        if (low, high) == (LOWEST, HIGHEST):
            return data
        bounds = ([low & 0xFF], [high & 0xFF])
        return self.call("CLAMP", (data,), data.shape, *bounds, IGNORED)

    def rescale(
        self,
        data: Tensor,
        factor: Array,  # one, or one for each index of the last axis
        largest: int,  # that |data - zero| can be
        zero: int = 0,
        to_zero: int = 0,
        dtype: str = "INT8",
        unsigned: tuple[bool, bool] = (False, False),  # the operand, the result
    ) -> Tensor:
        """round((data - zero) × factor) + to_zero, saturated; halves are rounded upwards."""
        multipliers, bits = fixed_point(np.atleast_1d(factor), _FEWEST_BITS)
        room = 1 << int(bits.min() - 1)
        if largest >= room:
            raise UnsupportedError(f"sums of up to {largest:,} times {factor.max():.3g} overflow")
        operands = (
            data,
            self.constant(multipliers, "INT32"),
            self.constant(bits),
            self.constant(np.array([zero]).astype(np.int32), data.dtype),
            self.constant(np.array([to_zero]).astype(np.int32), dtype),
        )
        rounding = tosa_serializer.RoundingMode.SINGLE_ROUND
        attributes = (True, rounding, multipliers.size > 1, *unsigned)
        return self.call("RESCALE", operands, data.shape, *attributes, dtype=dtype)


def _dtype(name: str) -> Any:
    return getattr(tosa_serializer.DType, name)
