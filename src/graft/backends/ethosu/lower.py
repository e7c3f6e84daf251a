"""Regions as TOSA graphs: quantised units of the graph IR in, integers out.

Within a unit the IR computes in floats. Here each of these is a `Real`: integers, and the scale and
zero point by which they stand for floats. Nothing is rounded before the quantisation at a unit's
end, which becomes one RESCALE, except where TOSA's own operators round (`is_rounded`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graft.backends.ethosu.tosa import Tensor, Tosa
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import SIGN, Coded, coded
from graft.ir.graph import Graph, Node, Value

_NHWC = (0, 3, 1, 2)  # where the axes of NCHW are in it


@dataclass(frozen=True, slots=True)
class Real:
    """Floats: (tensor - zero) × scale within bounds, or what `table` says of each byte."""

    tensor: Tensor
    scale: Array  # one, or one for each channel
    zero: int = 0
    largest: int = 255  # that |tensor - zero| can be
    low: float = -math.inf
    high: float = math.inf
    table: Array | None = None
    is_rounded: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """Floats side by side, which have scales of their own until they are quantised."""

    parts: tuple[Real, ...]
    axis: int


Lower = Callable[["Lowering", Node], Real | Joined | Coded]
LOWER: dict[str, Lower] = {}


def lowers(*names: str) -> Callable[[Lower], Lower]:
    """Say of a function which operators it lowers."""

    def register(function: Lower) -> Lower:
        LOWER.update(dict.fromkeys(names, function))
        return function

    return register


class Lowering:
    """What the values of a region have become: bytes, and floats between these."""

    def __init__(self, region: Graph) -> None:
        self.region, self.tosa = region, Tosa()
        self.tensors: dict[Value, Tensor] = {}
        self.floats: dict[Value, Real | Joined | Coded] = {}

    def lower(self, node: Node) -> None:
        name = node.op.name
        if name == "qnn.quantize":
            whole = self.floats[node.args[0]]
            self.tensors[node.output] = self.quantized(whole, coded(node, self.region))
        elif name in LOWER:
            self.floats[node.output] = LOWER[name](self, node)
        elif name != "constant":
            raise UnsupportedError(f"{name} has no form in TOSA here")

    def constant(self, value: Value) -> Coded:
        """Floats that constants stand for."""
        node = self.region.producers[value]
        found = coded(node, self.region) if node.op.name == "qnn.dequantize" else None
        if found is None or found.array is None:
            raise UnsupportedError(f"%{value.name} is not constant")
        return found

    def real(self, value: Value) -> Real:
        """Floats that a tensor of bytes stands for; constants become one here."""
        found = self.floats[value]
        if isinstance(found, Coded):
            tensor = self.tosa.constant(signed(found))
            return Real(tensor, np.asarray(found.step), found.offset - SIGN, found.farthest)
        if isinstance(found, Joined):
            raise UnsupportedError("a concatenation is not quantised right behind it")
        return found

    def unbounded(self, value: Value) -> Real:
        """As `real`, of integers that stand for floats as they are: bytes, or sums."""
        found = self.real(value)
        if found.table is not None or (found.low, found.high) != (-math.inf, math.inf):
            raise UnsupportedError(f"%{value.name} is a function of its integers")
        return found

    def bytes_of(self, value: Value) -> Real:
        """As `unbounded`, of what is not computed yet: operands of layers."""
        found = self.unbounded(value)
        if found.tensor.dtype != "INT8":
            raise UnsupportedError(f"%{value.name} is not a tensor of bytes")
        return found

    def quantized(self, whole: Real | Joined | Coded, target: Coded) -> Tensor:
        """The bytes that stand for floats."""
        if isinstance(whole, Joined):
            parts = [self.quantized(one, target) for one in whole.parts]
            shape = list(parts[0].shape)
            shape[whole.axis] = sum(part.shape[whole.axis] for part in parts)
            return self.tosa.call("CONCAT", parts, shape, whole.axis)
        if isinstance(whole, Coded):
            raise UnsupportedError("nothing but constants")
        if whole.table is not None:
            entries = self.tosa.constant(_codes(whole.table, target))
            return self.tosa.call("TABLE", (whole.tensor, entries), whole.tensor.shape)
        factor, zero, tensor = whole.scale / target.step, target.offset - SIGN, whole.tensor
        if whole.is_rounded and factor.max() > 1:
            raise UnsupportedError(f"means are rounded to steps {factor.max():.3g} times as large")
        if tensor.dtype != "INT8" or np.any(factor != 1) or whole.zero != zero:
            tensor = self.tosa.rescale(tensor, factor, whole.largest, whole.zero, zero)
        return self.tosa.clamp(tensor, *map(int, _codes(np.array([whole.low, whole.high]), target)))


def _codes(floats: Array, target: Coded) -> Array:
    """Signed bytes that stand for floats; NaN is zero."""
    shift = SIGN if target.value.dtype is DType.UINT8 else 0
    return target.codes(np.nan_to_num(floats, nan=0.0, posinf=math.inf, neginf=-math.inf)) - shift


def signed(constant: Coded) -> Array:
    """Constant bytes as signed ones."""
    assert constant.array is not None
    shift = SIGN if constant.value.dtype is DType.UINT8 else 0
    return np.asarray(constant.array.astype(np.int64) - shift)


def axis_of(axis: int, rank: int) -> int:
    """Where an axis of the IR is, which counts those of images as NCHW."""
    return _NHWC[axis % rank] if rank == 4 else axis % rank


@lowers("qnn.dequantize")
def _dequantize(lowering: Lowering, node: Node) -> Real | Coded:
    found = coded(node, lowering.region)
    if found.array is not None:
        return found
    tensor, scale = lowering.tensors[found.value], np.asarray(found.step)
    return Real(tensor, scale, found.offset - SIGN, found.farthest)
