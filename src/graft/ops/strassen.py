"""A dense layer that a compiler has decided to compute by Strassen's algorithm.

It means what `nn.dense` means. `chunk` is how much of the depth is summed up at a time: the choice
is part of the graph, so that it can be seen, printed and kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.ir.attrs import Attrs
from graft.ir.op import Kind, define, get_op
from graft.ir.types import TensorType
from graft.ops.linear import matrix_product
from graft.ops.rules import require


@dataclass(frozen=True, slots=True)
class StrassenAttrs(Attrs):
    chunk: int


def _strassen_type(attrs: StrassenAttrs, data: TensorType, weight: TensorType) -> TensorType:
    (result,) = _DENSE.result_types(Attrs(), (data, weight))
    require(attrs.chunk > 0 and attrs.chunk % 2 == 0, f"a chunk of {attrs.chunk} has no halves")
    depth = None if weight.shape is None else weight.shape[1]
    whole = not isinstance(depth, int) or depth % attrs.chunk == 0
    require(whole, f"chunks of {attrs.chunk} do not make up a depth of {depth}")
    assert isinstance(result, TensorType)
    return result


_DENSE = get_op("nn.dense")

define(
    "nn.dense_strassen",
    "data weight",
    _strassen_type,
    lambda _attrs, data, weight: matrix_product(data, weight.T),
    attrs=StrassenAttrs,
    kind=Kind.ANCHOR,
    work=_DENSE.work,
    summary="a dense layer by Strassen's algorithm, one level deep",
)
