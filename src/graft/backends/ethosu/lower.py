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

from graft.backends.ethosu.tosa import HIGHEST, LOWEST, SHIFT, Tensor, Tosa
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.ir.graph import Graph, Node, Value

_NHWC = (0, 3, 1, 2)  # where the axes of NCHW are in it


@dataclass(frozen=True, slots=True)
class Coded:
    """Constant floats: integers of 8 or 32 bits with their scales and zero points."""

    array: Array
    scale: Array
    zero: Array
    axis: int  # which scales and zero points go along, where there are several


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

    def __post_init__(self) -> None:
        if not np.all((self.scale > 0) & (self.scale < math.inf)):
            raise UnsupportedError("a scale is not positive")


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
    """What the values of a region have become: constants, bytes, and floats between these."""

    def __init__(self, region: Graph) -> None:
        self.region, self.tosa = region, Tosa()
        self.constants: dict[Value, Array] = {}
        self.tensors: dict[Value, Tensor] = {}
        self.floats: dict[Value, Real | Joined | Coded] = {}
        self.biases: set[Node] = set()  # that layers have added

    def lower(self, node: Node) -> None:
        name = node.op.name
        if name == "constant":
            self.constants[node.output] = node.attrs.value.array
        elif name == "qnn.quantize":
            scale, zero = self.parameters(node)
            whole = self.floats[node.args[0]]
            self.tensors[node.output] = self.quantized(whole, scale, int(zero))
        elif name in LOWER:
            self.floats[node.output] = LOWER[name](self, node)
        else:
            raise UnsupportedError(f"{name} has no form in TOSA here")

    def parameters(self, node: Node) -> tuple[Array, Array]:
        """Scale and zero point of a (de)quantisation, the latter of signed bytes."""
        coded = node.output if node.op.name == "qnn.quantize" else node.args[0]
        if coded.dtype not in (DType.INT8, DType.UINT8, DType.INT32):
            raise UnsupportedError(
                f"%{coded.name} is {coded.dtype}, and the device computes in int8"
            )
        if getattr(node.attrs, "block_size", 0):
            raise UnsupportedError("scales of blocks")
        scale = self.constants[node.args[1]].astype(np.float64)
        zero = self.constants[node.args[2]] if len(node.args) > 2 else np.zeros((), np.int64)
        zero = zero.astype(np.int64) - (SHIFT if coded.dtype is DType.UINT8 else 0)
        if coded not in self.constants and scale.size > 1:
            raise UnsupportedError(f"%{coded.name} has scales of its own for channels of data")
        return (scale, zero) if coded in self.constants else (scale.reshape(()), zero.reshape(()))

    def real(self, value: Value) -> Real:
        """Floats that a tensor of bytes stands for; constants become one here."""
        found = self.floats[value]
        if isinstance(found, Coded):
            if found.scale.size > 1 or np.abs(found.array).max(initial=0) > SHIFT:
                raise UnsupportedError(f"the constant %{value.name} has scales per channel")
            tensor = self.tosa.constant(found.array)
            return Real(tensor, found.scale.reshape(()), int(found.zero.reshape(())))
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

    def quantized(self, whole: Real | Joined | Coded, scale: Array, zero: int) -> Tensor:
        """The bytes that stand for floats."""
        if isinstance(whole, Joined):
            parts = [self.quantized(one, scale, zero) for one in whole.parts]
            shape = list(parts[0].shape)
            shape[whole.axis] = sum(part.shape[whole.axis] for part in parts)
            return self.tosa.call("CONCAT", parts, shape, whole.axis)
        if isinstance(whole, Coded):
            raise UnsupportedError("nothing but constants")
        if whole.table is not None:
            entries = self.tosa.constant(_codes(whole.table, scale, zero))
            return self.tosa.call("TABLE", (whole.tensor, entries), whole.tensor.shape)
        factor = whole.scale / scale
        if whole.is_rounded and factor.max() > 1:
            raise UnsupportedError(f"means are rounded to steps {factor.max():.3g} times as large")
        tensor = whole.tensor
        if tensor.dtype != "INT8" or np.any(factor != 1) or whole.zero != zero:
            tensor = self.tosa.rescale(tensor, factor, whole.largest, whole.zero, zero)
        bounds = _codes(np.array([whole.low, whole.high]), scale, zero)
        return self.tosa.clamp(tensor, *map(int, bounds))


def _codes(floats: Array, scale: Array, zero: int) -> Array:
    """Bytes that stand for floats, rounded as ONNX does."""
    wide: Array = np.nan_to_num(np.rint(floats.astype(np.float64) / scale) + zero, nan=zero)
    return wide.clip(LOWEST, HIGHEST).astype(np.int64)


def shape_of(value: Value) -> tuple[int, ...]:
    """Static extents."""
    return tuple(int(str(extent)) for extent in value.tensor.shape or ())


def farthest(zero: int) -> int:
    """How far a byte can be from a zero point."""
    return max(abs(LOWEST - zero), abs(HIGHEST - zero))


def axis_of(axis: int, rank: int) -> int:
    """Where an axis of the IR is, which counts those of images as NCHW."""
    return _NHWC[axis % rank] if rank == 4 else axis % rank


@lowers("qnn.dequantize")
def _dequantize(lowering: Lowering, node: Node) -> Real | Coded:
    (scale, zero), data = lowering.parameters(node), node.args[0]
    if data in lowering.constants:
        codes = lowering.constants[data].astype(np.int64)
        codes -= SHIFT if data.dtype is DType.UINT8 else 0
        return Coded(codes, scale, zero, node.attrs.axis % max(codes.ndim, 1))
    return Real(lowering.tensors[data], scale, int(zero), farthest(int(zero)))
