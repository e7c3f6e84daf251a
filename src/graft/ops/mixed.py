"""Convolutions and dense layers by weights of 16-bit floats, summed in float32.

Weights of float16 or bfloat16 and data of the same type or of float32 enter; float32 leaves. Sums
are not rounded to 16 bits on the way: what processors and accelerators with instructions for such
numbers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.op import Kind, define, get_op
from graft.ir.types import TensorType
from graft.loop.build import Term, cast
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.conv import ConvAttrs, convolve
from graft.ops.linear import matrix_product
from graft.ops.rules import operator, require
from graft.ops.window import RANKS, for_rank

HALVES = (DType.FLOAT16, DType.BFLOAT16)


def _type_like(plain: str) -> Callable[..., TensorType]:
    """The type of the operator of that name on the same operands in float32."""
    op = get_op(plain)

    def rule(attrs: Any, data: TensorType, weight: TensorType) -> TensorType:
        require(weight.dtype in HALVES, f"the weight is {weight.dtype}, not float16 or bfloat16")
        fits = data.dtype in (weight.dtype, DType.FLOAT32)
        require(fits, f"the data is {data.dtype}, not {weight.dtype} or float32")
        wide = (TensorType(DType.FLOAT32, one.shape) for one in (data, weight))
        result = op.infer(attrs, *wide)
        assert isinstance(result, TensorType)
        return result

    return rule


def _convolve(attrs: ConvAttrs, data: Array, weight: Array) -> Array:
    return convolve(attrs, data.astype(np.float32), weight.astype(np.float32))


for _rank in RANKS:
    define(
        f"mixed.conv{_rank}d",
        "data weight",
        _type_like(f"nn.conv{_rank}d"),
        _convolve,
        attrs=for_rank(ConvAttrs, _rank),
        kind=Kind.ANCHOR,
        work=get_op(f"nn.conv{_rank}d").work,
        summary=f"nn.conv{_rank}d by float16 or bfloat16 weights, in float32",
    )


@operator(
    "mixed.dense",
    "data weight",
    _type_like("nn.dense"),
    kind=Kind.ANCHOR,
    work=get_op("nn.dense").work,
)
def _dense(_attrs: Attrs, data: Array, weight: Array) -> Array:
    """nn.dense by float16 or bfloat16 weights, in float32."""
    return matrix_product(data.astype(np.float32), weight.astype(np.float32).T)


# Tensor expressions: those of float32 on widened operands.


def _widened(name: str, operand: Tensor) -> Tensor:
    def element(*indices: Term) -> Term:
        return cast(DType.FLOAT32, te.read(operand, indices))

    return te.by_index(name, operand.shape, element)


@te.expresses("mixed.dense", *(f"mixed.conv{rank}d" for rank in RANKS))
def _express(attrs: Any, out: te.Out, data: Tensor, weight: Tensor) -> te.Results:
    is_dense = not hasattr(attrs, "strides")
    plain = get_op("nn.dense" if is_dense else f"nn.conv{len(attrs.strides)}d")
    wide = (_widened(f"{out.name}_data", data), _widened(f"{out.name}_weight", weight))
    return te.express_op(plain, attrs, wide, out.types, out.name)
