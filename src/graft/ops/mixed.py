"""Convolutions and dense layers by weights narrower than the data, summed in float32.

Weights of float16 or bfloat16 and data of the same type or of float32 enter; float32 leaves. Sums
are not rounded to 16 bits on the way: what processors and accelerators with instructions for such
numbers do. Dense layers may have weights of 4 bits with a scale for each block of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.op import Kind, Work, define, get_op, traffic
from graft.ir.types import TensorType, Type
from graft.loop.build import Term, cast
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.conv import ConvAttrs, convolve
from graft.ops.linear import matrix_product
from graft.ops.rules import operator, require
from graft.ops.window import RANKS, for_rank

HALVES = (DType.FLOAT16, DType.BFLOAT16)
NIBBLES = (DType.INT4, DType.UINT4)


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


@dataclass(frozen=True, slots=True)
class BlockAttrs(Attrs):
    block_size: int


def _block_type(
    attrs: BlockAttrs,
    data: TensorType,
    codes: TensorType,
    scale: TensorType,
    zero: TensorType | None,
) -> TensorType:
    require(codes.dtype in NIBBLES, f"the codes are {codes.dtype}, not int4 or uint4")
    require(data.dtype is DType.FLOAT32, f"the data is {data.dtype}, not float32")
    is_real = scale.dtype in (DType.FLOAT16, DType.FLOAT32)
    require(is_real, f"the scale is {scale.dtype}, not float16 or float32")
    is_byte = zero is None or zero.dtype is DType.UINT8
    require(is_byte, "the zero points are not uint8")
    if codes.shape is not None:
        units, inputs = codes.shape
        whole = attrs.block_size > 0 and isinstance(inputs, int) and inputs % attrs.block_size == 0
        require(whole, f"{inputs} inputs are no blocks of {attrs.block_size}")
        blocks = (units, inputs // attrs.block_size) if isinstance(inputs, int) else None
        same = all(one is None or one.shape in (None, blocks) for one in (scale, zero))
        require(same, f"the scales or zero points are not of {blocks}")
    wide = (TensorType(DType.FLOAT32, one.shape) for one in (data, codes))
    result = get_op("nn.dense").infer(Attrs(), *wide)
    assert isinstance(result, TensorType)
    return result


def _block_work(attrs: Attrs, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
    plain: Work = get_op("nn.dense").work(attrs, ins[:2], outs)
    return plain.with_bytes(traffic(ins, outs))


@operator(
    "mixed.block_dense",
    "data codes scale zero_point?",
    _block_type,
    kind=Kind.ANCHOR,
    work=_block_work,
)
def _block_dense(
    attrs: BlockAttrs, data: Array, codes: Array, scale: Array, zero_point: Array | None
) -> Array:
    """nn.dense by weights of 4 bits less a zero point, times a scale, both of each block of inputs.

    Sums are in float32."""
    weight = codes.astype(np.float32)
    if zero_point is not None:
        weight -= np.repeat(zero_point.astype(np.float32), attrs.block_size, axis=1)
    weight *= np.repeat(scale.astype(np.float32), attrs.block_size, axis=1)
    return matrix_product(data, weight.T)


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


@te.expresses("mixed.block_dense")
def _express_blocks(attrs: Any, out: te.Out, data: Tensor, *weights: Tensor | None) -> te.Results:
    codes, scale, zero_point = (*weights, None)[:3]
    assert codes is not None
    assert scale is not None

    def element(unit: Term, step: Term) -> Term:
        block = (unit, step // attrs.block_size)
        value = cast(DType.FLOAT32, te.read(codes, (unit, step)))
        if zero_point is not None:
            value = value - cast(DType.FLOAT32, te.read(zero_point, block))
        return value * cast(DType.FLOAT32, te.read(scale, block))

    weight = te.by_index(f"{out.name}_weight", codes.shape, element)
    return te.express_op(get_op("nn.dense"), Attrs(), (data, weight), out.types, out.name)
