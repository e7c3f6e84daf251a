"""Random numbers."""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import Lowering, lowers, lowers_to
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value

lowers_to("RandomNormal", "random.normal", "mean scale seed shape dtype")
lowers_to("RandomUniform", "random.uniform", "low high seed shape dtype")
lowers_to("Multinomial", "random.multinomial", "sample_size seed dtype")


def _dtype(call: Call, like: Value) -> DType:
    return dtype_from_onnx(call.int("dtype")) if call.has("dtype") else like.dtype


def _like(name: str, parameters: str) -> Lowering:
    """Random numbers in another tensor's shape, and in its dtype unless one is given."""

    def lower(call: Call) -> Value:
        like = call.input(0)
        attributes = call.attributes(name, parameters)
        return call.op(name, call.op("shape_of", like), dtype=_dtype(call, like), **attributes)

    return lower


lowers("RandomNormalLike")(_like("random.normal", "mean scale seed"))
lowers("RandomUniformLike")(_like("random.uniform", "low high seed"))


@lowers("Bernoulli")
def _bernoulli(call: Call) -> Value:
    odds = call.input(0)
    dtype = _dtype(call, odds)
    if odds.dtype not in (DType.FLOAT32, DType.FLOAT64):
        odds = call.op("cast", odds, dtype=DType.FLOAT32)  # small odds need fine draws
    shape, seed = call.op("shape_of", odds), call.float("seed", None)
    draws = call.op("random.uniform", shape, seed=seed, dtype=odds.dtype)
    return call.op("cast", call.op("less", draws, odds), dtype=dtype)
