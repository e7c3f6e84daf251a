"""Regions as TOSA graphs: quantised units of the graph IR in, a flatbuffer out.

The operator of a unit becomes a `Real`: integers, and the scale and zero point by which they stand
for floats. Nothing is rounded before the quantisation at the unit's end, which is one RESCALE,
except where TOSA's own operators round (`is_rounded`). Images are NHWC everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.backends.ethosu.tosa import Tensor, Tosa
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.base.registry import Registry
from graft.byoc.formats.integer_units import Coded, Unit, extents
from graft.byoc.formats.storage import CHANNELS_LAST
from graft.ir.graph import Graph, Value

_SUM_BITS = 29  # of what is added in 32


@dataclass(frozen=True, slots=True)
class Real:
    """Floats: (tensor - zero) × scale."""

    tensor: Tensor
    scale: Array  # one, or one for each index of the last axis
    zero: int = 0
    largest: int = 255  # that |tensor - zero| can be
    is_rounded: bool = False


Lower = Callable[["Lowering", Unit], Real]
LOWER: Registry[Lower] = Registry("lowering to TOSA")


class Lowering:
    """A region's tensors in TOSA, unit by unit."""

    def __init__(self, region: Graph) -> None:
        self.tosa, self._tensors = Tosa(), dict[Value, Tensor]()
        for value in region.inputs:
            self._tensors[value] = self.tosa.input(extents(value), value.dtype is DType.INT8)
        for node in region.nodes:
            if node.op.name == "layout_transform":  # at the border: inside, all images are NHWC
                self._tensors[node.output] = self._tensors[node.args[0]]
            elif node.op.name == "qnn.quantize":
                self._tensors[node.output] = self._unit(Unit(node, region, broadcasts=True))
        for value in region.outputs:
            self.tosa.output(self._tensors[value], value.dtype is DType.INT8)

    def _unit(self, unit: Unit) -> Tensor:
        name = unit.operator.op.name
        if name not in LOWER:
            raise UnsupportedError(f"{name} has no form in TOSA here")
        whole = LOWER.get(name)(self, unit)
        if unit.added is not None:
            whole = self.total((whole, self.real(unit.added)), unit)
        return self.tosa.clamp(self.quantized(whole, unit.target), *unit.signed_limits)

    def real(self, data: Coded) -> Real:
        """The floats that an operand's bytes stand for."""
        if data.array is None:
            return coded_real(self._tensors[data.value], data)
        codes = data.array.astype(np.int64) - data.shift
        stored = codes.transpose(CHANNELS_LAST) if codes.ndim == 4 else codes
        return coded_real(self.tosa.constant(stored), data)

    def total(self, pair: Sequence[Real], unit: Unit, name: str = "ADD") -> Real:
        """Of two tensors, or of the sums of a layer and a tensor, in steps so fine that what is
        rounded before the sum does not show behind it."""
        step = sum(one.largest * one.scale.max() for one in pair) / (1 << _SUM_BITS)
        wide = [self.widened(one, one.scale / step) for one in pair]
        tensor = self.binary(name, wide, unit)
        return Real(tensor, np.asarray(step), largest=1 << _SUM_BITS)

    def widened(self, data: Real, factor: Array) -> Tensor:
        """Integers of 32 bits, without a zero point."""
        return self.tosa.rescale(data.tensor, factor, data.largest, data.zero, dtype="INT32")

    def binary(self, name: str, pair: Sequence[Tensor], unit: Unit, *more: Tensor) -> Tensor:
        """What an operator makes of two tensors in 32 bits."""
        shape = stored_extents(unit.result)
        if any(len(one.shape) != len(shape) for one in pair):
            raise UnsupportedError("TOSA does not broadcast tensors of different ranks")
        return self.tosa.call(name, (*pair, *more), shape, dtype="INT32")

    def quantized(self, whole: Real, target: Coded) -> Tensor:
        """The bytes that stand for floats."""
        factor, zero, tensor = whole.scale / target.step, target.signed_zero, whole.tensor
        if whole.is_rounded and factor.max() > 1:
            raise UnsupportedError(f"means are rounded to steps {factor.max():.3g} times as large")
        if tensor.dtype == "INT8" and np.all(factor == 1) and whole.zero == zero:
            return tensor
        return self.tosa.rescale(tensor, factor, whole.largest, whole.zero, zero)


def coded_real(tensor: Tensor, data: Coded) -> Real:
    """The floats that bytes in TOSA stand for."""
    return Real(tensor, np.asarray(data.step), data.signed_zero, data.farthest)


def stored_extents(value: Value) -> tuple[int, ...]:
    """The shape of a value in TOSA."""
    shape = extents(value)
    return tuple(shape[axis] for axis in CHANNELS_LAST) if len(shape) == 4 else shape
