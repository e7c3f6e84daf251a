"""Convolutions and products of narrow integers: those of int32 on widened operands."""

from __future__ import annotations

from typing import Any

from graft.base.dtypes import DType
from graft.loop.build import Term, cast
from graft.loop.tensor import Tensor
from graft.ops.expression.convolution import convolution
from graft.ops.expression.product import batch_matmul, dense
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import by_index, present, read, single
from graft.ops.integer import HALF
from graft.ops.window import RANKS


def _widened(inputs: Inputs, name: str) -> tuple[Tensor, Tensor]:
    """The data less their zero point and the weights, in int32."""
    data, weight, zero_point = present(inputs[0]), present(inputs[1]), inputs[2]

    def centred(*indices: Term) -> Term:
        value = cast(DType.INT32, read(data, indices))
        return value if zero_point is None else value - cast(DType.INT32, single(zero_point))

    def factor(*indices: Term) -> Term:
        return cast(DType.INT32, read(weight, indices))

    return (
        by_index(f"{name}_data", data.shape, centred),
        by_index(f"{name}_weight", weight.shape, factor),
    )


@expresses(*(f"qnn.conv{rank}d" for rank in RANKS))
def integer_convolution(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    return convolution(attrs, _widened(inputs, name), types, name)


@expresses("qnn.dense")
def integer_dense(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    return dense(attrs, _widened(inputs, name), types, name)


@expresses("qnn.batch_matmul")
def byte_product(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    left, right = map(present, inputs)

    def wide(of: Tensor, called: str, shift: int) -> Tensor:
        def element(*indices: Term) -> Term:
            return cast(DType.INT32, read(of, indices)) + shift

        return by_index(f"{name}_{called}", of.shape, element)

    operands = (
        wide(left, "left", HALF if left.dtype is DType.INT8 else 0),
        wide(right, "right", -HALF if right.dtype is DType.UINT8 else 0),
    )
    return batch_matmul(attrs, operands, types, name)
